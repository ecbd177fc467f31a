"""Policies: how many windows to write again at the end of an epoch, beside the windows that opened.

Invariants:
* A policy only returns the number of windows with the oldest footprints to check now. State can be recovered whatever
  the number is; the number changes the time that a recovery takes.
* Policies read counters, not windows: one call handles thousands of candidates in a few numpy operations.
* The time comes with the view; the cost of checks is reported by the caller that took them.

Source: CEC paper, section III.A (q, u, Q, U, cost and benefit) and section III (CI, CP).
"""

from typing import Final, NamedTuple, Protocol

import numpy as np

from logstore.errors import InvalidConfig
from spe_adapter.codec.kernels import Int64s

UNLIMITED: Final = 2**62
DEFAULT_Q: Final = 1_000_000
"""Results and footprints in the extent, as the paper counts it. A recovery reads footprints and tombstones instead, two
million of them a second: this many take half a second.
"""
DEFAULT_U: Final = 1_000_000
"""Input records to replay, the paper's example: about a second. To keep u below U costs N / U footprints for each
input record.
"""
PER_WINDOW: Final = 4
"""The bound of `bounded` on u per open window: it takes one check for every four input records."""
_MS_PER_S: Final = 1000.0
_SMOOTHING: Final = 0.2
"""Weight of the newest measurement in the mean cost of a check."""


class View(NamedTuple):
    """The list of open windows at the end of an epoch, before its checks.

    `emitted` and `seen` count records of the output stream and of the input up to now, this epoch's included;
    `open_windows` is N. `ordinals` and `seens` are those counters as of the last footprints of the candidates, oldest
    first; the caller chooses how many it lists. `fresh` counts windows that get a footprint in this epoch anyway and
    are not among the candidates. `now_ms` is the time of a monotonic clock. `record_s` is the recently measured
    processing time of one input record, 0 if it is not known.
    """

    emitted: int
    seen: int
    open_windows: int
    ordinals: Int64s
    seens: Int64s
    fresh: int = 0
    now_ms: float = 0.0
    record_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether every open window is a candidate or fresh."""
        return len(self.ordinals) + self.fresh >= self.open_windows

    def extents(self) -> Int64s:
        """q after 0, 1, … checks: records from the oldest footprint to the end; checks are records too.

        With all candidates checked it is 0 if nothing older is left, and not known (so left out) otherwise.
        """
        checks = np.arange(len(self.ordinals), dtype=np.int64)
        known = self.emitted + checks - self.ordinals
        return np.append(known, 0) if self.is_whole else known

    def replays(self) -> Int64s:
        """u after 0, 1, … checks: input records since the oldest footprint; as `extents`."""
        known = self.seen - self.seens
        return np.append(known, 0) if self.is_whole else known


class Policy(Protocol):
    """Decides the number of checks of an epoch."""

    def checks(self, view: View) -> int:
        """The number of the oldest windows to write: from 0 to the number of candidates."""

    def took(self, checks: int, ms: float) -> None:
        """Report that this number of checks took this time."""


class NoChecks:
    """No checks: the log has a footprint of each window that opens, which is enough for a correct recovery ("minimum
    recovery-time guarantees", CEC paper, section IV.A).
    """

    def checks(self, view: View) -> int:
        """No checks."""
        return 0

    def took(self, checks: int, ms: float) -> None:
        """No cost is measured."""


class Targets:
    """If q > `q_limit` or u > `u_limit`: checks of the oldest windows, until q and u are within their limits.

    * The policy takes the smallest number of checks that reaches both targets.
    * An extent has at least N records. A lower `q_limit` counts as N, because a lower target would write every window
      again and again ("unnecessary overhead", CEC paper, section IV.B).
    * If q cannot reach its limit, the policy takes the number of checks with the lowest q, or no check if no number
      lowers q. If q has grown to twice the limit, and a block of equally old windows is longer than the list of
      candidates, the policy takes the whole list: it works through such a block in steps, at most once per N records.
    * Both limits count as at least `per_window` times N. To hold u ≤ U costs N / U checks for every input record, and
      to hold q near N costs at least as many.
    """

    def __init__(self, q_limit: int = UNLIMITED, u_limit: int = UNLIMITED, per_window: int = 0) -> None:
        if q_limit < 0 or u_limit < 0 or per_window < 0:
            raise InvalidConfig(f"targets q {q_limit}, u {u_limit}, {per_window} a window: use numbers from 0 on")
        self.q_limit = q_limit
        self.u_limit = u_limit
        self.per_window = per_window

    def checks(self, view: View) -> int:
        """See the class."""
        if not len(view.ordinals):
            return 0
        limit = max(self.q_limit, max(self.per_window, 1) * view.open_windows)
        u_limit = max(self.u_limit, self.per_window * view.open_windows)
        if view.emitted - view.ordinals[0] <= limit and view.seen - view.seens[0] <= u_limit:
            return 0
        q, u = view.extents(), view.replays()
        min_checks = _first(u <= u_limit)
        if min_checks is None:
            return len(view.ordinals)
        reached = _first(q[min_checks:] <= limit)
        if reached is not None:
            return min_checks + reached
        lowest = min_checks + int(np.argmin(q[min_checks:]))
        if q[lowest] > 2 * limit and not view.is_whole:
            return len(view.ordinals)
        return lowest

    def took(self, checks: int, ms: float) -> None:
        """Nothing to learn."""


def bounded() -> Policy:
    """Targets for a recovery of about one second, the default of a runner.

    The recovery takes one second if each window gives one result when it closes: q counts results, and a recovery reads
    a tombstone for each result. With more than DEFAULT_Q / PER_WINDOW open windows, q and u grow with the number of
    open windows, and a recovery takes longer: the number of checks falls sharply only if Q is more than twice the
    number of open windows (CEC paper, section IV.B).
    """
    return Targets(DEFAULT_Q, DEFAULT_U, PER_WINDOW)


class Budget:
    """At most `ci_ms` of every `cp_ms` for the checks of another policy (CEC paper, section III).

    The policy computes the number of checks that fit from the cost of earlier checks, at first from `footprint_ms`.
    Unused time of a period is lost. Time that checks take beyond the budget is subtracted from the next periods. A
    period without such a debt always has room for one check, whatever its cost; otherwise a window might never be
    checked.
    """

    def __init__(self, ci_ms: float, cp_ms: float, inner: Policy, *, footprint_ms: float = 0.001) -> None:
        if not 0 < ci_ms <= cp_ms or footprint_ms <= 0:
            raise InvalidConfig(f"a budget of {ci_ms} of {cp_ms} ms at {footprint_ms} ms a check: use 0 < CI <= CP")
        self.ci_ms = ci_ms
        self.cp_ms = cp_ms
        self.inner = inner
        self.footprint_ms = footprint_ms
        self._period_ms: float | None = None
        self._left_ms = ci_ms
        self._is_measured = False

    def checks(self, view: View) -> int:
        """The number of checks of the other policy, limited by the rest of the budget."""
        self._start_period(view.now_ms)
        if self._left_ms <= 0:
            return 0
        fits = max(int(self._left_ms / self.footprint_ms), 1 if self._left_ms >= self.ci_ms else 0)
        return min(self.inner.checks(view), fits) if fits else 0

    def took(self, checks: int, ms: float) -> None:
        """Subtract the time from the budget, and update the cost of a check."""
        self._left_ms -= ms
        if checks > 0 and ms > 0:
            self.footprint_ms += (_SMOOTHING if self._is_measured else 1.0) * (ms / checks - self.footprint_ms)
            self._is_measured = True
        self.inner.took(checks, ms)

    def _start_period(self, now_ms: float) -> None:
        if self._period_ms is None:
            self._period_ms = now_ms
        passed = int((now_ms - self._period_ms) // self.cp_ms)
        if passed > 0:
            self._period_ms += passed * self.cp_ms
            self._left_ms = min(self._left_ms + passed * self.ci_ms, self.ci_ms)


class Costs(NamedTuple):
    """The costs of a platform in seconds; `calibrate` measures them.

    `footprint_s` is the processor time of a check (state to columns to bytes), `byte_s` the time to bring one byte to
    stable storage, `footprint_bytes` the size of a check in the log. `tuple_s` is the time for one control tuple in a
    reconstruction, `record_s` the time for one input record in a replay.
    """

    footprint_s: float
    footprint_bytes: float
    byte_s: float
    tuple_s: float
    record_s: float

    @property
    def check_s(self) -> float:
        """The time of one check, its write included."""
        return self.footprint_s + self.footprint_bytes * self.byte_s


class CostBenefit:
    """Takes checks that save more than they cost (CEC paper, section III.A, which leaves the policy open).

    A failure costs `tuple_s` x q to reconstruct and `record_s` x u to replay. k checks of the oldest windows bring q
    and u down to q_k and u_k, where q_k counts the k new records too; they save

        S_k = tuple_s x (q - q_k) + record_s x (u - u_k)

    seconds *if* a failure comes, and always cost C_k = k x (footprint_s + footprint_bytes x byte_s). The mean time
    between failures is `mtbf_s`. If a window is checked every t seconds, the cost of a failure grows evenly from 0 to S
    between two checks. Per second, a check then costs C / t, and a failure costs S / (2 mtbf_s) on average. With
    S = g t, the sum is smallest where

        S x t / (2 mtbf_s) = C

    (Young's interval). So checks are due if S_k x t / (2 mtbf_s) exceeds C_k, where t is the age of the oldest
    footprint: u records at their rate, which the policy computes from the views. The policy takes the k with the
    largest difference. It also considers all N windows at once, after which a recovery reads N records: if the list of
    candidates ends within a block of equally old windows, no k within the list saves anything although the whole block
    does; then the policy takes the list as the first part of the block.
    """

    def __init__(self, costs: Costs, mtbf_s: float, *, records_per_s: float | None = None) -> None:
        """`mtbf_s` is the mean time between failures. `records_per_s`, if given, replaces the rate computed from the
        views. `costs.record_s` is used until a view has a measured value.
        """
        if mtbf_s <= 0 or (records_per_s is not None and records_per_s <= 0):
            raise InvalidConfig(f"a failure every {mtbf_s} s at {records_per_s} records/s: use positive numbers")
        self.costs = costs
        self.mtbf_s = mtbf_s
        self._given_rate = records_per_s
        self._rate = records_per_s
        self._last: tuple[int, float] | None = None

    def checks(self, view: View) -> int:
        """See the class."""
        rate = self._records_per_s(view)
        if not len(view.ordinals) or rate is None:
            return 0
        if view.record_s > 0:
            self.costs = self.costs._replace(record_s=view.record_s)
        costs, q, u = self.costs, view.extents(), view.replays()
        steps = np.arange(len(q))
        if view.is_whole:
            q[-1] = view.open_windows
        else:
            # All windows at once, of which the list would be the first part.
            steps = np.append(steps, view.open_windows)
            q, u = np.append(q, view.open_windows), np.append(u, 0)
        weight = (int(u[0]) / rate) / (2 * self.mtbf_s)
        saved = costs.tuple_s * (q[0] - q) + costs.record_s * (u[0] - u)
        return min(int(np.argmax(weight * saved - steps * costs.check_s)), len(view.ordinals))

    def took(self, checks: int, ms: float) -> None:
        """Replace the calibrated cost of a check by the measured one, step by step."""
        if checks > 0 and ms > 0:
            costs = self.costs
            footprint_s = costs.footprint_s + _SMOOTHING * (ms / _MS_PER_S / checks - costs.footprint_s)
            self.costs = costs._replace(footprint_s=footprint_s)

    def _records_per_s(self, view: View) -> float | None:
        if self._given_rate is not None:
            return self._given_rate
        if self._last is None:
            self._last = (view.seen, view.now_ms)
        seen, then_ms = self._last
        if view.now_ms - then_ms >= 1 and view.seen > seen:
            rate = (view.seen - seen) * _MS_PER_S / (view.now_ms - then_ms)
            self._rate = rate if self._rate is None else self._rate + _SMOOTHING * (rate - self._rate)
            self._last = (view.seen, view.now_ms)
        return self._rate


def _first(holds: np.ndarray) -> int | None:
    """The first position at which the condition holds, or None."""
    index = int(np.argmax(holds)) if len(holds) else 0
    return index if len(holds) and holds[index] else None
