"""State on pages: what pages cost an operator, and what it feels of a checkpoint; SGuard's section 6.1 beside ours.

`python benchmarks/pages.py [--quick] [--smoke]` measures tables 5 to 7 and figures 6 to 9 of the paper with the
product's own operators, tables, pages and checkpoint manager, and writes results/pages.json and .png. A full run takes
about 20 minutes of a quiet machine with two cores.

What is measured: the time per tuple of an aggregate and a join, with and without pages; the time to prepare a
checkpoint; the latency of epochs while a checkpoint is written in seven ways, with 1, 4 and 64 partitions; that of
epochs of Spark's tasks; the time to read a checkpoint back; what a bound on memory costs.

Invariants:
* Both sides of each comparison take turns within a round, and every run's value is kept.
* No figure is taken from a state that is wrong: joins are compared with each other, states that are read back with
  those that were written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.program import content_of, keep, options, scratch
from benchmarks.harness.report import Rows, machine
from benchmarks.paging import costs, drawing, paper, report
from benchmarks.paging.costs import MB
from benchmarks.paging.feeding import Fed
from benchmarks.paging.kinds import (
    COPY,
    FORK,
    NONE,
    PAGES,
    PAGES_PROCESS,
    PLAIN,
    SERIALIZED,
    SERIALIZED_ASIDE,
    SMALL_PAGES,
)
from benchmarks.paging.latency import measure_latency
from benchmarks.paging.tasks import measure_bounded, measure_tasks

KINDS = (PLAIN, NONE, PAGES, SMALL_PAGES, PAGES_PROCESS, COPY, SERIALIZED_ASIDE, SERIALIZED, FORK)
JUDGED = (PAGES, PAGES_PROCESS)
"""The kinds that a user gets: a continuous runner writes by a thread, the I/O service is a process."""
MANY = 16
"""An operator of more partitions is fed in the judged kinds alone: its checkpoints take seconds."""
SEED = 12
"""Of the order of kinds and of blocks."""


@dataclass(frozen=True)
class Plan:
    """What a run measures. Sizes are bytes of state."""

    mode: str
    rounds: int
    """Of everything but latencies."""
    aggregate: tuple[int, ...]
    aggregate_rows: int
    join: tuple[int, ...]
    prepare: tuple[int, ...]
    state: int
    """For latencies, tasks and the bound on memory."""
    partitions: tuple[int, ...]
    turns: int
    """Of each kind, of those that count; the unit of the bootstrap."""
    many_turns: int
    """The same for operators of many partitions."""
    epochs: int
    """In checkpoints, of a turn of a judged kind, at minimum; as many without."""
    seed: int
    epoch_rows: int
    interval_s: float
    """An epoch of a continuous runner is 50 ms unless told otherwise."""
    read: tuple[int, ...]
    task_rows: tuple[int, ...]
    bounded_rows: int


FULL = Plan(
    mode="full", rounds=6, aggregate=(MB, 10 * MB, 100 * MB), aggregate_rows=1_000_000,
    join=(MB // 4, MB // 2, MB, 16 * MB), prepare=(MB, 4 * MB, 16 * MB, 64 * MB, 128 * MB, 256 * MB), state=128 * MB,
    partitions=(1, 4, 64), turns=10, many_turns=4, epochs=72, seed=SEED, epoch_rows=2_000, interval_s=0.05,
    read=(64 * MB, 128 * MB, 256 * MB, 512 * MB), task_rows=(10_000, 100_000), bounded_rows=100_000,
)  # fmt: skip
QUICK = Plan(
    mode="quick", rounds=3, aggregate=(MB, 10 * MB), aggregate_rows=200_000, join=(MB // 4, MB),
    prepare=(MB, 16 * MB, 64 * MB), state=32 * MB, partitions=(1, 4), turns=4, many_turns=1, epochs=10, seed=SEED,
    epoch_rows=2_000, interval_s=0.05, read=(32 * MB, 128 * MB), task_rows=(10_000,), bounded_rows=20_000,
)  # fmt: skip
SMOKE = Plan(
    mode="smoke", rounds=1, aggregate=(MB,), aggregate_rows=10_000, join=(MB // 4,), prepare=(MB,), state=2 * MB,
    partitions=(4,), turns=1, many_turns=1, epochs=2, seed=SEED, epoch_rows=200, interval_s=0.02, read=(2 * MB,),
    task_rows=(1_000,), bounded_rows=500,
)  # fmt: skip


class Benchmark:
    """One run, and the rows that it fills. Everything is written below `directory`."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        self.rows = Rows()
        self.left_out: list[str] = []
        self._plan = plan
        self._directory = directory
        self._console = console

    def run(self, wanted: tuple[str, ...] = ()) -> None:
        """All parts, or the named ones; a part that fails is noted, and the others go on."""
        plan, rows = self._plan, self.rows
        parts: dict[str, Callable[[], object]] = {
            "aggregate": lambda: costs.measure_aggregate(rows, plan.aggregate, plan.rounds, plan.aggregate_rows),
            "join": lambda: costs.measure_join(rows, plan.join, plan.rounds),
            "prepare": lambda: costs.measure_preparing(rows, plan.prepare, plan.rounds),
            "read": lambda: costs.measure_reading(rows, plan.read, -(-plan.rounds // 2), self._directory),
            "task": lambda: measure_tasks(rows, plan.state, plan.task_rows, plan.rounds, self._directory),
            "bounded": lambda: measure_bounded(rows, plan.state, plan.rounds, plan.bounded_rows, self._directory),
        }
        for partitions in plan.partitions:
            parts[f"latency {partitions}"] = lambda count=partitions: self._latency(count)  # type: ignore[misc]
        for name, part in parts.items():
            if wanted and name not in wanted:
                self.left_out.append(f"{name}: not asked for")
                continue
            started = time.monotonic()
            try:
                part()
            except Exception as error:  # noqa: BLE001 - what the other parts measured is kept
                self.left_out.append(f"{name}: {error!r}")
            self._console.log(f"{name}: {time.monotonic() - started:.0f} s")

    def _latency(self, partitions: int) -> None:
        plan = self._plan
        kinds, turns = (KINDS, plan.turns) if partitions <= MANY else (JUDGED, plan.many_turns)
        feds = [
            Fed(
                kind, partitions, plan.state, plan.epoch_rows, plan.interval_s, self._epochs(kind, partitions),
                str(self._directory / f"{kind}-{partitions}"),
            )
            for kind in kinds
        ]  # fmt: skip
        measure_latency(self.rows, feds, turns, plan.seed)
        for kind in JUDGED:
            if not any(row["during"] for row in self.rows.select(what="latency", kind=kind, partitions=partitions)):
                self._console.log(
                    f"{kind}, {partitions} partitions: no epoch was in a checkpoint, so that no goal is told"
                )

    def _epochs(self, kind: str, partitions: int) -> int:
        """Epochs in checkpoints of a turn. A checkpoint of many partitions takes as many epochs as there are."""
        share = 1 if kind in JUDGED else 5 if kind == NONE else 20
        return max(self._plan.epochs // share // (1 if partitions <= MANY else 2), 1)


def main() -> None:
    """Measure, print, keep."""
    parser = options(
        __doc__,
        quick="fewer sizes and rounds: some three minutes",
        smoke="does it work at all",
        data="a folder for checkpoints and states, on the disk to measure",
    )
    parser.add_argument("--rounds", type=int, help="so many rounds, instead of the plan's")
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        help="only this part: aggregate, join, prepare, read, task, bounded, latency 1, …",
    )
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the order of kinds and blocks (default {SEED})")
    given = parser.parse_args()
    chosen = SMOKE if given.smoke else QUICK if given.quick else FULL
    plan = replace(chosen, seed=given.seed)
    mode = results.PARTIAL if chosen is FULL and (given.part or given.rounds) else plan.mode
    if given.rounds:
        plan = replace(plan, rounds=given.rounds, turns=given.rounds, many_turns=given.rounds)
    folder = results.directory(parser, given.results, mode)
    console = Console(width=200)
    console.print(f"seed of the order of kinds and blocks: {plan.seed}")
    with scratch("pages", given.data) as data:
        benchmark = Benchmark(plan, data, console)
        before = machine(data)
        benchmark.run(tuple(given.part))
    if benchmark.left_out and mode == results.FULL:
        mode, folder = results.PARTIAL, results.partial(folder)
    goals = report.find_goals(benchmark.rows)
    report.print_tables(benchmark.rows, goals, console)
    for line in benchmark.left_out:
        console.print(f"left out: {line}")
    content = content_of(
        mode,
        before,
        goals,
        benchmark.rows.all,
        plan=asdict(plan),
        notes=[" ".join(note.split()) for note in report.NOTES],
        left_out=benchmark.left_out,
        paper={"table 5": paper.JOIN_US, "table 6": paper.AGGREGATE_US, "table 7": paper.LATENCY_MS},
        latencies=report.summary(benchmark.rows),
    )
    keep(folder, "pages", content, partial(drawing.draw, benchmark.rows, mode), console)


if __name__ == "__main__":
    main()
