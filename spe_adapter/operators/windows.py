"""The kinds of windows: by event time (tumbling, sliding, sessions), by count of rows, and none at all.

Invariants: an event-time window is [start, start + length) in µs since 1970, its number is its start; starts lie at
`start + n * slide`, also before 1970, exactly as Spark's `window` has them. A row without event time is in no window.

Source: Spark's TimeWindowing rule; CEC paper, section II (time-based and count-based windows, advance below size).
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidConfig
from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators.base import Assignment, Overlapping, Times, ceiling_ms

Duration = str | timedelta
"""A duration: "5 minutes", "1 hour 30 minutes", "250 milliseconds", or a timedelta."""

Mode = Literal["append", "update"]
MODES: Final[tuple[Mode, ...]] = ("append", "update")
"""When a window gives results: once, when the window has ended, or after each change."""

_UNITS_US: Final = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART: Final = re.compile(r"\s*(-?\d+)\s*([a-z]+?)s?(?=\s|\d|-|$)", re.IGNORECASE)

MAX_OVERLAPS: Final = 64
"""A counting window's state holds this many overlapping windows of a key at most: they are all in one footprint."""


def duration_us(length: Duration) -> int:
    """A duration in µs. Raises InvalidConfig, also for months and years, whose lengths vary."""
    if isinstance(length, timedelta):
        return (length.days * 86_400 + length.seconds) * 1_000_000 + length.microseconds
    total, at = 0, 0
    text = length.strip().lower().removeprefix("interval").strip()
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _UNITS_US:
            break
        total += int(part[1]) * _UNITS_US[part[2]]
        at = part.end()
    if not text or text[at:].strip():
        raise InvalidConfig(f"duration {length!r}; write a number and one of {', '.join(_UNITS_US)}, or several")
    return total


@dataclass(frozen=True)
class Sliding:
    """Windows of `length` that start every `slide`, by the timestamps in column `time`.

    The watermark is the newest event time minus `delay`. A window gives its result once, when the watermark reaches its
    end; later rows of the window are dropped. `start` shifts all windows ("15 minutes": hourly windows from a quarter
    past). With `mode` "update", as in Spark's output mode of that name, a window gives its current result after each
    batch that changes the window; the last result is the final one.
    """

    length: Duration
    slide: Duration
    time: str
    delay: Duration = "0 seconds"
    start: Duration = "0 seconds"
    mode: Mode = "append"

    def __post_init__(self) -> None:
        """Check the arguments, as Spark does. Raises InvalidConfig."""
        if self.mode not in MODES:
            raise InvalidConfig(f"windows in mode {self.mode!r}; it is {' or '.join(MODES)}")
        if self.length_us <= 0 or self.slide_us <= 0:
            raise InvalidConfig(f"a window of {self.length!r} every {self.slide!r}; both must be longer than 0")
        if self.slide_us > self.length_us:
            raise InvalidConfig(f"a window of {self.length!r} every {self.slide!r}; rows between windows would be lost")
        if abs(duration_us(self.start)) >= self.slide_us:
            raise InvalidConfig(f"windows shifted by {self.start!r}; it must be less than {self.slide!r}")
        if self.delay_ms < 0:
            raise InvalidConfig(f"a delay of {self.delay!r}; it must not be negative")

    @property
    def description(self) -> str:
        """The parameters that windows and their ends depend on. A query may change its delay and mode at any time."""
        return (
            f"windows of {self.length_us} µs every {self.slide_us} µs from {duration_us(self.start)} µs by {self.time}"
        )

    @property
    def length_us(self) -> int:
        """The length of a window, in µs."""
        return duration_us(self.length)

    @property
    def slide_us(self) -> int:
        """The time between the starts of two consecutive windows, in µs."""
        return duration_us(self.slide)

    @property
    def delay_ms(self) -> int:
        """The difference between the newest event time and the watermark, in ms."""
        return duration_us(self.delay) // 1000

    def ends_ms(self, numbers: Int64s) -> Int64s:
        """The times at which windows are due: their ends, rounded up to ms, so that no window is due before its end."""
        return ceiling_ms(numbers + self.length_us)

    @property
    def overlaps(self) -> int:
        """The maximum number of windows of a row; some rows are in one window less."""
        return -(-self.length_us // self.slide_us)

    def assign(self, times: Times) -> Assignment | Overlapping:
        """The windows of rows with these event times; the windows of a row are consecutive."""
        rows = None if times.valid is None else np.flatnonzero(times.valid)
        us = times.us if rows is None else times.us[rows]
        last = us - (us - duration_us(self.start)) % self.slide_us
        if self.overlaps == 1:
            return self.placed(last, rows)
        # Which windows a row is in follows from the last that started before it, and whether it is in the first.
        in_first = us < last - self.slide_us * (self.overlaps - 1) + self.length_us
        return self.placed(2 * last + in_first, rows)

    def placed(self, numbers: Int64s, rows: Int64s | None = None) -> Assignment | Overlapping:
        """The windows for numbers that `assign` returned."""
        if self.overlaps == 1:
            return Assignment(numbers, rows, self.ends_ms(numbers))
        return Overlapping(numbers, rows, self._spread)

    def _spread(self, groups: Int64s) -> tuple[Int64s, Assignment]:
        counts = self.overlaps - 1 + (groups & 1)
        left = np.repeat(np.cumsum(counts), counts) - np.arange(int(counts.sum())) - 1
        numbers = np.repeat(groups >> 1, counts) - self.slide_us * left
        return counts, Assignment(numbers, None, self.ends_ms(numbers))


def Tumbling(  # noqa: N802  a kind of window, spelled like the others
    length: Duration, time: str, delay: Duration = "0 seconds", start: Duration = "0 seconds", mode: Mode = "append"
) -> Sliding:
    """Consecutive windows of `length` without overlap; the parameters are those of Sliding."""
    return Sliding(length, length, time, delay, start, mode)


@dataclass(frozen=True)
class Counting:
    """Windows of `size` rows of a key; a new window starts every `advance` rows (default: `size`). The row that fills a
    window gives its result; a window that is not full gives no result.
    """

    size: int
    advance: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments. Raises InvalidConfig."""
        if self.size < 1 or not 1 <= self.step <= self.size:
            raise InvalidConfig(f"a window of {self.size} rows every {self.step}; 1 <= advance <= size")
        if self.overlaps > MAX_OVERLAPS:
            raise InvalidConfig(
                f"a window of {self.size} rows every {self.step}: {self.overlaps} overlap, at most {MAX_OVERLAPS} can"
            )

    @property
    def description(self) -> str:
        """The parameters that the state depends on."""
        return f"windows of {self.size} rows every {self.step}"

    @property
    def step(self) -> int:
        """The number of rows between the starts of two consecutive windows."""
        return self.size if self.advance is None else self.advance

    @property
    def overlaps(self) -> int:
        """The maximum number of windows of a row."""
        return -(-self.size // self.step)


@dataclass(frozen=True)
class Running:
    """No windows: one state per key without an end. After each batch, results for the keys of the batch."""

    description: ClassVar[str] = "no windows"


@dataclass(frozen=True)
class Session:
    """Windows of consecutive rows of a key with pauses of at most `gap`, by the timestamps in column `time`.

    A session lasts from its first row until `gap` after its last row. The watermark is the newest event time minus
    `delay`. A session gives its result once, when the watermark reaches its end. A row is dropped if the watermark has
    reached the end of a session of this row alone.
    """

    gap: Duration
    time: str
    delay: Duration = "0 seconds"

    def __post_init__(self) -> None:
        """Check the arguments. Raises InvalidConfig."""
        if self.gap_us <= 0:
            raise InvalidConfig(f"sessions with a gap of {self.gap!r}; it must be longer than 0")
        if self.delay_ms < 0:
            raise InvalidConfig(f"a delay of {self.delay!r}; it must not be negative")

    @property
    def description(self) -> str:
        """The parameters that the bounds of a session depend on. A query may change its delay at any time."""
        return f"sessions with a gap of {self.gap_us} µs by {self.time}"

    @property
    def gap_us(self) -> int:
        """The longest pause within a session, in µs."""
        return duration_us(self.gap)

    @property
    def delay_ms(self) -> int:
        """The difference between the newest event time and the watermark, in ms."""
        return duration_us(self.delay) // 1000

    def assign(self, times: Times) -> Assignment:
        """Assign rows to their key. The operator finds the sessions of the key later, with the key's state."""
        rows = None if times.valid is None else np.flatnonzero(times.valid)
        us = times.us if rows is None else times.us[rows]
        return Assignment(np.zeros(len(us), np.int64), rows, ceiling_ms(us + self.gap_us))


Window = Sliding | Counting | Running | Session

_INSTANT: Final = "us"


def window_type(times: pa.DataType) -> pa.DataType:
    """The result column `window`, as in Spark: start and end (exclusive) of the window."""
    moment = pa.timestamp(_INSTANT, times.tz)
    return pa.struct([pa.field("start", moment), pa.field("end", moment)])


def window_column(starts: Int64s, ends: Int64s, kind: pa.DataType) -> pa.Array:
    """Windows as a result column of this type."""
    parts = [pa.array(moments).view(kind.field(0).type) for moments in (starts, ends)]
    return pa.StructArray.from_arrays(parts, fields=[kind.field(0), kind.field(1)])
