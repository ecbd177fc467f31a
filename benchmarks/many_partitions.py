"""One sidecar with 20,000 partitions, 5,000 idle connections and a million committed offsets.

`python benchmarks/many_partitions.py [--quick] [--smoke] [--part NAME]` measures, in this order: creating the
partitions, a first record in each, memory when they are quiet, metadata of all beside a client that produces, a clean
stop and the start behind it, a kill of a quiet sidecar with a few busy streams, a kill right behind writes to all; then
idle connections; then offsets of groups. Stops and starts are repeated, and each is kept. It writes
results/many_partitions.json with a plot. A full run takes about seven minutes.

Invariants:
* Every figure is one of a real process over loopback; a start lasts from the start of the process until it accepts
  connections, which a sidecar does only when everything is recovered.
* Each part says what it needs; a part that fails is noted in `left_out`, and makes the results those of a partial run.
"""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import matplotlib as mpl
import psutil
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.meter import median, percentiles, process_clock_s
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.program import content_of, keep, options, scratch
from benchmarks.harness.raw import RawConnection, RawFailed, frame, make_batch, produce_frame, produced_error, string
from benchmarks.harness.report import (
    Goal,
    Rows,
    at_least,
    at_most,
    machine,
    print_goals,
    print_rows,
)
from benchmarks.harness.sidecar import SidecarPeer

METADATA, OFFSET_COMMIT, OFFSET_FETCH = 3, 8, 9
IN_FLIGHT = 32
"""Produce requests on their way on a connection while all partitions get a record."""
BUSY_STREAMS = 200
START_S, STOP_S = 2.0, 1.0
"""What is wanted of starts and stops."""
OFFSETS_PER_COMMIT = 2_000
TIMEOUT_S = 300.0
PARTS = ("partitions", "connections", "offsets")


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    mode: str
    topics: int
    partitions: int
    connections: int
    groups: int
    """Each commits an offset in every partition of one topic."""
    rounds: int = 5
    """Of a stop, the start behind it, and the start after a kill."""
    quiet_s: float = 14.0
    """Longer than a stream without writes stays out of the table of quiet streams."""
    beside_s: float = 3.0
    """For how long a client produces while nothing else happens, or beside idle connections."""

    @property
    def streams(self) -> int:
        """Partitions of all topics."""
        return self.topics * self.partitions

    @property
    def offsets(self) -> int:
        """Committed offsets of all groups."""
        return self.groups * self.partitions


FULL = Plan(results.FULL, 2, 10_000, 5_000, 100)
QUICK = Plan("quick", 2, 1_000, 500, 20, rounds=3)
SMOKE = Plan("smoke", 2, 20, 5, 2, rounds=2, quiet_s=0.1, beside_s=0.2)


def metadata_frame() -> bytearray:
    """A Metadata request of version 12 for all topics, as today's clients send it."""
    return frame(METADATA, 12, b"\0" + b"\0" + b"\0" + b"\0" + b"\0")


def commit_frame(group: str, topic: str, partitions: Sequence[int], offset: int) -> bytearray:
    """An OffsetCommit 2 from outside of a group."""
    body = string(group) + struct.pack(">i", -1) + string("") + struct.pack(">q", -1)
    body += struct.pack(">i", 1) + string(topic) + struct.pack(">i", len(partitions))
    return frame(
        OFFSET_COMMIT, 2, body + b"".join(struct.pack(">iqh", partition, offset, -1) for partition in partitions)
    )


def fetch_all_frame(group: str) -> bytearray:
    """An OffsetFetch 5 for all partitions that a group has offsets of."""
    return frame(OFFSET_FETCH, 5, string(group) + struct.pack(">i", -1))


class Beside:
    """A client that produces one record after the other to one partition while something else happens. One that fails
    fails who has begun it at the end of the context, unless it `may_fail`, as where its partition changes hands.
    """

    def __init__(self, port: int, topic: str, partition: int, *, may_fail: bool = False) -> None:
        self._may_fail = may_fail
        self._failure: RawFailed | OSError | None = None
        self._port, self._topic, self._partition = port, topic, partition
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.latencies_s: list[float] = []

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None and not self._may_fail:
            raise RawFailed(f"the client beside it failed after {len(self.latencies_s)} records") from self._failure

    @property
    def has_failed(self) -> bool:
        """Whether it ended before the context did: its latencies are those of the time until then."""
        return self._failure is not None

    def _run(self) -> None:
        try:
            self._produce()
        except (RawFailed, OSError) as error:
            self._failure = error

    def _produce(self) -> None:
        batch = make_batch([b"x" * 100], timestamp_ms=int(time.time() * 1000))
        with RawConnection(self._port) as link:
            while not self._ended.is_set():
                begun = time.perf_counter()
                link.produce(self._topic, self._partition, batch)
                self.latencies_s.append(time.perf_counter() - begun)
                time.sleep(0.001)


class Benchmark:
    """One run: its plan, its sidecar, its rows."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        self.plan = plan
        self.rows = Rows()
        self.left_out: list[str] = []
        self._directory = directory
        self._console = console
        self._batch = make_batch([b"x" * 100], timestamp_ms=int(time.time() * 1000))

    def run(self, chosen: Sequence[str]) -> None:
        """Run the parts that are wanted; what fails is left out."""
        parts: dict[str, Callable[[SidecarPeer], None]] = {
            "partitions": self.partitions,
            "connections": self.connections,
            "offsets": self.offsets,
        }
        for name in PARTS:
            if chosen and name not in chosen:
                continue
            self._console.print(f"part: {name}")
            folder = self._directory / name
            folder.mkdir()
            sidecar = SidecarPeer(folder, flags=("--total-in-flight-bytes", str(256 << 20)))
            try:
                sidecar.start()
                sidecar.wait_serving(TIMEOUT_S)
                parts[name](sidecar)
            except (PeerFailed, RawFailed, OSError) as error:
                self.left_out.append(f"{name}: {error}")
            finally:
                sidecar.kill()
                shutil.rmtree(folder, ignore_errors=True)

    def _note(self, what: str, **figures: float) -> None:
        self.rows.add(what=what, **figures)
        self._console.print(f"  {what}: " + ", ".join(f"{name} {value:,.3f}" for name, value in figures.items()))

    def _create(self, sidecar: SidecarPeer) -> float:
        begun = time.perf_counter()
        with RawConnection(sidecar.port, TIMEOUT_S) as link:
            for number in range(self.plan.topics):
                link.create_topic(f"t{number}", self.plan.partitions)
        return time.perf_counter() - begun

    def _write(self, sidecar: SidecarPeer, streams: int) -> float:
        """A record to each of so many streams, topic by topic; returns the seconds until the last is acknowledged."""
        wanted = [(f"t{at // self.plan.partitions}", at % self.plan.partitions) for at in range(streams)]
        begun = time.perf_counter()
        with RawConnection(sidecar.port, TIMEOUT_S) as link:
            waiting: list[str] = []
            for topic, partition in wanted:
                if len(waiting) == IN_FLIGHT:
                    self._check(link, waiting.pop(0))
                link.send(produce_frame(topic, partition, self._batch))
                waiting.append(topic)
            for topic in waiting:
                self._check(link, topic)
        return time.perf_counter() - begun

    @staticmethod
    def _check(link: RawConnection, topic: str) -> None:
        error = produced_error(link.receive(), topic)
        if error:
            raise RawFailed(f"producing to {topic}: error {error}")

    def _start(self, sidecar: SidecarPeer, what: str) -> None:
        begun = time.perf_counter()
        sidecar.start()
        sidecar.wait_serving(TIMEOUT_S)
        seconds = time.perf_counter() - begun
        self._note(what, seconds=seconds, processor_seconds=process_clock_s(sidecar.pid))

    def _stop(self, sidecar: SidecarPeer, what: str) -> None:
        before_s = process_clock_s(sidecar.pid)
        begun = time.perf_counter()
        process = psutil.Process(sidecar.pid)
        process.terminate()
        used_s = 0.0
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            used_s = process_clock_s(sidecar.pid) - before_s
            time.sleep(0.005)
            if time.perf_counter() - begun > TIMEOUT_S:
                raise PeerFailed(f"not stopped after {TIMEOUT_S} s")
        seconds = time.perf_counter() - begun
        sidecar.stop()
        self._note(what, seconds=seconds, processor_seconds=used_s)

    def partitions(self, sidecar: SidecarPeer) -> None:
        """Creation, memory, metadata, stops, kills and starts."""
        streams = self.plan.streams
        self._stop(sidecar, "stop, empty")
        self._start(sidecar, "start, empty")
        empty_bytes = memory_bytes(sidecar)
        self._note("create", seconds=self._create(sidecar))
        fresh = (memory_bytes(sidecar) - empty_bytes) / streams
        self._stop(sidecar, "stop, no records yet")
        self._start(sidecar, "start, no records yet")
        self._note("a first record in each", seconds=self._write(sidecar, streams))
        time.sleep(self.plan.quiet_s)
        written = (memory_bytes(sidecar) - empty_bytes) / streams
        self._note("memory", fresh_bytes=fresh, written_bytes=written)
        self._metadata(sidecar)
        for _ in range(self.plan.rounds):
            time.sleep(self.plan.quiet_s)
            self._stop(sidecar, "stop, quiet")
            self._start(sidecar, "start after a stop")
            self._note("first ack after a stop", seconds=self._write(sidecar, 1))
            self._note("memory after a start", written_bytes=(memory_bytes(sidecar) - empty_bytes) / streams)
            self._write(sidecar, min(streams, BUSY_STREAMS))
            sidecar.kill()
            self._start(sidecar, "start after a kill")
            self._note("first ack after a kill", seconds=self._write(sidecar, 1))
        self._note("a record in each, all quiet before", seconds=self._write(sidecar, streams))
        sidecar.kill()
        self._start(sidecar, "start after a kill behind writes to all")
        self._write(sidecar, streams)
        self._stop(sidecar, "stop behind writes to all")
        self._start(sidecar, "start after that stop")

    def _metadata(self, sidecar: SidecarPeer) -> None:
        """Metadata of all, and what a client that produces feels of it."""
        with Beside(sidecar.port, "t0", 0) as alone:
            time.sleep(self.plan.beside_s)
        took: list[float] = []
        with RawConnection(sidecar.port, TIMEOUT_S) as link, Beside(sidecar.port, "t0", 0) as beside:
            link.call(metadata_frame())
            for _ in range(20):
                begun = time.perf_counter()
                link.call(metadata_frame())
                took.append(time.perf_counter() - begun)
                time.sleep(0.05)
        quiet, busy = percentiles(alone.latencies_s), percentiles(beside.latencies_s)
        self._note(
            "metadata of all",
            median_ms=percentiles(took).p50_ms,
            alone_p99_ms=quiet.p99_ms,
            beside_p99_ms=busy.p99_ms,
            longest_ms=max(beside.latencies_s) * 1000,
        )

    def connections(self, sidecar: SidecarPeer) -> None:
        """Idle connections, and a client that produces beside them."""
        with RawConnection(sidecar.port) as link:
            link.create_topic("t0", 1)
        before = memory_bytes(sidecar)
        with Beside(sidecar.port, "t0", 0) as alone:
            time.sleep(self.plan.beside_s)
        begun = time.perf_counter()
        links = [RawConnection(sidecar.port, TIMEOUT_S) for _ in range(self.plan.connections)]
        try:
            for link in links:
                link.list_offset("t0", 0, -1)
            seconds = time.perf_counter() - begun
            with Beside(sidecar.port, "t0", 0) as beside:
                time.sleep(self.plan.beside_s)
            each = (memory_bytes(sidecar) - before) / len(links)
        finally:
            for link in links:
                link.close()
        quiet, busy = percentiles(alone.latencies_s), percentiles(beside.latencies_s)
        self._note(
            "idle connections",
            count=len(links),
            seconds=seconds,
            bytes_each=each,
            alone_p99_ms=quiet.p99_ms,
            beside_p99_ms=busy.p99_ms,
        )

    def offsets(self, sidecar: SidecarPeer) -> None:
        """Offsets of groups: committing them, memory, a start behind them, one commit and a look at all of a group."""
        with RawConnection(sidecar.port, TIMEOUT_S) as link:
            link.create_topic("t0", self.plan.partitions)
            before = memory_bytes(sidecar)
            begun = time.perf_counter()
            for number in range(self.plan.groups):
                for first in range(0, self.plan.partitions, OFFSETS_PER_COMMIT):
                    part = range(first, min(first + OFFSETS_PER_COMMIT, self.plan.partitions))
                    link.call(commit_frame(f"g{number}", "t0", part, 1))
            seconds = time.perf_counter() - begun
        each = (memory_bytes(sidecar) - before) / self.plan.offsets
        self._note("offsets committed", count=self.plan.offsets, seconds=seconds, bytes_each=each)
        self._stop(sidecar, "stop with offsets")
        self._start(sidecar, "start with offsets")
        each = (memory_bytes(sidecar) - before) / self.plan.offsets
        took: list[float] = []
        with RawConnection(sidecar.port, TIMEOUT_S) as link, Beside(sidecar.port, "t0", 0) as beside:
            begun = time.perf_counter()
            size = len(link.call(fetch_all_frame("g0")))
            all_ms = (time.perf_counter() - begun) * 1000
            for offset in range(200):
                begun = time.perf_counter()
                link.call(commit_frame("g0", "t0", range(10), offset))
                took.append(time.perf_counter() - begun)
        if size < 20 * self.plan.partitions:
            raise RawFailed(f"a group's offsets were answered in {size} bytes")
        self._note(
            "with offsets",
            bytes_each=each,
            fetch_all_ms=all_ms,
            commit_p50_ms=percentiles(took).p50_ms,
            commit_p99_ms=percentiles(took).p99_ms,
            beside_longest_ms=max(beside.latencies_s) * 1000,
        )


def memory_bytes(sidecar: SidecarPeer) -> int:
    """Resident memory of the sidecar now."""
    return int(psutil.Process(sidecar.pid).memory_info().rss)


def find_goals(rows: Rows, plan: Plan) -> list[Goal]:
    """The goals of the parts that were measured."""
    goals: list[Goal] = []

    def bound(what: str, figure: str, unit: str, most: float, name: str) -> None:
        found = rows.values(figure, what=what)
        if found:
            goals.append(at_most(name, median(found), unit, most, found))

    count = f"{plan.streams:,} partitions"
    bound("start after a stop", "seconds", "s", START_S, f"start with {count} after a stop")
    name = f"start with {count} after a kill, {BUSY_STREAMS} of them busy"
    bound("start after a kill", "seconds", "s", START_S, name)
    bound("stop, quiet", "seconds", "s", STOP_S, f"stop with {count}")
    bound("memory", "written_bytes", "bytes", 10_000, "memory of a partition with a record")
    bound("memory after a start", "written_bytes", "bytes", 10_000, "memory of a partition after a start")
    bound("metadata of all", "median_ms", "ms", 100.0, f"metadata of {count}")
    bound("metadata of all", "longest_ms", "ms", 100.0, "longest produce beside it")
    bound("idle connections", "beside_p99_ms", "ms", 100.0, f"p99 of produce beside {plan.connections:,} connections")
    bound("start with offsets", "seconds", "s", 10.0, f"start with {plan.offsets:,} offsets")
    bound("with offsets", "beside_longest_ms", "ms", 100.0, "longest produce beside a group's offsets")
    idle = rows.select(what="idle connections")
    return goals + [at_least("idle connections", row["count"], "connections", plan.connections) for row in idle]


STARTS_AND_STOPS = ("start after a stop", "start after a kill", "stop, quiet")


def draw(rows: Rows, plan: Plan, path: Path) -> None:
    """How long stops and starts take, every one a dot, and what is wanted."""
    mpl.use("Agg")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for place, what in enumerate(STARTS_AND_STOPS):
        seconds = rows.values("seconds", what=what)
        axis.bar([place], [median(seconds) if seconds else 0.0], 0.6, color="tab:blue")
        axis.plot([place] * len(seconds), seconds, ".", color="black", alpha=0.5)
        most = STOP_S if what.startswith("stop") else START_S
        axis.plot([place - 0.35, place + 0.35], [most, most], "--", color="tab:red")
    axis.set_xticks(range(len(STARTS_AND_STOPS)), STARTS_AND_STOPS)
    axis.set_ylabel("seconds; dashed: wanted")
    axis.set_title(f"One sidecar with {plan.streams:,} partitions")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measure, print, keep."""
    parser = options(
        __doc__,
        quick="a tenth of everything",
        smoke="does it work at all",
        data="a folder for the data, on the disk to measure",
    )
    parser.add_argument("--part", action="append", default=[], choices=PARTS, help="only this part")
    given = parser.parse_args()
    plan = SMOKE if given.smoke else QUICK if given.quick else FULL
    mode = results.PARTIAL if plan is FULL and given.part else plan.mode
    folder = results.directory(parser, given.results, mode)
    console = Console(width=160)
    with scratch("partitions", given.data) as data:
        benchmark = Benchmark(plan, data, console)
        before = machine(data)
        benchmark.run(given.part)
    if benchmark.left_out and mode == results.FULL:
        mode, folder = results.PARTIAL, results.partial(folder)
    goals = find_goals(benchmark.rows, plan)
    lines = [
        [row["what"], figure, f"{row[figure]:,.3f}"] for row in benchmark.rows.all for figure in row if figure != "what"
    ]
    print_rows(console, "Figures", ("what", "figure", "value"), lines)
    print_goals(console, goals)
    for line in benchmark.left_out:
        console.print(f"left out: {line}")
    content = content_of(mode, before, goals, benchmark.rows.all, plan=asdict(plan), left_out=benchmark.left_out)
    keep(folder, "many_partitions", content, partial(draw, benchmark.rows, plan), console)


if __name__ == "__main__":
    main()
