"""Where the streams of a cluster are, as Kafka's clients are told: hosts as brokers, and who leads what.

Invariants:
* A host is shown as long as its lease lasts. A partition's leader is the host that owns its stream by the newest
  registration known here, if that host is alive.
* The host that answers is always shown, also when its lease has ended or it has not joined yet: a client that hears of
  no broker takes the answer for half of one, and librdkafka then asks nobody again for minutes.
* Node ids of hosts that are gone are remembered: as many as there were hosts since the start.
* A client that asks while streams change hands waits for that, SETTLE_S at most since it was seen first: librdkafka,
  told of the leader that is gone, asks again after a second. What was seen is forgotten after AGAIN_S, or when the
  stream has another epoch: then it may be another takeover, if nobody has asked in between.
* Before that, other hosts that lead what a client asks for are asked for a sign of life (`signs_of_life`): the client's
  connection to a process that was killed may end before this host's link to it.
* A client that waits costs a look at one stream for each LOOK_S: there may be thousands, while this host takes over.
* A look at all partitions of a topic is made in turns of LOOKS_AT_ONCE. What one of them has found is kept by the
  revision of the stream's registration, until the hosts are others: another look costs a comparison for each partition.
  At most KEPT_PLACES are kept.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final, Protocol

import trio

from logstore.base.addresses import parse_address
from logstore.base.errors import AddressError
from logstore.base.metadata import schema
from logstore.cluster.members.places import NO_NODE, Node, Placed
from logstore.cluster.members.view import KnownHead, stream_name
from logstore.log.served import ServedTopic
from logstore.log.ticket import TicketView

SETTLE_S: Final = 0.1
"""A takeover of one stream takes some dozen milliseconds. Requests behind on the same connection wait as long."""
AGAIN_S: Final = 10.0
LOOK_S: Final = 0.005
MAX_SETTLING: Final = 64
"""Takeovers of more streams take longer than anybody waits."""
MAX_OWNERS_LOOKED_UP: Final = 500
"""The owners of so many partitions are asked for a sign of life: a look at them takes a millisecond."""
TURNS: Final = 2
"""Of the event loop: the end of a link that came before a client's question is taken before it is answered."""
LOOKS_AT_ONCE: Final = 500
"""At partitions, before other tasks run: 2 ms if each has to be worked out."""
KEPT_PLACES: Final = 1 << 16
"""4 MB at most, with MAX_SHARED."""
MAX_SHARED: Final = 4096
"""Different answers for partitions, which many partitions share."""
_NOT_LOOKED_AT: Final = -1
_NOT_REGISTERED: Final = 0
TopicById = Callable[[uuid.UUID], ServedTopic | None]
Step = Callable[[int], Awaitable[None]]
"""Counts looks at partitions, and lets other tasks run."""


async def give_way(_: int) -> None:
    """Let other tasks run."""
    await trio.lowlevel.checkpoint()


_NOWHERE: Final = Placed(NO_NODE, 0, (), ())


@dataclass(slots=True)
class _Kept:
    """What was found of the partitions of a topic. `takes_appends`: as the registration of that revision says."""

    revisions: list[int] = field(default_factory=list)
    places: list[Placed] = field(default_factory=list)
    takes_appends: list[bool] = field(default_factory=list)

    def grow(self, partitions: int) -> None:
        """There are so many partitions at least."""
        more = partitions - len(self.revisions)
        if more > 0:
            self.revisions += [_NOT_LOOKED_AT] * more
            self.places += [_NOWHERE] * more
            self.takes_appends += [False] * more


class PlacingHost(Protocol):
    """What is asked of a host (`logstore.cluster.host`)."""

    def owner_of(self, stream: str, /) -> str | None:
        """The host that owns a stream and lives."""

    def head(self, stream: str, /) -> KnownHead | None:
        """The head of a stream's registration."""

    def is_changing_hands(self, stream: str, /) -> bool:
        """Whether the stream's owner is gone or out of reach, or does not take appends yet."""

    @property
    def live(self) -> Mapping[str, schema.StoredMember]:
        """The hosts that live; another mapping whenever that changes. Owners are among them."""

    def may_answer(self, host: str, /) -> bool:
        """Whether a host is this one, or can be reached."""


AwaitSigns = Callable[[Iterable[str]], Awaitable[None]]
"""Waits for a sign of life of hosts (`logstore.cluster.streams.signs_of_life`)."""


async def _no_signs(_: Iterable[str]) -> None:
    """Nobody is asked."""


class CopiesOfTopics(Protocol):
    """How many copies topics want, which may be raised (`logstore.cluster.streams.topics`)."""

    def copies(self, name: str, /) -> int:
        """Of a topic. Raises UnknownTopicOrPartition."""

    def raise_replicas(self, name: str, replicas: int, /) -> TicketView[object]:
        """Give a topic more copies; fewer are refused with InvalidReplicas."""


class Placement:
    """See the module. `addresses` are this host's listeners by name, as all hosts name theirs; `groups` gives the id of
    the topic of groups, or has it made; `node_id` is this host's; `topics` has their copies.
    """

    def __init__(
        self,
        host: PlacingHost,
        members: Callable[[], Mapping[str, schema.StoredMember]],
        addresses: Mapping[str, str],
        groups: Callable[[], uuid.UUID | None],
        node_id: int,
        await_signs: AwaitSigns = _no_signs,
        topics: CopiesOfTopics | None = None,
    ) -> None:
        self.topics = topics
        self._await_signs = await_signs
        self._host = host
        self._node_id = node_id
        self._groups = groups
        self._members = members
        self._addresses = addresses
        self._node_ids: dict[str, int] = {}
        self._settling_s: dict[tuple[str, int], float] = {}
        """Streams that change hands, with their epochs, and when that was seen first; the oldest first."""
        self._hosts: tuple[Mapping[str, schema.StoredMember], Mapping[str, schema.StoredMember]] = ({}, {})
        """The members, and those that live, for which `_kept` and `_shared` are true."""
        self._kept: dict[uuid.UUID, _Kept] = {}
        self._kept_places = 0
        self._shared: dict[Placed, Placed] = {}

    def nodes(self, host: str, port: int) -> Sequence[Node]:
        """The hosts that are alive, and this one; `host` and `port` are what the client's listener advertises here."""
        listener = self._listener(host, port)
        nodes = []
        for name, member in sorted(self._members().items()):
            self._node_ids[name] = member.node_id
            text = member.addresses.get(listener) or next(iter(member.addresses.values()), "")
            try:
                address = parse_address(text)
            except AddressError:
                continue  # it serves no clients
            nodes.append(Node(member.node_id, address.host, address.port, member.rack or None))
        if all(node.node_id != self._node_id for node in nodes):
            nodes.append(Node(self._node_id, host, port))
        return nodes

    def _listener(self, host: str, port: int) -> str:
        """The name of the listener with this address, or else with this port."""
        for name, text in self._addresses.items():
            if text == f"{host}:{port}":
                return name
        return next((name for name, text in self._addresses.items() if text.endswith(f":{port}")), "")

    def placed(self, topic_id: uuid.UUID, partition: int) -> Placed:
        """Where a partition is."""
        self._note_hosts()
        stream = stream_name(topic_id.hex, partition)
        return self._find(stream, self._host.head(stream))

    async def places(self, topic_id: uuid.UUID, partitions: int, step: Step = give_way) -> list[Placed]:
        """Where the first partitions of a topic are, each as of the moment of the look at it."""
        found: list[Placed] = []
        while (first := len(found)) < partitions:
            end = min(partitions, first + LOOKS_AT_ONCE)
            found += self._look(topic_id, first, end).places[first:end]
            await step(end - first)
        return found

    def _note_hosts(self) -> None:
        """What was found counts as long as the hosts are the same."""
        members, live = self._members(), self._host.live
        if members != self._hosts[0] or live is not self._hosts[1]:
            self._hosts, self._kept_places = (dict(members), live), 0
            self._kept.clear()
            self._shared.clear()
            self._node_ids.update((name, member.node_id) for name, member in members.items())

    def _look(self, topic_id: uuid.UUID, first: int, end: int) -> _Kept:
        """Look at the partitions from one on and before another."""
        self._note_hosts()
        kept = self._kept.get(topic_id)
        if kept is None or len(kept.revisions) < end:
            kept = self._keep(topic_id, end)
        head, topic, revisions = self._host.head, topic_id.hex, kept.revisions
        for partition in range(first, end):
            stream = stream_name(topic, partition)
            known = head(stream)
            revision = _NOT_REGISTERED if known is None else known.revision
            if revisions[partition] != revision:
                revisions[partition] = revision
                kept.places[partition] = self._find(stream, known)
                kept.takes_appends[partition] = known is not None and known.head.takes_appends
        return kept

    def _keep(self, topic_id: uuid.UUID, partitions: int) -> _Kept:
        """Keep so many partitions of a topic; the topics that were kept first go."""
        kept = self._kept.pop(topic_id, None) or _Kept()
        self._kept[topic_id] = kept
        self._kept_places += partitions - len(kept.revisions)
        kept.grow(partitions)
        while self._kept_places > KEPT_PLACES and len(self._kept) > 1:
            self._kept_places -= len(self._kept.pop(next(iter(self._kept))).revisions)
        return kept

    def _find(self, stream: str, known: KnownHead | None) -> Placed:
        if known is None:
            return _NOWHERE
        head, live = known.head, self._hosts[0]
        owner = self._host.owner_of(stream)
        leader = NO_NODE if owner is None else self._node_ids.get(owner, NO_NODE)
        members = [] if head.open_chunk is None else head.open_chunk.members
        here = [member for member in members if member.host in live and live[member.host].disk == member.disk]
        away = [member for member in members if member not in here and member.host in self._node_ids]
        in_sync = tuple(self._node_ids[member.host] for member in here)
        offline = tuple(self._node_ids[member.host] for member in away)
        replicas = in_sync + offline
        if not replicas and leader != NO_NODE:
            replicas = in_sync = (leader,)  # clients do not expect a leader without replicas
        if len(self._shared) >= MAX_SHARED:
            self._shared.clear()
        placed = Placed(leader, head.epoch, replicas, in_sync, offline)
        return self._shared.setdefault(placed, placed)

    async def settle(self, topics: Iterable[ServedTopic], step: Step = give_way) -> None:
        """Wait while streams of topics change hands; see the module."""
        for _ in range(TURNS):
            await trio.lowlevel.checkpoint()
        asked = list(topics)
        places = ((topic, partition) for topic in asked for partition in range(len(topic.partitions)))
        await self._await_signs(self._owners_of(islice(places, MAX_OWNERS_LOOKED_UP)))
        moving: list[tuple[ServedTopic, int]] = []
        for topic in asked:
            partitions = len(topic.partitions)
            for first in range(0, partitions, LOOKS_AT_ONCE):
                end = min(partitions, first + LOOKS_AT_ONCE)
                moving += [(topic, partition) for partition in self._moving(topic, first, end)]
                if len(moving) > MAX_SETTLING:
                    return
                if end < partitions:
                    await step(end - first)
        if not moving:
            return
        end_s = self._seen_s(moving) + SETTLE_S
        while moving and trio.current_time() < end_s:
            if self._is_moving(*moving[-1]):
                await trio.sleep(LOOK_S)
            else:
                moving.pop()

    def _moving(self, topic: ServedTopic, first: int, end: int) -> list[int]:
        """The partitions from one on and before another that change hands."""
        kept = self._look(topic.topic_id, first, end)
        others = {
            member.node_id
            for host, member in self._host.live.items()
            if member.node_id != self._node_id and self._host.may_answer(host)
        }
        moving = []
        for partition in range(first, end):
            leader = kept.places[partition].leader
            has_settled = kept.takes_appends[partition] and (
                leader in others or (leader == self._node_id and topic.partitions[partition].is_readable)
            )
            # A stream that was seen to change hands is looked at itself: it is forgotten there.
            is_noted = self._settling_s and self._move_of(_stream_of(topic, partition)) in self._settling_s
            if (not has_settled or is_noted) and self._is_moving(topic, partition):
                moving.append(partition)
        return moving

    def _owners_of(self, places: Iterable[tuple[ServedTopic, int]]) -> set[str]:
        """The hosts that own these partitions, as far as they live."""
        owners = {self._host.owner_of(_stream_of(*place)) for place in places}
        return {owner for owner in owners if owner is not None}

    def _seen_s(self, moving: Iterable[tuple[ServedTopic, int]]) -> float:
        """When the last one of these was seen to change hands first, now at the latest."""
        now_s = trio.current_time()
        old = takewhile(lambda seen: now_s - seen[1] >= AGAIN_S, self._settling_s.items())
        for move in [move for move, _ in old]:
            del self._settling_s[move]
        return max(self._settling_s.setdefault(self._move_of(_stream_of(*place)), now_s) for place in moving)

    def _move_of(self, stream: str) -> tuple[str, int]:
        """What tells one takeover of a stream from another one."""
        known = self._host.head(stream)
        return stream, 0 if known is None else known.head.epoch

    def _is_moving(self, topic: ServedTopic, partition: int) -> bool:
        """Whether a partition changes hands."""
        stream = _stream_of(topic, partition)
        is_mine = self.placed(topic.topic_id, partition).leader == self._node_id
        if self._host.is_changing_hands(stream) or (is_mine and not topic.partitions[partition].is_readable):
            return True
        self._settling_s.pop(self._move_of(stream), None)
        return False

    async def coordinator(self, host: str, port: int, topic_by_id: TopicById) -> Node | None:
        """The coordinator of all groups: who leads the topic that keeps their offsets; None if nobody does now. Waits
        while that topic changes hands, as `settle`.
        """
        topic_id = self._groups()
        topic = None if topic_id is None else topic_by_id(topic_id)
        if topic is None:
            return None
        await self.settle([topic])
        leader = self.placed(topic.topic_id, 0).leader
        return next((node for node in self.nodes(host, port) if node.node_id == leader), None)


def _stream_of(topic: ServedTopic, partition: int) -> str:
    return stream_name(topic.topic_id.hex, partition)
