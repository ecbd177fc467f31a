"""Searches of one stream for the ENDs of epochs, in one ownership, in what lies in front of all that its owner knows.

What lies there is on hosts, or in the tier, whose store may be silent for as long as it likes. So a task of the owner
reads it, and whoever asks waits for that no longer than SEARCH_WAIT_S.

Invariants:
* One task for each stream at most, however many ask; each has its answer as soon as what was read tells it. Parts that
  hosts have are read first, then those in the tier alone, the newest first of each; a part that cannot be read holds up
  no other one.
* What was read is not read again while the ownership lasts: a try reads what is still unread, once, and each further
  question begins the next try. A question that finds a try under way takes the failures of the one before.
* Who asks is kept by nobody: a question that is given up leaves the offset from which on the stream is searched, and
  the name of its query, of which there are MAX_QUERIES at most.
* That an epoch is not there is said only where everything behind its decision was read, but for chunks without which an
  operator lets it go on (`logstore.cluster.streams.takeover_waits`). That it is there needs no other part to be read.
* The errors of failed reads are kept as copies: an error knows the frames that it came through, and their groups.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import trio

from logstore.cluster.interfaces import Spawn
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.epochs.group_order import GroupOrder
from logstore.epochs.stream_ends import EndSearch, StreamEnds
from logstore.errors import (
    CairnError,
    ChunkUnreachable,
    CorruptChunk,
    NotLeader,
    TierRefused,
    TierUnavailable,
    TryAgain,
)
from logstore.log.scanning import TakeEnd
from logstore.replica.registrations import ChunkRegistration

SEARCH_WAIT_S: Final = 1.0
"""From the beginning of a try. What hosts have of a chunk is read by then; what is in a tier that is silent is not, and
who asks holds a call (`logstore.cluster.links.calls`), of which other streams' groups need some.
"""
UNREADABLE: Final = (CorruptChunk, ChunkUnreachable, TierUnavailable, TierRefused, OSError)
"""What a search finds where a chunk is lost, or who has it is away."""


class ControlReads(Protocol):
    """Reads control batches of streams (`logstore.cluster.engine`)."""

    async def find_ends(
        self, stream: ReplicatedStream, from_offset: int, before_offset: int, /, *, take: TakeEnd
    ) -> None:
        """Give `take` the END control batches from one offset on and before another, by base offset and bytes."""


class LostChunks(Protocol):
    """Knows without which chunks streams go on (`logstore.cluster.streams.takeover_waits`)."""

    async def may_pass(
        self, stream: ReplicatedStream, chunk: ChunkRegistration, error: Exception, order: GroupOrder, /
    ) -> bool:
        """Whether an operator lets the epoch of a group go on without a chunk that cannot be read; if not, it is shown
        that it waits for the chunk. Raises CairnError.
        """

    def was_read(self, stream: ReplicatedStream, chunk: ChunkRegistration, /) -> None:
        """A search has read a chunk."""


class NoLostChunks:
    """Every chunk is waited for."""

    async def may_pass(
        self, stream: ReplicatedStream, chunk: ChunkRegistration, error: Exception, order: GroupOrder, /
    ) -> bool:
        """See LostChunks."""
        await trio.lowlevel.checkpoint()
        return False

    def was_read(self, stream: ReplicatedStream, chunk: ChunkRegistration, /) -> None:
        """See LostChunks."""


@dataclass(eq=False, slots=True)
class _UnreadPart:
    """A part of a stream, within one chunk. `error`: of the last try that has failed; `tried`: the number of the last
    try that came to it.
    """

    first_offset: int
    before_offset: int
    error: Exception | None = None
    tried: int = 0


@dataclass(eq=False, slots=True)
class _Try:
    """One reading of all that is unread. `error`: what ended it early, other than parts that cannot be read."""

    number: int
    began_s: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    error: Exception | None = None


class StreamSearch:
    """See the module. `ends`: what the owner knows of the stream; the search adds to it. `spawn` runs a task."""

    def __init__(
        self, stream: ReplicatedStream, ends: StreamEnds, reads: ControlReads, lost: LostChunks, spawn: Spawn
    ) -> None:
        self._stream = stream
        self._ownership = stream.ownership
        self._ends = ends
        self._reads = reads
        self._lost = lost
        self._spawn = spawn
        self._found = EndSearch()
        self._from_offset = self._to_offset = 0
        """What lies between them was read into `_found`, or is unread."""
        self._unread: dict[_UnreadPart, None] = {}
        self._unread_since_s = 0.0
        self._try: _Try | None = None
        self._tries = 0
        self._progress = trio.Event()
        """Set, and replaced, when a part was tried, and when a try is over."""

    async def find(self, order: GroupOrder) -> bool:
        """Whether the stream has the epoch of a group, or a later one of its query: certain until the caller waits for
        anything.

        Raises NotLeader if the ownership has ended, TryAgain if it is not known yet, what is in UNREADABLE if it cannot
        be known now.
        """
        passed: set[int] = set()
        while True:
            self._check_ownership()
            self._cover(order)
            found = self._answer(order, passed)
            if found is not None:
                return found
            await self._wait_tried(order, passed)
            if self._answer(order, passed) is None:
                for part in self._behind(order.target.start_offset):
                    if part.error is not None:
                        await self._pass(part, part.error, order, passed)

    def end(self) -> None:
        """The ownership has ended."""
        if self._try is not None:
            self._try.scope.cancel()

    # ---- what is known

    def _check_ownership(self) -> None:
        if self._stream.ownership != self._ownership:
            raise NotLeader(f"{self._stream.name}: its ownership ended while it was searched for epochs")

    def _answer(self, order: GroupOrder, passed: set[int]) -> bool | None:
        """Whether an epoch is there; None: it is not known. `passed`: chunks without which it may go on."""
        asked = (order.query, order.epoch, order.target.start_offset)
        if self._ends.has(*asked) or self._found.has(*asked):
            return True
        if not self._ends.must_search(order.target.start_offset):
            return False
        is_covered = self._from_offset <= order.target.start_offset and self._ends.known_from <= self._to_offset
        if is_covered and self._found.watches(order.query):
            unread = self._behind(order.target.start_offset)
            if all((chunk := self._chunk(part)) is not None and chunk.epoch in passed for part in unread):
                return False
        return None

    def _behind(self, offset: int) -> Sequence[_UnreadPart]:
        """What is unread behind an offset, the newest first."""
        first_offset = max(offset, self._stream.log_start_offset)
        parts = [part for part in self._unread if part.before_offset > first_offset]
        return sorted(parts, key=lambda part: -part.before_offset)

    def _chunk(self, part: _UnreadPart) -> ChunkRegistration | None:
        return self._stream.registration.chunk_at(part.before_offset - 1)

    def _cover(self, order: GroupOrder) -> None:
        """Have everything searched that lies between the decision of an epoch and what the owner knows."""
        offset, known_from = order.target.start_offset, self._ends.known_from
        if not self._ends.must_search(offset):
            return
        if not self._found.watch(order.query):
            self._found = self._found.anew(order.query)
            self._unread.clear()
            self._from_offset = self._to_offset
        if self._from_offset == self._to_offset:
            self._from_offset = self._to_offset = known_from
        if self._from_offset <= offset and known_from <= self._to_offset:
            return
        if not self._unread:
            self._unread_since_s = trio.current_time()
        parts = [*self._parts(self._to_offset, known_from), *self._parts(offset, self._from_offset)]
        self._unread |= dict.fromkeys(parts)
        self._from_offset = min(offset, self._from_offset)
        self._to_offset = max(known_from, self._to_offset)  # the owner knows less when it forgets an END
        if not self._unread:
            self._note_all()

    def _parts(self, first_offset: int, before_offset: int) -> Iterator[_UnreadPart]:
        first_offset, registration = max(first_offset, self._stream.log_start_offset), self._stream.registration
        while before_offset > first_offset:
            chunk = registration.chunk_at(before_offset - 1)
            base_offset = first_offset if chunk is None else max(first_offset, chunk.base_offset)
            yield _UnreadPart(base_offset, before_offset)
            before_offset = base_offset

    # ---- who asks

    async def _wait_tried(self, order: GroupOrder, passed: set[int]) -> None:
        """Wait until the question is answered, or all that it needs was tried, now or lately. Raises TryAgain."""
        now = self._try or self._begin()
        needed = partial(self._behind, order.target.start_offset)
        with trio.move_on_at(now.began_s + SEARCH_WAIT_S):
            while self._try is now and self._answer(order, passed) is None:
                if all(part.tried == now.number for part in needed()):
                    break
                await self._progress.wait()
        self._check_ownership()
        if now.error is not None:
            raise _copied(now.error)
        untried = [part for part in needed() if part.error is None]
        if untried and self._answer(order, passed) is None:
            waited_s = trio.current_time() - self._unread_since_s
            raise TryAgain(
                f"{self._stream.name}: the search for epoch {order.epoch} of query {order.query!r} has taken "
                f"{waited_s:.1f} s, {len(untried)} chunks are still to be read, from offset "
                f"{untried[-1].first_offset} on; ask again"
            )

    async def _pass(self, part: _UnreadPart, error: Exception, order: GroupOrder, passed: set[int]) -> None:
        """Go on without a part if an operator has said so. Raises its error, CairnError."""
        chunk = self._chunk(part)
        if chunk is not None and chunk.epoch in passed:
            return
        if chunk is None or not await self._lost.may_pass(self._stream, chunk, error, order):
            raise _copied(error)
        passed.add(chunk.epoch)

    # ---- the task

    def _begin(self) -> _Try:
        self._tries += 1
        begun = self._try = _Try(self._tries, trio.current_time())
        self._spawn(partial(self._run, begun))
        return begun

    async def _run(self, now: _Try) -> None:
        """Try all parts once, those as well that are added meanwhile."""
        with now.scope:
            try:
                while parts := [part for part in self._unread if part.tried != now.number]:
                    for part in sorted(parts, key=self._place):
                        await self._read(part)
                        part.tried = now.number
                        self._tell()
            except (CairnError, OSError) as error:
                now.error = _copied(error)
        self._try = None
        self._tell()

    def _place(self, part: _UnreadPart) -> tuple[bool, int]:
        """Its place among those that are to be read."""
        chunk = self._chunk(part)
        return chunk is not None and chunk.is_tiered_alone, -part.before_offset

    async def _read(self, part: _UnreadPart) -> None:
        """Read a part, unless the search has begun anew. Raises what does not come of the part alone."""
        stream, found = self._stream, self._found
        if part not in self._unread:
            return
        try:
            await self._reads.find_ends(stream, part.first_offset, part.before_offset, take=found.take)
        except (CairnError, OSError) as error:
            if part.before_offset > stream.log_start_offset:
                if not isinstance(error, UNREADABLE):
                    raise
                part.error = _copied(error)
                return
        else:
            chunk = self._chunk(part)
            if chunk is not None:
                self._lost.was_read(stream, chunk)
        if found is self._found:
            del self._unread[part]
            if not self._unread:
                self._note_all()

    def _note_all(self) -> None:
        """All was read: what the owner knows begins there, unless there are too many queries for it. What lies behind,
        and it has forgotten meanwhile, the next question has read as well.
        """
        if self._to_offset < self._ends.known_from:
            return
        self._ends.searched(self._from_offset, self._found)
        if not self._ends.must_search(self._from_offset):
            self._found = EndSearch()
            self._from_offset = self._to_offset

    def _tell(self) -> None:
        self._progress.set()
        self._progress = trio.Event()


def _copied(error: Exception) -> Exception:
    """The same error without the frames that it came through."""
    copied = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    return copied
