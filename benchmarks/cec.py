"""Continuous eventual checkpoints: the paper's figures 5 to 9, run again with Cairn's continuous runner.

`python benchmarks/cec.py [--quick] [--smoke]` starts a sidecar, fills source streams with the paper's 100-byte tuples,
runs its query (average price per item over a number of tuples) in this process, crashes it, recovers it, and leaves
results/cec.json and .png with the paper's numbers beside ours. A full run takes about 24 minutes of a quiet machine.

Scaled to one machine: the paper has a server each for source, operator and sink, and a file system over the network.
Here the source is a stream that is there already, read at the paper's rate or as fast as it goes; the operator runs in
one process, and its output is durable in a sidecar on the same machine.

Invariants:
* Nothing is timed that did not do its work: G_opens and results are counted again from the items alone.
* Everything that is compared runs in turn, in each block or round in another order; ratios are paired, and every figure
  that decides has its 95 % confidence interval.
* The same tuples for all: a source stream is written once.
"""

from __future__ import annotations

import argparse
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
from benchmarks.continuous.runs import Query, Ran, Setting, settled
from benchmarks.harness import results
from benchmarks.harness.report import Row, Rows, machine, versions
from benchmarks.harness.sidecar import SidecarPeer
from spe_adapter.cec.policy import Budget, CostBenefit, NoChecks, Policy, Targets, bounded
from spe_adapter.continuous.calibration import measured_costs
from spe_adapter.continuous.fragment import Limits
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
SHORT_BEATS = Limits(beat_ms=10, run_records=8192)
"""Checks are taken at the end of a beat, so beats are short against the shortest CP."""
DEFAULT_BEATS = Limits()
STEADY_BATCH = 545
"""What the paper's source sends in ten milliseconds."""
FULL_BATCH = 50_000


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    mode: str
    items: int
    """In figures 6 to 9, and in the third load of figure 5; the paper has 100,000."""
    blocks: int
    """Of figure 5: each holds two slices of each kind."""
    slice_s: float
    recovery_s: float
    """A run of figures 6 and 7, at the paper's rate."""
    recovery_loads: int
    """How often each recovery is repeated."""
    period_s: float
    """A run of figures 8 and 9, at full speed."""
    period_rounds: int
    large_items: int
    """Windows of the load that is timed cold and warm."""
    large_loads: int
    lap_batches: int
    """Batches of the source that is read at full speed; the others are in proportion."""
    limit_seconds: float
    """No run begins later."""

    @property
    def warm_records(self) -> int:
        """After so many records of many items windows are in all stages of their lives."""
        return 20 * self.items


FULL = Plan("full", 100_000, 12, 1.25, 20.0, 5, 15.0, 3, 1_000_000, 12, 80, 1450.0)
QUICK = Plan("quick", 20_000, 2, 0.5, 4.0, 3, 3.0, 2, 200_000, 3, 40, 150.0)
SMOKE = Plan("smoke", 500, 2, 0.1, 0.3, 2, 0.3, 2, 2_000, 2, 2, 3600.0)


class Load(NamedTuple):
    """A load of figure 5: its sources at the paper's rate and at full speed, and its window."""

    steady: Source
    full: Source
    window: int
    warm_records: int


class Benchmark:
    """One run: a sidecar, and the rows that it fills."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        """Everything is written below `directory`."""
        self.plan = plan
        self.rows = Rows()
        self.left_out: list[str] = []
        self._console = console
        self._sidecar = SidecarPeer(directory)
        self._began = time.monotonic()
        self._queries = 0
        self._lives: Lives | None = None
        rate = paper.RECORDS_PER_S
        many, few = plan.items, FEW_ITEMS
        self._few_steady = Source("few-steady", few, plan.lap_batches * 12 * STEADY_BATCH, STEADY_BATCH, rate)
        self._few = Source("few", few, plan.lap_batches // 2 * FULL_BATCH, FULL_BATCH)
        self._many_steady = Source("many-steady", many, plan.lap_batches * 25 * STEADY_BATCH, STEADY_BATCH, rate)
        self._many = Source("many", many, plan.lap_batches * FULL_BATCH, FULL_BATCH)
        self._large = Source("large", plan.large_items, 3 * plan.large_items, plan.large_items // 20)
        self._sources = (self._few_steady, self._few, self._many_steady, self._many, self._large)

    def run(self) -> None:
        """All figures."""
        self._sidecar.start()
        try:
            self._sidecar.wait_serving()
            for source in self._sources:
                items.fill(self._sidecar.bootstrap, source)
            self._warm_up()
            self._loading()
            self._baseline()
            self._recoveries()
            self._periods()
        finally:
            self._sidecar.kill()

    def _query(self, setting: Setting) -> Query:
        self._queries += 1
        return Query(self._sidecar.bootstrap, self._sidecar.pid, f"query-{self._queries}", setting)

    def _in_time(self, what: str) -> bool:
        if time.monotonic() - self._began < self.plan.limit_seconds:
            return True
        self.left_out.append(f"{what}: the run's time was up")
        return False

    def _warm_up(self) -> None:
        """Load what is compiled, in the runner and in its recovery."""
        query = self._query(Setting(self._many, WINDOW, SHORT_BEATS))
        query.run(Targets(q_limit=1, u_limit=1), records=self.plan.warm_records // 4)
        query.load()
        query.recover()
        query.remove()

    # ---- figure 5

    def _baseline(self) -> None:
        """Processor time and throughput without checkpoints and with them, for three loads at two rates."""
        plan = self.plan
        loads = {
            FAST: Load(self._few_steady, self._few, 1, 100_000),
            SLOW: Load(self._few_steady, self._few, 1000, 100_000),
            MANY: Load(self._many_steady, self._many, WINDOW, plan.warm_records),
        }
        kinds = {
            NATIVE: Kind(checkpoints=False),
            NET: Kind(persist=False),
            DISK: Kind(),
            POLICY: Kind(policy=bounded),
        }
        for workload, load in loads.items():
            for speed, source in ((PAPER_RATE, load.steady), (FULL_SPEED, load.full)):
                if not self._in_time(f"figure 5, {workload}, {speed}"):
                    continue
                setting = Setting(source, load.window, DEFAULT_BEATS)
                queries = {
                    name: self._query(setting._replace(checkpoints=kind.checkpoints, persist=kind.persist))
                    for name, kind in kinds.items()
                }
                os.sync()
                found = interleaved(
                    queries, kinds, blocks=plan.blocks, slice_s=plan.slice_s, warm_records=load.warm_records
                )
                for row in found:
                    self.rows.add(workload=workload, speed=speed, **row)
                for query in queries.values():
                    query.remove()
                overhead = figures.overhead_of(self.rows, workload, speed, DISK)
                if overhead is not None:
                    self._say(f"figure 5, {workload}, {speed}, {DISK}: {figures.percent(overhead)} of processor time")

    # ---- figures 6 and 7

    def _recoveries(self) -> None:
        """Crashes in the middle of a run, for each Q and each U, without checks, and by cost and benefit."""
        open_windows = int(self.plan.items * OPEN_SHARE)
        cases: list[tuple[str, int, Callable[[], Policy]]] = [(figures.NONE, 0, NoChecks)]
        cases += [("Q", times, _budgeted(Targets(q_limit=times * open_windows))) for times in TARGETS]
        cases += [("U", records, _budgeted(Targets(u_limit=records))) for records in self._replays()]
        setting = Setting(self._many_steady, WINDOW, SHORT_BEATS)
        query = self._query(setting)
        costs = measured_costs(query.fragment, 0, Options(self._sidecar.bootstrap))
        self.rows.add(what="costs", **costs._asdict())
        cases.append((figures.COST, int(MTBF_S), partial(CostBenefit, costs, MTBF_S)))
        for target, value, policy in cases:
            if self._in_time(f"figures 6 and 7, {target} {value}"):
                self._recover(setting, target, value, policy())

    def _recover(self, setting: Setting, target: str, value: int, policy: Policy) -> None:
        os.sync()
        query = self._query(setting)
        ran = query.run(policy, seconds=self.plan.recovery_s, warm_records=self.plan.warm_records)
        labels = {"target": target, "value": value}
        counts = counted(ran, Kind())
        written = {name: counts[name] for name in ("opens", "records")}
        open_windows = int(self.plan.items * OPEN_SHARE)
        self.rows.add(what="recovery", **labels, q_unit=open_windows, **written, **_standing(ran))
        for number in range(self.plan.recovery_loads):
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

    def _periods(self) -> None:
        """Response times and extents for each CP at full speed, with a target that always wants more, and without."""
        plan = self.plan
        periods = (None, *PERIODS_MS)
        setting = Setting(self._many, WINDOW, SHORT_BEATS)
        for number in range(plan.period_rounds):
            for period in [*periods[number % len(periods) :], *periods[: number % len(periods)]]:
                if not self._in_time(f"figures 8 and 9, CP {period} ms, round {number}"):
                    continue
                policy = NoChecks() if period is None else Budget(INTERVAL_MS, period, Targets(u_limit=0))
                os.sync()
                query = self._query(setting)
                ran = query.run(policy, seconds=plan.period_s, warm_records=plan.warm_records)
                query.remove()
                counted(ran, Kind())
                responses = self._responses(ran)
                labels = {"period_ms": period, "round": number}
                self.rows.add(what="period", **labels, records_per_s=ran.rate, **_standing(ran), **responses)
                self._say(f"CP {period} ms: response {responses['response_s']:.2f} s")

    def _responses(self, ran: Ran) -> Row:
        """The time from a window's first tuple to its result, means of each second (of closing) and over all of them;
        from windows that opened and closed while the run was in full swing.
        """
        lives, timeline = self._lives_of(ran), ran.timeline
        first = ran.slices[0].first_record
        opened, closed = lives
        taken = (opened >= first) & (closed < timeline.records)
        opened_s, closed_s = timeline.moments_of(opened[taken]), timeline.moments_of(closed[taken])
        late = closed_s >= timeline.moments[-1] - ran.seconds / 2
        took = (closed_s - opened_s)[late]
        second = (closed_s[late] - timeline.moments[-1] + ran.seconds).astype(np.int64)
        means = {int(at): float(took[second == at].mean()) for at in np.unique(second)}
        return {"response_s": float(took.mean()), "response_by_second_s": means}

    def _lives_of(self, ran: Ran) -> Lives:
        """Computed for the longest run so far: they are sorted out of millions of records."""
        records = ran.timeline.records
        if self._lives is None or not len(self._lives.closed) or self._lives.closed[-1] < records - FULL_BATCH:
            self._lives = items.lives_of(self._many.ids(records + records // 4), WINDOW)
        return self._lives

    # ---- windows a second

    def _loading(self) -> None:
        """How fast a large state comes back: the sidecar just restarted, its files out of memory, and again."""
        plan = self.plan
        query = self._query(Setting(self._large, WINDOW, DEFAULT_BEATS))
        query.run(bounded(), records=self._large.records - self._large.batch_records)
        for number in range(plan.large_loads):
            if not self._in_time(f"windows loaded, round {number}"):
                break
            self._sidecar.stop()
            dropped = drop_cached(self._sidecar.data_path)
            self._sidecar.start()
            self._sidecar.wait_serving()
            query.moved(self._sidecar.pid)
            for storage in (figures.COLD, figures.WARM):
                found = query.load()
                rate = found.windows / found.seconds
                self.rows.add(
                    what="loading", storage=storage, round=number, windows_per_s=rate, dropped_files=dropped,
                    windows_per_cpu_s=found.windows / found.cpu_s, **found._asdict(),
                )  # fmt: skip
                self._say(f"{found.windows:,} windows loaded, {storage}: {rate / 1e6:.2f} M windows/s")
        query.remove()

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


def _standing(ran: Ran) -> Row:
    """Where a run stood at its end, and at all moments of its second half."""
    at_end = ran.figures
    half = [beat.figures for beat in settled(ran.timeline.beats)]
    records = np.diff([figures.records for figures in half], prepend=half[0].records)
    emitted = np.diff([figures.emitted for figures in half], prepend=half[0].emitted)
    return {
        "windows": at_end.windows,
        "checks": at_end.checks,
        "closes": at_end.closes,
        "extent": at_end.extent,
        "extent_mean": float(np.mean([figures.extent for figures in half])),
        "extent_most": int(max(np.array([figures.extent for figures in half]) - emitted)),
        "to_replay": at_end.to_replay,
        "to_replay_most": int(max(np.array([figures.to_replay for figures in half]) - records)),
        "beats": len(half),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="about three minutes, with a fifth of the items")
    parser.add_argument("--smoke", action="store_true", help="seconds: only whether the benchmark works")
    parser.add_argument(
        "--results", type=Path, help="where results go (default: benchmarks/results; shorter runs: build/benchmarks)"
    )
    parser.add_argument(
        "--data", type=Path, help="where the sidecar keeps its data meanwhile (default: a temporary one)"
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
        begin = time.perf_counter()
        benchmark = Benchmark(plan, directory, console)
        benchmark.run()
        about["left_out"] = benchmark.left_out
        about["seconds"] = round(time.perf_counter() - begin, 1)
        about["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
    report.publish(benchmark.rows, about, folder, console)


if __name__ == "__main__":
    main()
