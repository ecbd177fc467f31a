"""A windowed average in Spark: Cairn's stateful operator against everything that Spark has for it.

`python benchmarks/stateful_spark.py [--quick] [--smoke]` runs the average price per key and tumbling event-time window
with six engines over the same files (benchmarks/stateful/engines.py), and leaves results/stateful_spark.json and .png.

What is measured: the time of an epoch that updates windows (Spark's own `addBatch` and trigger), of the one that closes
them all, the bytes that an epoch leaves in checkpoint and stream, and the time from kill -9 of Spark and its workers to
the first correct result.

Invariants:
* All engines' queries live in one Spark and take turns, epoch by epoch, in an order that changes; one works at a time.
* Every result is checked against averages computed here: an engine with a wrong one fails the benchmark, at its end.
* What took too long was left out, and the results name it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.report import Row, Rows, machine, versions
from benchmarks.harness.sidecar import SidecarPeer
from benchmarks.stateful import data, report
from benchmarks.stateful.data import Digest, Epoch
from benchmarks.stateful.engines import (
    APPLY_PANDAS,
    CAIRN,
    ENGINES,
    OBSERVED,
    PARTITIONS,
    ROCKSDB_CHANGELOG,
    ROCKSDB_PLAIN,
    TRANSFORM_PANDAS,
    TRANSFORM_ROW,
)
from benchmarks.stateful.meters import CheckpointMeter, ControlMeter, StreamMeter, WriteMeter
from benchmarks.stateful.process import DriverFailed, SparkProcess
from benchmarks.stateful.report import KEPT, LOST

RESULT_SECONDS = 60.0
SHARED_MEMORY = Path("/dev/shm")
WARM_UP_KEYS = 1_000
SECONDS_PER_KEY = {TRANSFORM_ROW: 150e-6, APPLY_PANDAS: 400e-6, TRANSFORM_PANDAS: 550e-6}
"""What a Python engine's epoch takes for each of its keys, about: none begins that would not end in time."""
UPDATE, AFTER_PAUSE = "update", "update after a pause"
IDLE_SECONDS = 30.0
"""Spark ends Python workers that had nothing to do for a minute. A query that waited so long for slow ones has an epoch
more, which is told apart."""
AFTER_PAUSE_EPOCHS = 1_000
"""Added to the number of such an epoch: its rows are others than those of the epochs that all have."""
NATIVE = (CAIRN, ROCKSDB_PLAIN, ROCKSDB_CHANGELOG)
PYTHON = (TRANSFORM_ROW, TRANSFORM_PANDAS, APPLY_PANDAS)


class Group(NamedTuple):
    """Queries that run in turn: engine → epochs that update windows."""

    keys: int
    epochs: dict[str, int]


@dataclass(frozen=True)
class Plan:
    """How much is measured. `first` and `last` are groups of queries that run before and behind the recoveries."""

    mode: str
    first: tuple[Group, ...]
    recovery_keys: tuple[int, ...]
    recovery_updates: int
    cold_rounds: int
    warm_rounds: int
    last: tuple[Group, ...]
    limit_seconds: float
    """No epoch begins, and no recovery, when it would end later."""
    engine_seconds: float = 250.0
    """The same for one engine in one group."""
    heap: str = "3g"


FULL = Plan(
    "full",
    (
        Group(1_000, dict.fromkeys(NATIVE, 8) | {TRANSFORM_ROW: 5, TRANSFORM_PANDAS: 4, APPLY_PANDAS: 4}),
        Group(100_000, dict.fromkeys(NATIVE, 9) | {TRANSFORM_ROW: 3}),
        Group(1_000_000, dict.fromkeys(NATIVE, 7)),
    ),
    recovery_keys=(100_000, 1_000_000),
    recovery_updates=8,
    cold_rounds=2,
    warm_rounds=1,
    last=(
        Group(100_000, {CAIRN: 1, APPLY_PANDAS: 1}),
        Group(100_000, {CAIRN: 1, TRANSFORM_PANDAS: 1}),
    ),
    limit_seconds=1_700.0,
)
QUICK = Plan(
    "quick",
    (
        Group(1_000, dict.fromkeys(NATIVE, 3) | dict.fromkeys(PYTHON, 1)),
        Group(100_000, dict.fromkeys(NATIVE, 4) | {TRANSFORM_ROW: 1}),
    ),
    recovery_keys=(100_000,),
    recovery_updates=3,
    cold_rounds=1,
    warm_rounds=0,
    last=(),
    limit_seconds=165.0,
)
SMOKE = Plan(
    "smoke",
    (Group(100, dict.fromkeys((CAIRN, ROCKSDB_CHANGELOG), 1)),),
    recovery_keys=(100,),
    recovery_updates=1,
    cold_rounds=1,
    warm_rounds=0,
    last=(),
    limit_seconds=400.0,
    heap="1g",
)


class WrongResult(RuntimeError):
    """An engine's results differ from the averages computed here; the message names both digests."""


@dataclass(eq=False)
class Running:
    """One engine's query, and what belongs to it."""

    engine: str
    keys: int
    directory: Path
    query: str
    address: str
    epochs: list[Epoch] = field(default_factory=list)
    seconds: float = 0.0
    """Spent on it so far."""
    last_seconds: float = 0.0
    """Of its last epoch; before the first, a guess at how long that will take."""
    last_moment: float = 0.0
    """When its last epoch had ended (Unix time)."""
    is_over: bool = False
    file_bytes: int = 0
    """Of its checkpoint's files, as of the last call of `checkpointed`."""

    def __post_init__(self) -> None:
        """Make its directories."""
        self.source = self.directory / "source"
        self.checkpoint = self.directory / "checkpoint"
        self.memory = SHARED_MEMORY / f"cairn-bench-{os.getpid()}-{self.query}"
        self.source.mkdir(parents=True)
        self._files = CheckpointMeter(self.checkpoint)
        self._controls: ControlMeter | None = None
        self._is_started = False

    def checkpointed(self) -> int:
        """Bytes written for recovery since the last call: files, and in Cairn's stream control batches too."""
        self.file_bytes = self._files.grown()
        if self.engine != CAIRN:
            return self.file_bytes
        if self._controls is None:
            self._controls = ControlMeter(self.address, self.query, PARTITIONS)
        return self.file_bytes + self._controls.grown()

    def remove(self) -> None:
        """Leave no files behind."""
        if self._controls is not None:
            self._controls.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    def start(self, spark: SparkProcess) -> float:
        """Start the query; the moment (Unix time) at which it ran."""
        given = {"query": self.query, "engine": self.engine, "address": self.address, "memory": str(self.memory)}
        started = spark.ask("start", **given, source=str(self.source), checkpoint=str(self.checkpoint))
        self._is_started = True
        return float(started["at"])

    def stop(self, spark: SparkProcess) -> None:
        """Stop the query, if it ever ran."""
        if self._is_started:
            spark.ask("stop", query=self.query)
            self._is_started = False

    def reveal(self, epoch: Epoch) -> float:
        """Hand the query an epoch's file; the moment."""
        data.write(epoch, self.source / f"{len(self.epochs):04}.parquet")
        self.epochs.append(epoch)
        return time.time()

    def expect(self, what: Digest, first_window: int, last_window: int) -> None:
        """Raises WrongResult unless the results are those of these windows."""
        right = data.expected(self.epochs, first_window, last_window)
        if what != right:
            raise WrongResult(f"{ENGINES[self.engine].title}, {self.keys:,} keys: {what}, where {right} is right")


class Benchmark:
    """One run: a sidecar, Sparks, and the rows that it fills."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        """Everything is written below `directory`."""
        self.plan = plan
        self.rows = Rows()
        self.left_out: list[str] = []
        self.failures: list[str] = []
        self._queries: list[Running] = []
        self._console = console
        self._directory = directory
        self._sidecar = SidecarPeer(directory)
        self._began = time.monotonic()
        self._round = 0
        """Of epochs, over all groups: a row's round names the others that ran beside it."""

    def run(self) -> None:
        """Epochs for each number of keys, then recoveries."""
        with ExitStack() as stack:
            stack.callback(self._remove_all)
            stack.callback(self._sidecar.kill)
            self._sidecar.start()
            self._sidecar.wait_serving()
            self._measure_groups("first", self.plan.first)
            for keys in self.plan.recovery_keys:
                Recovery(self, keys).run()
            self._measure_groups("last", self.plan.last)

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
        """Whether so much time is left; if not, that is noted."""
        if time.monotonic() - self._began + needed_s < self.plan.limit_seconds:
            return True
        self.left_out.append(f"{what}: the run's time was up")
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
        for query in queries:
            if self._may_go_on(query):
                self.guarded(query, self._measure_closing, spark, query)
            self.guarded(query, query.stop, spark)
            query.remove()
        self._round += 1

    def guarded(self, query: Running, what: Callable[..., object], *arguments: Any) -> None:
        """Do something with a query; if that fails, the query is over, the others go on."""
        try:
            what(*arguments)
        except (DriverFailed, WrongResult) as error:
            query.is_over = True
            self.failures.append(f"{ENGINES[query.engine].title}, {query.keys:,} keys: {type(error).__name__}: {error}")
            self.say(f"failed: {self.failures[-1][:2000]}")

    def _may_go_on(self, query: Running) -> bool:
        """Whether the query may have its next epoch; once it may not, it is over, and the results say so."""
        what = f"{ENGINES[query.engine].title}, {query.keys:,} keys, from epoch {len(query.epochs)} on"
        if not query.is_over and not self.in_time(what, query.last_seconds):
            query.is_over = True
        if not query.is_over and query.seconds + query.last_seconds >= self.plan.engine_seconds:
            self.left_out.append(f"{what}: the engine had used {query.seconds:.0f} s")
            query.is_over = True
        return not query.is_over

    def _measure_epoch(self, spark: SparkProcess, query: Running, kind: str, epoch: Epoch) -> None:
        if time.time() - query.last_moment > IDLE_SECONDS and kind == UPDATE:
            self._run_epoch(spark, query, AFTER_PAUSE, data.update(query.keys, len(query.epochs) + AFTER_PAUSE_EPOCHS))
        self._run_epoch(spark, query, kind, epoch)

    def _run_epoch(self, spark: SparkProcess, query: Running, kind: str, epoch: Epoch) -> None:
        os.sync()
        written = WriteMeter(self._sidecar.pid)
        began = query.reveal(epoch)
        told = spark.ask("settle", query=query.query)
        done = told["progress"]
        query.last_moment = time.time()
        query.last_seconds = query.last_moment - began
        query.seconds += query.last_seconds
        first = done[0]
        figures = {**_spark_times(first), "wall_s": _end_of(first) - began, "rows": first["numInputRows"]}
        figures.update(_state_times(told["epochs"]))
        figures["checkpoint_bytes"] = query.checkpointed()
        figures["written_bytes"] = figures["checkpoint_bytes"]
        if query.engine == CAIRN:
            # No results in such an epoch: all that the sidecar wrote is state, staged and appended.
            figures["written_bytes"] = query.file_bytes + written.grown()
        labels = {"engine": query.engine, "keys": query.keys, "round": self._round}
        self.rows.add(what=kind, **labels, **figures)
        self.say(f"{query.keys:,} keys, {ENGINES[query.engine].title}, {kind}: {figures['addBatch_s']:.2f} s")

    def _measure_closing(self, spark: SparkProcess, query: Running) -> None:
        """All windows close; what comes out is checked."""
        os.sync()
        count = data.expected(query.epochs, -data.EARLY_WINDOWS, 0).results
        stream = stream_of(query)
        began = query.reveal(data.closing(query.keys, len(query.epochs), 0))
        ended, found, _ = wait_results(spark, query, count, stream)
        query.expect(found, -data.EARLY_WINDOWS, 0)
        labels = {"engine": query.engine, "keys": query.keys, "round": self._round}
        figures = {"wall_s": ended - began, "results": found.results, "checkpoint_bytes": query.checkpointed()}
        self.rows.add(what="close", **labels, **figures)
        self.say(f"{query.keys:,} keys, {ENGINES[query.engine].title}, {count:,} windows closed: {ended - began:.2f} s")


class Recovery:
    """kill -9 of Spark and all its workers, several times, and the way back to the first result.

    One Spark brings all engines' queries to the same place and is killed. Then each round closes one window of one key
    in EARLY_SHARE: its file appears, a new Spark starts with one engine's query alone, its results come, and it is
    killed again.
    """

    def __init__(self, benchmark: Benchmark, keys: int) -> None:
        self._all = benchmark
        self._keys = keys
        cases = [(engine, memory) for engine in NATIVE for memory in ((KEPT, LOST) if engine == CAIRN else (LOST,))]
        self._queries = {benchmark.query(f"recovery-{memory[7:]}", engine, keys): memory for engine, memory in cases}

    def run(self) -> None:
        """All rounds, and nothing is left behind."""
        plan = self._all.plan
        if not self._all.in_time(f"recovery with {self._keys:,} keys", 40.0):
            return
        try:
            self._prepare(plan.recovery_updates)
            for number in range(plan.cold_rounds + plan.warm_rounds):
                queries, at = list(self._queries), number % len(self._queries)
                for query in [*queries[at:], *queries[:at]]:
                    if not query.is_over and self._all.in_time(f"recovery of {query.query}, round {number}", 10.0):
                        self._all.guarded(query, self._recover, query, number, number >= plan.cold_rounds)
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

    def _recover(self, query: Running, number: int, warm: bool) -> None:
        window = number - data.EARLY_WINDOWS
        count = data.expected(query.epochs, window, window).results
        query.reveal(data.closing(self._keys, len(query.epochs), window))
        stream = stream_of(query)
        if self._queries[query] == LOST:
            forget_state(query)
        spark = self._all.spark(f"{query.query}-{number}")
        try:
            ready = spark.wait_ready()
            if warm:
                self._all.warm_up(spark, query.engine, f"{query.query}-{number}")
            asked = time.time()
            started = query.start(spark)
            ended, found, told = wait_results(spark, query, count, stream)
        finally:
            spark.kill()
        query.expect(found, window, window)
        figures = {"query_s": ended - asked, "query_start_s": started - asked}
        figures.update(_spark_times(told["progress"][0]) | _state_times(told["epochs"]))
        if told["epochs"]:
            figures["ours_s"] = ended - told["epochs"][0]["started_ms"] / 1000
        if not warm:
            figures.update(total_s=ended - spark.began, spark_start_s=ready - spark.began)
        labels = {"engine": query.engine, "keys": self._keys, "memory": self._queries[query], "round": number}
        self._all.rows.add(what="recovery", spark="warm" if warm else "cold", **labels, **figures)
        what = f"{self._keys:,} keys, {ENGINES[query.engine].title}, {self._queries[query]}"
        self._all.say(f"{what}, {'warm' if warm else 'cold'} recovery: {ended - asked:.2f} s after Spark's start")


# ---- what engines say


def forget_state(query: Running) -> None:
    """Empty the shared memory of Cairn's query, as on a host that never had it."""
    if query.engine == CAIRN:
        shutil.rmtree(query.memory, ignore_errors=True)


def stream_of(query: Running) -> StreamMeter | None:
    """What reads the results of Cairn's query from now on; Spark's engines tell theirs in their progress."""
    if query.engine != CAIRN:
        return None
    results = StreamMeter(query.address, query.query, PARTITIONS)
    results.skip()
    return results


def wait_results(
    spark: SparkProcess, query: Running, count: int, stream: StreamMeter | None
) -> tuple[float, Digest, dict[str, Any]]:
    """Wait for `count` results: the moment (Unix time) of the last, their digest, and what the query told meanwhile.
    Raises WrongResult when there are not as many.
    """
    if stream is None:
        told = spark.ask("settle", query=query.query)
        seen = [(each, Digest(**each["observedMetrics"][OBSERVED])) for each in told["progress"]]
        seen = [(each, what) for each, what in seen if what.results]
        if len(seen) != 1 or seen[0][1].results != count:
            raise WrongResult(f"{query.query}: {[what for _, what in seen]}, where {count} results at once are right")
        return _end_of(seen[0][0]), seen[0][1], told
    # Nobody tells the query that there is no more to come: it finds out, as it would in production.
    ended = stream.wait_results(count, RESULT_SECONDS)
    told = spark.ask("settle", query=query.query)
    found = stream.digest()
    stream.close()
    if ended is None:
        raise WrongResult(f"{query.query}: {found}, where {count} results are right, after {RESULT_SECONDS:.0f} s")
    return ended, found, told


def _end_of(progress: dict[str, Any]) -> float:
    """The moment (Unix time) at which Spark had finished a batch."""
    began = dt.datetime.fromisoformat(progress["timestamp"]).timestamp()
    return began + float(progress["durationMs"]["triggerExecution"]) / 1000


def _spark_times(progress: dict[str, Any]) -> Row:
    """How long a batch took: what it did, and with planning and Spark's own logs."""
    took = progress["durationMs"]
    return {"addBatch_s": took["addBatch"] / 1000, "trigger_s": took["triggerExecution"] / 1000}


def _state_times(epochs: Sequence[dict[str, Any]]) -> Row:
    """What Cairn tells of its epoch with rows: where its state came from, what loading it took, each step of a task."""
    with_rows = [epoch for epoch in epochs if epoch["records"] and not epoch["closing"]]
    if not with_rows:
        return {}
    epoch = with_rows[0]
    steps = {f"task_{name}_s": seconds for name, seconds in epoch["task_seconds"].items()}
    return {"state_from": "+".join(sorted(epoch["how"])), "load_s": epoch["load_seconds"], **steps}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and leave its results; 1 if an engine failed or was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under three minutes")
    parser.add_argument("--smoke", action="store_true", help="only whether the benchmark works")
    parser.add_argument(
        "--results", type=Path, help="where results go (default: benchmarks/results; shorter runs: build/benchmarks)"
    )
    parser.add_argument("--data", type=Path, help="where everything is kept meanwhile (default: a temporary directory)")
    parser.add_argument("--limit", type=float, help="seconds, instead of the plan's: what would end later is left out")
    chosen = parser.parse_args(arguments)
    plan = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    if chosen.limit:
        plan = replace(plan, mode="partial", limit_seconds=chosen.limit)
    folder = results.directory(parser, chosen.results, plan.mode)
    console = Console(log_path=False, width=None if sys.stdout.isatty() else 130)
    with tempfile.TemporaryDirectory(dir=chosen.data, prefix="stateful-spark-") as name:
        directory = Path(name)
        about: dict[str, Any] = {
            "benchmark": report.NAME,
            "mode": plan.mode,
            "plan": asdict(plan),
            "machine": machine(directory),
            "versions": {**versions(), **{name: metadata.version(name) for name in ("pyspark", "pyarrow", "pandas")}},
        }
        begin = time.perf_counter()
        benchmark = Benchmark(plan, directory, console)
        benchmark.run()
        about["left_out"] = benchmark.left_out
        about["failures"] = benchmark.failures
        about["seconds"] = round(time.perf_counter() - begin, 1)
        about["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
    report.publish(benchmark.rows, about, folder, console)
    return 1 if benchmark.failures else 0


if __name__ == "__main__":
    sys.exit(main())
