"""What a sidecar says: one line per event on standard error, as logfmt or JSON.

Invariants: every line has time, level and event; values that need it are quoted; a line that cannot be written is lost, never
an error.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

from logstore.interfaces import Clock

WARNINGS = frozenset(
    {
        "append failed",
        "append group without end cut",
        "cannot accept",
        "durable data damaged",
        "durable data lost",
        "epoch_stuck",
        "epoch_topic_gone",
        "index does not match its chunk",
        "offsets lost",
        "read failed",
        "request crashed",
        "torn end cut",
    }
)
"""Events an operator should look at."""


class Reporter:
    """Writes events as lines."""

    def __init__(self, clock: Clock, *, as_json: bool, target: TextIO | None = None) -> None:
        self._clock = clock
        self._as_json = as_json
        self._target = target or sys.stderr

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Write one event."""
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        level = "warning" if event in WARNINGS else "info"
        record: dict[str, object] = {"time": moment, "level": level, "event": event, **fields}
        line = json.dumps(record, default=str) if self._as_json else _logfmt(record)
        with suppress(OSError, ValueError):
            print(line, file=self._target, flush=True)  # noqa: T201


def _logfmt(record: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in record.items())


def _quoted(text: str) -> str:
    plain = text and not any(character in text for character in ' "=\n\r\t')
    return text if plain else json.dumps(text, ensure_ascii=False)


Report = Callable[[str, Mapping[str, object]], None]
