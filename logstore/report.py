"""What a sidecar says: one line per event on standard error, as logfmt or JSON.

Invariants: every line has time, level and event; values that need it are quoted; a line that cannot be written is
lost, never an error.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
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
        "look-up failed",
        "offsets lost",
        "read failed",
        "request crashed",
        "state not reclaimed",
        "torn end cut",
    }
)
"""Events an operator should look at."""


REPEAT_S = 5.0
"""A warning that says the same again within this time is counted, not written: a full disk must not be filled by its
log.
"""
REMEMBERED = 1000
"""Warnings that repeats are recognised of."""


class Reporter:
    """Writes events as lines."""

    def __init__(self, clock: Clock, *, as_json: bool, target: TextIO | None = None) -> None:
        self._clock = clock
        self._as_json = as_json
        self._target = target or sys.stderr
        self._said: dict[str, _Said] = {}

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Write one event."""
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        level = "warning" if event in WARNINGS else "info"
        record: dict[str, object] = {"time": moment, "level": level, "event": event, **fields}
        if event in WARNINGS:
            repeated = self._repeats(f"{event} {fields}")
            if repeated is None:
                return
            if repeated:
                record["repeated"] = repeated
        line = json.dumps(record, default=str) if self._as_json else _logfmt(record)
        with suppress(OSError, ValueError):
            print(line, file=self._target, flush=True)

    def _repeats(self, what: str) -> int | None:
        """How often this was left out since it was last written; None: leave it out now too."""
        now_s = self._clock.monotonic_s()
        said = self._said.get(what)
        if said is not None and now_s < said.at_s + REPEAT_S:
            said.left_out += 1
            return None
        if said is None and len(self._said) >= REMEMBERED:
            self._said.clear()
        self._said[what] = _Said(now_s)
        return 0 if said is None else said.left_out


@dataclass(slots=True)
class _Said:
    at_s: float
    left_out: int = 0


def _logfmt(record: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in record.items())


def _quoted(text: str) -> str:
    plain = text and not any(character in text for character in ' "=\n\r\t')
    return text if plain else json.dumps(text, ensure_ascii=False)
