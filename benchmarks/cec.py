"""Continuous eventual checkpoints: the paper's figures 5 to 9, run again with Cairn's continuous runner.

`python benchmarks/cec.py [--quick] [--smoke]` starts a sidecar, fills source streams with the paper's 100-byte tuples,
runs its query (average price per item over a number of tuples) in this process, crashes it, recovers it, and leaves
results/cec.json and .png with the paper's numbers beside ours. A full run takes about 27 minutes of a quiet machine,
and never more than 30.

Scaled to one machine: the paper has a server each for source, operator and sink, and a file system over the network.
Here the source is a stream that is there already, read at the paper's rate or as fast as it goes; the operator runs in
one process, and its output is durable in a sidecar on the same machine.

Invariants:
* What a run must have written is counted from the items alone: a run that wrote something else misses a goal, and is
  not compared.
* Everything that is compared runs in turn, in each block or round in another order; ratios are paired, and every figure
  that decides has its 95 % confidence interval.
* Each round holds a part of every figure. No part begins that would end behind the limit: it is left out by name, and
  the result is partial. So it is if an error ends the run: what was measured before is kept.
* The same tuples for all: a source stream is written once, and stays in memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.continuous import figures, items, paper, report
from benchmarks.continuous.baseline import Kind, counted, interleaved
from benchmarks.continuous.figures import DISK, FAST, FULL_SPEED, MANY, NATIVE, NET, PAPER_RATE, POLICY, SLOW
from benchmarks.continuous.items import Lives, Source
from benchmarks.continuous.runs import Query, Ran, Setting, standing
from benchmarks.harness import results
from benchmarks.harness.disks import settle_disks
from benchmarks.harness.program import options
from benchmarks.harness.report import Row, Rows, machine, versions
from benchmarks.harness.sidecar import SidecarPeer
from spe_adapter.cec.policy import Budget, CostBenefit, NoChecks, Policy, Targets, bounded
from spe_adapter.continuous.calibration import measured_costs
from spe_adapter.continuous.fragment import EpochLimits
from spe_adapter.continuous.runner import Options

FEW_ITEMS = 2
WINDOW = 10
"""Tuples per window in figures 6 to 9."""
OPEN_SHARE = 0.9
"""Of all items, how many have an open window at any moment: nine of ten, with windows of ten."""
TARGETS = (1, 2, 4, 8)
"""Q, as multiples of the number of open windows (figure 6)."""
REPLAYS = (125_000, 250_000, 500_000, 1_000_000)
"""U (figure 7)."""
PERIODS_MS = (25, 50, 100, 250)
"""CP (figures 8 and 9)."""
INTERVAL_MS = 10.0
"""CI in figures 8 and 9."""
RECOVERY_BUDGET_MS = (5.0, 100.0)
"""CI and CP in figures 6 and 7."""
MTBF_S = 3600.0
"""How often the cost-benefit policy of figure 7's last bar takes a failure to come."""
SHORT_EPOCHS = EpochLimits(epoch_ms=10, run_records=8192)
"""Checks are taken at the end of an epoch, so epochs are short against the shortest CP."""
DEFAULT_EPOCHS = EpochLimits()
BASELINE = {
    NATIVE: Kind(checkpoints=False),
    NET: Kind(persist=False),
    DISK: Kind(),
    POLICY: Kind(policy=bounded),
}
"""The kinds of figure 5."""
STEADY_BATCH = 545
"""What the paper's source sends in ten milliseconds."""
FULL_BATCH = 50_000


ENDING_S = 20.0
"""For the tables, the plot and the end of the servers."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured: a part of everything in each round."""

    mode: str
    items: int
    """In figures 6 to 9, and in the third load of figure 5; the paper has 100,000."""
    rounds: int
    blocks: int
    """Of figure 5, in each round, at each speed: a block holds two slices of each kind."""
    few_warm_records: int
    """In front of the slices of its loads of few items; at the paper's rate 54,500 of them take a second."""
    slice_s: float
    settle_s: float
    """At the paper's rate, behind the warm-up of figures 6 and 7: checks have come round every window by then."""
    recovery_s: float
    """A run of figures 6 and 7, at the paper's rate. Each is run once, in one of the rounds."""
    recovery_loads: int
    """How often each recovery is repeated."""
    period_s: float
    """A run of figures 8 and 9, at full speed."""
    period_turns: int
    """How often each CP is run in a round."""
    large_items: int
    """Windows of the load that is timed cold and warm."""
    large_loads: int
    """Of each, in each round."""
    lap_batches: int
    """Batches of the source that is read at full speed; the others are in proportion."""
    limit_seconds: float
    """The run is over by then."""

    @property
    def warm_records(self) -> int:
        """After so many records of many items windows are in all stages of their lives."""
        return 20 * self.items


FULL = Plan(
    mode="full", items=100_000, rounds=4, blocks=6, slice_s=0.625, settle_s=4.0, recovery_s=12.0, recovery_loads=5,
    few_warm_records=100_000,
    period_s=6.0, period_turns=2, large_items=1_000_000, large_loads=3, lap_batches=80, limit_seconds=1800.0,
)  # fmt: skip
QUICK = Plan(
    mode="quick", items=20_000, rounds=2, blocks=1, slice_s=0.5, settle_s=1.0, recovery_s=3.0, recovery_loads=3,
    few_warm_records=100_000,
    period_s=2.0, period_turns=1, large_items=200_000, large_loads=2, lap_batches=40, limit_seconds=180.0,
)  # fmt: skip
SMOKE = Plan(
    mode="smoke", items=500, rounds=1, blocks=1, slice_s=0.1, settle_s=0.1, recovery_s=0.3, recovery_loads=2,
    few_warm_records=10_000,
    period_s=0.3, period_turns=1, large_items=2_000, large_loads=1, lap_batches=2, limit_seconds=3600.0,
)  # fmt: skip


class Load(NamedTuple):
    """A load of figure 5: its sources at the paper's rate and at full speed, and its window."""

    steady: Source
    full: Source
    window: int
    warm_records: int


class Case(NamedTuple):
    """A run of figures 6 and 7."""

    target: str
    value: int
    policy: Callable[[], Policy]


class Benchmark:
    """One run: a sidecar for the queries, one for the large state, and the rows that they fill."""

    def __init__(self, plan: Plan, directory: Path, console: Console, clock: Callable[[], float]) -> None:
        """Everything is written below `directory`. `clock` counts seconds."""
        self.plan = plan
        self.rows = Rows()
        self.left_out: list[str] = []
        self._console = console
        self._clock = clock
        self._sidecar = SidecarPeer(directory)
        self._large_sidecar = SidecarPeer(directory / "large")
        self._began = clock()
        self._took_s: dict[str, float] = {}
        """The longest that each part took in a round so far."""
        self._queries = 0
        self._lives: Lives | None = None
        rate = paper.RECORDS_PER_S
        many, few = plan.items, FEW_ITEMS
        self._few_steady = Source("few-steady", few, plan.lap_batches * 12 * STEADY_BATCH, STEADY_BATCH, rate)
        self._few = Source("few", few, plan.lap_batches // 2 * FULL_BATCH, FULL_BATCH)
        self._many_steady = Source("many-steady", many, plan.lap_batches * 25 * STEADY_BATCH, STEADY_BATCH, rate)
        self._many = Source("many", many, plan.lap_batches * FULL_BATCH, FULL_BATCH)
        self._large = Source("large", plan.large_items, 3 * plan.large_items, plan.large_items // 20)
        self._sources = (self._few_steady, self._few, self._many_steady, self._many)

    def run(self) -> None:
        """All figures, round by round."""
        self._sidecar.start()
        try:
            self._sidecar.wait_serving()
            for source in self._sources:
                items.fill(self._sidecar.bootstrap, source)
            self._warm_up()
            large = self._large_state()
            cases = self._cases()
            for number in range(self.plan.rounds):
                self._say(f"round {number + 1} of {self.plan.rounds}, {self._clock() - self._began:.0f} s")
                self._recoveries(cases[number :: self.plan.rounds])
                self._baseline(number)
                for turn in range(self.plan.period_turns):
                    self._periods(number * self.plan.period_turns + turn)
                self._loading(number, large)
        finally:
            self._sidecar.kill()
            self._large_sidecar.kill()

    def _query(self, setting: Setting) -> Query:
        self._queries += 1
        return Query(self._sidecar.bootstrap, self._sidecar.pid, f"query-{self._queries}", setting)

    def part(self, kind: str, what: str, measure: Callable[[], None]) -> None:
        """Measure a part, if it will be over in time: of each kind it is known how long it took at most so far."""
        began = self._clock()
        if began - self._began + self._took_s.get(kind, 0.0) + ENDING_S >= self.plan.limit_seconds:
            self.left_out.append(f"{what}: the run's time was up")
            return
        measure()
        self._took_s[kind] = max(self._took_s.get(kind, 0.0), self._clock() - began)

    def _warm_up(self) -> None:
        """Load what is compiled, in the runner and in its recovery."""
        query = self._query(Setting(self._many, WINDOW, SHORT_EPOCHS))
        query.run(Targets(q_limit=1, u_limit=1), records=self.plan.warm_records // 4)
        query.load()
        query.recover()
        query.remove()

    # ---- figure 5

    def _baseline(self, number: int) -> None:
        """A round of processor time and throughput without checkpoints and with them, for three loads at two rates."""
        plan = self.plan
        loads = {
            FAST: Load(self._few_steady, self._few, 1, plan.few_warm_records),
            SLOW: Load(self._few_steady, self._few, 1000, plan.few_warm_records),
            MANY: Load(self._many_steady, self._many, WINDOW, plan.warm_records),
        }
        for workload, load in loads.items():
            for speed in (PAPER_RATE, FULL_SPEED):
                what = f"figure 5, {workload}, {speed}"
                self.part(what, f"{what}, round {number}", partial(self._compare, number, workload, load, speed))

    def _compare(self, number: int, workload: str, load: Load, speed: str) -> None:
        """A round's blocks of a load at a speed."""
        plan = self.plan
        setting = Setting(load.steady if speed == PAPER_RATE else load.full, load.window, DEFAULT_EPOCHS)
        queries = {
            name: self._query(setting._replace(checkpoints=kind.checkpoints, persist=kind.persist))
            for name, kind in BASELINE.items()
        }
        settle_disks()
        blocks = range(number * plan.blocks, (number + 1) * plan.blocks)
        found = interleaved(queries, BASELINE, blocks=blocks, slice_s=plan.slice_s, warm_records=load.warm_records)
        for row in found:
            self.rows.add(workload=workload, speed=speed, **row)
        for query in queries.values():
            query.remove()
        overhead = figures.overhead_of(self.rows, workload, speed, DISK)
        if overhead is not None:
            self._say(f"figure 5, {workload}, {speed}, {DISK}: {figures.percent(overhead)} of processor time")

    # ---- figures 6 and 7

    def _cases(self) -> list[Case]:
        """For each Q and each U, without checks, and by cost and benefit, with the costs of this machine."""
        open_windows = int(self.plan.items * OPEN_SHARE)
        query = self._query(Setting(self._many_steady, WINDOW, SHORT_EPOCHS))
        costs = measured_costs(query.fragment, 0, Options(self._sidecar.bootstrap))
        self.rows.add(what="costs", **costs._asdict())
        return [
            Case(figures.NONE, 0, NoChecks),
            *(Case("Q", times, _budgeted(Targets(q_limit=times * open_windows))) for times in TARGETS),
            *(Case("U", records, _budgeted(Targets(u_limit=records))) for records in self._replays()),
            Case(figures.COST, int(MTBF_S), partial(CostBenefit, costs, MTBF_S)),
        ]

    def _recoveries(self, cases: Sequence[Case]) -> None:
        """Crashes in the middle of a run."""
        for case in cases:
            what = f"figures 6 and 7, {figures.target_title(case.target, case.value)}"
            self.part("figures 6 and 7", what, partial(self._recover, case))

    def _recover(self, case: Case) -> None:
        plan, (target, value, policy) = self.plan, case
        settle_disks()
        query = self._query(Setting(self._many_steady, WINDOW, SHORT_EPOCHS))
        ran = query.run(policy(), seconds=plan.recovery_s, warm_records=plan.warm_records, settle_s=plan.settle_s)
        labels = {"target": target, "value": value}
        written = {**counted(ran), **standing(ran)}
        self.rows.add(what="recovery", **labels, q_unit=int(plan.items * OPEN_SHARE), **written)
        for number in range(plan.recovery_loads):
            self.rows.add(what="load", **labels, round=number, **query.load()._asdict())
        found = query.recover()
        self.rows.add(what="replay", **labels, **found._asdict(), replayed_bytes=found.replayed_bytes)
        query.remove()
        self._say(
            f"{target} {value:,}: extent {ran.figures.extent:,}, load {found.load_s * 1000:.0f} ms, "
            f"{found.replayed_bytes / 1e6:.0f} MB replayed"
        )

    def _replays(self) -> list[int]:
        """U, in proportion to the number of items."""
        return [records * self.plan.items // FULL.items for records in REPLAYS]

    # ---- figures 8 and 9

    def _periods(self, turn: int) -> None:
        """Response times and extents for each CP at full speed, with a target that always wants more, and without."""
        periods = (None, *PERIODS_MS)
        first = turn % len(periods)
        for period in [*periods[first:], *periods[:first]]:
            what = f"figures 8 and 9, {'no checks' if period is None else f'CP {period} ms'}, turn {turn}"
            self.part("figures 8 and 9", what, partial(self._respond, period, turn))

    def _respond(self, period: int | None, turn: int) -> None:
        plan = self.plan
        policy = NoChecks() if period is None else Budget(INTERVAL_MS, period, Targets(u_limit=0))
        settle_disks()
        query = self._query(Setting(self._many, WINDOW, SHORT_EPOCHS))
        ran = query.run(policy, seconds=plan.period_s, warm_records=plan.warm_records)
        query.remove()
        responses = self._responses(ran)
        written = {**counted(ran), **standing(ran)}
        self.rows.add(
            what="period", period_ms=period, round=turn, records_per_s=ran.rate, **written, **responses
        )  # fmt: skip
        self._say(f"CP {period} ms: response {responses['response_s']:.2f} s")

    def _responses(self, ran: Ran) -> Row:
        """The time from a window's first tuple to its result: means of each second (of closing) behind the warm-up, and
        over all windows that closed in the second half, whenever they opened. The warm-up ran at the same speed.
        """
        lives, timeline = self._lives_of(ran), ran.timeline
        taken = (lives.closed >= ran.slices[0].first_record) & (lives.closed < timeline.records)
        opened_s, closed_s = timeline.moments_of(lives.opened[taken]), timeline.moments_of(lives.closed[taken])
        took = closed_s - opened_s
        second = (closed_s - timeline.moments[-1] + ran.seconds).astype(np.int64)
        means = {int(at): float(took[second == at].mean()) for at in np.unique(second)}
        return {
            "response_s": float(took[closed_s >= timeline.moments[-1] - ran.seconds / 2].mean()),
            "response_by_second_s": means,
        }

    def _lives_of(self, ran: Ran) -> Lives:
        """Computed for the longest run so far: they are sorted out of millions of records."""
        records = ran.timeline.records
        if self._lives is None or not len(self._lives.closed) or self._lives.closed[-1] < records - FULL_BATCH:
            self._lives = items.lives_of(self._many.ids(records + records // 4), WINDOW)
        return self._lives

    # ---- windows a second

    def _large_state(self) -> Query:
        """A query with a large state in a sidecar of its own, which runs only while it is loaded."""
        sidecar = self._large_sidecar
        sidecar.data_path.parent.mkdir()
        sidecar.start()
        sidecar.wait_serving()
        items.fill(sidecar.bootstrap, self._large)
        query = Query(sidecar.bootstrap, sidecar.pid, "large", Setting(self._large, WINDOW, DEFAULT_EPOCHS))
        query.run(bounded(), records=self._large.records - self._large.batch_records)
        sidecar.stop()
        return query

    def _loading(self, number: int, query: Query) -> None:
        """How fast a large state comes back: its sidecar just started, its files out of memory, and again."""
        for turn in range(number * self.plan.large_loads, (number + 1) * self.plan.large_loads):
            self.part("loading", f"windows loaded, turn {turn}", partial(self._load, turn, query))

    def _load(self, turn: int, query: Query) -> None:
        sidecar = self._large_sidecar
        dropped = drop_cached(sidecar.data_path)
        sidecar.start()
        sidecar.wait_serving()
        query.moved(sidecar.pid)
        for storage in (figures.COLD, figures.WARM):
            found = query.load()
            rate = found.windows / found.seconds
            self.rows.add(
                what="loading", storage=storage, round=turn, windows_per_s=rate, dropped_files=dropped,
                windows_per_cpu_s=found.windows / found.cpu_s, **found._asdict(),
            )  # fmt: skip
            self._say(f"{found.windows:,} windows loaded, {storage}: {rate / 1e6:.2f} M windows/s")
        sidecar.stop()

    def _say(self, text: str) -> None:
        self._console.log(text)


def drop_cached(directory: Path) -> int:
    """Have the system forget what it holds of these files in memory, as far as it is on disk; how many files."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return len(files)


def _budgeted(targets: Targets) -> Callable[[], Policy]:
    """What makes a policy with these targets and a budget of its own."""
    return lambda: Budget(*RECOVERY_BUDGET_MS, targets)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = options(
        __doc__,
        quick="three minutes at most, with a fifth of the items",
        smoke="seconds: only whether the benchmark works",
        data="where the sidecar keeps its data meanwhile (default: a temporary one)",
    )
    chosen = parser.parse_args(arguments)
    plan = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    folder = results.directory(parser, chosen.results, plan.mode)
    console = Console(log_path=False, width=None if sys.stdout.isatty() else 130)
    with tempfile.TemporaryDirectory(dir=chosen.data, prefix="cec-") as name:
        directory = Path(name)
        about: dict[str, Any] = {
            "benchmark": report.NAME,
            "mode": plan.mode,
            "plan": asdict(plan),
            "machine": machine(directory),
            "versions": {**versions(), **{name: metadata.version(name) for name in ("numba", "numpy", "pyarrow")}},
        }
        benchmark = Benchmark(plan, directory, console, time.monotonic)
        finish(benchmark, benchmark.run, about, folder, results.partial(folder), console)


def finish(
    benchmark: Benchmark,
    run: Callable[[], None],
    about: dict[str, Any],
    folder: Path,
    partial_folder: Path,
    console: Console,
) -> None:
    """Run, and publish what was measured: in `folder` if it is all that was planned, in `partial_folder` as a partial
    run if parts were left out or an error (or Ctrl-C) ended it, which is raised again.
    """
    begin = time.perf_counter()
    try:
        run()
    except BaseException as error:
        benchmark.left_out.append(f"everything after {type(error).__name__}: {error}")
        raise
    finally:
        if benchmark.left_out:
            about["mode"], folder = results.PARTIAL, partial_folder
            console.print(f"a partial run: its results go to {folder}")
        about["left_out"] = benchmark.left_out
        about["seconds"] = round(time.perf_counter() - begin, 1)
        about["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
        report.publish(benchmark.rows, about, folder, console)


if __name__ == "__main__":
    main()
