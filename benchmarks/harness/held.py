"""Whether the goals that a kept result holds are held still: the benchmark runs again, and each is compared.

`python -m benchmarks.harness.held NAME [RESULT]` (`./run bench --held NAME [RESULT]`) compares a result, or runs the
benchmark itself; the exit status is 1 if a goal is lost. `./run test-long` does it for all of `CHECKED`.

Invariants:
* A goal that held is lost where the new value misses its bound by more than MARGIN: noise of a busy machine loses none,
  a change that costs a third of the speed does.
* A goal that held and was not measured again is lost: what is not looked at is not held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.results import RESULTS, ROOT

CHECKED: Final = ("produce_consume", "many_partitions", "epoch_commits", "tls", "cluster", "client_failover")
MARGIN: Final = 0.25
"""Of the bound. Rounds of one run differ by as much on a machine that does other work too."""
LIMIT_S: Final = 3600.0
"""For a full run; the longest takes 20 minutes."""

Goals = Sequence[Mapping[str, Any]]


def lost(kept: Goals, now: Goals) -> list[str]:
    """What is to be said of each goal that held and does not any more, with the margin."""
    found = {goal["name"]: goal for goal in now}
    said = []
    for goal in kept:
        if not goal["holds"]:
            continue
        again = found.get(goal["name"])
        if again is None:
            said.append(f"{goal['name']}: held with {goal['value']:g}, and was not measured again")
        elif not _within(again["value"], goal["goal"]):
            unit = goal["unit"]
            said.append(f"{goal['name']}: {again['value']:g} {unit}, held with {goal['value']:g} ({goal['goal']})")
    return said


def _within(value: float, goal: str) -> bool:
    """Whether a value reaches a goal such as "≥ 2", but for the margin."""
    direction, bound = goal.split()
    limit = float(bound)
    return value >= limit * (1 - MARGIN) if direction == "≥" else value <= limit * (1 + MARGIN)


def run_again(name: str, folder: Path) -> Path:
    """Run a benchmark in full; its result in `folder`. Raises CalledProcessError, TimeoutExpired."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--results", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    return folder / f"{name}.json"


def goals_of(path: Path) -> Goals:
    """The goals in a result."""
    found: Goals = json.loads(path.read_text(encoding="utf-8"))["goals"]
    return found


def check(name: str, result: Path | None = None) -> list[str]:
    """What of a kept result's goals is lost in `result`, or in a run of now."""
    kept = goals_of(RESULTS / f"{name}.json")
    if result is not None:
        return lost(kept, goals_of(result))
    with tempfile.TemporaryDirectory(prefix="cairn-held-") as folder:
        return lost(kept, goals_of(run_again(name, Path(folder))))


def main(arguments: Sequence[str]) -> int:
    """Compare, print; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=CHECKED, help="the benchmark")
    parser.add_argument("result", type=Path, nargs="?", help="a result of it; else it is run in full")
    given = parser.parse_args(arguments)
    said = check(given.name, given.result)
    for line in said:
        print(f"lost: {line}")
    if not said:
        print(f"{given.name}: every goal that held is held, with a margin of {MARGIN:.0%}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
