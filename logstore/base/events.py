"""The events that a program logs: a name, a level, and the rule that folds repeats. `logstore.base.report` writes them.

Invariants: a name is in snake_case and unique within its program. A level belongs to its event, so an event has the
same level wherever it is reported. This module does no I/O.
"""

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

_NAME: Final = re.compile(r"[a-z]+(_[a-z]+)*")


class Level(enum.IntEnum):
    """How important an event is, from the least important."""

    INFO = 0
    WARNING = 1
    """An operator should look at it."""
    ERROR = 2
    """Data is lost, or the program has a bug."""

    @property
    def label(self) -> str:
        """The level's name in log lines and settings."""
        return self.name.lower()


LEVELS: Final = tuple(level.label for level in Level)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A kind of log line.

    `folded_by`: two lines of the event are repeats if this field is equal; "": if all fields are equal. `counted_by`:
    with `folded_by`, the field whose first few values are folded and counted separately. `caused_by_clients`: a client
    can cause the event as often as it likes, so the number of its lines is bounded.
    """

    name: str
    level: Level = Level.INFO
    folded_by: str = ""
    counted_by: str = ""
    caused_by_clients: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise AssertionError(f"{self.name!r} is not in snake_case")


class Report(Protocol):
    """Reports an event and its fields to the operator."""

    def __call__(self, event: LogEvent, /, **fields: object) -> None:
        """Report an event."""


def by_name(events: Iterable[LogEvent]) -> Mapping[str, LogEvent]:
    """The events by their names."""
    return {event.name: event for event in events}


def ignore(event: LogEvent, /, **fields: object) -> None:
    """A `Report` that reports nothing."""
