"""Counts the events that a sidecar reports, and keeps its last warnings and errors.

Invariants: every event is passed on to the log; threads may report at the same time. What is kept is bounded, for
events that clients cause and for all others apart, so that no client can push out what the operator should see; a text
from outside is cut.
"""

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

from logstore.base.clock import Clock
from logstore.base.events import Level, LogEvent, Report
from logstore.events import CHUNK_CLEANED, TRIMMED

KEPT: Final = 25
"""Kinds of warnings and errors that are kept: those that clients cause, and as many others."""
MAX_CHARACTERS: Final = 300
"""Of each value of an event that is kept."""


@dataclass(slots=True)
class SeenEvent:
    """The latest event of its kind, and how often such an event came."""

    event: LogEvent
    at_ms: int
    fields: dict[str, str]
    count: int


class EventLog:
    """A `Report` that counts, keeps, and passes on."""

    def __init__(self, report: Report, clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._own: OrderedDict[str, SeenEvent] = OrderedDict()
        self._of_clients: OrderedDict[str, SeenEvent] = OrderedDict()
        self.counts: Counter[LogEvent] = Counter()
        self.trimmed_records = 0
        self.trimmed_bytes = 0
        self.cleaned_bytes = 0

    def __call__(self, event: LogEvent, /, **fields: object) -> None:
        """Report an event."""
        with self._lock:
            self.counts[event] += 1
            if event == TRIMMED:
                self.trimmed_records += _number(fields.get("last")) - _number(fields.get("first")) + 1
                self.trimmed_bytes += _number(fields.get("freed_bytes"))
            elif event == CHUNK_CLEANED:
                self.cleaned_bytes += _number(fields.get("freed_bytes"))
            if event.level > Level.INFO:
                self._keep(event, fields)
        self._report(event, **fields)

    def _keep(self, event: LogEvent, fields: dict[str, object]) -> None:
        kept = self._of_clients if event.caused_by_clients else self._own
        shown = {name: str(value)[:MAX_CHARACTERS] for name, value in fields.items()}
        key = f"{event.name} {shown.get(event.folded_by, '') if event.folded_by else sorted(shown.items())}"
        former = kept.pop(key, None)
        kept[key] = SeenEvent(event, self._clock.wall_ms(), shown, 1 if former is None else former.count + 1)
        if len(kept) > KEPT:
            kept.popitem(last=False)

    def last(self) -> list[SeenEvent]:
        """The last warnings and errors, the newest first."""
        with self._lock:
            seen = [*self._own.values(), *self._of_clients.values()]
        return sorted(seen, key=lambda one: one.at_ms, reverse=True)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
