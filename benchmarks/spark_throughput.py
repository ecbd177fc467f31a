"""How fast Spark reads from and writes to a sidecar: the `cairn` format and Spark's own Kafka connector, same
sidecar, same rows.

`python benchmarks/spark_throughput.py [--quick] [--smoke]` starts a sidecar and a Spark with one core, and moves
100-byte records through both formats in turn, over several rounds. It leaves benchmarks/results/spark_throughput.json
and .png.

Invariants:
* What decides are records per second of processor time of all processes that have a part in it: Spark's JVM, its
  Python workers (those that ended too) and the sidecar. With one core for tasks more than one is busy, so rates by a
  task's run time or the wall clock say more than a core can; they are beside it.
* What a query leaves to be done behind it, such as a worker's collection of garbage, is counted as its own; so is what
  a worker used that has ended since: Spark's daemon ignores its children's ends, so the kernel adds their time to
  nobody's, and a thread notes it while they live.
* A small query of the same kind goes before each that is measured: Spark ends Python workers that were idle for a
  minute, so the format that came behind the slower one would start its worker anew, and the other would not.
* Formats take turns in an order that is reversed from round to round; goals are judged on all rounds, each with the
  interval in which its mean lies with 95 % probability.
* Both formats get the same frame; reads end in Spark's `noop` sink, which takes every row.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import psutil
import pyarrow as pa
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.harness import intervals, results
from benchmarks.harness.intervals import Interval
from benchmarks.harness.jars import KafkaUnavailable, spark_kafka_jars
from benchmarks.harness.program import options
from benchmarks.harness.report import machine, versions, write_json
from benchmarks.harness.sidecar import SidecarPeer
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from spe_adapter.codec.encode import Columns, encode

ROOT = Path(__file__).resolve().parents[1]
NAME = "spark_throughput"
RECORD_BYTES = 100
FILL_ROWS = 50_000
CAIRN = "cairn"
KAFKA = "kafka"
COLOURS = {CAIRN: "#1f77b4", KAFKA: "#ff7f0e"}
CASES = ("read", "write")
RATE = 1.5e6
"""Records per processor second, of either case."""
AGAINST_KAFKA = 2.0
"""How many times as many as Spark's own connector."""
INPUT = "input"
SMALL = "small"
"""Topics."""
SETTLE_S = 0.5
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is moved, and how often."""

    mode: str
    records: int
    small: int
    rounds: int
    formats: tuple[str, ...]


FULL = Plan("full", 8_000_000, 100_000, 7, (CAIRN, KAFKA))
QUICK = Plan("quick", 2_000_000, 100_000, 3, (CAIRN, KAFKA))
SMOKE = Plan("smoke", 20_000, 1_000, 1, (CAIRN,))


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    case: str
    format: str
    round: int
    records: int
    task_s: float
    wall_s: float
    spark_cpu_s: float
    sidecar_cpu_s: float

    @property
    def rate(self) -> float:
        """Records per second of a task's run time."""
        return self.records / self.task_s

    @property
    def cpu_rate(self) -> float:
        """Records per second of processor time of all processes: what other load hardly blurs."""
        return self.records / (self.spark_cpu_s + self.sidecar_cpu_s)

    @property
    def wall_rate(self) -> float:
        """Records per second of the whole query, planning included."""
        return self.records / self.wall_s


def start_spark(directory: Path, jars: Sequence[Path]) -> SparkSession:
    """One core."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[1]")
        .appName(NAME)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def fill(address: str, topic: str, records: int) -> None:
    """`records` of RECORD_BYTES each in one stream."""
    values = pa.array([b"x" * RECORD_BYTES] * FILL_ROWS, pa.binary())
    with Client(parse_addresses(address)) as client:
        client.partitions(topic, create=True)
        for start in range(0, records, FILL_ROWS):
            rows = min(FILL_ROWS, records - start)
            stamps = np.full(rows, time.time_ns() // 1_000_000, np.int64)
            data, batches = encode(Columns(None, values[:rows], None, stamps), np.zeros(rows, np.int32))
            for batch in batches:
                client.produce(TopicPartition(topic, 0), data[batch.start : batch.end])


class ProcessorTime:
    """What this process's descendants have used, those that ended too. `but`: the process that is not counted."""

    def __init__(self, *, but: int) -> None:
        self._but = but
        self._seen: dict[tuple[int, float], float] = {}
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """Seconds of user and system time so far. A process's last LOOK_S at most are missing once it has ended."""
        with self._lock:
            for process in psutil.Process().children(recursive=True):
                if process.pid != self._but:
                    with contextlib.suppress(psutil.Error):
                        self._seen[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
            return sum(self._seen.values())

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Look every LOOK_S."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(LOOK_S):
                self.seconds()

        thread = threading.Thread(target=look, name="processor time", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


class Benchmark:
    """Moves the same records both ways through each format."""

    def __init__(self, plan: Plan, spark: SparkSession, sidecar: SidecarPeer) -> None:
        self._plan = plan
        self._spark = spark
        self._sidecar = sidecar
        self._address = sidecar.bootstrap
        self._used = ProcessorTime(but=sidecar.pid)
        self.rows: list[Row] = []

    def run(self, console: Console) -> None:
        """A warm-up of each case, then the rounds, formats in turn."""
        fill(self._address, INPUT, self._plan.records)
        with self._used.noted():
            self._rounds(console)

    def _rounds(self, console: Console) -> None:
        fill(self._address, SMALL, self._plan.small)
        for number in range(self._plan.rounds + 1):
            for which in self._plan.formats[:: -1 if number % 2 else 1]:
                for case, query in (("read", self._read), ("write", self._write)):
                    query(which, SMALL if case == "read" else f"output-{SMALL}", self._plan.small)
                    row = self._measure(case, which, number, query)
                    if number or self._plan.rounds == 1:  # the first round warms up
                        self.rows.append(row)
                        console.print(
                            f"round {number}: {case} {which}: {row.cpu_rate / 1e6:.2f} M records a processor second"
                        )

    def _measure(self, case: str, which: str, number: int, query: Callable[[str, str, int], None]) -> Row:
        group = f"{case}-{which}-{number}"
        self._spark.sparkContext.setJobGroup(group, group)
        before = self._cpu_seconds()
        begun = time.perf_counter()
        query(which, INPUT if case == "read" else f"output-{group}", self._plan.records)
        wall_s = time.perf_counter() - begun
        time.sleep(SETTLE_S)
        spark_cpu_s, sidecar_cpu_s = (now - then for now, then in zip(self._cpu_seconds(), before, strict=True))
        task_s = self._task_seconds(group)
        return Row(case, which, number, self._plan.records, task_s, wall_s, spark_cpu_s, sidecar_cpu_s)

    def _cpu_seconds(self) -> tuple[float, float]:
        """Processor time so far: the JVM with its workers, and the sidecar."""
        return self._used.seconds(), sum(psutil.Process(self._sidecar.pid).cpu_times()[:2])

    def _task_seconds(self, group: str) -> float:
        """The run time of the group's tasks, which one core ran one after another."""
        context: Any = self._spark.sparkContext
        context._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - Spark has no public way to its task metrics
        tracker = context.statusTracker()
        store = context._jsc.sc().statusStore()  # noqa: SLF001
        stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
        return float(sum(store.lastStageAttempt(stage).executorRunTime() for stage in stages)) / 1000

    def _read(self, which: str, topic: str, _: int) -> None:
        reader = self._spark.read.format(which).option("kafka.bootstrap.servers", self._address)
        reader.option("subscribe", topic).load().write.format("noop").mode("overwrite").save()

    def _write(self, which: str, topic: str, records: int) -> None:
        frame: DataFrame = self._spark.range(records, numPartitions=1).selectExpr(
            f"cast(repeat('x', {RECORD_BYTES}) as binary) as value"
        )
        writer = frame.write.format(which).mode("append").option("kafka.bootstrap.servers", self._address)
        writer.option("topic", topic).save()


# ---- what came out


def median(rows: Sequence[Row], case: str, which: str, name: str) -> float | None:
    """The median over rounds, None if it was not measured."""
    values = [getattr(row, name) for row in rows if row.case == case and row.format == which]
    return statistics.median(values) if values else None


def rates_of(rows: Sequence[Row], case: str, which: str) -> list[float]:
    """Records per processor second of each round."""
    return [row.cpu_rate for row in rows if row.case == case and row.format == which]


def goals_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What was to be reached, and what was: the interval's lower end decides. A goal without its rows is left out."""
    goals = []
    for case in CASES:
        ours, theirs = (rates_of(rows, case, which) for which in (CAIRN, KAFKA))
        name = f"{case}, {RECORD_BYTES} B"
        if ours:
            goals.append(_goal(f"{name}, per processor second", intervals.of_values(ours), "records/s", RATE))
        if ours and theirs:
            ratio = intervals.of_ratios(ours, theirs)
            goals.append(_goal(f"{name}, against Spark's own Kafka connector", ratio, "×", AGAINST_KAFKA))
    return goals


def _goal(name: str, found: Interval, unit: str, least: float) -> dict[str, Any]:
    digits = 0 if least > 100 else 3
    return {
        "name": name,
        "value": round(found.mean, digits),
        "low": round(found.low, digits) if found.n > 1 else None,
        "high": round(found.high, digits) if found.n > 1 else None,
        "unit": unit,
        "goal": f">= {least:,.0f}",
        "holds": (found.low if found.n > 1 else found.mean) >= least,
    }


def show(rows: Sequence[Row], goals: Sequence[dict[str, Any]], console: Console) -> None:
    """The table and the goals."""
    table = Table(title=f"{RECORD_BYTES} B records, one core for tasks, medians", header_style="bold")
    for heading in ("case", "format", "M records per processor second", "of task time", "of wall clock"):
        table.add_column(heading)
    for case in CASES:
        for which in COLOURS:
            rates = [median(rows, case, which, name) for name in ("cpu_rate", "rate", "wall_rate")]
            if rates[0] is not None:
                table.add_row(case, which, *(f"{(rate or 0) / 1e6:.2f}" for rate in rates))
    console.print(table)
    for goal in goals:
        verdict = "holds" if goal["holds"] else "falls short"
        value, low, high = goal["value"], goal["low"], goal["high"]
        spread = f"({low:,} to {high:,})" if low is not None else "(one round)"
        console.print(f"{goal['name']}: {value:,} {spread}, goal {goal['goal']} {goal['unit']}: {verdict}")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Rates side by side, every round a dot, the goal as a line."""
    mpl.use("Agg")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    ticks = []
    for place, case in enumerate(CASES):
        for index, which in enumerate(which for which in COLOURS if rates_of(rows, case, which)):
            rates = [rate / 1e6 for rate in rates_of(rows, case, which)]
            found = intervals.of_values(rates)
            x = place + 0.35 * index
            error = [[found.mean - found.low], [found.high - found.mean]] if found.n > 1 else None
            bar = axis.bar(
                [x], [found.mean], 0.3, yerr=error, capsize=4, color=COLOURS[which], label=which if not place else None
            )
            axis.bar_label(bar, labels=[f"{found.mean:.2f}"], label_type="center")
            axis.plot([x] * len(rates), rates, ".", color="black", alpha=0.5)
        ticks.append(place + 0.175)
    axis.axhline(RATE / 1e6, linestyle="dashed", color="grey")
    axis.set_xticks(ticks, list(CASES))
    axis.set_ylabel("M records per processor second, all processes")
    rounds = len({row.round for row in rows})
    axis.set_title(f"Spark with {RECORD_BYTES} B records: mean, 95 % interval, n = {rounds} (dashed: goal)")
    axis.legend(title="format")
    figure.savefig(path, dpi=110)


def about(plan: Plan, host: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The machine, the versions and how this was called."""
    names = ("pyspark", "pyarrow", "numba", "numpy")
    return {
        "benchmark": NAME,
        "mode": plan.mode,
        "records": plan.records,
        "records_before": plan.small,
        "machine": host,
        "load_average_after": [round(value, 2) for value in os.getloadavg()],
        "versions": {**versions(), **{name: metadata.version(name) for name in names}},
        "seconds": round(seconds, 1),
    }


def measure(plan: Plan, directory: Path, console: Console) -> list[Row]:
    """Start everything, run, end everything. Raises KafkaUnavailable when Spark's connector cannot be had."""
    jars = spark_kafka_jars() if KAFKA in plan.formats else []
    peer = SidecarPeer(directory)
    peer.start()
    try:
        peer.wait_serving()
        spark = start_spark(directory, jars)
        try:
            benchmark = Benchmark(plan, spark, peer)
            benchmark.run(console)
        finally:
            spark.stop()
    finally:
        peer.kill()
    return benchmark.rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = options(
        __doc__, quick="under two minutes", smoke="only whether the benchmark works, without the connector"
    )
    chosen = parser.parse_args(arguments)
    plan = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    folder = results.directory(parser, chosen.results, plan.mode)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    begun, host = time.perf_counter(), machine(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix="spark-throughput-") as name:
        try:
            rows = measure(plan, Path(name), console)
        except KafkaUnavailable as reason:
            sys.exit(f"{NAME}: Spark's Kafka connector is the peer of this benchmark, and cannot be had: {reason}")
    goals = goals_of(rows)
    show(rows, goals, console)
    content = {**about(plan, host, time.perf_counter() - begun), "goals": goals, "rows": [asdict(row) for row in rows]}
    write_json(folder / f"{NAME}.json", content)
    draw(rows, folder / f"{NAME}.png")


if __name__ == "__main__":
    main()
