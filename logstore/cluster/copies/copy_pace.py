"""How fast copies may flow through this host, beside appends: as fast as these do not feel it.

Copies of chunks read and write the same disk as appends. What an append feels of them is measured: how long it takes
until it is durable here, with a piece of a copy under way at the same time or without one.

Invariants:
* An append that had a piece beside it, and took longer than nearly all that had none, is *harmed*. Each harmed append
  halves the rate of copies, each other one raises it by GROWTH: so less than one append in a hundred is harmed,
  whatever the disk, the load and the size of batches. That is what a 99th percentile allows.
* Copies begin at the least rate. It grows only while they flow, and a harm halves what has really flowed: a rate that
  nothing has used says nothing of what appends feel.
* The rate stays between the two that the operator sets; it is the higher one while no append is under way and none was
  for BESIDE_S: an append counts for as long as it takes, for the disk is slowest when it takes longest.
* Pieces that may not be fast (`copy_speed`) have the least rate together, with appends or without. While the last one
  was such a piece, the rate grows to HELD_BACK times the least and no further: what has not flowed says nothing.
* A piece is so large that its bytes take half as long as what comes with every write: smaller ones would cost the disk
  more syncs, larger ones make an append wait longer. From MIN_PIECE_BYTES, which is more than what goes to the shared
  journal, to MAX_PIECE_BYTES.
* What a stream waits for is not slowed down; it is paid for by the copies behind it.
* No clock, no I/O: the caller says what time it is, in seconds that never go back.

Source: RFC 6817 (a background transfer yields by the delay that it causes, not by a fixed rate).
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

PIECES_IN_FLIGHT: Final = 2
"""For one host: while one is being written, the next is on its way."""
MIN_PIECE_BYTES: Final = 160 << 10
MAX_PIECE_BYTES: Final = 1 << 20
SMALL_PIECE_BYTES: Final = MIN_PIECE_BYTES * 3 // 2
"""What a shorter piece costs is what every write costs."""
UNKNOWN_PIECE_BYTES: Final = MAX_PIECE_BYTES // 2
"""Until it is known what bytes cost: so much more than a small piece that the difference says it."""
BESIDE_S: Final = 0.5
"""An append counts for so much longer than it takes: a producer that sends twice a second has its copies paced."""
KEPT_CALM: Final = 64
"""Appends without a piece beside them whose times are remembered."""
HIGH_RANK: Final = 2
"""Of them, the time that so many exceed or equal is a long one."""
LONGER: Final = 1.2
"""An append that takes so many times the long time is harmed."""
LEAST_S: Final = 0.002
"""What is shorter than this is no long time: the way of a request through two hosts is as uneven."""
GROWTH: Final = 1.0035
"""ln 2 per two hundred appends."""
HARM: Final = 0.5
DEFAULT_GRACE_S: Final = 30
"""For hosts that have gone a moment ago, before what they had is copied: a process that is started again, and a machine
that boots quickly, are back in less."""
DEFAULT_MIN_RATE: Final = 8 << 20
DEFAULT_MAX_RATE: Final = 1 << 30
FLOWING_S: Final = 1.0
"""Copies flow for so long behind a piece."""
SMALL_EVERY: Final = 8
"""Of so many pieces beside appends the first is a small one: what every write costs is seen by it."""
BYTES_SHARE: Final = 0.5
"""Of the time that every write takes: so much for the bytes of a piece."""
HELD_BACK: Final = 2.0
WEIGHT: Final = 4
"""Of averages: each piece counts one part in so many."""


@dataclass(frozen=True, slots=True)
class CopyRates:
    """Bytes a second that copies get on a host, reading and writing together: at least, and at most."""

    min_bytes_per_s: int = DEFAULT_MIN_RATE
    max_bytes_per_s: int = DEFAULT_MAX_RATE


class CopyPace:
    """See the module."""

    def __init__(self, rates: CopyRates | None = None) -> None:
        self._rates = rates or CopyRates()
        self._rate = self._flow = float(self._rates.min_bytes_per_s)
        """What copies may have, and what they have had of late, in bytes a second."""
        self._calm_s: deque[float] = deque(maxlen=KEPT_CALM)
        self._appended_s = self._free_s = self._least_free_s = self._piece_ended_s = float("-inf")
        self._is_fast = True
        """Whether the last piece was."""
        self._pieces = self._appending = 0
        self._small_s = self._byte_s = 0.0
        """How long a small piece takes, and each byte more; 0: not known yet."""
        self._asked = 0
        self.harmed_appends = 0

    @property
    def long_s(self) -> float:
        """How long an append takes when it takes long, without copies; infinite while too little is known."""
        if not self._is_known:
            return float("inf")
        return max(sorted(self._calm_s)[-HIGH_RANK], LEAST_S)

    def rate(self, now_s: float) -> float:
        """Bytes a second that copies may have now: beside appends of which too little is known, the least."""
        if not self.is_beside_appends(now_s):
            return float(self._rates.max_bytes_per_s)
        return self._rate if self._is_known else float(self._rates.min_bytes_per_s)

    @property
    def _is_known(self) -> bool:
        return len(self._calm_s) >= KEPT_CALM // 4

    def is_beside_appends(self, now_s: float) -> bool:
        """Whether an append is under way here, or was a moment ago."""
        return self._appending > 0 or now_s - self._appended_s <= BESIDE_S

    @property
    def has_append_under_way(self) -> bool:
        """Whether an append was given to the disk and has not ended."""
        return self._appending > 0

    # ---- appends

    def append_begun(self, now_s: float) -> None:
        """An append was given to the disk; `append_durable` is to be told of its end."""
        self._appended_s = now_s
        self._appending += 1

    def append_durable(self, begun_s: float, now_s: float) -> None:
        """An append that had begun at a time is durable, or has failed."""
        self._appended_s = now_s
        self._appending -= 1
        took_s = now_s - begun_s
        if not self._pieces and self._piece_ended_s < begun_s:
            self._calm_s.append(took_s)
        elif took_s > LONGER * self.long_s:
            self.harmed_appends += 1
            self._rate = max(min(self._rate, self._flow) * HARM, float(self._rates.min_bytes_per_s))
            return
        if self._pieces or now_s - self._piece_ended_s <= FLOWING_S:
            self._rate = min(self._rate * GROWTH, self._highest())

    def _highest(self) -> float:
        """What the rate may grow to."""
        highest = float(self._rates.max_bytes_per_s)
        return highest if self._is_fast else max(min(HELD_BACK * self._rates.min_bytes_per_s, highest), self._rate)

    def is_held_back(self, now_s: float) -> bool:
        """Whether appends would let copies be faster than the least rate by a half."""
        return self.rate(now_s) >= 1.5 * self._rates.min_bytes_per_s

    # ---- pieces

    def pieces_at_once(self, now_s: float) -> int:
        """How many pieces may be under way: beside appends one, so that an append waits for one at most."""
        return 1 if self.is_beside_appends(now_s) else PIECES_IN_FLIGHT

    def wait_s(self, now_s: float, *, is_fast: bool = True) -> float:
        """For how long the next piece has to wait; 0: it may begin."""
        paced_s = max(0.0, self._free_s - now_s) if self.is_beside_appends(now_s) else 0.0
        return paced_s if is_fast else max(paced_s, self._least_free_s - now_s)

    def piece_begun(self) -> None:
        """A piece is being read, or written."""
        self._pieces += 1

    def piece_ended(self, size_bytes: int, begun_s: float, now_s: float, *, is_fast: bool = True) -> None:
        """It is done, or was given up; the pieces behind it pay for its bytes."""
        self._pieces -= 1
        self._is_fast = is_fast
        if not is_fast:
            self._least_free_s = max(self._least_free_s, begun_s) + size_bytes / self._rates.min_bytes_per_s
        since_s, self._piece_ended_s = now_s - self._piece_ended_s, now_s
        if since_s > FLOWING_S:
            self._rate = self._flow = float(self._rates.min_bytes_per_s)
        elif since_s > 0:
            self._flow += (size_bytes / since_s - self._flow) / WEIGHT
        self._free_s = max(self._free_s, begun_s) + size_bytes / self.rate(now_s)

    def next_piece_bytes(self, now_s: float) -> int:
        """How large the next piece should be."""
        if not self.is_beside_appends(now_s):
            return MAX_PIECE_BYTES
        self._asked += 1
        if self._asked % SMALL_EVERY == 1:
            return MIN_PIECE_BYTES
        if not self._small_s or not self._byte_s:
            return UNKNOWN_PIECE_BYTES
        fitting = int(BYTES_SHARE * (self._small_s / self._byte_s - MIN_PIECE_BYTES))
        return max(MIN_PIECE_BYTES, min(fitting, MAX_PIECE_BYTES))

    def piece_written(self, size_bytes: int, took_s: float) -> None:
        """A piece was written and synced, in this time."""
        if size_bytes < SMALL_PIECE_BYTES:
            self._small_s += (took_s - self._small_s) / WEIGHT if self._small_s else took_s
        elif self._small_s:
            byte_s = max(took_s - self._small_s, 0.0) / (size_bytes - MIN_PIECE_BYTES)
            self._byte_s += (byte_s - self._byte_s) / WEIGHT if self._byte_s else byte_s
