"""When this host claims a stream: because it has no owner that lives, or because this host should own it.

Invariants:
* Only streams of topics that the view has are claimed, and only while this host is a member.
* Hosts claim one after the other (`claim_rank` of `logstore.cluster.members.election`). A host that does not reach
  enough others to open a chunk comes behind all that may.
* A stream goes to the host that should own it, among the members of its open chunk, once the live hosts have been the
  same for BALANCE_AFTER_S: one stream in BALANCE_STEP_S, so that a takeover disturbs few producers at a time. It waits
  until that host has the stream's last records (LONGEST_WAIT_S at most): a takeover reads the last chunk for what its
  producers have sent, and from other hosts it would be read at no pace, and once more when it is copied.
* A stream of a host that leaves goes to the host that should own it, whether or not that has the open chunk.
* Looks at many streams are made in turns of the event loop, with pauses that are longer than they take: ten thousand
  streams that wait for owners leave time for those that have one.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import trio

from logstore.cluster.live_hosts import LiveHosts
from logstore.cluster.members import election
from logstore.cluster.members.membership import Membership
from logstore.cluster.members.view import ClusterView, KnownTopic, stream_name, topic_id_of
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
        self._vacancies.set(stream, is_vacant=self._is_vacant(stream), now_ms=now_ms)
        if self._vacancies:
            self._vacant_now.set()

    def _head(self, stream: str) -> StreamHead | None:
        known = self._view.heads.get(stream)
        return known.head if known is not None else None

    def _is_vacant(self, stream: str) -> bool:
        """Whether the stream has no owner that lives; one that this host was deposed of counts until that is seen."""
        if self._is_mine(stream) or self.topic_of(stream) is None:
            return False
        head = self._head(stream)
        return election.is_owner_gone(head, self._hosts.live) or (head is not None and head.owner == self._me)

    def _rank(self, stream: str, reached: int) -> int | None:
        """See `election.claim_rank`; `reached`: how many of the live hosts can be reached."""
        live, head = self._hosts.live, self._head(stream)
        rank = election.claim_rank(stream, self._me.host, head, live, self._hosts.placing.leaving)
        if rank is None:
            return None
        if head is not None and head.owner == self._me:
            rank += 1  # who deposed this host will be seen soon
        known = self.topic_of(stream)
        needed = min(election.min_copies(known.topic) if known is not None else 1, len(live))
        return rank if reached >= needed else rank + len(live)

    def _comes_first(self, stream: str) -> bool:
        return self._rank(stream, self._hosts.reaches(set(self._hosts.live))) == 0

    # ---- claiming

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
        for number, stream in enumerate(self._vacancies.streams()):
            if number % STREAMS_AT_ONCE == 0:
                if number:
                    await trio.lowlevel.checkpoint()
                reached = self._hosts.reaches(set(self._hosts.live))
            if stream in self._vacancies and self._vacancies.is_due(
                stream, self._rank(stream, reached), now_ms, step_ms
            ):
                due.append(stream)
        for number, stream in enumerate(due, 1):
            if stream in self._vacancies and self._may_claim():  # it may have another owner by now
                self._claim(stream)
                self.look_at(stream)
            if number % CLAIMS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def _balance(self) -> None:
        """Claim, one after the other, what this host should own and another one does."""
        while True:
            await trio.sleep(BALANCE_AFTER_S)
            for number, stream in enumerate(list(self._view.heads), 1):
                if number % STREAMS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                if self._is_settled() and self._should_be_mine(stream):
                    self._claim(stream)
                    await trio.sleep(BALANCE_STEP_S)

    async def _relieve(self) -> None:
        """Claim, one after the other, what a host owns that leaves and this host should own."""
        while True:
            await trio.sleep(RELIEVE_AFTER_S)
            for number, stream in enumerate(list(self._view.heads) if self._hosts.placing.leaving else (), 1):
                if number % STREAMS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                if self._may_claim() and self._should_relieve(stream):
                    self._claim(stream)
                    await trio.sleep(BALANCE_STEP_S)

    def _should_relieve(self, stream: str) -> bool:
        """Whether the owner leaves, and this host comes first and reaches all that hold the open chunk."""
        head, leaving = self._head(stream), self._hosts.placing.leaving
        if head is None or self._is_mine(stream) or self.topic_of(stream) is None:
            return False
        if head.owner.host not in leaving or self._me.host in leaving:
            return False
        members = {member.host for member in head.open_chunk.members} if head.open_chunk is not None else set()
        return self._comes_first(stream) and self._hosts.reaches(members) == len(members)

    def _is_settled(self) -> bool:
        return self._may_claim() and trio.current_time() - self._hosts.changed_s >= BALANCE_AFTER_S

    def _should_be_mine(self, stream: str) -> bool:
        """Whether this host comes first among the members of the open chunk, all of which it reaches, and has the last
        records.
        """
        head = self._head(stream)
        if head is None or head.open_chunk is None or self._is_mine(stream) or self.topic_of(stream) is None:
            return False
        members = {member.host for member in head.open_chunk.members}
        if self._me.host not in members or not self._may_take_over(stream, head.open_chunk, head.log_start):
            return False
        return self._comes_first(stream) and self._hosts.reaches(members) == len(members)

    def _may_take_over(self, stream: str, open_chunk: ChunkRegistration, log_start: int) -> bool:
        """Whether the last records of a stream are here, or have been waited for long enough."""
        if open_chunk.base_offset <= log_start or self._has_end(stream, open_chunk):
            return True
        return trio.current_time() - self._hosts.changed_s >= LONGEST_WAIT_S
