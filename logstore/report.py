"""The sidecar's log: one line per event on standard error, as logfmt or JSON.

Invariants:
* Every line has time, level and event; values are quoted where necessary.
* Of equal lines within REPEAT_S seconds, the first is written and the others are counted. Lines about a client are
  equal if event and address are equal; other lines, if event and all fields are equal. The count is written as
  `repeated`, in the next such line or when `flush` is called.
* The memory of former lines is bounded (REMEMBERED). While it is full, new events that clients can cause
  (CAUSED_BY_CLIENTS, and lines about a client) are not written: clients cannot fill the disk with the log.
* A line that cannot be written is lost and never raises an error.
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
"""Events that mean lost data or a bug in the sidecar."""
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
"""Events that an operator should look at."""
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
"""Events that a client can cause as often as it likes, with different fields each time, and that name no client."""

REPEAT_S = 5.0
"""A line that repeats an equal line within this time is counted, not written."""
REMEMBERED = 1000
"""Lines whose repeats are recognised. At most this many lines that clients cause are written per REPEAT_S."""
KEY_CHARACTERS = 1000
"""Length of the prefix that is compared of a line without an address: an error's message may be long."""


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
        """Write the counts of unwritten repeats, for lines older than REPEAT_S (`is_end`: for all lines)."""
        now_s = self._clock.monotonic_s()
        while self._said:
            key, said = next(iter(self._said.items()))
            if now_s < said.at_s + REPEAT_S and not is_end:
                return
            del self._said[key]
            if said.left_out:
                self._write(said.event, level_of(said.event), said.fields, said.left_out)

    def _may_remember(self, now_s: float) -> bool:
        """Whether another line can be remembered; forgets the lines that are old enough if the memory is full."""
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
    """The level of an event: one of LEVELS."""
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
