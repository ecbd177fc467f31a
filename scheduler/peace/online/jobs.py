"""Requests in the online scheduler: their waiting chunks, chunks in flight, and done chunks.

Invariants:
* Each chunk of a job is either waiting in one of its units, in flight, or done.
* The chunks of a unit are interchangeable for a planner: same writer, same placement, same sources.
"""

from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from logstore.base.states import following
from scheduler.peace.online.states import (
    CHUNK_TRANSITIONS,
    REQUEST_TRANSITIONS,
    ChunkEvent,
    ChunkState,
    RequestEvent,
    RequestState,
)
from scheduler.peace.placement import Placement, Relation
from scheduler.peace.plan import HostChain, Request, Resource, TransferKind

Rank = tuple[int, int]
"""The order of the queue: the time of submission less the worth of the priority (ms), then the order of submission."""


class ChunkAttempt:
    """One attempt to move a chunk. `since_ms`: the time of its start; `step`: the timestep of its start."""

    __slots__ = ("attempt", "chain", "chunk", "job", "since_ms", "state", "step")

    def __init__(
        self,
        job: "TransferJob",
        chain: HostChain,
        attempt: int,
        since_ms: int,
        step: int,
        state: ChunkState = ChunkState.WAITING,
    ) -> None:
        self.job = job
        self.chunk = chain.chunk
        self.chain = chain
        self.attempt = attempt
        self.since_ms = since_ms
        self.step = step
        self.state = state
        """The state of the chunk, as this attempt left it."""

    def move(self, event: ChunkEvent) -> None:
        """Take the step for `event` in CHUNK_TRANSITIONS."""
        owner = f"chunk {self.chunk} of {self.job.name!r}"
        self.state = following(CHUNK_TRANSITIONS, self.state, event, owner)


class ChunkUnit:
    """Chunks of a job that are interchangeable for a planner; the lowest number goes first."""

    __slots__ = (
        *("_back", "_next", "_numbers", "first", "group", "job", "key", "last_resort", "left", "own", "request"),
        *("sources", "unreachable"),
    )

    def __init__(
        self, job: "TransferJob", numbers: Sequence[int], left: tuple[int, ...], avoid: frozenset[int]
    ) -> None:
        self.job = job
        self.first = numbers[0]
        self._numbers = numbers
        self._next = 0
        self._back: list[int] = []  # a heap of chunks that came back
        self.unreachable = False
        """Whether lost hosts leave it no path, even with nothing in flight."""
        self.group: Any = None
        """The group in which the continuous policy keeps the unit."""
        self.left = left
        """Hosts that have the chunks and are not lost."""
        self.sources = tuple(source for source in left if source not in avoid) or left
        """Hosts to take the chunks from: those left; suspects only if there are no others."""
        self.request = self._ask(self.sources, avoid.difference(self.sources))
        """The request to the planner, for one chunk at a time."""
        self.last_resort = self._ask(left, frozenset()) if avoid else self.request
        """The same request with chains through suspects allowed."""
        self.own = _own(job, left)
        self.key = (job.kind, job.writer, job.placement, avoid, left)

    def _ask(self, sources: tuple[int, ...], avoid: frozenset[int]) -> Request:
        job = self.job
        each = (sources,) if job.kind is not TransferKind.WRITE else ()
        return Request(
            job.name, job.planned_writer, 1, job.placement, job.kind, each, (self.first,), avoid | job.others
        )

    @property
    def waiting(self) -> int:
        """The number of waiting chunks."""
        return len(self._numbers) - self._next + len(self._back)

    def take(self) -> int:
        """Take the chunk to start next; returns its number."""
        if self._back and (self._next == len(self._numbers) or self._back[0] < self._numbers[self._next]):
            return heappop(self._back)
        self._next += 1
        return self._numbers[self._next - 1]

    def give(self, chunk: int) -> None:
        """Return a chunk that was taken; it waits again."""
        heappush(self._back, chunk)

    def keep(self, job: "TransferJob") -> None:
        """Drop the chunks of `job` that are done or in flight."""
        if job.done or job.flights:
            self._numbers = tuple(n for n in self._numbers if n not in job.done and n not in job.flights)

    def numbers(self) -> Iterator[int]:
        """The numbers of the waiting chunks, lowest first."""
        fresh = self._numbers[self._next :]
        return iter(sorted([*self._back, *fresh]) if self._back else fresh)


class TransferJob:
    """A request with its chunks. `reason`: why it was cancelled or failed."""

    __slots__ = (
        *("attempts", "avoid", "chunks", "done", "flights", "kind", "name", "placement", "priority", "rank"),
        *("others", "reason", "sequence", "source_names", "sources", "state", "submitted_ms", "units", "waiting"),
        *("writer", "writer_name", "_unit_of"),
    )

    def __init__(self, name: str, kind: TransferKind, writer: int, placement: Placement, chunks: int) -> None:
        self.name = name
        self.kind = kind
        self.writer = writer
        self.placement = placement
        self.chunks = chunks
        self.writer_name: str | None = None
        self.source_names: tuple[tuple[str, ...], ...] = ()
        """As submitted, with hosts that the network has no more: no copy goes to a source that returns."""
        self.sources: tuple[tuple[int, ...], ...] = ()
        self.priority = self.sequence = self.submitted_ms = 0
        self.rank: Rank = (0, 0)
        self.state = RequestState.WAITING
        self.reason = ""
        self.avoid: set[int] = set()
        self.others: frozenset[int] = frozenset()
        """Of a copy to a given host, which is its writer here: the hosts that can be neither target nor source."""
        self.attempts: dict[int, int] = {}
        self.flights: dict[int, ChunkAttempt] = {}
        self.done: set[int] = set()
        self.units: list[ChunkUnit] = []
        self.waiting = 0
        self._unit_of: dict[int, ChunkUnit] = {}

    @property
    def planned_writer(self) -> int:
        """The writer as planners want it: a copy has none."""
        return -1 if self.kind is TransferKind.COPY else self.writer

    @property
    def unreachable(self) -> bool:
        """Whether no waiting chunk has a path while some hosts are lost."""
        return self.waiting > 0 and all(unit.unreachable for unit in self.units if unit.waiting)

    @property
    def counted(self) -> int:
        """The number of chunks that count in the queue."""
        return 0 if self.unreachable else self.waiting

    def next_unit(self) -> ChunkUnit | None:
        """The next unit with a waiting chunk and a path; None if there is none."""
        return next((unit for unit in self.units if unit.waiting and not unit.unreachable), None)

    def unit_of(self, chunk: int) -> ChunkUnit:
        """The unit of a chunk that is not done."""
        return self.units[0] if self.kind is TransferKind.WRITE else self._unit_of[chunk]

    def move(self, event: RequestEvent) -> None:
        """Take the step for `event` in REQUEST_TRANSITIONS."""
        self.state = following(REQUEST_TRANSITIONS, self.state, event, f"request {self.name!r}")

    def end(self, event: RequestEvent, reason: str) -> None:
        """End the request, and drop its units: an ended job is remembered for long, and none of its chunks waits."""
        self.move(event)
        self.reason = reason
        self.units, self._unit_of = [], {}

    def sort(self, lost: Collection[int]) -> int | None:
        """Divide the chunks into units again, by the hosts lost and avoided now. Returns a chunk without sources, if
        any.

        A suspect stays a source of chunks that no other host has.
        """
        avoid = frozenset(self.avoid)
        if self.kind is TransferKind.WRITE:
            self.units = [ChunkUnit(self, range(self.chunks), (), avoid)]
            self.units[0].keep(self)
            return None
        by_source: dict[tuple[int, ...], list[int]] = {}
        for chunk in range(self.chunks):
            if chunk in self.done:
                continue
            left = tuple(source for source in self.sources[chunk] if source not in lost)
            if not left:
                return chunk
            by_source.setdefault(left, []).append(chunk)
        self.units = [ChunkUnit(self, tuple(chunks), left, avoid) for left, chunks in by_source.items()]
        self._unit_of = {}
        for unit, chunks in zip(self.units, by_source.values(), strict=True):
            self._unit_of.update(dict.fromkeys(chunks, unit))
            unit.keep(self)
        return None


def _own(job: TransferJob, sources: tuple[int, ...]) -> tuple[Resource, int] | None:
    """The resource of which every chain of such chunks needs a token; None if there is no such resource."""
    if job.kind is TransferKind.READ:
        return None if job.writer in sources else (Resource.RECEIVE, job.writer)
    if job.kind is TransferKind.COPY:
        return (Resource.SEND, sources[0]) if len(sources) == 1 else None
    local = any(rule.relation is Relation.SAME_HOST for rule in job.placement[0])
    return (Resource.DISK if local and len(job.placement) == 1 else Resource.SEND, job.writer)
