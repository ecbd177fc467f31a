"""The two clocks of an epoch, and how processing times stand beside event times in `expires`.

Invariants:
* The wall time of an epoch is decided once, before its tasks run, and never runs backwards from epoch to epoch.
* A processing time in `expires` is WALL later than the time it stands for, so that no watermark reaches it.

Source: Spark's batch timestamp and watermark (TimerValues).
"""

from typing import Final, NamedTuple

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.state.layout import NEVER

WALL: Final = 1 << 61
_LOWEST_WALL: Final = 1 << 60


class CallTimes(NamedTuple):
    """The times of a call in ms since 1970: the watermark by which the epoch closes what is due, its wall time, and the
    watermark by which rows are late.
    """

    watermark_ms: int = 0
    wall_ms: int = 0
    late_ms: int = 0

    def has_passed(self, expires: Int64s) -> Bools:
        """Whether each of these times, as `expires` has them, has come."""
        return (expires <= self.watermark_ms) | ((expires >= _LOWEST_WALL) & (expires <= WALL + self.wall_ms))


def is_wall(expires: Int64s) -> Bools:
    """Whether each of these times is a processing time."""
    return (expires >= _LOWEST_WALL) & (expires != NEVER)
