"""Appends the groups of epochs to the streams that this host owns, each once, whoever sends them and how often.

Invariants:
* Before a group is appended it is certain that the stream does not have its epoch: what this ownership has appended is
  noted as it is acknowledged, what lies in front was searched from the offset at which the epoch was decided.
* A call does not search: a task of the stream's owner does (`end_searches`), and a call waits for it for a moment only.
* Between that certainty and the append nothing else runs. A group that is under way is not appended again: whoever
  sends it meanwhile waits for the first.
* Where a stream begins behind the offset at which an epoch was decided, and no END is found, the home of epochs is
  asked whether the epoch is under way (`logstore.cluster.epochs.epoch_holds`). If it is, nothing was trimmed behind
  END, and the group never came; if it is over, the group was there, and was trimmed. So a group is lost no more than it
  is there twice, also if the offset was said by an owner that had been replaced.
* A chunk that cannot be read may have END, so a group whose epoch may be there waits. If an operator has said so of the
  chunk (`logstore.cluster.streams.takeover_waits`), it counts as one without END, and the group is appended behind it:
  it is there twice if the chunk had it and comes back, and never missing. Groups that come later search the chunk anew.
* Another host waits for a group that is under way no longer than WAIT_S, and asks again: a stream that waits for its
  members holds up no groups for other streams, of which a host calls for few at a time. MAX_WAITING calls of a host,
  with MAX_WAITING_BYTES, wait so long; others are answered after BRIEF_WAIT_S, or at once if their group was under way
  before, or the stream is known to lack members.
* When the ownership ends, all that is known of the stream goes with it. The next owner searches what this one has left.

So a group that a former home of epochs has sent, and that arrives late, is acknowledged and changes nothing.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from logstore.base.clock import Clock
from logstore.cluster.epochs.end_searches import ControlReads, LostChunks, NoLostChunks, StreamSearch
from logstore.cluster.interfaces import Spawn
from logstore.cluster.streams.owner_calls import APPEND_GROUP, FIND_END, CallServer, answered
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import ClusterTopics
from logstore.epochs.group_order import GroupOrder, decode_order
from logstore.epochs.stream_ends import StreamEnds
from logstore.errors import MalformedRequest, TryAgain, UnknownTopicOrPartition
from logstore.format.fields import decode_fields, get_int, get_name
from logstore.interfaces import Buffer
from logstore.log.stream_state import AppendResult
from logstore.log.ticket import Ticket


class EpochsUnderWay(Protocol):
    """Knows which epochs are under way (`logstore.cluster.epochs.epoch_holds`)."""

    async def is_under_way(self, order: GroupOrder, /) -> bool:
        """Whether the epoch of a group may not be in its stream yet. Raises CairnError: it is not known now."""


WAIT_S: Final = 5.0
BRIEF_WAIT_S: Final = 0.5
"""More than members take, and than a failed one costs where another host stands in for it."""
MAX_WAITING: Final = 64
MAX_WAITING_BYTES: Final = 2 << 20
"""Or one larger group. A quarter of what a host has under way of a kind of calls (`logstore.cluster.links.calls`)."""
MAX_FORGOTTEN: Final = 1_000
"""Streams whose ownership has ended and that may still be kept."""
_INT32_MAX: Final = 2**31 - 1


@dataclass(slots=True)
class _OwnedStream:
    """What is known of a stream during one ownership. `under_way`: groups that are not acknowledged."""

    ownership: int
    ends: StreamEnds
    search: StreamSearch
    under_way: dict[tuple[str, int], Ticket[None]] = field(default_factory=dict)


class _LongWaits:
    """The calls of one host that wait for WAIT_S."""

    def __init__(self) -> None:
        self._calls = self._bytes = 0

    @contextmanager
    def place(self, size_bytes: int) -> Iterator[bool]:
        """Whether one more may wait meanwhile."""
        has_room = self._calls < MAX_WAITING and self._bytes + size_bytes <= MAX_WAITING_BYTES
        if self._calls and not has_room:
            yield False
            return
        self._calls, self._bytes = self._calls + 1, self._bytes + size_bytes
        try:
            yield True
        finally:
            self._calls, self._bytes = self._calls - 1, self._bytes - size_bytes


class GroupAppends:
    """See the module."""

    def __init__(
        self,
        topics: ClusterTopics,
        reads: ControlReads,
        epochs: EpochsUnderWay,
        clock: Clock,
        spawn: Spawn,
        lost: LostChunks | None = None,
    ) -> None:
        """`spawn` runs a task; `lost`: None: no epoch goes on without a chunk."""
        self._topics = topics
        self._reads = reads
        self._epochs = epochs
        self._clock = clock
        self._spawn = spawn
        self._lost: LostChunks = lost or NoLostChunks()
        self._owned: dict[str, _OwnedStream] = {}
        self._most_owned = MAX_FORGOTTEN
        self._long_waits: dict[str, _LongWaits] = {}
        """By host that calls."""

    def stream(self, topic_id: str, partition: int) -> ReplicatedStream:
        """The stream of a topic, if this host owns it. Raises NotLeader, UnknownTopicOrPartition,
        MalformedRequest.
        """
        try:
            topic = self._topics.topic_by_id(uuid.UUID(hex=topic_id))
        except ValueError as error:
            raise MalformedRequest(f"{topic_id!r} is not an id of a topic") from error
        if topic is None or partition >= len(topic.partitions):
            raise UnknownTopicOrPartition(f"topic {topic_id} has no partition {partition} that this host knows")
        stream = topic.partitions[partition]
        stream.check_leader()
        return stream

    async def append(self, order: GroupOrder, caller: str = "") -> None:
        """Append a group unless the stream has its epoch; returns when it has. `caller`: the host that asks.

        Raises NotLeader, UnknownTopicOrPartition, GroupTooLarge, NotEnoughReplicas, and as StreamSearch.find; TryAgain
        as well if the group is under way for too long.
        """
        stream = self.stream(order.target.topic_id, order.target.partition)
        owned = self._owned_stream(stream)
        is_new = (order.query, order.epoch) not in owned.under_way
        under_way = await self._appended(stream, owned, order)
        if under_way is None:
            return
        brief_s = BRIEF_WAIT_S if is_new and not stream.lacks_members else 0.0
        with trio.move_on_after(brief_s):
            await _settled(under_way)
            return
        with self._long_waits.setdefault(caller, _LongWaits()).place(len(order.batches)) as has_place:
            with trio.move_on_after(WAIT_S - brief_s if has_place else 0.0):
                await _settled(under_way)
                return
        raise TryAgain(
            f"{stream.name}: epoch {order.epoch} of query {order.query!r} waits for the stream's members; ask again"
        )

    async def _appended(self, stream: ReplicatedStream, owned: _OwnedStream, order: GroupOrder) -> Ticket[None] | None:
        """The group under way, which is appended now unless it is already; None: the stream has its epoch, or had it.
        Raises as `append`.
        """
        decided_at, may_be_trimmed, key = order.target.start_offset, True, (order.query, order.epoch)
        while True:
            is_known = key in owned.under_way or owned.ends.has(*key, decided_at)
            is_searched = not is_known and (decided_at < stream.led_from or owned.ends.must_search(decided_at))
            is_found = is_searched and await owned.search.find(order)
            under_way = owned.under_way.get(key)
            if under_way is not None:
                return under_way
            if is_found or owned.ends.has(*key, decided_at):
                return None
            if not (may_be_trimmed and is_searched and decided_at < stream.log_start_offset):
                return self._append(stream, owned, order)
            if not await self._epochs.is_under_way(order):
                return None
            # It was under way behind the search: END cannot be trimmed. The epoch may have come meanwhile: look again.
            may_be_trimmed = False

    def _owned_stream(self, stream: ReplicatedStream) -> _OwnedStream:
        """What is known of a stream now: nothing in front of an ownership that has just begun."""
        owned = self._owned.get(stream.stream)
        if owned is None or owned.ownership != stream.ownership:
            if len(self._owned) >= self._most_owned:
                self._forget()
            if owned is not None:
                owned.search.end()
            ends = StreamEnds(stream.led_from)
            search = StreamSearch(stream, ends, self._reads, self._lost, self._spawn)
            owned = self._owned[stream.stream] = _OwnedStream(stream.ownership, ends, search)
        return owned

    def _forget(self) -> None:
        """Forget the streams that this host does not own any more."""
        live = {stream.stream: stream.ownership for stream in self._topics.streams() if stream.is_leader}
        for name, owned in list(self._owned.items()):
            if live.get(name) != owned.ownership:
                owned.search.end()
                del self._owned[name]
        self._most_owned = len(self._owned) + MAX_FORGOTTEN

    def _append(self, stream: ReplicatedStream, owned: _OwnedStream, order: GroupOrder) -> Ticket[None]:
        now_ms = self._clock.wall_ms()
        ticket = stream.append_group(order.group(now_ms), now_ms=now_ms)
        done = owned.under_way[order.query, order.epoch] = Ticket[None]()

        def settle(appended: Ticket[AppendResult]) -> None:
            # In the call that acknowledges the group: nobody finds it neither under way nor noted.
            del owned.under_way[order.query, order.epoch]
            if appended.error is not None:
                done.fail(appended.error)
                return
            end_offset = appended.result().base_offset + order.record_count
            owned.ends.note(order.query, order.epoch, end_offset - 1)
            done.succeed(None)

        ticket.add_callback(settle)
        return done

    # ---- for other hosts

    def serve(self, calls: CallServer) -> None:
        """Serve calls of kind APPEND_GROUP and FIND_END from now on."""
        calls.handle(APPEND_GROUP, self._append_group)
        calls.handle(FIND_END, self._find_end)

    async def _append_group(self, host: str, payload: memoryview) -> Sequence[Buffer]:
        async def append() -> Mapping[str, object]:
            await self.append(decode_order(payload), host)
            return {}

        return await answered(append)

    async def _find_end(self, _: str, payload: memoryview) -> Sequence[Buffer]:
        async def find() -> Mapping[str, object]:
            fields, _ = decode_fields(payload)
            topic_id, partition = get_name(fields, "topic_id"), get_int(fields, "partition", 0, _INT32_MAX)
            return {"end": self.stream(topic_id, partition).high_watermark}

        return await answered(find)


async def _settled(ticket: Ticket[None]) -> None:
    """Wait for a ticket. Raises its error. Nothing is left of who waits no more: a group that waits for its stream's
    members comes again and again, for as long as they are missing.
    """
    if not ticket.done:
        settled = trio.Event()

        def settle(_: Ticket[None]) -> None:
            settled.set()

        ticket.add_callback(settle)
        try:
            await settled.wait()
        finally:
            ticket.remove_callback(settle)
    ticket.result()
