"""Windows of time in which bytes were counted, and what several of them say together. Sans-I/O.

A receiver counts on its own clock, and says how long after the order its window began and how long before the answer it
ended. The calibrator places the window on its own clock: not earlier than the order, not later than the answer,
so that the window is never shorter than it was. What several flows carried together is all their bytes over the time
from the first begin to the last end. Flows that did not overlap make that rate too low, never too high.

Invariant: a window is longer than nothing, and its bytes are more than none.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from logstore.base.errors import FieldError
from logstore.base.fields import Number
from scheduler.calibration.wire import CalibrationError


class ReceiveWindow(NamedTuple):
    """Bytes that arrived between two instants of one clock; instants in seconds."""

    size: float
    begin: float
    end: float

    @property
    def bytes_s(self) -> float:
        """The rate, bytes per second."""
        return self.size / (self.end - self.begin)

    def answer(self, ordered_at: float, answered_at: float) -> dict[str, float]:
        """The answer to an order; both instants are of the window's clock."""
        return {"bytes": self.size, "lead_s": self.begin - ordered_at, "tail_s": answered_at - self.end}


def placed(answer: Mapping[str, object], ordered_at: float, answered_at: float, who: str) -> ReceiveWindow:
    """The window of an answer on the clock of both instants. Raises CalibrationError that names the agent."""
    size, lead_s, tail_s = (number_in(answer, name, who) for name in ("bytes", "lead_s", "tail_s"))
    window = ReceiveWindow(size, ordered_at + lead_s, answered_at - tail_s)
    if size <= 0 or window.end <= window.begin:
        raise CalibrationError(f"{who}: counted {size:g} bytes in {window.end - window.begin:g} s")
    return window


def number_in(answer: Mapping[str, object], name: str, who: str) -> float:
    """A number of at least 0 in an agent's answer. Raises CalibrationError that names the agent."""
    try:
        return Number().check(answer.get(name), name)
    except FieldError as error:
        raise CalibrationError(f"{who}: in its answer {error}") from None


def together_in(windows: Sequence[ReceiveWindow]) -> ReceiveWindow:
    """All bytes of windows of one clock, from the first begin to the last end."""
    return ReceiveWindow(
        sum(window.size for window in windows),
        min(window.begin for window in windows),
        max(window.end for window in windows),
    )


def overlap(windows: Sequence[ReceiveWindow]) -> float:
    """The share of the time from the first begin to the last end that lies in all windows, from 0 to 1."""
    span = together_in(windows)
    common = min(window.end for window in windows) - max(window.begin for window in windows)
    return max(0.0, common / (span.end - span.begin))
