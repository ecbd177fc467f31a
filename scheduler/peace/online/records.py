"""The online scheduler's input and output: settings, submissions, outcomes, and the records to store.

Invariants:
* Hosts and links appear by name, so that records stay valid when the topology's numbers change.
* Records hold plain values: `dataclasses.asdict` of one is JSON, `RequestRecord.load` and `ChunkRecord.load` read it.
* A restart needs only the newest RequestRecord of each name and ChunkRecord of each (name, chunk).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

from scheduler.errors import RequestError
from scheduler.peace.online.states import RequestState
from scheduler.peace.plan import TransferKind

GATHER_MS = 5
"""The value for callers with a timer: a burst of submissions from many hosts arrives within some milliseconds."""
MAX_GATHER_MS = 1000


class Mode(StrEnum):
    """The rule for the start of the next chunks."""

    CONTINUOUS = "continuous"  # as soon as their path is free
    TIMESTEPS = "timesteps"  # after the paper: together, when enough of the last timestep's chunks are done


class Stragglers(StrEnum):
    """TIMESTEPS: whether unfinished chunks of the last timestep use capacity in the next timestep."""

    IGNORED = "ignored"  # no: overlapping timesteps may each use a capacity in full; one reading of the paper
    COUNTED = "counted"  # yes: their units are taken from the graph


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the scheduler. Every count is a bound: beyond it a submission is refused or a request given up.

    `priority_ms`: the waiting time that one step of priority is worth, so that old requests overtake high priorities.
    `max_tries`: unsuccessful searches for requests behind the head at one event (a quarter in racks where no token was
    freed). `max_remembered`: ended requests that are still known by name, so that late reports differ from wrong ones.
    `gather_ms`: events within so many milliseconds, or within a small share of a chunk's time if that is less, are
    planned together by `OnlineScheduler.plan`, which needs the caller's timer; 0: each event is planned by itself.
    """

    mode: Mode = Mode.CONTINUOUS
    finish_fraction: float = 0.8
    stragglers: Stragglers = Stragglers.COUNTED
    max_waiting: int = 10_000
    max_chunks: int = 16_384
    max_attempts: int = 10
    max_priority: int = 9
    priority_ms: int = 10_000
    max_tries: int = 16
    max_remembered: int = 10_000
    gather_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.finish_fraction <= 1:
            raise RequestError("finish_fraction", f"{self.finish_fraction!r} must be more than 0 and at most 1")
        for name in ("max_waiting", "max_chunks", "max_attempts", "max_tries"):
            if getattr(self, name) < 1:
                raise RequestError(name, f"{getattr(self, name)!r} must be at least 1")
        for name in ("max_priority", "priority_ms", "max_remembered"):
            if getattr(self, name) < 0:
                raise RequestError(name, f"{getattr(self, name)!r} must not be negative")
        if not 0 <= self.gather_ms <= MAX_GATHER_MS:
            raise RequestError("gather_ms", f"{self.gather_ms!r} must be 0 to {MAX_GATHER_MS}")


@dataclass(frozen=True, slots=True)
class Submission:
    """(w, r, k) of Algorithm 1: host `writer` writes `chunks` chunks with `replicas` replicas each.

    `placement`: one text per replica (`parse_placement`), None for the default of `replicas`. `priority`: 0 to
    `Settings.max_priority`, higher goes first. READ: `writer` is the reader, `sources[i]` the hosts that have chunk i.
    COPY: `writer` is None, `sources[i]` the hosts that still have chunk i, `placement` one text (None: anywhere).
    """

    name: str
    writer: str | None
    chunks: int
    replicas: int = 3
    placement: tuple[str, ...] | None = None
    priority: int = 0
    kind: TransferKind = TransferKind.WRITE
    sources: tuple[tuple[str, ...], ...] = ()


class ChunkStart(NamedTuple):
    """Move chunk `chunk` now: `hosts[0]` sends it to `hosts[1]`, which forwards it to `hosts[2]`, and so on."""

    request: str
    chunk: int
    attempt: int
    hosts: tuple[str, ...]
    kind: TransferKind


class QueuePosition(NamedTuple):
    """A place in the queue: requests and chunks that go first, and the proven bound on the wait.

    `starts_within_chunks`: the request's next chunk starts after at most so many times the longest time of a chunk,
    `Settings.gather_ms` included (0: none of its chunks waits). `scheduler.peace.online` proves the bound and names the
    events that change it.
    """

    requests_ahead: int
    chunks_ahead: int
    starts_within_chunks: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A stored request. `sequence` and `submitted_ms` determine its rank; `avoid` are suspected hosts."""

    name: str
    sequence: int
    submitted_ms: int
    writer: str | None
    chunks: int
    placement: tuple[str, ...]
    priority: int
    kind: str
    sources: tuple[tuple[str, ...], ...]
    state: str
    reason: str
    avoid: tuple[str, ...]

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> "RequestRecord":
        """The record from what `dataclasses.asdict` made of it, also when JSON turned its tuples into lists."""
        return cls(**_plain(cls, values))


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """A stored chunk. `hosts` and `routes` (links, each as source and target switch) are those of its last chain.

    `attempt` counts from 1; `since_ms`: the time at which the state began; `step`: the timestep of its start.
    """

    request: str
    chunk: int
    attempt: int
    state: str
    hosts: tuple[str, ...]
    routes: tuple[tuple[tuple[str, str], ...], ...]
    since_ms: int
    step: int

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> "ChunkRecord":
        """The record from what `dataclasses.asdict` made of it, also when JSON turned its tuples into lists."""
        return cls(**_plain(cls, values))


class EventOutcome(NamedTuple):
    """The effects of an event. Store `changed` first, in one transaction; then notify the writers.

    `revoked`: attempts to stop; their chunks are planned again, or their request ended. `finished`: requests with all
    chunks done. `given_up`: requests cancelled or failed by this event. `ignored`: why the event changed nothing.
    """

    go: tuple[ChunkStart, ...] = ()
    revoked: tuple[ChunkStart, ...] = ()
    finished: tuple[str, ...] = ()
    changed: tuple[RequestRecord | ChunkRecord, ...] = ()
    given_up: tuple[str, ...] = ()
    ignored: str | None = None


class HostStatus(NamedTuple):
    """A host, and the number of chunks in flight that pass through it."""

    name: str
    lost: bool
    chunks_in_flight: int


class RequestStatus(NamedTuple):
    """A request: chunks done, in flight and waiting; `unreachable`: lost hosts leave it no path."""

    name: str
    state: RequestState
    kind: TransferKind
    writer: str | None
    priority: int
    done: int
    in_flight: int
    waiting: int
    submitted_ms: int
    unreachable: bool
    reason: str


class InFlight(NamedTuple):
    """A chunk in flight, and the time of its start."""

    go: ChunkStart
    since_ms: int


class ResourceUse(NamedTuple):
    """The units of a resource that chunks in flight use; `name` is a host, or a link as `source>target`."""

    resource: str
    name: str
    used: int
    total: int


@dataclass(frozen=True, slots=True)
class Status:
    """The scheduler's state at one moment. `requests` are those that have not ended, in the order of the queue.

    `head` is the request with the reservation, `reserved` the hosts of the reserved chain (empty while the head waits
    for its own writer only). `step`: the timestep, 0 in continuous mode.
    """

    mode: Mode
    step: int
    hosts: tuple[HostStatus, ...]
    requests: tuple[RequestStatus, ...]
    in_flight: tuple[InFlight, ...]
    uses: tuple[ResourceUse, ...]
    head: str | None
    reserved: tuple[str, ...]


def _plain(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(cls)]
    for name in names:
        if name not in values:
            raise RequestError(name, f"missing in a stored {cls.__name__}")
    return {name: _tuples(values[name]) for name in names}


def _tuples(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_tuples, value))
    return value
