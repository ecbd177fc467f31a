"""Continuous eventual checkpoints: the paper's figures 5 to 9, run again with Cairn's continuous runner.

`python benchmarks/cec.py [--quick] [--smoke]` starts a sidecar, fills source streams with the paper's 100-byte tuples,
runs its query (average price per item over a number of tuples) in this process, crashes it, recovers it, and leaves
results/cec.json and .png with the paper's numbers beside ours.

Scaled to one machine: the paper has a server each for source, operator and sink, and a file system over the network.
Here the source is a stream that is there already and is read as fast as it goes, the operator runs in one process and
its output is durable in a sidecar on the same machine.

Invariants:
* Everything that is compared runs in turn, in each round in another order; ratios are medians of each round's own.
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
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.continuous import items, report
from benchmarks.continuous.items import Lives
from benchmarks.continuous.report import DISK, FAST, MANY, NATIVE, NET, POLICY, SLOW
from benchmarks.continuous.runs import Query, Ran, Recovery, Setting, settled
from benchmarks.harness.report import Row, Rows, machine, versions
from benchmarks.harness.sidecar import SidecarPeer
from spe_adapter.cec.policy import Budget, NoChecks, Policy, Targets
from spe_adapter.continuous.fragment import Limits

RESULTS = Path(__file__).parent / "results"
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
SHORT_BEATS = Limits(beat_ms=10, run_records=8192)
"""Checks are taken at the end of a beat, so beats are short against the shortest CP."""
DEFAULT_BEATS = Limits()


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    mode: str
    items: int
    """In figures 6 to 9; the paper has 100,000."""
    records: int
    """Input records of a run in figures 6 to 9: enough that the slowest windows have been open as long as they may."""
    few_records: int
    """And in figure 5."""
    baseline_rounds: int
    recovery_rounds: int
    period_rounds: int
    limit_seconds: float
    """No run begins later."""


FULL = Plan("full", 100_000, 4_000_000, 4_000_000, 9, 3, 3, 660.0)
QUICK = Plan("quick", 20_000, 900_000, 1_000_000, 3, 1, 1, 150.0)
SMOKE = Plan("smoke", 500, 200_000, 200_000, 1, 1, 1, 60.0)


class Kind(NamedTuple):
    """A bar of figure 5."""

    checkpoints: bool = True
    persist: bool = True
    policy: Callable[[], Policy] = NoChecks


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
        self._known_lives: dict[tuple[str, int], Lives] = {}

    def run(self) -> None:
        """All figures."""
        self._sidecar.start()
        try:
            self._sidecar.wait_serving()
            address = self._sidecar.bootstrap
            for topic, (count, records) in self._sources().items():
                items.fill(address, topic, count, records)
            self._warm_up()
            self._baseline()
            self._recoveries()
            self._periods()
        finally:
            self._sidecar.kill()

    def _sources(self) -> dict[str, tuple[int, int]]:
        """Topic → items and records, a few more than are processed: a run ends with a whole beat."""
        plan = self.plan
        few, many = plan.few_records, plan.records
        return {"few": (FEW_ITEMS, few + few // 10), "many": (plan.items, many + many // 10)}

    def _lives(self, setting: Setting) -> Lives:
        """Computed once: they are sorted out of millions of records."""
        named = (setting.source, setting.window)
        if named not in self._known_lives:
            ids = items.ids_of(*self._sources()[setting.source])
            self._known_lives[named] = items.lives_of(ids, setting.window)
        return self._known_lives[named]

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
        query = self._query(self._many(records=min(self.plan.records, 200_000)))
        query.run(Targets(q_limit=1), crash=True)
        query.recover(NoChecks())

    # ---- figure 5

    def _baseline(self) -> None:
        """Throughput without checkpoints and with them, for three workloads."""
        plan = self.plan
        few = plan.few_records
        workloads = {
            FAST: Setting("few", 1, few // 2, DEFAULT_BEATS),
            SLOW: Setting("few", 1000, few, DEFAULT_BEATS),
            MANY: Setting("many", WINDOW, plan.records // 2, DEFAULT_BEATS),
        }
        kinds = {
            NATIVE: Kind(checkpoints=False),
            NET: Kind(persist=False),
            DISK: Kind(),
            POLICY: Kind(policy=_as_recommended),
        }
        for number in range(plan.baseline_rounds):
            for workload, setting in workloads.items():
                lives = self._lives(setting)
                order = [*kinds][number % len(kinds) :] + [*kinds][: number % len(kinds)]
                for kind in order:
                    if not self._in_time(f"figure 5, {workload}, {kind}, round {number}"):
                        continue
                    chosen = kinds[kind]
                    os.sync()
                    query = self._query(setting._replace(checkpoints=chosen.checkpoints, persist=chosen.persist))
                    ran = query.run(chosen.policy())
                    query.remove()
                    labels = {"workload": workload, "kind": kind, "round": number}
                    self.rows.add(what="baseline", **labels, **_throughput(ran, lives))
                    self._say(f"figure 5, {workload}, {kind}: {ran.rate / 1e6:.2f} M records/s")

    # ---- figures 6 and 7

    def _recoveries(self) -> None:
        """Crashes in the middle of a run, for each Q and each U, and without checks."""
        open_windows = int(self.plan.items * OPEN_SHARE)
        cases: list[tuple[str, int, Callable[[], Policy]]] = [(report.NONE, 0, NoChecks)]
        cases += [("Q", times, _budgeted(Targets(q_limit=times * open_windows))) for times in TARGETS]
        cases += [("U", records, _budgeted(Targets(u_limit=records))) for records in self._replays()]
        lives = self._lives(self._many())
        for number in range(self.plan.recovery_rounds):
            for target, value, policy in [*cases[number % len(cases) :], *cases[: number % len(cases)]]:
                if self._in_time(f"figures 6 and 7, {target} {value}, round {number}"):
                    self._recover(target, value, policy(), lives, number)

    def _recover(self, target: str, value: int, policy: Policy, lives: Lives, number: int) -> None:
        os.sync()
        query = self._query(self._many())
        ran = query.run(policy, crash=True)
        recovery = query.recover(NoChecks())
        query.remove()
        labels = {"target": target, "value": value, "round": number}
        self.rows.add(what="recovery", **labels, **_throughput(ran, lives), **_standing(ran), **_recovered(recovery))
        self._say(
            f"{target} {value:,}: extent {ran.timeline.beats[-1].figures.extent:,}, load "
            f"{recovery.runner_load_s * 1000:.0f} ms, {recovery.replayed_bytes / 1e6:.0f} MB replayed"
        )

    def _replays(self) -> list[int]:
        """U, in proportion to the number of items."""
        return [records * self.plan.items // FULL.items for records in REPLAYS]

    # ---- figures 8 and 9

    def _periods(self) -> None:
        """Response times and extents for each CP, with the most demanding Q, and without checks."""
        plan = self.plan
        open_windows = int(plan.items * OPEN_SHARE)
        lives = self._lives(self._many())
        periods = (None, *PERIODS_MS)
        for number in range(plan.period_rounds):
            for period in [*periods[number % len(periods) :], *periods[: number % len(periods)]]:
                if not self._in_time(f"figures 8 and 9, CP {period} ms, round {number}"):
                    continue
                policy: Policy = NoChecks()
                if period is not None:
                    policy = Budget(INTERVAL_MS, period, Targets(q_limit=open_windows))
                os.sync()
                query = self._query(self._many())
                ran = query.run(policy)
                query.remove()
                responses = _responses(ran, lives)
                labels = {"period_ms": period, "round": number}
                self.rows.add(what="period", **labels, **_throughput(ran, lives), **_standing(ran), **responses)
                self._say(f"CP {period} ms: response {responses['response_s']:.2f} s")

    def _many(self, records: int | None = None) -> Setting:
        return Setting("many", WINDOW, records or self.plan.records, SHORT_BEATS)

    def _say(self, text: str) -> None:
        self._console.log(text)


def _as_recommended() -> Policy:
    """Q and U as in the paper's example (Q counts as N where that is more), in the budget of figures 6 and 7."""
    return Budget(*RECOVERY_BUDGET_MS, Targets(q_limit=1_000, u_limit=1_000_000))


def _budgeted(targets: Targets) -> Callable[[], Policy]:
    """What makes a policy with these targets and a budget of its own."""
    return lambda: Budget(*RECOVERY_BUDGET_MS, targets)


def _throughput(ran: Ran, lives: Lives) -> Row:
    """How fast a run was. `real` counts control tuples too, as the paper's "Real" does."""
    first, last = (beat.figures.records for beat in (ran.timeline.beats[0], ran.timeline.beats[-1]))
    results = int(np.searchsorted(lives.closed, last) - np.searchsorted(lives.closed, first))
    cpu_s = ran.cpu_s + ran.sidecar_cpu_s
    return {
        "records_per_s": ran.rate,
        "results_per_s": results / ran.seconds,
        "real_per_s": ran.emitted / ran.seconds,
        "cpu_us_per_record": cpu_s / ran.timeline.records * 1e6,
        "cpus": cpu_s / ran.whole_s,
        "control_bytes_per_record": ran.control_bytes / ran.timeline.records,
        "plain_bytes_per_record": ran.plain_bytes / ran.timeline.records,
        "seconds": ran.seconds,
    }


def _standing(ran: Ran) -> Row:
    """Where a run stood at its end or crash, and on the way there."""
    at_end = ran.timeline.beats[-1].figures
    half = [beat.figures for beat in settled(ran.timeline.beats)]
    return {
        "windows": at_end.windows,
        "checks": at_end.checks,
        "checks_per_record": at_end.checks / at_end.records,
        "extent": at_end.extent,
        "extent_mean": float(np.mean([figures.extent for figures in half])),
        "to_replay": at_end.to_replay,
    }


def _recovered(recovery: Recovery) -> Row:
    """What a recovery read and replayed, and how long it took."""
    return {
        **{("load_cpu_s" if name == "cpu_s" else name): value for name, value in recovery._asdict().items()},
        "tuples_per_cpu_s": recovery.tuples / recovery.cpu_s if recovery.cpu_s else 0.0,
        "replayed_bytes": recovery.replayed_bytes,
        "tuples_per_s": recovery.tuples / recovery.runner_load_s,
    }


def _responses(ran: Ran, lives: Lives) -> Row:
    """The time from a window's first tuple to its result, means of each second (of closing) and over all of them; from
    windows that opened and closed while the run was in full swing.
    """
    moments = ran.timeline.moments
    closed = ran.timeline.moments_of(lives.closed[: np.searchsorted(lives.closed, ran.timeline.records)])
    opened = ran.timeline.moments_of(lives.opened[: len(closed)])
    late = closed >= moments[0] + (moments[-1] - moments[0]) / 2
    took = (closed - opened)[late]
    second = (closed[late] - moments[0]).astype(np.int64)
    means = [float(took[second == at].mean()) for at in np.unique(second)]
    return {"response_s": float(took.mean()), "response_by_second_s": means}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under three minutes, with a fifth of the items")
    parser.add_argument("--smoke", action="store_true", help="seconds: only whether the benchmark works")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go (default: %(default)s)")
    parser.add_argument(
        "--data", type=Path, help="where the sidecar keeps its data meanwhile (default: a temporary one)"
    )
    chosen = parser.parse_args(arguments)
    plan = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
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
    report.publish(benchmark.rows, about, chosen.results, console)


if __name__ == "__main__":
    main()
