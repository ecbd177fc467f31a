"""The streams of a cluster as the home of epochs reaches them (`logstore.epochs.remote_publisher.Streams`).

Invariants:
* A group is sent once for each `append`, and is not kept here: whoever gives it sends it again, over lost hosts and new
  owners, until the owner of the stream says that the group is in it, that it refuses the group for good, or until the
  topic is gone.
* A topic is gone only if the metadata store, as that of this cluster, says so: what this host and the owner know of
  topics may be late, and a store that was emptied knows none.
* A group of which the owner says that it is under way is sent again ever more seldom: to look whether it is there.
* Deliveries end with `run`: the next home of epochs has the decisions, and delivers for itself.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import trio

from logstore.base.events import Report
from logstore.cluster.streams.group_entry import check_group_bytes
from logstore.cluster.streams.owner_calls import APPEND_GROUP, FIND_END, OwnerCalls, fields_of
from logstore.cluster.streams.stream_place import StreamPlace
from logstore.cluster.streams.topics import ClusterTopics
from logstore.epochs.group_order import GroupOrder, encode_order
from logstore.epochs.ledger_entries import Target
from logstore.epochs.remote_publisher import Place, StreamEnd, TargetStream
from logstore.errors import (
    CairnError,
    CorruptBatch,
    HostUnreachable,
    InvalidRecord,
    InvalidTopic,
    MessageTooLarge,
    TryAgain,
    UnknownTopicOrPartition,
)
from logstore.events import GROUP_WAITS
from logstore.format.fields import Fields, encode_fields, get_int
from logstore.interfaces import Buffer
from logstore.log.ticket import Ticket

FIRST_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 1.0
"""Between two tries to reach the owner of a stream, unless the cluster changes before."""
UNDER_WAY_PAUSE_S: Final = 5.0
"""At most, while the owners of all streams that are left answer, and their groups are not acknowledged."""
MAX_DOUBLINGS: Final = 10
LOCATE_S: Final = 20.0
"""How long a commit waits for the owners of its streams; nothing is decided then."""
REPORT_AFTER: Final = 5
"""Tries in a row."""
FOR_GOOD: Final = (CorruptBatch, InvalidRecord, MessageTooLarge)
"""What the owner says of a group that it will never take."""
_INT64_MAX: Final = 2**63 - 1
T = TypeVar("T")


class GroupDelivery:
    """See the module. `run` must run."""

    def __init__(self, topics: ClusterTopics, owners: OwnerCalls, report: Report) -> None:
        self._topics = topics
        self._owners = owners
        self._report = report
        self._nursery: trio.Nursery | None = None
        self._tries: dict[tuple[str, Place], int] = {}
        """Tries in a row that nobody has answered, of those that are made again."""
        self._under_way: set[tuple[str, Place]] = set()
        """Those of them whose owner has answered last that the group is under way, or is looked for."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver, until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    # ---- what the publisher asks

    def find(self, topic: str, partition: int) -> TargetStream:
        """See Streams."""
        stream, found = self._topics.stream(topic, partition), self._topics.topic(topic)
        if stream.is_internal:
            raise InvalidTopic(f"{topic} is internal to the cluster: queries do not write to it")
        return TargetStream(str(found.topic_id), stream.config)

    def check_group(self, name: str, size_bytes: int) -> None:
        """See Streams."""
        check_group_bytes(name, size_bytes)

    def ends(self, places: Sequence[Place]) -> Ticket[Mapping[Place, StreamEnd]]:
        """See Streams."""
        return self._start(lambda: self._ends(places))

    def append(self, order: GroupOrder) -> Ticket[bool]:
        """See Streams."""
        return self._start(lambda: self._append(order))

    def ready(self, query: str, targets: Sequence[Target], tries: int) -> Ticket[Sequence[Target]]:
        """See Streams."""
        return self._start(lambda: self._ready(query, targets, tries))

    async def _ready(self, query: str, targets: Sequence[Target], tries: int) -> Sequence[Target]:
        """A stream without an owner is not asked; one whose topic this host does not know may be gone."""
        are_under_way = all((f"{query!r}", (each.topic, each.partition)) in self._under_way for each in targets)
        most_s = UNDER_WAY_PAUSE_S if are_under_way else MAX_PAUSE_S
        pause_s = min(FIRST_PAUSE_S * 2 ** min(tries - 1, MAX_DOUBLINGS), most_s)
        while True:
            await self._pause(pause_s)
            ready = [target for target in targets if self._may_answer(target)]
            if ready:
                return ready
            for target in targets:
                error = HostUnreachable("no host owns the stream now")
                self._note_try(f"{query!r}", (target.topic, target.partition), error)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _may_answer(self, target: Target) -> bool:
        stream = StreamPlace(target.topic, uuid.UUID(target.topic_id).hex, target.partition).stream
        return not self._is_known(target.topic, target.topic_id) or self._owners.owner_of(stream) is not None

    def _is_known(self, topic: str, topic_id: str) -> bool:
        known = self._topics.topics.get(topic)
        return known is not None and str(known.topic_id) == topic_id

    def _note_try(self, whose: str, place: Place, error: CairnError) -> None:
        tries = self._tries[whose, place] = self._tries.get((whose, place), 0) + 1
        if type(error) is TryAgain:  # others of its kind say that the owner is another one, or has no room
            self._under_way.add((whose, place))
        else:
            self._under_way.discard((whose, place))
        if tries % REPORT_AFTER == 0:
            self._report(GROUP_WAITS, topic=place[0], partition=place[1], tries=tries, error=str(error))

    def _forget_tries(self, whose: str, place: Place) -> None:
        self._tries.pop((whose, place), None)
        self._under_way.discard((whose, place))

    async def _pause(self, pause_s: float) -> None:
        with trio.move_on_after(pause_s):
            await self._owners.changed()

    def _start(self, work: Callable[[], Awaitable[T]]) -> Ticket[T]:
        ticket: Ticket[T] = Ticket()

        async def run() -> None:
            try:
                result = await work()
            except CairnError as error:
                ticket.fail(error)
            else:
                ticket.succeed(result)

        if self._nursery is None:
            return Ticket.failed(TryAgain("this host no longer has the epochs of queries; retry"))
        self._nursery.start_soon(run)
        return ticket

    # ---- ends

    async def _ends(self, places: Sequence[Place]) -> Mapping[Place, StreamEnd]:
        found: dict[Place, StreamEnd | None] = {}
        with trio.move_on_after(LOCATE_S):
            async with trio.open_nursery() as nursery:
                for place in places:
                    nursery.start_soon(self._end, place, found)
        missing = [f"{topic}-{partition}" for topic, partition in places if (topic, partition) not in found]
        if missing:
            raise TryAgain(f"the owners of {', '.join(missing[:5])} did not answer in {LOCATE_S:g} s; retry")
        return {place: end for place, end in found.items() if end is not None}

    async def _end(self, place: Place, found: dict[Place, StreamEnd | None]) -> None:
        """Where a stream ends; None: it is gone."""
        try:
            topic_id = self.find(*place).topic_id
            payload = encode_fields({"topic_id": topic_id, "partition": place[1]})
            answer, pause_s = None, FIRST_PAUSE_S
            while answer is None:
                answer = await self._asked(place, topic_id, FIND_END, [payload], f"{place}")
                if answer is None:
                    await self._pause(pause_s)
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
            found[place] = StreamEnd(topic_id, get_int(answer, "end", 0, _INT64_MAX))
        except UnknownTopicOrPartition:
            found[place] = None

    # ---- groups

    async def _append(self, order: GroupOrder) -> bool:
        """Send a group once; whether its stream has it."""
        target = order.target
        place, whose = (target.topic, target.partition), f"{order.query!r}"
        return await self._asked(place, target.topic_id, APPEND_GROUP, encode_order(order), whose) is not None

    async def _asked(
        self, place: Place, topic_id: str, kind: int, payload: Sequence[Buffer], whose: str
    ) -> Fields | None:
        """Ask the owner of a stream once; None: it did not answer, or cannot do it now. `whose`: tries are counted for
        this name. Raises UnknownTopicOrPartition, FOR_GOOD.
        """
        stream = StreamPlace(place[0], uuid.UUID(topic_id).hex, place[1]).stream
        try:
            answer = fields_of(await self._owners.call(stream, kind, payload))
        except FOR_GOOD:
            self._forget_tries(whose, place)
            raise
        except CairnError as error:
            if await self._is_gone(place[0], topic_id, error):
                self._forget_tries(whose, place)
                raise UnknownTopicOrPartition(f"topic {place[0]!r} with id {topic_id} has been deleted") from error
            self._note_try(whose, place, error)
            return None
        self._forget_tries(whose, place)
        return answer

    async def _is_gone(self, topic: str, topic_id: str, error: CairnError) -> bool:
        """Whether the metadata store says that a topic is deleted; asked if a host does not know it."""
        if self._is_known(topic, topic_id) and not isinstance(error, UnknownTopicOrPartition):
            return False
        try:
            return await self._topics.is_deleted(topic, uuid.UUID(topic_id))
        except CairnError:  # the metadata store is away, or not this cluster's: nobody knows
            return False
