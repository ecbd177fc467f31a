"""The coordinator's requests beside the plan: submissions, newest records, events; and their layout in the metadata.

Keys: `requests/NAME/asked`, `requests/NAME/record`, `requests/NAME/chunks/N`, `requests/NAME/events/N`, `hosts/NAME`;
names are percent-encoded.

Invariants: sans-I/O. `restore` rebuilds the state in which the last of the stored entries was written.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from logstore.base.histogram import Histogram
from scheduler.coordinator.contradictions import check_request
from scheduler.coordinator.errors import StoreDamaged
from scheduler.coordinator.events import Event, RequestEvents
from scheduler.coordinator.hosts import HostRecord
from scheduler.coordinator.metadata.interface import Change, RemovePrefix, SetValue
from scheduler.errors import SchedulerError
from scheduler.peace.online.records import ChunkRecord, EventOutcome, RequestRecord, Submission
from scheduler.peace.online.states import ChunkState, RequestState
from scheduler.peace.plan import TransferKind

REQUESTS = "requests/"
HOSTS = "hosts/"
BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600, 1800)
"""Of the histograms: they cover a chunk on a fast network up to a queue of half an hour."""
MAX_HISTORY = 400
"""The number of ended chunks that the page still shows."""
MAX_EVENTS = 500_000
"""The events of ended requests that are kept at most, some 200 MB; beyond, requests are forgotten earlier."""


class Span(NamedTuple):
    """The time that a chunk was in flight (`until_ms` None: it still is)."""

    chunk: ChunkRecord
    until_ms: int | None


@dataclass(slots=True)
class RequestEntry:
    """A request. `submission`: as JSON, so that a repeated submission is known from another one of the same name."""

    submission: str
    log: RequestEvents
    record: RequestRecord | None = None
    stored: RequestRecord | None = None
    """The newest record that is durable, so that clients may see it."""
    done: set[int] = field(default_factory=set)
    """The chunks whose end is durable."""
    ended_attempts: dict[int, int] = field(default_factory=dict)
    """The last ended attempt of each chunk, as far as durable."""
    waits_since_ms: dict[int, int] = field(default_factory=dict)
    """The times since which chunks wait that were in flight before; all others wait since the submission."""
    ended_ms: int | None = None
    heard_ms: int = 0
    """The time at which the writer last submitted, polled or reported; calls of other clients do not count."""
    open_polls: int = 0
    """The number of the writer's polls that wait for events."""

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
        """The gos in force, as far as durable."""
        if self.stored is None or RequestState(self.stored.state).ended:
            return []
        return [event for event in self.log.current() if event["attempt"] > self.ended_attempts.get(event["chunk"], 0)]


class RequestRegistry:
    """All requests that clients can see."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestEntry] = {}
        self.running: dict[tuple[str, int], ChunkRecord] = {}
        self.history: deque[Span] = deque(maxlen=MAX_HISTORY)
        self.waiting = {kind.value: Histogram(BOUNDS_S) for kind in TransferKind}
        """The times that chunks of each kind waited for their go, since this process started."""
        self.moving = {kind.value: Histogram(BOUNDS_S) for kind in TransferKind}
        """The times that chunks of each kind took from their go to the report that they are done."""
        self._granted_ms: dict[tuple[str, int], int] = {}
        """For each chunk in flight, the time that does not count: its writer's reports could not be received."""
        self._ended: dict[str, None] = {}
        self._ended_events = 0

    @property
    def live(self) -> int:
        """The number of requests that have not ended."""
        return len(self.requests) - len(self._ended)

    def open(self, submission: Submission) -> tuple[RequestEntry, Change]:
        """Add a new request; returns its entry and the change to store with its first records."""
        entry = RequestEntry(submission_text(submission), RequestEvents(f"{_prefix(submission.name)}events/"))
        self.requests[submission.name] = entry
        return entry, SetValue(f"{_prefix(submission.name)}asked", entry.submission)

    def take(self, outcome: EventOutcome, now_ms: int) -> list[Change]:
        """Note the effects of an event of the scheduler; returns the changes to store before writers are notified."""
        changes: list[Change] = []
        ended: list[RequestRecord] = []
        for go in outcome.revoked:
            self.running.pop((go.request, go.chunk), None)
        for record in outcome.changed:
            if isinstance(record, RequestRecord):
                self.requests[record.name].record = record
                changes.append(SetValue(f"{_prefix(record.name)}record", _json(record)))
                if RequestState(record.state).ended:
                    ended.append(record)
            else:
                self._measure(record)
                self._take_chunk(record)
                changes.append(SetValue(f"{_prefix(record.request)}chunks/{record.chunk}", _json(record)))
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
        """Count the time that a chunk waited, or took."""
        entry = self.requests[record.request]
        request = entry.record
        if request is None:
            return
        if record.state == ChunkState.RUNNING:
            since_ms = entry.waits_since_ms.pop(record.chunk, request.submitted_ms)
            self.waiting[request.kind].add((record.since_ms - since_ms) / 1000)
        elif record.state == ChunkState.WAITING:
            entry.waits_since_ms[record.chunk] = record.since_ms
        elif (before := self.running.get((record.request, record.chunk))) is not None:
            self.moving[request.kind].add((record.since_ms - before.since_ms) / 1000)

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
        """The chunks in flight and the last chunks that ended."""
        return [*self.history, *(Span(record, None) for record in self.running.values())]

    def overdue(self, now_ms: int, deadline_ms: int) -> list[ChunkRecord]:
        """The chunks in flight for longer than the deadline, the oldest first."""
        found = [
            record
            for key, record in self.running.items()
            if now_ms - record.since_ms - self._granted_ms.get(key, 0) > deadline_ms
        ]
        return sorted(found, key=lambda record: record.since_ms)

    def extend_deadlines(self, more_ms: int) -> None:
        """Extend the deadlines of all writers and chunks in flight by the time in which no report could be received."""
        self._granted_ms = {key: self._granted_ms.get(key, 0) + more_ms for key in self.running}
        for entry in self.requests.values():
            entry.heard_ms += more_ms

    def restart_deadlines(self, now_ms: int) -> None:
        """Restart the deadlines of all chunks in flight: the coordinator was not running."""
        self._granted_ms = {key: now_ms - record.since_ms for key, record in self.running.items()}

    def oldest_ms(self, now_ms: int) -> int:
        """The time that the oldest chunk has been in flight; 0 without chunks."""
        return max((now_ms - record.since_ms for record in self.running.values()), default=0)

    def silent(self, before_ms: int) -> list[str]:
        """The requests that have not ended and whose writers have sent nothing since then."""
        return [
            name
            for name, entry in self.requests.items()
            if entry.ended_ms is None and not entry.open_polls and entry.heard_ms < before_ms
        ]

    def forget(self, before_ms: int, max_ended: int) -> list[Change]:
        """Drop requests that ended before this time, or exceed `max_ended` or MAX_EVENTS; returns changes to store."""
        changes: list[Change] = []
        for name in list(self._ended):
            entry = self.requests[name]
            too_many = len(self._ended) > max_ended or self._ended_events > MAX_EVENTS
            if not too_many and (entry.ended_ms or 0) >= before_ms:
                break
            self._ended_events -= len(entry.log.events)
            del self.requests[name], self._ended[name]
            changes.append(RemovePrefix(_prefix(name)))
        return changes

    # ---- restoring

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
        """Restore all requests; returns their records, and the latest time in the records. Raises StoreDamaged."""
        records: list[RequestRecord | ChunkRecord] = []
        events: dict[str, list[dict[str, Any]]] = {}
        chunks: dict[str, dict[str, ChunkRecord]] = {}
        latest_ms = 0
        for name, part, key in _requests(entries):
            entry = self.requests.setdefault(name, RequestEntry("", RequestEvents(f"{_prefix(name)}events/")))
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
    """Raises StoreDamaged if a stored request contradicts itself, or has values of wrong types."""
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
    return SetValue(f"{HOSTS}{quote(record.name, safe='')}", _json(record))


def submission_text(submission: Submission) -> str:
    """The submission as JSON; equal submissions give equal texts."""
    return json.dumps(asdict(submission), sort_keys=True)


def damaged(key: str, error: Exception) -> StoreDamaged:
    """The error for an entry that cannot be read."""
    return StoreDamaged(f"stored entry {key!r} cannot be read ({error}): it is damaged, or a newer Cairn wrote it")


def _prefix(name: str) -> str:
    return f"{REQUESTS}{quote(name, safe='')}/"


def _requests(entries: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """The name, part and key of every entry of a request, in order."""
    for key in sorted(entries):
        if key.startswith(REQUESTS):
            name, _, part = key.removeprefix(REQUESTS).partition("/")
            yield unquote(name), part, key


_NAMES = {kind: tuple(part.name for part in fields(kind)) for kind in (RequestRecord, ChunkRecord, HostRecord)}


def _json(record: RequestRecord | ChunkRecord | HostRecord) -> str:
    """A record as JSON; like `asdict`, but without deep copies."""
    values = {name: getattr(record, name) for name in _NAMES[type(record)]}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))
