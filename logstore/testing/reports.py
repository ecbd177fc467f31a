"""A `Report` that keeps what it is given.

Invariant: events are kept in order, by their names, with their fields.
"""

from logstore.base.events import LogEvent


class RecordedReports:
    """Implements `logstore.base.events.Report`; `events` are the names and fields of all events so far."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: LogEvent, /, **fields: object) -> None:
        """Keep an event."""
        self.events.append((event.name, fields))

    def names(self) -> list[str]:
        """The names of all events so far."""
        return [name for name, _ in self.events]

    def of(self, event: LogEvent) -> list[dict[str, object]]:
        """The fields of each report of an event."""
        return [fields for name, fields in self.events if name == event.name]
