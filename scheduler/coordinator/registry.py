"""What the coordinator knows of its requests, beside the plan: what was asked, the newest records, the events; and how
all of it is laid out in the metadata.

Keys: `requests/NAME/asked`, `requests/NAME/record`, `requests/NAME/chunks/N`, `requests/NAME/events/N`, `hosts/NAME`;
names are percent-encoded.

Invariants: sans-I/O. What `restore` makes of stored entries is what was there when the last of them was stored.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from scheduler.coordinator.contradictions import check_request
from scheduler.coordinator.errors import StoreDamaged
from scheduler.coordinator.events import Event, EventLog
from scheduler.coordinator.histogram import Histogram
from scheduler.coordinator.hosts import HostRecord
from scheduler.coordinator.metadata.interface import Change, Put, RemovePrefix
from scheduler.errors import SchedulerError
from scheduler.peace.online.records import ChunkRecord, EventOutcome, RequestRecord, Submission
from scheduler.peace.online.states import ChunkState, RequestState
from scheduler.peace.plan import TransferKind

REQUESTS = "requests/"
HOSTS = "hosts/"
MAX_HISTORY = 400
"""Chunks that are over and still in the picture."""
MAX_EVENTS = 500_000
"""Events of requests that are over, some 200 MB: these are forgotten earlier rather than kept in more."""


class Span(NamedTuple):
    """A chunk's way through the network, from when to when (None: still under way)."""

    chunk: ChunkRecord
    until_ms: int | None


@dataclass(slots=True)
class RequestEntry:
    """A request. `submission`: as JSON, so that a repeated submission is known from another one of the same name."""

    submission: str
    log: EventLog
    record: RequestRecord | None = None
    stored: RequestRecord | None = None
    """The newest record that is durable, so that clients may see it."""
    done: set[int] = field(default_factory=set)
    """Chunks that are done, as far as it is stored."""
    ended_attempts: dict[int, int] = field(default_factory=dict)
    """Chunks' last attempts that ended in some way, as far as it is stored."""
    waits_since_ms: dict[int, int] = field(default_factory=dict)
    """Since when chunks wait that were under way before; the others wait since the request was submitted."""
    ended_ms: int | None = None
    heard_ms: int = 0
    """When its writer last submitted, asked for events or reported; what others ask does not count."""
    open_polls: int = 0
    """How many questions of its writer wait for events."""

    @property
    def state(self) -> RequestState:
        """The state of the request, stored or not."""
        return RequestState.WAITING if self.record is None else RequestState(self.record.state)

    def note_stored(self, records: Iterable[RequestRecord | ChunkRecord], number: int) -> None:
        """Note that these records, and the events up to this number, are stored."""
        for record in records:
            if isinstance(record, RequestRecord):
                self.stored = record
            elif record.state != ChunkState.RUNNING:
                self.ended_attempts[record.chunk] = record.attempt
                if record.state == ChunkState.DONE:
                    self.done.add(record.chunk)
        self.log.publish(number)

    def current_goes(self) -> list[Event]:
        """The gos that hold, as far as it is stored."""
        if self.stored is None or RequestState(self.stored.state).ended:
            return []
        return [event for event in self.log.current() if event["attempt"] > self.ended_attempts.get(event["chunk"], 0)]


class RequestRegistry:
    """All requests that clients can ask for."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestEntry] = {}
        self.running: dict[tuple[str, int], ChunkRecord] = {}
        self.history: deque[Span] = deque(maxlen=MAX_HISTORY)
        self.waiting = {kind.value: Histogram() for kind in TransferKind}
        """How long chunks of each kind waited for their go, since this process started."""
        self.moving = {kind.value: Histogram() for kind in TransferKind}
        """How long chunks of each kind took from their go to the report that they are done."""
        self._granted_ms: dict[tuple[str, int], int] = {}
        """What does not count of the time that a chunk has been under way: nobody could have heard its writer."""
        self._ended: dict[str, None] = {}
        self._ended_events = 0

    @property
    def live(self) -> int:
        """The number of requests that have not ended."""
        return len(self.requests) - len(self._ended)

    def open(self, submission: Submission) -> tuple[RequestEntry, Change]:
        """Add a new request; returns its entry and the change to store with its first records."""
        entry = RequestEntry(submission_text(submission), EventLog(f"{_prefix(submission.name)}events/"))
        self.requests[submission.name] = entry
        return entry, Put(f"{_prefix(submission.name)}asked", entry.submission)

    def take(self, outcome: EventOutcome, now_ms: int) -> list[Change]:
        """Note the effects of an event of the scheduler; returns the changes to store before any client is told."""
        changes: list[Change] = []
        ended: list[RequestRecord] = []
        for go in outcome.revoked:
            self.running.pop((go.request, go.chunk), None)
        for record in outcome.changed:
            if isinstance(record, RequestRecord):
                self.requests[record.name].record = record
                changes.append(Put(f"{_prefix(record.name)}record", _json(record)))
                if RequestState(record.state).ended:
                    ended.append(record)
            else:
                self._measure(record)
                self._take_chunk(record)
                changes.append(Put(f"{_prefix(record.request)}chunks/{record.chunk}", _json(record)))
        for kind, gos in (("revoked", outcome.revoked), ("go", outcome.go)):
            for go in gos:
                changes.append(self.requests[go.request].log.add(kind, go.chunk, go.attempt, go.hosts))  # noqa: PERF401
        for record in ended:
            log = self.requests[record.name].log
            if not log.ended:
                changes.append(log.add(record.state, None, None, ()))
            self._end(record.name, now_ms)
        return changes

    def _end(self, name: str, now_ms: int) -> None:
        entry = self.requests[name]
        if entry.ended_ms is None:
            entry.ended_ms = now_ms
            self._ended[name] = None
            self._ended_events += len(entry.log.events)

    def _measure(self, record: ChunkRecord) -> None:
        """Count how long a chunk waited, or took."""
        entry = self.requests[record.request]
        request = entry.record
        if request is None:
            return
        if record.state == ChunkState.RUNNING:
            since_ms = entry.waits_since_ms.pop(record.chunk, request.submitted_ms)
            self.waiting[request.kind].add(record.since_ms - since_ms)
        elif record.state == ChunkState.WAITING:
            entry.waits_since_ms[record.chunk] = record.since_ms
        elif (before := self.running.get((record.request, record.chunk))) is not None:
            self.moving[request.kind].add(record.since_ms - before.since_ms)

    def _take_chunk(self, record: ChunkRecord) -> None:
        key = (record.request, record.chunk)
        if record.state == ChunkState.RUNNING:
            self.running[key] = record
            self._granted_ms.pop(key, None)
            return
        before = self.running.pop(key, None)
        self._granted_ms.pop(key, None)
        if record.state == ChunkState.DONE and before is not None:
            self.history.append(Span(before, record.since_ms))

    def spans(self) -> list[Span]:
        """The chunks under way and the last ones that ended."""
        return [*self.history, *(Span(record, None) for record in self.running.values())]

    def overdue(self, now_ms: int, deadline_ms: int) -> list[ChunkRecord]:
        """Chunks that are under way for longer than this, the oldest first."""
        found = [
            record
            for key, record in self.running.items()
            if now_ms - record.since_ms - self._granted_ms.get(key, 0) > deadline_ms
        ]
        return sorted(found, key=lambda record: record.since_ms)

    def extend_deadlines(self, more_ms: int) -> None:
        """Every chunk under way gets more time: nobody could hear its writer for so long."""
        self._granted_ms = {key: self._granted_ms.get(key, 0) + more_ms for key in self.running}

    def restart_deadlines(self, now_ms: int) -> None:
        """Every chunk under way has all its time from now on: the coordinator was not there."""
        self._granted_ms = {key: now_ms - record.since_ms for key, record in self.running.items()}

    def oldest_ms(self, now_ms: int) -> int:
        """For how long the oldest chunk has been under way; 0 without one."""
        return max((now_ms - record.since_ms for record in self.running.values()), default=0)

    def silent(self, before_ms: int) -> list[str]:
        """The running requests whose writers have sent nothing since then."""
        return [
            name
            for name, entry in self.requests.items()
            if entry.ended_ms is None and not entry.open_polls and entry.heard_ms < before_ms
        ]

    def forget(self, before_ms: int, most: int) -> list[Change]:
        """Drop requests that ended before this time, or are more than `most` or MAX_EVENTS; returns what to store."""
        changes: list[Change] = []
        for name in list(self._ended):
            entry = self.requests[name]
            too_many = len(self._ended) > most or self._ended_events > MAX_EVENTS
            if not too_many and (entry.ended_ms or 0) >= before_ms:
                break
            self._ended_events -= len(entry.log.events)
            del self.requests[name], self._ended[name]
            changes.append(RemovePrefix(_prefix(name)))
        return changes

    # ---- what was stored

    def replace_with(self, stored: "RequestRegistry", now_ms: int) -> None:
        """Replace all requests by those that `stored` restored. Clients that wait for events go on waiting."""
        for name, entry in list(self.requests.items()):
            known = stored.requests.get(name)
            if known is None:
                del self.requests[name]
            else:
                entry.record, entry.stored, entry.ended_ms = known.record, known.stored, known.ended_ms
                entry.done, entry.ended_attempts = known.done, known.ended_attempts
                entry.log.restore(known.log.events)
                stored.requests[name] = entry
            entry.log.wake()
        for name, known in stored.requests.items():
            if name not in self.requests:
                known.heard_ms = now_ms
                self.requests[name] = known
        self.running = stored.running
        self._ended, self._ended_events = {}, 0
        for name, entry in self.requests.items():
            if entry.ended_ms is not None:
                self._ended[name] = None
                self._ended_events += len(entry.log.events)

    def restore(self, entries: Mapping[str, str], now_ms: int) -> tuple[list[RequestRecord | ChunkRecord], int]:
        """Restore all requests; returns their records, and the latest time in them. Raises StoreDamaged."""
        records: list[RequestRecord | ChunkRecord] = []
        events: dict[str, list[dict[str, Any]]] = {}
        chunks: dict[str, dict[str, ChunkRecord]] = {}
        latest_ms = 0
        for name, part, key in _requests(entries):
            entry = self.requests.setdefault(name, RequestEntry("", EventLog(f"{_prefix(name)}events/")))
            kind, text = part.partition("/")[0], entries[key]
            try:
                if kind == "asked":
                    entry.submission = text
                elif kind == "record":
                    entry.record = RequestRecord.load(json.loads(text))
                    records.append(entry.record)
                    latest_ms = max(latest_ms, entry.record.submitted_ms)
                elif kind == "chunks":
                    chunk = ChunkRecord.load(json.loads(text))
                    chunks.setdefault(name, {})[part.partition("/")[2]] = chunk
                    records.append(chunk)
                    latest_ms = max(latest_ms, chunk.since_ms)
                elif kind == "events":
                    events.setdefault(name, []).append(json.loads(text))
            except (ValueError, TypeError, SchedulerError) as error:
                raise damaged(key, error) from error
        for name, entry in self.requests.items():
            if entry.record is None or not entry.submission:
                raise StoreDamaged(f"stored request {name!r} is not whole: restore the metadata from a copy")
            _check(name, entry, chunks.get(name, {}), events.get(name, []))
            entry.log.restore(events.get(name, []))
            if entry.state.ended:
                self._end(name, now_ms)
        for record in records:
            entry = self.requests[record.name if isinstance(record, RequestRecord) else record.request]
            entry.note_stored([record], entry.log.durable)
            if isinstance(record, ChunkRecord) and not entry.state.ended:
                self._take_chunk(record)
        return records, latest_ms


def _check(name: str, entry: RequestEntry, chunks: Mapping[str, ChunkRecord], events: Sequence[Event]) -> None:
    """Raises StoreDamaged if a stored request contradicts itself, or has values of other types than it is made of."""
    if entry.record is None:
        return
    try:
        check_request(name, entry.submission, entry.record, chunks, events)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise damaged(f"{_prefix(name)}record", error) from error


def restore_hosts(entries: Mapping[str, str]) -> list[HostRecord]:
    """The stored hosts. Raises StoreDamaged."""
    found: list[HostRecord] = []
    for key, text in entries.items():
        if key.startswith(HOSTS):
            try:
                found.append(HostRecord(**json.loads(text)))
            except (ValueError, TypeError) as error:
                raise damaged(key, error) from error
    return found


def host_change(record: HostRecord) -> Change:
    """The change that stores a host."""
    return Put(f"{HOSTS}{quote(record.name, safe='')}", _json(record))


def submission_text(submission: Submission) -> str:
    """A submission as JSON; equal submissions give equal texts."""
    return json.dumps(asdict(submission), sort_keys=True)


def damaged(key: str, error: Exception) -> StoreDamaged:
    """The error for an entry that cannot be read."""
    return StoreDamaged(f"stored entry {key!r} cannot be read ({error}): it is damaged, or a newer Cairn wrote it")


def _prefix(name: str) -> str:
    return f"{REQUESTS}{quote(name, safe='')}/"


def _requests(entries: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Request's name, part and key of every entry of a request, in order."""
    for key in sorted(entries):
        if key.startswith(REQUESTS):
            name, _, part = key.removeprefix(REQUESTS).partition("/")
            yield unquote(name), part, key


_NAMES = {kind: tuple(part.name for part in fields(kind)) for kind in (RequestRecord, ChunkRecord, HostRecord)}


def _json(record: RequestRecord | ChunkRecord | HostRecord) -> str:
    """A record as JSON; like `asdict`, without the copy of everything in it."""
    values = {name: getattr(record, name) for name in _NAMES[type(record)]}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))
