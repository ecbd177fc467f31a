"""What a sidecar says: one line per event on standard error, as logfmt or JSON.

Invariants:
* Every line has time, level and event; values that need it are quoted.
* Of lines that say the same again within REPEAT_S seconds the first is written and the others are counted. Lines about
  a client are the same if event and address are; other lines, if all of their fields are. The count follows as
  `repeated`, in the next such line or when `flush` is called.
* What is remembered of former lines is bounded (REMEMBERED). Beyond that no line is written of what clients can cause
  (CAUSED_BY_CLIENTS, and lines about a client): they cannot fill the disk with the log.
* A line that cannot be written is lost, never an error.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from logstore.interfaces import Clock

LEVELS = ("info", "warning", "error")
"""From the least important to the most."""
ERRORS = frozenset(
    {
        "durable data damaged",
        "durable data lost",
        "offsets lost",
        "request crashed",
    }
)
"""Events that tell of lost data or of a fault of ours."""
WARNINGS = frozenset(
    {
        "append failed",
        "append group without end cut",
        "cannot accept",
        "disk full",
        "epoch stuck",
        "epoch topic gone",
        "fewer connections",
        "index does not match its chunk",
        "look-up failed",
        "look-up inexact",
        "read failed",
        "state not reclaimed",
        "torn end cut",
    }
)
"""Events an operator should look at."""
CAUSED_BY_CLIENTS = frozenset(
    {
        "group rebalanced",
        "look-up failed",
        "look-up inexact",
        "read failed",
        "topic altered",
        "topic created",
        "topic deleted",
        "topic grown",
        "trimmed",
    }
)
"""Events that a client can cause as often as it likes, with other fields each time; but that tell of no client."""

REPEAT_S = 5.0
"""A line that says the same again within this time is counted, not written."""
REMEMBERED = 1000
"""Lines that repeats are recognised of. Of what clients cause, no more than this are written at a time."""
KEY_CHARACTERS = 1000
"""What is compared of a line without an address: an error's message may be long."""


class Reporter:
    """Writes events of at least `level` as lines."""

    def __init__(self, clock: Clock, *, as_json: bool, level: str = LEVELS[0], target: TextIO | None = None) -> None:
        self._clock = clock
        self._as_json = as_json
        self._least = LEVELS.index(level)
        self._target = target or sys.stderr
        self._said: OrderedDict[str, _Said] = OrderedDict()

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Write one event, or count it."""
        level = level_of(event)
        if LEVELS.index(level) < self._least:
            return
        now_s = self._clock.monotonic_s()
        key = f"{event} {fields['client']}" if "client" in fields else f"{event} {fields}"[:KEY_CHARACTERS]
        said = self._said.get(key)
        if said is not None and now_s < said.at_s + REPEAT_S:
            said.left_out, said.fields = said.left_out + 1, fields
            return
        if said is None and not self._may_remember(now_s):
            if "client" not in fields and event not in CAUSED_BY_CLIENTS:
                self._write(event, level, fields, 0)
            return
        self._write(event, level, fields, 0 if said is None else said.left_out)
        self._said[key] = _Said(event, now_s, fields)
        self._said.move_to_end(key)

    def flush(self, *, is_end: bool = False) -> None:
        """Write what was counted and not yet said, of lines older than REPEAT_S (`is_end`: of all)."""
        now_s = self._clock.monotonic_s()
        while self._said:
            key, said = next(iter(self._said.items()))
            if now_s < said.at_s + REPEAT_S and not is_end:
                return
            del self._said[key]
            if said.left_out:
                self._write(said.event, level_of(said.event), said.fields, said.left_out)

    def _may_remember(self, now_s: float) -> bool:
        """Whether another line can be remembered; the oldest goes if it is old enough."""
        if len(self._said) < REMEMBERED:
            return True
        oldest = next(iter(self._said.values()))
        if now_s < oldest.at_s + REPEAT_S:
            return False
        self.flush()
        return True

    def _write(self, event: str, level: str, fields: Mapping[str, object], repeated: int) -> None:
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        record: dict[str, object] = {"time": moment, "level": level, "event": event, **fields}
        if repeated:
            record["repeated"] = repeated
        line = json.dumps(record, default=str) if self._as_json else _logfmt(record)
        with suppress(OSError, ValueError):
            print(line, file=self._target, flush=True)


def level_of(event: str) -> str:
    """How important an event is: one of LEVELS."""
    if event in ERRORS:
        return "error"
    return "warning" if event in WARNINGS else "info"


@dataclass(slots=True)
class _Said:
    event: str
    at_s: float
    fields: Mapping[str, object]
    left_out: int = 0


def _logfmt(record: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in record.items())


def _quoted(text: str) -> str:
    plain = text and not any(character in text for character in ' "=\n\r\t')
    return text if plain else json.dumps(text, ensure_ascii=False)
