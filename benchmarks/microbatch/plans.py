"""How much benchmarks/stateful_spark.py measures, and how its time is shared out.

Invariant: time that a part leaves over goes to the parts behind it; no part takes theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.microbatch.engines import (
    APPLY_PANDAS,
    CAIRN,
    ROCKSDB_CHANGELOG,
    ROCKSDB_PLAIN,
    TRANSFORM_PANDAS,
    TRANSFORM_ROW,
)

NATIVE = (CAIRN, ROCKSDB_PLAIN, ROCKSDB_CHANGELOG)
PYTHON = (TRANSFORM_ROW, TRANSFORM_PANDAS, APPLY_PANDAS)


class Group(NamedTuple):
    """Queries that run in turn: engine → epochs that update windows."""

    keys: int
    epochs: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. `first` and `last` are groups of queries that run before and behind the recoveries."""

    mode: str
    first: tuple[Group, ...]
    recovery_keys: tuple[int, ...]
    recovery_updates: int
    cold_rounds: int
    warm_rounds: int
    """Cold and warm ones together are at most `data.EARLY_WINDOWS`: each closes one of these."""
    closings: int
    """How often the windows of a group are all closed, and filled again in between; once with the engines in Python."""
    last: tuple[Group, ...]
    limit_seconds: float
    """No epoch begins, and no recovery, when it would end later."""
    shares: tuple[float, ...]
    """Of the limit: for the first groups, the recoveries with each number of keys, the last groups."""
    engine_seconds: float = 250.0
    """The limit for one engine in one group."""
    heap: str = "3g"


FULL = Plan(
    mode="full",
    first=(
        Group(1_000, dict.fromkeys(NATIVE, 8) | {TRANSFORM_ROW: 3, TRANSFORM_PANDAS: 2, APPLY_PANDAS: 2}),
        Group(100_000, dict.fromkeys(NATIVE, 9) | {TRANSFORM_ROW: 3}),
        Group(1_000_000, dict.fromkeys(NATIVE, 7)),
    ),
    recovery_keys=(100_000, 1_000_000),
    recovery_updates=8,
    cold_rounds=3,
    warm_rounds=3,
    closings=3,
    last=(
        Group(100_000, {CAIRN: 1, APPLY_PANDAS: 1}),
        Group(100_000, {CAIRN: 1, TRANSFORM_PANDAS: 1}),
    ),
    limit_seconds=3_600.0,
    shares=(0.30, 0.24, 0.28, 0.18),
)
QUICK = Plan(
    mode="quick",
    first=(
        Group(1_000, dict.fromkeys(NATIVE, 3) | dict.fromkeys(PYTHON, 1)),
        Group(100_000, dict.fromkeys(NATIVE, 4) | {TRANSFORM_ROW: 1}),
    ),
    recovery_keys=(100_000,),
    recovery_updates=3,
    cold_rounds=1,
    warm_rounds=0,
    closings=1,
    last=(),
    limit_seconds=165.0,
    shares=(0.7, 0.3, 0.0),
)
SMOKE = Plan(
    mode="smoke",
    first=(Group(100, dict.fromkeys((CAIRN, ROCKSDB_CHANGELOG), 1)),),
    recovery_keys=(100,),
    recovery_updates=1,
    cold_rounds=1,
    warm_rounds=1,
    closings=2,
    last=(),
    limit_seconds=3_600.0,
    shares=(0.4, 0.6, 0.0),
    heap="1g",
)


class TimeLimit:
    """The seconds of a run, and what of them the part that runs just now may use."""

    def __init__(self, plan: Plan, now_s: Callable[[], float] = time.monotonic) -> None:
        """The run begins."""
        self._plan = plan
        self._now_s = now_s
        self._shares = iter(plan.shares)
        self._part_ends_s = now_s()

    def next_part(self) -> None:
        """The part that runs is over, the next begins. Raises StopIteration behind the last."""
        self._part_ends_s += next(self._shares) * self._plan.limit_seconds

    def allows(self, needed_s: float) -> bool:
        """Whether what takes so long would end in the part's time."""
        return self._now_s() + needed_s < self._part_ends_s
