"""A windowed average in Spark: Cairn's stateful operator against everything that Spark has for it.

`python benchmarks/stateful_spark.py [--quick] [--smoke]` runs the average price per key and tumbling event-time window
with six engines over the same files (benchmarks/microbatch/engines.py); it writes results/stateful_spark.json, .png.
A full run takes about 28 minutes of a quiet machine with two cores, and begins nothing that would end after 38.

What is measured: the time of an epoch that updates windows (Spark's own `addBatch` and trigger), of the one that closes
them all, the bytes that an epoch leaves in checkpoint and stream, and the time from kill -9 of Spark and its workers to
the first correct result.

Invariants:
* All engines' queries live in one Spark and take turns, epoch by epoch, in an order that changes; one works at a time.
* Every result is checked against averages computed here: an engine with a wrong one fails the benchmark, at its end.
* Each part has its share of the time. What would have taken too long was left out, the results name it, and they are
  those of a partial run then, as they are when the run was cut off.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.disks import settle_disks
from benchmarks.harness.program import options
from benchmarks.harness.report import Rows, machine, versions
from benchmarks.harness.sidecar import SidecarPeer
from benchmarks.microbatch import data, report
from benchmarks.microbatch.data import Epoch
from benchmarks.microbatch.engines import APPLY_PANDAS, CAIRN, ENGINES, TRANSFORM_PANDAS, TRANSFORM_ROW
from benchmarks.microbatch.figures import COLD, KEPT, LOST, WARM
from benchmarks.microbatch.meters import WriteMeter
from benchmarks.microbatch.plans import FULL, NATIVE, PYTHON, QUICK, SMOKE, Group, Plan, TimeLimit
from benchmarks.microbatch.process import DriverFailed, SparkProcess
from benchmarks.microbatch.running import (
    Running,
    WrongResult,
    end_of,
    forget_state,
    spark_times,
    state_times,
    stream_of,
    tasks_began,
    wait_results,
)

WARM_UP_KEYS = 1_000
SECONDS_PER_KEY = {TRANSFORM_ROW: 150e-6, APPLY_PANDAS: 400e-6, TRANSFORM_PANDAS: 550e-6}
"""What a Python engine's epoch takes for each of its keys, about: none begins that would not end in time."""
RECOVERY_SECONDS = {COLD: 25.0, WARM: 60.0}
"""What a round of one query in a new Spark takes, about, and one of all queries in a Spark that is in use."""
UPDATE, AFTER_PAUSE, FILL_AGAIN = "update", "update after a pause", "fill again"
IDLE_SECONDS = 30.0
"""Spark ends Python workers that had nothing to do for a minute. A query that waited so long for slow ones has an epoch
more, which is told apart."""
CLOSING_FILES = 2
"""That a recovering query finds: the first moves the watermark, the next is the epoch in which windows are due."""
AFTER_PAUSE_EPOCHS = 1_000
"""Added to the number of such an epoch: its rows are others than those of the epochs that all have."""


class Benchmark:
    """One run: a sidecar, Sparks, and the rows that it fills."""

    def __init__(self, plan: Plan, directory: Path, console: Console, keep: Callable[[], object]) -> None:
        """Everything is written below `directory`; `keep` is called whenever a part of the rows is complete."""
        self.plan = plan
        self.rows = Rows()
        self.left_out: list[str] = []
        self.stopped: list[str] = []
        """Slow peers that had used the time that the plan has for one engine: a full run is full without the rest, if
        all goals have their rounds."""
        self.failures: list[str] = []
        self._queries: list[Running] = []
        self._console = console
        self._directory = directory
        self._sidecar = SidecarPeer(directory)
        self._limit = TimeLimit(plan)
        self._keep = keep
        self._round = 0
        """Of epochs, over all groups: a row's round names the others that ran beside it."""

    def run(self) -> None:
        """Epochs for each number of keys, then recoveries."""
        with ExitStack() as stack:
            stack.callback(self._remove_all)
            stack.callback(self._sidecar.kill)
            self._sidecar.start()
            self._sidecar.wait_serving()
            self._part("the first groups of epochs", self._measure_groups, "first", self.plan.first)
            for keys in self.plan.recovery_keys:
                self._part(f"recovery with {keys:,} keys", Recovery(self, keys).run)
            self._part("the last groups of epochs", self._measure_groups, "last", self.plan.last)

    def _part(self, title: str, what: Callable[..., object], *arguments: Any) -> None:
        """One with a share of the time; where it fails, those behind it go on."""
        self._limit.next_part()
        self.attempt(title, what, *arguments)
        self._keep()

    def _remove_all(self) -> None:
        for query in self._queries:
            query.remove()

    def spark(self, name: str) -> SparkProcess:
        """A Spark that begins to start."""
        return SparkProcess(self._directory / name, self.plan.heap)

    def query(self, name: str, engine: str, keys: int) -> Running:
        """A query that is not started yet."""
        query = f"{name}-{keys}-{engine}".replace("_", "-")
        self._queries.append(Running(engine, keys, self._directory / query, query, self._sidecar.bootstrap))
        self._queries[-1].last_seconds = SECONDS_PER_KEY.get(engine, 0.0) * keys
        return self._queries[-1]

    def say(self, text: str) -> None:
        """Progress, for who watches."""
        self._console.log(text)

    def in_time(self, what: str, needed_s: float) -> bool:
        """Whether so much of the part's time is left; if not, that is noted."""
        if self._limit.allows(needed_s):
            return True
        self.left_out.append(f"{what}: the time for it was up")
        return False

    def warm_up(self, spark: SparkProcess, engine: str, name: str) -> None:
        """A small query of an engine, from its first epoch to closed windows, so that measured ones meet classes and
        compiled code that are in use.
        """
        query = self.query(f"warm-{name}", engine, WARM_UP_KEYS)
        query.start(spark)
        for epoch in (data.fill(WARM_UP_KEYS), data.update(WARM_UP_KEYS, 1), data.closing(WARM_UP_KEYS, 2, 0)):
            query.reveal(epoch)
            spark.ask("settle", query=query.query)
        query.stop(spark)
        query.remove()

    # ---- epochs

    def _measure_groups(self, name: str, groups: Sequence[Group]) -> None:
        """All groups, in one Spark."""
        if not groups or not self.in_time(f"the {name} groups of epochs", 20.0):
            return
        spark = self.spark(name)
        try:
            spark.wait_ready()
            for engine in NATIVE:
                if any(engine in group.epochs for group in groups):
                    self.warm_up(spark, engine, name)
            for number, group in enumerate(groups):
                if self.in_time(f"{group.keys:,} keys, {', '.join(group.epochs)}", 5.0):
                    self._measure_group(spark, f"{name}-{number}", group)
                    self._keep()
        finally:
            spark.close()

    def _measure_group(self, spark: SparkProcess, name: str, group: Group) -> None:
        queries = [self.query(name, engine, group.keys) for engine in ENGINES if engine in group.epochs]
        for query in queries:
            self.guarded(query, query.start, spark)
        rounds = [("fill", data.fill(group.keys))]
        rounds += [(UPDATE, data.update(group.keys, at)) for at in range(1, max(group.epochs.values()) + 1)]
        for number, (kind, epoch) in enumerate(rounds):
            at = number % len(queries)
            for query in [*queries[at:], *queries[:at]]:
                if number <= group.epochs[query.engine] and self._may_go_on(query):
                    self.guarded(query, self._measure_epoch, spark, query, kind, epoch)
            self._round += 1
        for number in range(self.plan.closings):
            at = number % len(queries)
            for query in [*queries[at:], *queries[:at]]:
                if (number == 0 or query.engine not in PYTHON) and self._may_go_on(query):
                    self.guarded(query, self._measure_closing, spark, query, number * data.CYCLE_WINDOWS)
            self._round += 1
        for query in queries:
            self.guarded(query, query.stop, spark)
            query.remove()

    def guarded(self, query: Running, what: Callable[..., object], *arguments: Any) -> None:
        """Do something with a query; if that fails, the query is over, the others go on."""
        if not self.attempt(f"{ENGINES[query.engine].title}, {query.keys:,} keys", what, *arguments):
            query.is_over = True

    def attempt(self, title: str, what: Callable[..., object], *arguments: Any) -> bool:
        """Do something; whether it went well. If not, that is noted."""
        try:
            what(*arguments)
        except (DriverFailed, WrongResult) as error:
            self.failures.append(f"{title}: {type(error).__name__}: {error}")
            self.say(f"failed: {self.failures[-1][:2000]}")
            return False
        return True

    def _may_go_on(self, query: Running) -> bool:
        """Whether the query may have its next epoch; once it may not, it is over, and the results say so."""
        what = f"{ENGINES[query.engine].title}, {query.keys:,} keys, from epoch {len(query.epochs)} on"
        if not query.is_over and not self.in_time(what, query.last_seconds):
            query.is_over = True
        if not query.is_over and query.seconds + query.last_seconds >= self.plan.engine_seconds:
            (self.stopped if query.engine in PYTHON else self.left_out).append(
                f"{what}, and the closing of its windows: the engine had used {query.seconds:.0f} s of the "
                f"{self.plan.engine_seconds:.0f} s for one in a group, and the next would have taken "
                f"{query.last_seconds:.0f} s more"
            )
            query.is_over = True
        return not query.is_over

    def _measure_epoch(self, spark: SparkProcess, query: Running, kind: str, epoch: Epoch) -> None:
        if time.time() - query.last_moment > IDLE_SECONDS and kind == UPDATE:
            self._run_epoch(spark, query, AFTER_PAUSE, data.update(query.keys, len(query.epochs) + AFTER_PAUSE_EPOCHS))
        self._run_epoch(spark, query, kind, epoch)

    def _run_epoch(self, spark: SparkProcess, query: Running, kind: str, epoch: Epoch) -> None:
        settle_disks()
        written = WriteMeter(self._sidecar.pid)
        began = query.reveal(epoch)
        told = spark.ask("settle", query=query.query)
        done = told["progress"]
        query.last_moment = time.time()
        query.last_seconds = query.last_moment - began
        query.seconds += query.last_seconds
        first = done[0]
        figures = {**spark_times(first), "wall_s": end_of(first) - began, "rows": first["numInputRows"]}
        figures.update(state_times(told["epochs"]))
        figures["checkpoint_bytes"] = query.checkpointed()
        figures["written_bytes"] = figures["checkpoint_bytes"]
        if query.engine == CAIRN:
            # No results in such an epoch: all that the sidecar wrote is state, staged and appended.
            figures["written_bytes"] = query.file_bytes + written.grown()
        labels = {"engine": query.engine, "keys": query.keys, "round": self._round}
        self.rows.add(what=kind, **labels, **figures)
        self.say(f"{query.keys:,} keys, {ENGINES[query.engine].title}, {kind}: {figures['addBatch_s']:.2f} s")

    def _measure_closing(self, spark: SparkProcess, query: Running, window: int) -> None:
        """All windows up to this one close, after they were filled if they are not the first ones; what comes out is
        checked.
        """
        if window:
            self._run_epoch(spark, query, FILL_AGAIN, data.fill(query.keys, len(query.epochs), window))
        settle_disks()
        count = data.expected(query.epochs, window - data.EARLY_WINDOWS, window).results
        stream = stream_of(query)
        began = query.reveal(data.closing(query.keys, len(query.epochs), window))
        ended, found, _ = wait_results(spark, query, count, stream)
        query.expect(found, window - data.EARLY_WINDOWS, window)
        labels = {"engine": query.engine, "keys": query.keys, "round": self._round}
        figures = {"wall_s": ended - began, "results": found.results, "checkpoint_bytes": query.checkpointed()}
        self.rows.add(what="close", **labels, **figures)
        self.say(f"{query.keys:,} keys, {ENGINES[query.engine].title}, {count:,} windows closed: {ended - began:.2f} s")


class Recovery:
    """kill -9 of Spark and all its workers, several times, and the way back to the first result.

    One Spark brings all engines' queries to the same place and is killed. Then each round closes one window of one key
    in EARLY_SHARE: two files appear, of which the first moves the watermark and the second is the epoch that finds the
    window due, as in a query whose input goes on. Cold: a new Spark starts with one engine's query alone, its results
    come, and it is killed again. Warm: a new Spark that ran small queries of all engines gets the queries one by one,
    and is killed behind the last.
    """

    def __init__(self, benchmark: Benchmark, keys: int) -> None:
        self._all = benchmark
        self._keys = keys
        cases = [(engine, memory) for engine in NATIVE for memory in ((KEPT, LOST) if engine == CAIRN else (LOST,))]
        self._queries = {benchmark.query(f"recovery-{memory[7:]}", engine, keys): memory for engine, memory in cases}
        self._recovered = dict.fromkeys(self._queries, 0)

    def run(self) -> None:
        """All rounds, and nothing is left behind."""
        plan = self._all.plan
        if not self._all.in_time(f"recovery with {self._keys:,} keys", 40.0):
            return
        try:
            self._prepare(plan.recovery_updates)
            for number in range(max(plan.cold_rounds, plan.warm_rounds)):
                if number < plan.cold_rounds:
                    self._cold_round(number)
                if number < plan.warm_rounds:
                    self._warm_round(number)
        finally:
            for query in self._queries:
                query.remove()

    def _prepare(self, updates: int) -> None:
        spark = self._all.spark(f"prepare-{self._keys}")
        try:
            spark.wait_ready()
            for query in self._queries:
                self._all.guarded(query, self._fill, spark, query, updates)
        finally:
            spark.kill()

    def _fill(self, spark: SparkProcess, query: Running, updates: int) -> None:
        query.start(spark)
        for epoch in [data.fill(self._keys), *(data.update(self._keys, at) for at in range(1, updates + 1))]:
            query.reveal(epoch)
            spark.ask("settle", query=query.query)

    def _in_turn(self, number: int) -> list[Running]:
        queries, at = list(self._queries), number % len(self._queries)
        return [query for query in [*queries[at:], *queries[:at]] if not query.is_over]

    def _cold_round(self, number: int) -> None:
        for query in self._in_turn(number):
            if self._all.in_time(f"cold recovery of {query.query}, round {number}", RECOVERY_SECONDS[COLD]):
                self._all.guarded(query, self._recover_cold, query, number)

    def _recover_cold(self, query: Running, number: int) -> None:
        count = self._close_next(query)
        spark = self._all.spark(f"{query.query}-cold-{number}")
        try:
            ready = spark.wait_ready()
            self._recover(spark, query, number, count, COLD, {"spark_start_s": ready - spark.began})
        finally:
            spark.kill()

    def _warm_round(self, number: int) -> None:
        if not self._all.in_time(f"warm recovery, {self._keys:,} keys, round {number}", RECOVERY_SECONDS[WARM]):
            return
        spark = self._all.spark(f"warm-{self._keys}-{number}")
        try:
            self._all.attempt(f"warm recovery, round {number}", self._recover_warm, spark, number)
        finally:
            spark.kill()

    def _recover_warm(self, spark: SparkProcess, number: int) -> None:
        spark.wait_ready()
        for engine in NATIVE:
            self._all.warm_up(spark, engine, f"{self._keys}-{number}")
        for query in self._in_turn(number):
            count = self._close_next(query)
            self._all.guarded(query, self._recover, spark, query, number, count, WARM, {})

    def _close_next(self, query: Running) -> int:
        """Reveal what closes the query's next window; how many results that will make."""
        window = self._recovered[query] - data.EARLY_WINDOWS
        for _ in range(CLOSING_FILES):
            query.reveal(data.closing(self._keys, len(query.epochs), window))
        if self._queries[query] == LOST:
            forget_state(query)
        return data.expected(query.epochs, window, window).results

    def _recover(
        self, spark: SparkProcess, query: Running, number: int, count: int, kind: str, given: dict[str, float]
    ) -> None:
        window = self._recovered[query] - data.EARLY_WINDOWS
        self._recovered[query] += 1
        stream = stream_of(query)
        asked = time.time()
        started = query.start(spark)
        ended, found, told = wait_results(spark, query, count, stream)
        query.expect(found, window, window)
        figures = {**given, "query_s": ended - asked, "query_start_s": started - asked}
        figures.update(spark_times(told["progress"][0]) | state_times(told["epochs"]))
        began = tasks_began(told, CLOSING_FILES)
        if began is not None:
            figures["ours_s"] = ended - began[0]
            figures["ours_last_epoch_s"] = ended - began[-1]
        elif query.engine == CAIRN:
            self._all.left_out.append(f"{query.query}, {kind} recovery, round {number}: not all its epochs were seen")
        if kind == COLD:
            figures["total_s"] = ended - spark.began
        labels = {"engine": query.engine, "keys": self._keys, "memory": self._queries[query], "round": number}
        self._all.rows.add(what="recovery", spark=kind, **labels, **figures)
        what = f"{self._keys:,} keys, {ENGINES[query.engine].title}, {self._queries[query]}"
        self._all.say(f"{what}, {kind} recovery: {ended - asked:.2f} s after Spark's start")


class Run:
    """A benchmark and what is left of it, also when it is cut off."""

    def __init__(self, plan: Plan, folder: Path, console: Console) -> None:
        """Results go to `folder`; those of a run that became partial never to the folder of full ones."""
        self._plan = plan
        self._folder = folder
        self._console = console
        self._began = time.perf_counter()
        self._about: dict[str, Any] = {}

    def run(self, data_directory: Path | None) -> bool:
        """Measure, and leave the results; whether all engines were right. What cuts it off is raised again, behind the
        results so far.
        """
        with tempfile.TemporaryDirectory(dir=data_directory, prefix="stateful-spark-") as name:
            self._about = {
                "benchmark": report.NAME,
                "mode": self._plan.mode,
                "plan": asdict(self._plan),
                "machine": machine(Path(name)),
                "versions": {
                    **versions(),
                    **{name: metadata.version(name) for name in ("pyspark", "pyarrow", "pandas")},
                },
            }
            benchmark = Benchmark(self._plan, Path(name), self._console, lambda: self.keep(benchmark))
            try:
                benchmark.run()
            except BaseException as error:
                benchmark.failures.append(f"the run was cut off: {type(error).__name__}: {error}")
                self.publish(benchmark, results.PARTIAL)
                raise
        self.publish(benchmark, self._plan.mode)
        return not benchmark.failures

    def keep(self, benchmark: Benchmark) -> None:
        """Write what there is so far, as a partial result."""
        about = self._told(benchmark, results.PARTIAL)
        report.write(benchmark.rows, about, results.partial(self._folder))

    def publish(self, benchmark: Benchmark, mode: str) -> None:
        """Print and write the results. A full run that left something out, or failed in a part, is a partial one."""
        if mode == results.FULL:
            missing, thin = report.missing_goals(benchmark.rows), report.thin_goals(benchmark.rows, self._plan)
            benchmark.left_out += [f"goal not measured: {name}" for name in missing]
            benchmark.left_out += [f"goal measured in fewer rounds than planned: {each}" for each in thin]
            if benchmark.left_out or benchmark.failures:
                mode = results.PARTIAL
        folder = results.partial(self._folder) if mode == results.PARTIAL else self._folder
        report.publish(benchmark.rows, self._told(benchmark, mode), folder, self._console)
        if mode == results.FULL and results.partial(folder) != folder:
            report.path_in(results.partial(folder)).unlink(missing_ok=True)

    def _told(self, benchmark: Benchmark, mode: str) -> dict[str, Any]:
        return {
            **self._about,
            "mode": mode,
            "left_out": benchmark.left_out,
            "stopped": benchmark.stopped,
            "failures": benchmark.failures,
            "seconds": round(time.perf_counter() - self._began, 1),
            "load_average_after": [round(value, 2) for value in os.getloadavg()],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and leave its results; 1 if an engine failed or was wrong."""
    parser = options(
        __doc__,
        quick="under three minutes",
        smoke="only whether the benchmark works",
        data="where everything is kept meanwhile (default: a temporary directory)",
    )
    parser.add_argument("--limit", type=float, help="seconds, instead of the plan's: what would end later is left out")
    chosen = parser.parse_args(arguments)
    plan = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    if chosen.limit:
        plan = replace(plan, mode=results.PARTIAL, limit_seconds=chosen.limit)
    folder = results.directory(parser, chosen.results, plan.mode)
    console = Console(log_path=False, width=None if sys.stdout.isatty() else 130)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # what was measured is kept then
    return 0 if Run(plan, folder, console).run(chosen.data) else 1


if __name__ == "__main__":
    sys.exit(main())
