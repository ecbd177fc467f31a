"""When a unit is checkpointed: when recovering from its log would cost more than writing a checkpoint.

    cost of recovery = control bytes since the last checkpoint x seconds per byte (measured in loads from the log alone)
    cost of a checkpoint = bytes that changed / rate of the sink (measured in checkpoints)

Invariants:
* No clock, no I/O: times and measurements come in as arguments.
* Estimates are smoothed, start from the defaults that are stated here, and stay within bounds, whatever is measured.
* Between two checkpoints of a unit there are at least `min_every_s` seconds, failed ones included; while epochs go on,
  there are at most `every_s`, but for state below `min_state_bytes`, which has none at all.
* A try that found no newer version is repeated later each time, until an epoch ends: an idle unit costs little, and its
  next epoch waits no longer than usual.

Sources: SGuard, section 6.2 (rarer checkpoints, longer recoveries); CEC paper, section II.B (to construct an EC takes
time in proportion to the extent).
"""

import math
from collections import deque
from dataclasses import dataclass, fields
from typing import Any, Final

from spe_adapter.checkpoint.errors import CheckpointUrlRefused

SMOOTHING: Final = 0.3
"""The weight of a new measurement."""
DEFAULT_RECOVERY_S_PER_BYTE: Final = 1 / (40 << 20)
"""Reading footprints, unpacking them, and building the table: 40 MiB a second."""
DEFAULT_SINK_BYTES_PER_S: Final = 100 << 20
"""A disk, or a link of a gigabit."""
DEFAULT_FIXED_S: Final = 0.2
"""What a checkpoint costs besides its bytes: a freeze, files, a manifest, a report."""
MAX_SECONDS: Final = 1e6
_MIN_RATE: Final = 1e3
_MAX_RATE: Final = 1e11
_MAX_FAILURES: Final = 6
_EMPTY_TRY_S: Final = 1.0
MAX_LOGGED: Final = 1024
"""Epochs of a unit that are counted apart; of more the oldest are counted together."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """When checkpoints of a unit are written.

    * `every_s`: the longest time in seconds between checkpoints of a changed unit.
    * `min_every_s`: the shortest time in seconds between checkpoints.
    * `min_state_bytes`: smaller state gets no checkpoint, because reading its log is as fast.
    * `weight`: seconds of writing that one second of recovery is worth; a higher value gives more checkpoints.
    """

    every_s: float = 600.0
    min_every_s: float = 10.0
    min_state_bytes: int = 4 << 20
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name, low in (("every_s", 0.0), ("min_every_s", 0.0), ("min_state_bytes", 0), ("weight", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= 1e15:
                raise CheckpointUrlRefused(f"{name}={value!r}: must be a number from {low} to 1e15")
        if self.min_every_s > self.every_s:
            raise CheckpointUrlRefused(f"min_every_s={self.min_every_s}: must not exceed every_s={self.every_s}")

    def described(self) -> dict[str, Any]:
        """The values that differ from the defaults."""
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if getattr(self, entry.name) != entry.default
        }


class Estimate:
    """A smoothed measurement within bounds."""

    def __init__(self, start: float, low: float, high: float) -> None:
        self.value = start
        self._low, self._high = low, high

    def add(self, measured: float) -> None:
        """Take a measurement; what is not a number is ignored."""
        if math.isfinite(measured):
            bounded = min(max(measured, self._low), self._high)
            self.value += SMOOTHING * (bounded - self.value)


class MeasuredRates:
    """Rates that were measured on this host, for all its units."""

    def __init__(self) -> None:
        self._recovery_rate = Estimate(1 / DEFAULT_RECOVERY_S_PER_BYTE, _MIN_RATE, _MAX_RATE)
        self._sink_rate = Estimate(DEFAULT_SINK_BYTES_PER_S, _MIN_RATE, _MAX_RATE)
        self._fixed_s = Estimate(DEFAULT_FIXED_S, 0.0, 60.0)

    def recovered(self, log_bytes: int, seconds: float) -> None:
        """Take the measurement of a recovery from the log."""
        if log_bytes > 0 and seconds > 0:
            self._recovery_rate.add(log_bytes / seconds)

    def written(self, size_bytes: int, seconds: float) -> None:
        """Take the measurement of a checkpoint. A short one tells the fixed cost, a long one the rate."""
        if size_bytes <= 0 or seconds <= 0:
            return
        if size_bytes / self._sink_rate.value < self._fixed_s.value:
            self._fixed_s.add(seconds)
        else:
            self._sink_rate.add(size_bytes / seconds)

    def recovery_s(self, log_bytes: int) -> float:
        """Seconds to recover from so many control bytes."""
        return min(log_bytes / self._recovery_rate.value, MAX_SECONDS)

    def write_s(self, size_bytes: int) -> float:
        """Seconds to write so many bytes as a checkpoint."""
        return min(size_bytes / self._sink_rate.value + self._fixed_s.value, MAX_SECONDS)


class LoggedEpochs:
    """Control bytes of the epochs that are in the log and in no checkpoint yet, in the order of their notes.

    What is frozen is older than the newest epoch: a task tells of an epoch whose changes reach the base with the next.
    """

    def __init__(self) -> None:
        self._epochs: deque[tuple[int, int, int]] = deque()
        """Number of the newest, bytes and number of epochs that are counted together."""

    def add(self, epoch: int, log_bytes: int) -> None:
        """Note an epoch."""
        self._epochs.append((epoch, log_bytes, 1))
        if len(self._epochs) > MAX_LOGGED:
            (_, first_bytes, first_count), (newest, more_bytes, more) = self._epochs.popleft(), self._epochs.popleft()
            self._epochs.appendleft((newest, first_bytes + more_bytes, first_count + more))

    def take(self, epoch: int) -> tuple[int, int]:
        """Control bytes and number of the epochs up to `epoch`, which a checkpoint covers now.

        Up to the last note of such an epoch: the higher numbers before it are of the query's time before a reset.
        """
        last = max((place for place, known in enumerate(self._epochs) if known[0] <= epoch), default=-1)
        covered = [self._epochs.popleft() for _ in range(last + 1)]
        return sum(known[1] for known in covered), sum(known[2] for known in covered)


class UnitPolicy:
    """Decides for one unit. `now_s` is any clock that does not go back; the first `epoch` starts the interval."""

    def __init__(self, settings: PolicySettings, costs: MeasuredRates) -> None:
        self.settings = settings
        self._costs = costs
        self._dirty_per_log_byte = Estimate(4.0, 0.0, 1e6)
        self._is_first = True
        self._last_s: float | None = None
        self._tried_s = -math.inf
        self._failures = 0
        self._empty_tries = 0
        """Tries since the last epoch that found no newer version."""
        self.log_bytes = 0
        """Control bytes behind the last checkpoint."""
        self.state_bytes = 0
        self.epochs = 0
        """Epochs behind the last checkpoint."""

    def epoch(self, log_bytes: int, state_bytes: int, now_s: float) -> None:
        """Note the end of an epoch with so many control bytes, and the size of the state then."""
        self.log_bytes += max(log_bytes, 0)
        self.state_bytes = max(state_bytes, 0)
        self.epochs += 1
        self._empty_tries = 0
        if self._last_s is None:
            self._last_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether to write a checkpoint now."""
        if not self.epochs or self.state_bytes < self.settings.min_state_bytes:
            return False
        least_s = self.settings.min_every_s * 2**self._failures
        if self._empty_tries:  # an idle unit must not keep the service busy
            least_s = max(least_s, max(self.settings.min_every_s, _EMPTY_TRY_S) * 2**self._empty_tries)
        if now_s < self._tried_s + least_s:
            return False
        if now_s >= (self._last_s or 0.0) + self.settings.every_s:
            return True
        return self.settings.weight * self._costs.recovery_s(self.log_bytes) > self._costs.write_s(self.dirty_bytes())

    def dirty_bytes(self) -> int:
        """Estimated bytes that the next checkpoint writes: all of the state for the first one."""
        if self._is_first:
            return self.state_bytes
        return int(min(self.state_bytes, self._dirty_per_log_byte.value * self.log_bytes))

    def started(self, now_s: float) -> tuple[int, int]:
        """Note that a checkpoint begins; what `succeeded` is given: control bytes and epochs that it will cover."""
        self._tried_s = now_s
        return self.log_bytes, self.epochs

    def succeeded(self, covered: tuple[int, int], size_bytes: int, seconds: float, now_s: float) -> None:
        """Note a complete checkpoint of so many bytes."""
        if not self._is_first and covered[0]:
            self._dirty_per_log_byte.add(size_bytes / covered[0])
        self._is_first = False
        self.log_bytes -= covered[0]
        self.epochs -= covered[1]
        self._last_s = self._tried_s = now_s
        self._failures = 0
        self._costs.written(size_bytes, seconds)

    def found_nothing(self, now_s: float) -> None:
        """Note a try that found no version newer than the last checkpoint, or a base that is in use."""
        self._tried_s = now_s
        self._empty_tries = min(self._empty_tries + 1, _MAX_FAILURES)

    def failed(self, now_s: float) -> None:
        """Note a checkpoint that came to nothing: the next try waits, longer each time."""
        self._tried_s = now_s
        self._failures = min(self._failures + 1, _MAX_FAILURES)
