"""Large states under many updates: the size of log and checkpoints over time, recovery at the end, and bytes written
against Spark's RocksDB with changelog.

`python benchmarks/long_state.py [--quick] [--smoke] [--minutes M] [--keys N] [--pin] [--resume JSON]` runs the windowed
average of benchmarks/stateful_spark.py with a million and with ten million keys: up to 360 epochs of 100,000 rows, as
one every ten seconds gives in an hour, and then recoveries. Keys of updates are chosen evenly among all. It writes
results/long_state.json and .png. A full run takes about an hour of two cores, and 10 GB of memory; `--resume` goes on
behind the loads that a run that ended early has measured.

An epoch comes every 3 seconds with a million keys, and every 7 with ten, for 18 and for 21 minutes; all intervals of
the engines (the policy of checkpoints, the check of retention, Spark's maintenance) are shorter than their defaults
by the same factor, so that an epoch has the share of them that it would have. RocksDB's query, whose epochs take
longer, gets every fourth epoch, and its interval is four times as long.

Invariants:
* Queries take turns, epoch by epoch, with the same rows; all write to the same file system.
* Apart from these intervals all settings are the defaults, but for those in benchmarks/lasting/running.py (`TOPIC`,
  `BIG`), and the changelog of RocksDB.
* Every recovery begins with kill -9 and without the host's memory, from files that are not in the page cache, and its
  results are compared with what is right.
* A query that fails is noted in `left_out`, and makes the results those of a partial run.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.program import options
from benchmarks.harness.report import Rows, machine, versions, write_json
from benchmarks.lasting import report
from benchmarks.lasting.running import CHECKPOINTS, LOG_ALONE, ROCKSDB, Load, LongRun
from benchmarks.microbatch.process import DriverFailed

EPOCHS = 360
"""An hour of them, if one comes every ten seconds."""
BOTH, ALL = (CHECKPOINTS, ROCKSDB), (CHECKPOINTS, LOG_ALONE, ROCKSDB)
FULL = (
    Load(1_000_000, ALL, 18.0, EPOCHS, 3.0, 4, 3, "4g", {}),
    Load(10_000_000, BOTH, 21.0, EPOCHS, 7.0, 4, 2, "4g", {}),
)
"""Three states of ten million keys do not fit beside each other: the log alone is left out."""
QUICK = (Load(1_000_000, ALL, 3.0, EPOCHS, 2.0, 2, 1, "3g", {}),)
SMOKE = (Load(1_000, ALL, 1.0, 3, 0.5, 1, 1, "1g", {"checkpointMinState": "0", "checkpointEvery": "1s"}),)


def resumed(path: Path | None, rows: Rows) -> list[dict[str, Any]]:
    """The pieces of a run that ended early; their rows go to `rows`. A piece is a load, with its commit and its time.
    Ends the program if what is measured has changed since.
    """
    if path is None:
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    pieces: list[dict[str, Any]] = content["pieces"]
    for piece in pieces:
        if not results.measures_the_same("long_state", piece["commit"]):
            raise SystemExit(f"--resume {path}: the measured code has changed since {piece['commit']}; measure anew")
    rows.all += content["rows"]
    return pieces


def main() -> None:
    """Measure, print, keep."""
    parser = options(
        __doc__,
        quick="a million keys for three minutes, checkpoints more often",
        smoke="does it work at all",
        data="a folder for all that is written, on the disk to measure",
    )
    parser.add_argument("--minutes", type=float, help="so many minutes of updates")
    parser.add_argument("--keys", type=int, action="append", help="only so many keys")
    parser.add_argument("--pin", dest="is_pinned", action="store_true", help="updates use one processor")
    parser.add_argument("--every-s", type=float, help="an epoch every so many seconds; intervals of the engines follow")
    parser.add_argument("--recoveries", type=int, help="so many recoveries of each query, at most 6")
    parser.add_argument("--resume", type=Path, help="partial results of the same measured code, to go on with")
    given = parser.parse_args()
    loads: Sequence[Load] = SMOKE if given.smoke else QUICK if given.quick else FULL
    mode = "smoke" if given.smoke else "quick" if given.quick else results.FULL
    wanted = ("minutes", "recoveries", "every_s")
    changed = {name: getattr(given, name) for name in wanted if getattr(given, name) is not None}
    loads = [load._replace(is_pinned=given.is_pinned) for load in loads]
    if mode == results.FULL and (changed or given.keys):
        mode = results.PARTIAL
    loads = [load._replace(**changed) for load in loads if not given.keys or load.keys in given.keys]
    folder = results.directory(parser, given.results, mode)
    console = Console(width=180)
    rows, left_out = Rows(), []
    pieces = resumed(given.resume, rows)
    loads = [load for load in loads if load.keys not in {piece["keys"] for piece in pieces}]
    data = Path(tempfile.mkdtemp(prefix="cairn-bench-long-", dir=given.data))
    before = machine(data)

    def keep(where: Path, reached: str, missing: list[str]) -> None:
        content: dict[str, Any] = {
            "mode": reached,
            "machine": before,
            "versions": versions(),
            "pieces": pieces,
            "left_out": missing,
            "goals": [goal._asdict() for goal in report.find_goals(rows)],
            "facts": report.facts(rows),
            "rows": rows.all,
        }
        write_json(where / "long_state.json", content)

    try:
        for load in loads:
            run = LongRun(load, data, rows, console.log)
            piece = {**load._asdict(), **results.commit(), "load_average_before": os.getloadavg()[0]}
            try:
                run.run()
            except (DriverFailed, PeerFailed) as error:
                left_out.append(f"{load.keys:,} keys: {type(error).__name__}: {error}")
            left_out += run.left_out
            pieces.append({**piece, "finished": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")})
            keep(results.partial(folder), results.PARTIAL, left_out)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    if left_out and mode == results.FULL:
        mode, folder = results.PARTIAL, results.partial(folder)
    goals = report.find_goals(rows)
    report.print_tables(rows, goals, console)
    for line in left_out:
        console.print(f"left out: {line[:2000]}")
    keep(folder, mode, left_out)
    report.draw(rows, mode, folder / "long_state.png")
    console.print(f"written: {folder / 'long_state.json'}")


if __name__ == "__main__":
    main()
