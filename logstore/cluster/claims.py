"""When this host claims a stream: because it has no owner that lives, or because this host should own it.

Invariants:
* Only streams of topics that the view has are claimed, and only while this host is a member.
* Hosts claim one after the other (`Deal.order` of `logstore.cluster.members.deal`). A host that does not reach enough
  others to open a chunk comes behind all that may.
* Streams without an owner are dealt in one order on every host: topics as the metadata store has got them, or changed
  them last, and the partitions of each by number. So a host whose view is late deals the first ones like all others.
  They are dealt once, as long as the same hosts live.
* A stream goes to a host with a smaller share, among the members of its open chunk, once the live hosts have been the
  same for BALANCE_AFTER_S: one stream in BALANCE_STEP_S, so that a takeover disturbs few producers at a time. What
  topics need comes first, and what all streams need besides is taken of large topics first (`_uneven`). A stream waits
  until that host has the stream's last records (LONGEST_WAIT_S at most): a takeover reads the last chunk for what its
  producers have sent, and from other hosts it would be read at no pace, and once more when it is copied.
* Hosts of earlier versions claim by the hash of stream and host alone. While one of them lives, all hosts claim streams
  without an owner in that order; and until it is known of all that they deal, what has an owner goes only to hosts
  that come before this by the hash, as an earlier version's own moves do. So it moves as often as there are hosts at
  most, and no two hosts take it from each other in turns.
* A stream of a host that leaves goes to the host that should own it, whether or not that has the open chunk.
* Looks at many streams are made in turns of the event loop, with pauses that are longer than they take: ten thousand
  streams that wait for owners leave time for those that have one.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

import trio

from logstore.cluster.live_hosts import LiveHosts
from logstore.cluster.members import election
from logstore.cluster.members.deal import Deal, OwnedStreams
from logstore.cluster.members.membership import Membership
from logstore.cluster.members.view import ClusterView, KnownTopic, partition_of, stream_name, topic_id_of
from logstore.replica.registrations import ChunkRegistration, OwnerId, StreamHead

LOOK_S: Final = 0.05
"""Between two looks at streams without an owner, while there are any."""
BALANCE_AFTER_S: Final = 10.0
BALANCE_STEP_S: Final = 0.1
LONGEST_WAIT_S: Final = 600.0
"""For the last records of streams: some hosts will never have them, such as of chunks that only the tier has."""
RELIEVE_AFTER_S: Final = 1.0
"""Between two looks at the streams of hosts that leave."""
PAUSE_PER_LOOK: Final = 3
"""Between two looks at all of them, in times of what the last one took."""
LONGEST_PAUSE_S: Final = 1.0
"""Where looks take long because everything does."""
STREAMS_AT_ONCE: Final = 100
"""Looked at before other tasks run: to rank thirty hosts for each takes some milliseconds."""
LOOKS_AT_ONCE: Final = 250
"""At streams that may have no owner, before other tasks run: a millisecond."""
CLAIMS_AT_ONCE: Final = 10
"""Made before other tasks run: a millisecond or two."""


def streams_of(known: KnownTopic) -> Iterator[str]:
    """The names of a topic's streams."""
    return (stream_name(known.topic.topic_id, partition) for partition in range(known.topic.partitions))


class OwnStreams(NamedTuple):
    """What claims ask of this host: `claim` makes it the owner of a stream, `is_mine` says whether it owns the stream,
    or tries to, and `has_end` whether it has the records in front of the next one (`Replica.has_end_of`).
    """

    claim: Callable[[str], None]
    is_mine: Callable[[str], bool]
    has_end: Callable[[str, ChunkRegistration], bool]


class Claims:
    """See the module. `delay_s`: how long the metadata store takes at present. `run` must run."""

    def __init__(
        self,
        me: OwnerId,
        view: ClusterView,
        hosts: LiveHosts,
        membership: Membership,
        own: OwnStreams,
        delay_s: Callable[[], float],
    ) -> None:
        self._me = me
        self._view = view
        self._hosts = hosts
        self._membership = membership
        self._claim, self._is_mine, self._has_end = own
        self._delay_s = delay_s
        self._vacancies = election.Vacancies()
        self._owned = OwnedStreams()
        self._orders: dict[str, list[str]] = {}
        """In which order hosts should claim the streams without an owner that were dealt."""
        self._dealt_to: tuple[object, ...] = ()
        """The hosts that lived then, those of them that were to leave, and whether one is of an earlier version."""
        self._vacant_now = trio.Event()
        self.is_over = False
        """Nothing more is claimed."""

    @property
    def streams_without_owner(self) -> int:
        """How many streams wait for an owner, as far as is known here."""
        return len(self._vacancies)

    # ---- what is known

    def topic_of(self, stream: str) -> KnownTopic | None:
        """The topic of a stream; None: it was deleted, or is not known yet."""
        name = self._view.names.get(topic_id_of(stream))
        return self._view.topics[name] if name is not None else None

    def is_known(self, stream: str) -> bool:
        """Whether the view has the stream's topic."""
        return topic_id_of(stream) in self._view.names

    def known_streams(self) -> Iterator[str]:
        """All streams of the topics that are known when this is called."""
        for known in list(self._view.topics.values()):
            yield from streams_of(known)

    def look_at(self, stream: str) -> None:
        """What is known of a stream has changed."""
        now_ms = int(trio.current_time() * 1000)
        is_vacant = self._is_vacant(stream)
        self._vacancies.set(stream, is_vacant=is_vacant, now_ms=now_ms)
        if not is_vacant:
            self._orders.pop(stream, None)
        if stream not in self._orders:
            self._owned.set(stream, self._owner(stream))
        if self._vacancies:
            self._vacant_now.set()

    def _head(self, stream: str) -> StreamHead | None:
        known = self._view.heads.get(stream)
        return known.head if known is not None else None

    def _owner(self, stream: str) -> OwnerId | None:
        """Who owns a stream; this host from its claim on."""
        if not self.is_known(stream):
            return None
        head = self._head(stream)
        return self._me if self._is_mine(stream) else head.owner if head is not None else None

    def _is_vacant(self, stream: str) -> bool:
        """Whether the stream has no owner that lives; one that this host was deposed of counts until that is seen."""
        if self._is_mine(stream) or self.topic_of(stream) is None:
            return False
        head = self._head(stream)
        return election.is_owner_gone(head, self._hosts.live) or (head is not None and head.owner == self._me)

    def _deal(self) -> Deal:
        hosts = self._hosts
        by_hash = hosts.has_earlier
        return Deal(self._owned, hosts.live, hosts.placing.leaving, by_hash=by_hash, keeps_order=not hosts.all_deal)

    def _partitions(self, stream: str) -> int:
        known = self.topic_of(stream)
        return known.topic.partitions if known is not None else 1

    def _rank(self, stream: str, reached: int) -> int | None:
        """How many hosts should claim a stream before this one; None: this one does not live, or the stream was not
        dealt yet. `reached`: how many of the live hosts can be reached.
        """
        live, head, order = self._hosts.live, self._head(stream), self._orders.get(stream, [])
        if self._me.host not in order:
            return None
        rank = order.index(self._me.host)
        if head is not None and head.owner == self._me:
            rank += 1  # who deposed this host will be seen soon
        known = self.topic_of(stream)
        needed = min(election.min_copies(known.topic) if known is not None else 1, len(live))
        return rank if reached >= needed else rank + len(live)

    async def _in_order(self, streams: Collection[str]) -> list[str]:
        """Those of some streams whose topics are known, in the order in which they are dealt."""
        placed: list[tuple[int, int, str]] = []
        for number, stream in enumerate(streams, 1):
            known = self.topic_of(stream)
            if known is not None:
                placed.append((known.revision, partition_of(stream), stream))
            if number % LOOKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return [stream for *_, stream in sorted(placed)]

    async def _deal_vacant(self) -> None:
        """Deal the streams without an owner that were not dealt yet; all of them if other hosts live, or leave."""
        dealt_to = self._hosts.live, self._hosts.placing.leaving, self._hosts.has_earlier
        if self._dealt_to != dealt_to:
            self._dealt_to = dealt_to
            dealt, self._orders = self._orders, {}
            for number, stream in enumerate(dealt, 1):
                self._owned.set(stream, self._owner(stream))
                if number % LOOKS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        new = [stream for stream in self._vacancies.streams() if stream not in self._orders]
        streams, deal = await self._in_order(new), self._deal()
        for number, stream in enumerate(streams, 1):
            if number % STREAMS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if stream in self._vacancies and deal.live:
                order = self._orders[stream] = deal.order(stream, self._partitions(stream), self._head(stream))
                deal.give(stream, order[0])
                self._owned.set(stream, OwnerId(order[0], deal.live[order[0]].start))

    # ---- claiming

    def _take(self, stream: str) -> None:
        """Claim a stream, which counts as this host's from now on."""
        self._claim(stream)
        self.look_at(stream)

    async def run(self) -> None:
        """Claim what is due, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._claim_vacant)
            nursery.start_soon(self._balance)
            nursery.start_soon(self._relieve)

    def _may_claim(self) -> bool:
        return self._membership.is_held and not self.is_over

    async def _claim_vacant(self) -> None:
        while True:
            if not self._vacancies:
                self._vacant_now = trio.Event()
                await self._vacant_now.wait()
            begun_s = trio.current_time()
            await self._claim_due()
            took_s = trio.current_time() - begun_s
            await trio.sleep(max(LOOK_S, min(PAUSE_PER_LOOK * took_s, LONGEST_PAUSE_S)))

    async def _claim_due(self) -> None:
        """Look at all streams without an owner, and claim those that this host should claim now."""
        if not self._may_claim():
            return
        now_ms = int(trio.current_time() * 1000)
        # What is slow for this host is slow for those in front of it.
        step_ms = election.CLAIM_STEP_MS + int(2000 * self._delay_s())
        reached, due = 0, []
        await self._deal_vacant()
        for number, stream in enumerate(self._vacancies.streams()):
            if number % STREAMS_AT_ONCE == 0:
                if number:
                    await trio.lowlevel.checkpoint()
                reached = self._hosts.reaches(set(self._hosts.live))
            if self._vacancies.is_due(stream, self._rank(stream, reached), now_ms, step_ms):
                due.append(stream)
        for number, stream in enumerate(due, 1):
            if stream in self._vacancies and self._may_claim():  # it may have another owner by now
                self._take(stream)
            if number % CLAIMS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def _balance(self) -> None:
        """Claim, one after the other, what this host should own and another one does."""
        while True:
            await trio.sleep(BALANCE_AFTER_S)
            for number, stream in enumerate(await self._uneven() if self._is_settled() else (), 1):
                if number % STREAMS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                if self._is_settled() and self._should_be_mine(stream):
                    self._take(stream)
                    await trio.sleep(BALANCE_STEP_S)

    async def _uneven(self) -> list[str]:
        """The streams that would come to this host if all that should have other owners got them, in this order: first
        what makes shares of topics more even; then what those of all streams still need, of large topics first, whose
        producers feel one partition least.
        """
        deal, moved = self._deal(), dict[str, str]()
        sizes = dict.fromkeys(await self._in_order(list(self._view.heads)), 0)
        await self._move(deal, sizes, moved, of_topic=True)
        if deal.is_uneven():
            by_size = dict(sorted(sizes.items(), key=lambda each: each[1], reverse=True))
            await self._move(deal, by_size, moved, of_topic=False)
        return [stream for stream, host in moved.items() if host == self._me.host]

    async def _move(self, deal: Deal, sizes: dict[str, int], moved: dict[str, str], *, of_topic: bool) -> None:
        """Move streams on paper that should have other owners, and note where to; `sizes` gets how many partitions the
        topics of these have.
        """
        for number, stream in enumerate(list(sizes), 1):
            if number % STREAMS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            owner = self._owned.owner(stream)
            if stream in moved or stream in self._vacancies or not deal.lives(owner):
                continue
            partitions = sizes[stream] = self._partitions(stream)
            other = deal.better(stream, partitions, owner.host, self._holders(stream), of_topic=of_topic)
            if other is not None:
                deal.give(stream, other, owner.host)
                moved[stream] = other

    async def _relieve(self) -> None:
        """Claim, one after the other, what a host owns that leaves and this host should own."""
        while True:
            await trio.sleep(RELIEVE_AFTER_S)
            for number, stream in enumerate(await self._left() if self._hosts.placing.leaving else (), 1):
                if number % STREAMS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                if self._may_claim() and self._should_relieve(stream):
                    self._take(stream)
                    await trio.sleep(BALANCE_STEP_S)

    async def _left(self) -> list[str]:
        """The streams of hosts that leave which come to this host when all of them are dealt."""
        deal, mine = self._deal(), []
        for number, stream in enumerate(await self._in_order(list(self._view.heads)), 1):
            if number % STREAMS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if self._owned.owner(stream).host not in self._hosts.placing.leaving:
                continue
            order = deal.order(stream, self._partitions(stream), self._head(stream))
            if order:
                deal.give(stream, order[0])
            if order[:1] == [self._me.host]:
                mine.append(stream)
        return mine

    def _should_relieve(self, stream: str) -> bool:
        """Whether the owner leaves, and this host, which does not, reaches all that hold the open chunk."""
        head, leaving = self._head(stream), self._hosts.placing.leaving
        if head is None or self._is_mine(stream) or self.topic_of(stream) is None:
            return False
        if head.owner.host not in leaving or self._me.host in leaving:
            return False
        members = self._holders(stream)
        return self._reaches_enough(stream) and self._hosts.reaches(members) == len(members)

    def _is_settled(self) -> bool:
        return self._may_claim() and trio.current_time() - self._hosts.changed_s >= BALANCE_AFTER_S

    def _should_be_mine(self, stream: str) -> bool:
        """Whether this host is among the members of the open chunk, reaches all of them, has a smaller share than the
        owner as it is now, and has the stream's last records.
        """
        owner, members = self._owned.owner(stream), self._holders(stream)
        deal, me = self._deal(), self._me.host
        if me not in members or self._is_mine(stream) or stream in self._vacancies or not deal.lives(owner):
            return False
        is_better = me in deal.live and deal.is_better(stream, self._partitions(stream), owner.host, me)
        is_better = is_better and self._reaches_enough(stream) and self._hosts.reaches(members) == len(members)
        return is_better and self._may_take_over(stream)

    def _holders(self, stream: str) -> set[str]:
        """The members of the stream's open chunk."""
        head = self._head(stream)
        chunk = head.open_chunk if head is not None else None
        return {member.host for member in chunk.members} if chunk is not None else set()

    def _reaches_enough(self, stream: str) -> bool:
        """Whether this host lives, and reaches as many hosts as a chunk of the stream needs."""
        known, live = self.topic_of(stream), self._hosts.live
        if known is None or self._me.host not in live:
            return False
        return self._hosts.reaches(set(live)) >= min(election.min_copies(known.topic), len(live))

    def _may_take_over(self, stream: str) -> bool:
        """Whether the last records of a stream with an open chunk are here, or have been waited for long enough."""
        head = self._head(stream)
        if head is None or head.open_chunk is None:
            return False
        if head.open_chunk.base_offset <= head.log_start or self._has_end(stream, head.open_chunk):
            return True
        return trio.current_time() - self._hosts.changed_s >= LONGEST_WAIT_S
