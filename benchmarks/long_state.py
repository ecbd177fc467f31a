"""Large states under many updates: the size of log and checkpoints over time, recovery at the end, and bytes written
against Spark's RocksDB with changelog.

`python benchmarks/long_state.py [--quick] [--smoke] [--minutes M]` runs the windowed average of
benchmarks/stateful_spark.py with a million and ten million keys. An hour is scaled to M minutes: 360 epochs, as one
every ten seconds gives in an hour, one behind the other, or fewer if the time is up; the policy's times are scaled by
M/60. It writes results/long_state.json and .png. A full run takes about an hour of a quiet machine with two cores.

Invariants:
* Queries take turns, epoch by epoch, with the same rows; all write to the same file system.
* Every recovery begins with kill -9 and without the host's memory, and its results are compared with what is right.
* A load that fails is noted in `left_out`, and makes the results those of a partial run.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.report import Rows, machine, versions, write_json
from benchmarks.lasting import report
from benchmarks.lasting.running import CHECKPOINTS, EPOCHS_AN_HOUR, LOG_ALONE, ROCKSDB, Load, LongRun
from benchmarks.microbatch.process import DriverFailed
from benchmarks.microbatch.running import WrongResult


@dataclass(frozen=True)
class Plan:
    """What a run measures."""

    mode: str
    keys: tuple[int, ...]
    minutes: float
    epochs: int
    recoveries: int
    heap: str


FULL = Plan("full", (1_000_000, 10_000_000), 15.0, EPOCHS_AN_HOUR, 3, "6g")
QUICK = Plan("quick", (1_000_000,), 1.0, EPOCHS_AN_HOUR, 1, "3g")
SMOKE = Plan("smoke", (1_000,), 1.0, 3, 1, "1g")
LOG_ALONE_KEYS = 1_000_000
"""With more keys the log alone is left out: three states of ten million keys do not fit beside each other."""


def load_of(plan: Plan, keys: int) -> Load:
    """The queries of a number of keys."""
    queries = (CHECKPOINTS, LOG_ALONE, ROCKSDB) if keys <= LOG_ALONE_KEYS else (CHECKPOINTS, ROCKSDB)
    return Load(keys, queries, plan.minutes, plan.epochs, plan.recoveries, plan.heap)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a million keys for a minute")
    parser.add_argument("--smoke", action="store_true", help="does it work at all")
    parser.add_argument("--minutes", type=float, help="scale an hour of updates to so many minutes")
    parser.add_argument("--keys", type=int, action="append", help="only so many keys")
    parser.add_argument("--recoveries", type=int, help="so many recoveries of each query, at most 6")
    parser.add_argument("--results", type=Path, help="where the results go")
    parser.add_argument("--data", type=Path, help="a folder for all that is written, on the disk to measure")
    given = parser.parse_args()
    plan = SMOKE if given.smoke else QUICK if given.quick else FULL
    changed = {name: getattr(given, name) for name in ("minutes", "keys", "recoveries") if getattr(given, name)}
    mode = results.PARTIAL if plan is FULL and changed else plan.mode
    plan = replace(plan, **changed)
    folder = results.directory(parser, given.results, mode)
    console = Console(width=180)
    rows, left_out = Rows(), []
    data = Path(tempfile.mkdtemp(prefix="cairn-bench-long-", dir=given.data))
    before = machine(data)
    try:
        for keys in plan.keys:
            try:
                LongRun(load_of(plan, keys), data, rows, console.log).run()
            except (DriverFailed, WrongResult, PeerFailed) as error:
                left_out.append(f"{keys:,} keys: {type(error).__name__}: {error}")
    finally:
        shutil.rmtree(data, ignore_errors=True)
    if left_out and mode == results.FULL:
        mode, folder = results.PARTIAL, results.partial(folder)
    goals = report.find_goals(rows)
    report.print_tables(rows, goals, console)
    for line in left_out:
        console.print(f"left out: {line[:2000]}")
    content: dict[str, Any] = {
        "mode": mode,
        "machine": before,
        "versions": versions(),
        "plan": asdict(plan),
        "left_out": left_out,
        "goals": [goal._asdict() for goal in goals],
        "rows": rows.all,
    }
    write_json(folder / "long_state.json", content)
    report.draw(rows, mode, folder / "long_state.png")
    console.print(f"written: {folder / 'long_state.json'}")


if __name__ == "__main__":
    main()
