"""Peace against HDFS's default placement in a simulated cluster: the paper's figure 10 (SGuard, section 6.2), and more.

`python benchmarks/peace.py [--quick] [--smoke]` first compares the simulator with what the paper measured, then runs
figure 10 for five schedulers, then shows what hangs on which assumption and capacity, and scenarios that the paper
does not have. It leaves results/peace.json, peace.png (figure 10) and peace_gantt.png (who writes when).

Invariants:
* Virtual time throughout: results depend on the seeds, which are printed, and on nothing of this machine.
* All schedulers run with the same seeds; a ratio is the median of the ratios of each seed.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.program import options
from benchmarks.harness.report import machine
from benchmarks.simulation import report
from benchmarks.simulation.experiments import MAX_MB, MAX_WRITERS, SIZES_MB, WRITERS, Experiments


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    mode: str
    seeds: int
    writers: tuple[int, ...] = WRITERS
    sizes_mb: tuple[int, ...] = SIZES_MB
    more: bool = True
    """Whether sensitivity, capacities and the scenarios beyond the paper are run too."""


FULL = Plan("full", 20)
QUICK = Plan("quick", 5)
SMOKE = Plan("smoke", 2, (MAX_WRITERS,), (MAX_MB,), more=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = options(
        __doc__, quick="under a minute: 5 seeds instead of 20", smoke="seconds: only whether the benchmark works"
    )
    parser.add_argument("--first-seed", type=int, default=1, help="seeds count up from here (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    plan = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    folder = results.directory(parser, chosen.results, plan.mode)
    console = Console(log_path=False, width=None if sys.stdout.isatty() else 150)
    seeds = list(range(chosen.first_seed, chosen.first_seed + plan.seeds))
    console.log(f"seeds {seeds[0]} to {seeds[-1]}")
    about: dict[str, Any] = {
        "benchmark": report.NAME,
        "mode": plan.mode,
        "plan": asdict(plan),
        "seeds": seeds,
        "machine": machine(Path(tempfile.gettempdir())),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("cairn", "numba", "numpy")},
        },
    }
    begin = time.perf_counter()
    experiments = Experiments(seeds, console.log)
    experiments.figure_10(plan.writers, plan.sizes_mb)
    if plan.more:
        experiments.sensitivity()
        experiments.capacities()
        experiments.beyond()
    about["seconds"] = round(time.perf_counter() - begin, 1)
    about["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
    report.publish(experiments.rows, about, folder, console)


if __name__ == "__main__":
    main()
