"""Where a benchmark's results go, which commit they measured, and how much of what they measured has changed since.

Invariants:
* `benchmarks/results` holds results of full runs only; all others go to `build/benchmarks`, which git ignores.
* A result names the commit that it measured, that of the program's start, and whether the work tree held more than
  that; results themselves do not count.

`python -m benchmarks.harness.results` prints the state of all results (`./run bench --status`).
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
TRIALS: Final = ROOT / "build" / "benchmarks"
FULL: Final = "full"
PARTIAL: Final = "partial"
"""The mode of a run that left something out, or was ended by an error."""

_SIDECAR = ("logstore", ":!logstore/testing")
_OPERATORS = ("spe_adapter/cec", "spe_adapter/state", "spe_adapter/operators", "spe_adapter/codec")
_PLANNERS = ("scheduler/peace", "scheduler/topology/model.py")
MEASURED: Final[Mapping[str, tuple[str, ...]]] = {
    "cec": (*_SIDECAR, *_OPERATORS, "spe_adapter/continuous"),
    "client_failover": _SIDECAR,
    "cluster": _SIDECAR,
    "cluster_partitions": _SIDECAR,
    "long_state": (*_SIDECAR, *_OPERATORS, "spe_adapter/checkpoint", "spe_adapter/pages", "spe_adapter/microbatch"),
    "epoch_commits": (*_SIDECAR, "spe_adapter/epochs"),
    "histories": ("logstore",),
    "long_run": (*_SIDECAR, "spe_adapter/epochs", "spe_adapter/continuous"),
    "many_partitions": _SIDECAR,
    "tls": _SIDECAR,
    "verify_speed": ("logstore/verify", "logstore/commands", "logstore/disk", "logstore/format", "logstore/log"),
    "pages": (*_OPERATORS, "spe_adapter/checkpoint", "spe_adapter/pages"),
    "checkpoint_burst": (
        *_PLANNERS,
        *("scheduler/coordinator", "scheduler/client", "scheduler/hdfs", "tests/support/hdfs"),
        *("spe_adapter/checkpoint", "spe_adapter/pages", "spe_adapter/state"),
    ),
    "peace": (*_PLANNERS, "scheduler/simulation", "scheduler/calibration"),
    "peace_real": (
        *_PLANNERS,
        *(
            "scheduler/coordinator",
            "scheduler/client",
            "scheduler/hdfs",
            "tests/support/hdfs",
            "scheduler/simulation",
            "scheduler/calibration",
        ),
    ),
    "peace_scale": (*_PLANNERS, "benchmarks/yardstick"),
    "produce_consume": _SIDECAR,
    "query_losses": (*_SIDECAR, "spe_adapter/datasource", "spe_adapter/epochs"),
    "spark_throughput": (*_SIDECAR, "spe_adapter/codec", "spe_adapter/datasource", "spe_adapter/epochs"),
    "stateful_spark": (*_SIDECAR, *_OPERATORS, "spe_adapter/microbatch", "spe_adapter/epochs", "spe_adapter/workers"),
}
"""The code whose speed each benchmark measures, as git's path specifications."""


class State(NamedTuple):
    """What is known of one result."""

    name: str
    mode: str
    finished: str
    commit: str
    goals: int
    held: int
    changed_lines: int | None
    """Lines added or removed in the measured code since; None: git does not know the commit."""
    lines: int
    """Lines of the measured code today."""


def directory(parser: argparse.ArgumentParser, given: Path | None, mode: str) -> Path:
    """Where the results of a run of this mode go; ends the program if a shorter run was told to replace a full one.

    Programs call it before they measure, so it also notes the commit.
    """
    commit()
    if given is None:
        return RESULTS if mode == FULL else TRIALS
    if mode != FULL and given.resolve() == RESULTS:
        parser.error(
            f"--results {given}: a {mode} run does not replace a full one; leave it out, or name another folder"
        )
    return given


def partial(folder: Path) -> Path:
    """Where a run goes that was to be a full one in `folder`, and is not whole: never to the kept results."""
    return TRIALS if folder.resolve() == RESULTS else folder


@functools.cache
def commit() -> dict[str, Any]:
    """The commit that is measured, and whether anything in the work tree but results differs from it.

    The first call decides, for as long as the program runs: what is committed later is not what it loaded.
    """
    changes = ("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results")
    try:
        return {"commit": _git("rev-parse", "HEAD").strip(), "uncommitted": bool(_git(*changes))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown: not a git checkout", "uncommitted": False}


def measures_the_same(name: str, since: str) -> bool:
    """Whether the code that a benchmark measures is what it was at a commit, as far as git knows."""
    return _changed_lines(since, MEASURED[name]) == 0


def states(results: Path = RESULTS) -> list[State]:
    """The state of every result in a folder, by name. Raises KeyError for a result without its commit."""
    found = []
    for path in sorted(results.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        goals = content["goals"]
        measured = MEASURED[path.stem]
        found.append(
            State(
                path.stem,
                content["mode"],
                content["finished"],
                content["commit"],
                len(goals),
                sum(goal["holds"] for goal in goals),
                _changed_lines(content["commit"], measured),
                _lines(measured),
            )
        )
    return found


def _changed_lines(since: str, paths: Sequence[str]) -> int | None:
    try:
        rows = _git("diff", "--numstat", since, "--", *paths).splitlines()
    except subprocess.CalledProcessError:
        return None
    return sum(int(count) for row in rows for count in row.split("\t")[:2] if count != "-")


def _lines(paths: Sequence[str]) -> int:
    files = _git("ls-files", "--", *paths).splitlines()
    return sum((ROOT / file).read_bytes().count(b"\n") for file in files if (ROOT / file).is_file())


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print the table."""
    table = Table("result", "run", "finished", "commit", "goals held", "lines changed since, of")
    try:
        for state in states():
            changed = "unknown commit" if state.changed_lines is None else f"{state.changed_lines:,}"
            goals = f"{state.held} of {state.goals}"
            moment = state.finished[:16].replace("T", " ")
            table.add_row(state.name, state.mode, moment, state.commit[:10], goals, f"{changed}, {state.lines:,}")
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench --status compares with git's history, which is not to be had here: {error}")
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
