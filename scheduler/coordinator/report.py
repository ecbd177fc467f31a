"""What a coordinator says: one line per event on standard error, as logfmt.

Invariants: every line has time, level and event; a value with blanks or quotes is quoted; a line that cannot be written
is lost, never an error.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

WARNINGS = frozenset(
    (
        "cannot accept",
        "chunk overdue",
        "connection crashed",
        "connection refused",
        "host lost",
        "plan not rebuilt",
        "plan rebuilt",
        "request crashed",
        "request stranded",
        "store fails",
        "writer silent",
    )
)
"""Events an operator should look at."""

Report = Callable[[str, Mapping[str, object]], None]
"""Takes the name of an event and its fields."""


class Reporter:
    """Writes events as lines. `wall_ms` is the time of day in milliseconds."""

    def __init__(self, wall_ms: Callable[[], int], target: TextIO | None = None) -> None:
        self._wall_ms = wall_ms
        self._target = target or sys.stderr

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Write one event."""
        moment = datetime.fromtimestamp(self._wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        level = "warning" if event in WARNINGS else "info"
        line = " ".join(
            f"{key}={_quoted(str(value))}"
            for key, value in {"time": moment, "level": level, "event": event, **fields}.items()
        )
        with suppress(OSError, ValueError):
            self._target.write(line + "\n")
            self._target.flush()


def _quoted(text: str) -> str:
    plain = text and text.isprintable() and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())
