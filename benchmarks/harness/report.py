"""What a benchmark leaves behind: rows of figures, goals, a table, JSON.

Invariants:
* Rows are raw: one measurement each, with the round it was made in. Goals are computed from rows and nothing else.
* A ratio is the median of the ratios of each round, in which both sides ran one after the other. Its noise is told with
  it: the lowest and the highest round, and how many there were.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.harness.jars import KAFKA_VERSION
from benchmarks.harness.meter import median
from benchmarks.harness.results import commit

Row = dict[str, Any]
INTERVAL, ROUNDS = "95 % interval of the mean", "lowest and highest round"
"""What `Goal.low` and `Goal.high` may be."""
_PACKAGES = ("cairn", "confluent-kafka", "crc32c", "kio", "trio")


class Goal(NamedTuple):
    """One thing to reach: `goal` says which way ("≥ 1.0"). `low` and `high` are what `spread` says, of `n` samples or
    rounds; None: nothing is known of it.
    """

    name: str
    value: float
    unit: str
    goal: str
    holds: bool
    low: float | None = None
    high: float | None = None
    n: int | None = None
    spread: str = INTERVAL


def at_least(name: str, value: float, unit: str, bound: float, rounds: Sequence[float] = ()) -> Goal:
    """A goal that holds from `bound` upwards; `rounds` are the values that `value` is the median of."""
    return _with_rounds(Goal(name, round(value, 4), unit, f"≥ {bound:g}", value >= bound), rounds)


def at_most(name: str, value: float, unit: str, bound: float, rounds: Sequence[float] = ()) -> Goal:
    """A goal that holds up to `bound`; `rounds` are the values that `value` is the median of."""
    return _with_rounds(Goal(name, round(value, 4), unit, f"≤ {bound:g}", value <= bound), rounds)


def verdict(holds: bool, goal: str, low: float | None, high: float | None) -> str:
    """Whether a goal holds, in words; where rounds lie on both sides of the bound, that is said too."""
    bound = float(goal.split()[-1])
    says = "holds" if holds else "falls short"
    return f"{says}, not in every round" if low is not None and high is not None and low < bound < high else says


def _with_rounds(goal: Goal, rounds: Sequence[float]) -> Goal:
    if not rounds:
        return goal
    return goal._replace(low=round(min(rounds), 4), high=round(max(rounds), 4), n=len(rounds), spread=ROUNDS)


class Rows:
    """All measurements of a run."""

    def __init__(self) -> None:
        self.all: list[Row] = []

    def add(self, **row: Any) -> None:
        """Keep one measurement; floats keep six significant digits, however small they are."""
        self.all.append(
            {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}
        )

    def select(self, **wanted: Any) -> list[Row]:
        """The rows that have these values."""
        return [row for row in self.all if all(row.get(key) == value for key, value in wanted.items())]

    def median(self, figure: str, **wanted: Any) -> float | None:
        """The middle of a figure over the rounds; None when it was not measured."""
        values = self.values(figure, **wanted)
        return median(values) if values else None

    def values(self, figure: str, **wanted: Any) -> list[float]:
        """A figure in all rounds that have it."""
        return [row[figure] for row in self.select(**wanted) if figure in row]

    def ratio(self, figure: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], **wanted: Any) -> float | None:
        """The middle of ours / theirs over the rounds that have both."""
        both = self.ratios(figure, ours, theirs, **wanted)
        return median(both) if both else None

    def ratios(self, figure: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], **wanted: Any) -> list[float]:
        """Ours / theirs in each round that has both."""
        left = {row["round"]: row[figure] for row in self.select(**wanted, **ours) if figure in row}
        right = {row["round"]: row[figure] for row in self.select(**wanted, **theirs) if figure in row}
        return [left[at] / right[at] for at in left.keys() & right.keys() if right[at]]


def machine(directory: Path) -> dict[str, Any]:
    """What the figures depend on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    mounts = [part for part in psutil.disk_partitions(all=True) if directory.resolve().is_relative_to(part.mountpoint)]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return {
        "cpu": models[0].split(":", 1)[1].strip() if models else platform.processor(),
        "cpus": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "file_system": mount.fstype if mount else "unknown",
        "system": platform.platform(),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Of everything that takes part."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "kafka": KAFKA_VERSION, "java": java[0] if java else "", **found}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write the results, with the moment they were written and the commit that was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    moment = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    content = {"finished": moment, **commit(), **content}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def print_goals(console: Console, goals: Sequence[Goal]) -> None:
    """One line per goal."""
    table = Table("goal", "value", "to reach", "", title="Goals", title_justify="left")
    for goal in goals:
        known = (goal.low, goal.high) if goal.spread == ROUNDS else (None, None)
        mark = f"[{'green' if goal.holds else 'red'}]{verdict(goal.holds, goal.goal, *known)}[/]"
        table.add_row(goal.name, f"{goal.value:,.3f} {goal.unit}{_spread(goal)}", goal.goal, mark)
    console.print(table)


def _spread(goal: Goal) -> str:
    if goal.n is None:
        return ""
    known = goal.low is not None and goal.high is not None
    return f" ({goal.low:,.3f} to {goal.high:,.3f}, n = {goal.n})" if known else f" (n = {goal.n})"


def print_rows(console: Console, title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """A table of figures; all columns but the first two are numbers."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)
