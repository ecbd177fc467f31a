"""A program's log: one line per event on standard error, as logfmt or JSON.

Invariants:
* Every line has time, level and event; values are quoted where necessary, and a value never breaks a line.
* Of equal lines within REPEAT_S seconds, the first is written and the others are counted. Lines are equal if their
  event and the field that it is folded by are equal; without such a field, if event and all fields are equal. The count
  is written as `repeated`, in the next such line or by `flush`.
* An event with `counted_by` has a line and a count for each of the first MAX_REASONS values of that field. All further
  values share one line and one count, which shows the latest value.
* The memory of former lines is bounded (REMEMBERED, for lines that clients cause and for all other lines apart). While
  it is full, new lines that clients cause are not written: clients cannot fill the disk with the log. Their number is
  written by `flush`, for each event, as `not_shown`.
* A line that cannot be written is lost and never raises an error.
* Threads may report at the same time: a line is written whole before the next one.
"""

import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TextIO

from logstore.base.clock import Clock
from logstore.base.events import Level, LogEvent

REPEAT_S: Final = 5.0
"""A line that repeats an equal line within this time is counted, not written."""
REMEMBERED: Final = 1000
"""Lines whose repeats are recognised. At most this many lines that clients cause are written per REPEAT_S."""
KEY_CHARACTERS: Final = 1000
"""Length of the prefix that is compared of a line without `folded_by`: an error's message may be long."""
MAX_REASONS: Final = 4
"""Reasons of one client that are counted separately. A client that invents reasons takes a few of REMEMBERED lines."""


@dataclass(slots=True)
class _Line:
    """The latest line of its kind, and its repeats since."""

    event: LogEvent
    at_s: float
    fields: Mapping[str, object]
    reason: str
    """The value of the field that its event is counted by."""
    repeats: int = 0


class Reporter:
    """Writes events of at least `level` as lines."""

    def __init__(
        self, clock: Clock, *, as_json: bool = False, level: Level = Level.INFO, target: TextIO | None = None
    ) -> None:
        self._clock = clock
        self._as_json = as_json
        self._min_level = level
        self._target = target or sys.stderr
        self._own_lines: OrderedDict[str, _Line] = OrderedDict()
        self._client_lines: OrderedDict[str, _Line] = OrderedDict()
        self._not_shown: dict[LogEvent, int] = {}
        self._lock = threading.Lock()

    def __call__(self, event: LogEvent, /, **fields: object) -> None:
        """Write one event, or count it."""
        if event.level >= self._min_level:
            with self._lock:
                self._take(event, fields)

    def _take(self, event: LogEvent, fields: Mapping[str, object]) -> None:
        now_s = self._clock.monotonic_s()
        lines = self._client_lines if event.caused_by_clients else self._own_lines
        reason = str(fields.get(event.counted_by, ""))[:KEY_CHARACTERS]
        key = _key(event, fields, reason, lines)
        line = lines.get(key)
        if line is not None and now_s < line.at_s + REPEAT_S:
            line.repeats, line.fields = line.repeats + 1, fields
            return
        if line is None and not self._may_remember(lines, now_s):
            if event.caused_by_clients:
                self._not_shown[event] = self._not_shown.get(event, 0) + 1
            else:
                self._write(event, fields, 0)
            return
        self._write(event, fields, 0 if line is None else line.repeats)
        lines[key] = _Line(event, now_s, fields, reason)
        lines.move_to_end(key)

    def flush(self, *, is_end: bool = False) -> None:
        """Write the counts of unwritten repeats, for lines older than REPEAT_S (`is_end`: for all lines), and of lines
        that were not remembered.
        """
        with self._lock:
            self._flush(is_end=is_end)

    def _flush(self, *, is_end: bool = False) -> None:
        now_s = self._clock.monotonic_s()
        for lines in (self._own_lines, self._client_lines):
            while lines:
                key, line = next(iter(lines.items()))
                if now_s < line.at_s + REPEAT_S and not is_end:
                    break
                del lines[key]
                if line.repeats:
                    self._write(line.event, line.fields, line.repeats)
        not_shown, self._not_shown = self._not_shown, {}
        for event, count in not_shown.items():
            self._write(event, {"not_shown": count}, 0)

    async def run(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        """Flush every REPEAT_S seconds until cancelled; `sleep` waits for a number of seconds."""
        while True:
            await sleep(REPEAT_S)
            self.flush()

    def _may_remember(self, lines: OrderedDict[str, _Line], now_s: float) -> bool:
        """Whether another line can be remembered; forgets the lines that are old enough if the memory is full."""
        if len(lines) < REMEMBERED:
            return True
        if now_s < next(iter(lines.values())).at_s + REPEAT_S:
            return False
        self._flush()
        return True

    def _write(self, event: LogEvent, fields: Mapping[str, object], repeats: int) -> None:
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        record: dict[str, object] = {"time": moment, "level": event.level.label, "event": event.name, **fields}
        if repeats:
            record["repeated"] = repeats
        line = json.dumps(record, default=str) if self._as_json else _logfmt(record)
        with suppress(OSError, ValueError):
            self._target.write(line + "\n")
            self._target.flush()


def _key(event: LogEvent, fields: Mapping[str, object], reason: str, lines: Mapping[str, _Line]) -> str:
    """The key of the line that this event repeats, or of a new line."""
    told_apart = fields.get(event.folded_by) if event.folded_by else fields
    key = f"{event.name} {told_apart}"[:KEY_CHARACTERS]
    if not event.counted_by:
        return key
    places = [f"{key} {number}" for number in range(MAX_REASONS)]
    same = (place for place in places if place in lines and lines[place].reason == reason)
    free = (place for place in places if place not in lines)
    return next(same, None) or next(free, key)


def _logfmt(record: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in record.items())


def _quoted(text: str) -> str:
    is_plain = text and text.isprintable() and not any(character in text for character in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())
