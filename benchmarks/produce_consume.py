"""Produce and consume: Cairn and a real Kafka in turn, with the same clients.

`python benchmarks/produce_consume.py [--quick] [--only PART …]` starts its peers itself, prints tables, and writes
results/produce_consume.json with the goals, and a plot beside it. PART is a stage (`raw`, `cells`, `clients`, `tail`,
`reader beside`, `big log`), or a part of a cell's name (`200 streams`, `refused`, `16 × 5, 1 KB`).

Invariants:
* All servers run all the time, and one is loaded at a time: within a round they take turns, in an order that changes
  from round to round, so that whatever else the machine does hits all alike.
* Before each measurement the file systems are synced: nobody pays for what another left in the page cache.
* Each cell, and the reader that follows a producer, is run once before its rounds, and that run is not kept.
* Cells come in another order in each round: what a server still has to do for the load before is not always paid by
  the same cell.
* What a stage wrote is deleted at its end: a full run writes more than many a disk has. The next stage begins when the
  files are gone: removing gigabytes holds up every sync on the disk, of whichever server, by up to a tenth of a second.
* The full run's longest stages work on servers of their own.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import cells, kafka_clients, load, produce_consume_report, results
from benchmarks.harness.cells import Cell
from benchmarks.harness.disks import settle_disks
from benchmarks.harness.kafka import KafkaPeer
from benchmarks.harness.load import Payload, Produced, Shape
from benchmarks.harness.meter import cpu_seconds, peak_memory_mb, percentiles, sync_floor_s
from benchmarks.harness.process import Peer
from benchmarks.harness.program import options
from benchmarks.harness.raw import RawConnection, RawFailed
from benchmarks.harness.reader import ReaderProcess
from benchmarks.harness.report import Row, Rows, machine, versions
from benchmarks.harness.sidecar import SidecarPeer

SHAPES = {
    "1 × 1": Shape(depth=1),
    "1 × 5": Shape(depth=5),
    "1 × 20": Shape(depth=20),
    "16 × 5": Shape(depth=5, connections=16),
    "16 × 5, 16 streams": Shape(depth=5, connections=16, partitions=16),
}
"""Raw producers."""
RECORD_BYTES = (100, 1000)
PACED_PER_SECOND = 500.0
"""Requests of 16 KB: 8 MB/s, well below what any of the servers can take."""
SERIES_BATCH_BYTES = 128 * 1024
"""The big log's batches: as many records of 1 KB as a Java producer puts into a batch of 100-byte ones."""
SLOW_SHARE = 8
"""Kafka with an fsync for every batch gets that part of the Java producer's records: nobody waits only for it."""
KAFKA_BIG_SHARE = 4
"""Kafka's big log is that much smaller than ours, which is enough to see how its restart grows with it."""
READY_SECONDS = 300.0
MIB = 1 << 20
LONG_RETENTION = {"retention.ms": "-1"}
CELLS_RETENTION_BYTES = 64 << 20
"""The cells' topics keep no more than that in each stream: a full run would fill a small disk."""
KAFKA_DELETES = {"log.segment.delete.delay.ms": "1000"}
"""Files of deleted topics go after a second, not after a minute, when another stage would be under way."""
GONE_SECONDS = 120.0
STAGES = ("raw", "cells", "clients", "tail", "reader beside", "big log")
Work = Callable[[], Row]
"""One measurement; gives back its figures."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    mode: str
    rounds: int = 4
    raw_seconds: float = 1.0
    raw_shapes: tuple[tuple[int, str], ...] = tuple((size, shape) for size in RECORD_BYTES for shape in SHAPES)
    warm_up_seconds: float = 12.0
    floor_seconds: float = 0.5
    tool_rounds: int = 2
    tool_records: int = 1_000_000
    tool_sizes: tuple[int, ...] = RECORD_BYTES
    confluent_records: int = 600_000
    read_rounds: int = 3
    tail_seconds: float = 2.0
    beside_rounds: int = 10
    """Of a producer beside a reader: its p99 differs a lot from round to round."""
    paced_seconds: float = 3.0
    history_bytes: int = 512 * MIB
    big_log_bytes: int = 10 * 1024 * MIB
    restarts: int = 3
    seeks: int = 2000
    with_kafka: bool = True
    cells: tuple[Cell, ...] = cells.ALL
    cell_rounds: int = 5
    cell_seconds: float = 1.0
    only: tuple[str, ...] = ()
    """The stages and cells that are measured; empty: all."""

    def has(self, stage: str) -> bool:
        """Whether a stage is measured."""
        return not self.only or stage in self.only or (stage == "cells" and any(map(self.has_cell, self.cells)))

    def has_cell(self, cell: Cell) -> bool:
        """Whether a cell is measured."""
        return not self.only or "cells" in self.only or any(part in cell.name for part in self.only)


FULL = Plan("full")
QUICK = Plan(
    "quick",
    rounds=3,
    raw_seconds=0.5,
    raw_shapes=((100, "1 × 1"), (100, "1 × 5"), (100, "1 × 20"), (100, "16 × 5"), (1000, "1 × 5")),
    warm_up_seconds=6.0,
    floor_seconds=0.2,
    tool_rounds=1,
    tool_records=200_000,
    tool_sizes=(100,),
    confluent_records=200_000,
    read_rounds=2,
    tail_seconds=0.7,
    beside_rounds=3,
    paced_seconds=1.0,
    history_bytes=200 * MIB,
    big_log_bytes=200 * MIB,
    restarts=1,
    seeks=500,
    cells=cells.FEW,
    cell_rounds=1,
    cell_seconds=0.5,
)
SMOKE = Plan(
    "smoke",
    rounds=1,
    raw_seconds=0.1,
    raw_shapes=tuple((100, shape) for shape in SHAPES),
    warm_up_seconds=0.1,
    floor_seconds=0.05,
    tool_rounds=0,
    confluent_records=2_000,
    read_rounds=1,
    tail_seconds=0.2,
    beside_rounds=1,
    paced_seconds=0.3,
    history_bytes=4 * MIB,
    big_log_bytes=4 * MIB,
    restarts=1,
    seeks=50,
    with_kafka=False,
    cells=cells.FEW[:3],
    cell_rounds=1,
    cell_seconds=0.1,
)


class Benchmark:
    """One run: its peers, and the rows that it fills."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        """Everything is written below `directory`."""
        self.plan = plan
        self.rows = Rows()
        self.console = console
        self._directory = directory
        self._peers: list[Peer] = []
        self._raw_topics: set[tuple[str, str]] = set()
        self._topics: list[tuple[Peer, str]] = []
        """What the stage under way has made."""
        self._dice = random.Random(1)

    def run(self) -> None:
        """All stages, one after the other."""
        stages = (self._raw, self._cells, self._clients, self._tail, self._reader_beside)
        named = {stage.__name__.strip("_").replace("_", " "): stage for stage in stages}
        wanted = {name: stage for name, stage in named.items() if self.plan.has(name)}
        if wanted:
            with self._serving("main", [True] * self.plan.with_kafka) as peers:
                self._peers = peers
                self._start_peers()
                self._warm_up()
                for name, stage in wanted.items():
                    self.console.log(name)
                    stage()
                    self._delete_topics()
                for peer in peers:
                    self.rows.add(what="memory", server=peer.name, peak_memory_mb=peak_memory_mb(peer.pid))
        if self.plan.has("big log"):
            self._big_log()

    # ---- servers

    @contextmanager
    def _serving(self, name: str, kafkas: Sequence[bool]) -> Iterator[list[Peer]]:
        """Peers that are not started yet: ours, Kafka as it comes and, if wanted, Kafka with fsync. Nothing is left of
        them afterwards.
        """
        directory = self._directory / name
        directory.mkdir()
        peers: list[Peer] = [SidecarPeer(directory)]
        if kafkas:
            peers.append(KafkaPeer(directory / "as-it-comes", overrides=KAFKA_DELETES))
        if any(kafkas):
            flush = {"log.flush.interval.messages": "1", **KAFKA_DELETES}
            peers.append(KafkaPeer(directory / "fsync", overrides=flush, name="Kafka, flush.messages=1"))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            for peer in peers:
                stack.callback(peer.kill)
            yield peers

    def _start_peers(self) -> None:
        for peer in self._peers:
            begin = time.perf_counter()
            peer.start()
            if not isinstance(peer, SidecarPeer):
                begin = time.perf_counter()  # Kafka's storage was formatted first, which is not its start
            self._wait_ack(peer, "first", create=True)
            self.rows.add(what="start", server=peer.name, round=0, seconds=time.perf_counter() - begin)

    def _wait_ack(self, peer: Peer, topic: str, *, create: bool) -> None:
        """Until the server acks a record, which is tried every 10 ms."""
        small = load.payload(100, batch_bytes=200)
        deadline = time.perf_counter() + READY_SECONDS
        peer.wait_serving(READY_SECONDS)
        while True:
            try:
                with RawConnection(peer.port) as connection:
                    if create:
                        connection.create_topic(topic)
                        create = False
                    connection.produce(topic, 0, small.batch)
                    return
            except (RawFailed, OSError):
                if time.perf_counter() > deadline:
                    raise
                time.sleep(0.01)

    def _topic(self, peer: Peer, name: str, partitions: int = 1, config: Mapping[str, str] = LONG_RETENTION) -> str:
        """Create a topic that keeps everything and takes records of any age, and wait until it takes them."""
        with RawConnection(peer.port) as connection:
            connection.create_topic(name, partitions, config)
            for _ in range(200):
                try:
                    for partition in range(partitions):
                        connection.list_offset(name, partition, -1)
                except RawFailed:
                    time.sleep(0.01)
                else:
                    break
        self._topics.append((peer, name))
        return name

    def _delete_topics(self) -> None:
        """What a stage wrote is not kept for the next, and nothing of it is left when that begins."""
        for peer, name in self._topics:
            with RawConnection(peer.port) as connection:
                connection.delete_topic(name)
        for peer, name in self._topics:
            wait_gone(peer.data_path, name)
        self._topics.clear()

    def _in_turn(self, number: int, peers: Sequence[Peer]) -> list[Peer]:
        """The peers, beginning with another one each round."""
        at = number % len(peers)
        return [*peers[at:], *peers[:at]]

    def _measure(self, peer: Peer, work: Work, **labels: Any) -> None:
        """Do the work on a quiet disk, and keep what it says with the server's CPU time."""
        settle_disks()
        before = cpu_seconds(peer.pid)
        figures = work()
        self.rows.add(**labels, server=peer.name, **figures, server_cpu_s=cpu_seconds(peer.pid) - before)

    # ---- stages

    def _warm_up(self) -> None:
        """Servers on a Java machine are slow at first; nobody is measured by that."""
        small = load.payload(100)
        for peer in self._peers:
            topic = self._topic(peer, "warm-up", 2)
            for depth in (1, 20):
                seconds = self.plan.warm_up_seconds / 2
                shape = Shape(depth=depth, connections=2, partitions=2)
                load.produce_closed(peer.port, topic, small, shape, seconds=seconds)

    def _raw(self) -> None:
        for number in range(self.plan.rounds):
            for record_bytes, shape in self.plan.raw_shapes:
                if SHAPES[shape].depth == 1:
                    settle_disks()
                    took = percentiles(sync_floor_s(self._directory, self.plan.floor_seconds))
                    self.rows.add(what="floor", round=number, record_bytes=record_bytes, **took._asdict())
                for peer in self._in_turn(number, self._peers):
                    labels = {"client": "raw", "shape": shape, "record_bytes": record_bytes, "round": number}
                    self._measure(peer, self._raw_produce(peer, record_bytes, shape), what="produce", **labels)

    def _raw_produce(self, peer: Peer, record_bytes: int, shape: str) -> Work:
        data = load.payload(record_bytes)
        many = SHAPES[shape]
        topic = f"raw-{record_bytes}-{many.connections}-{many.depth}-{many.partitions}"
        if (peer.name, topic) not in self._raw_topics:
            self._raw_topics.add((peer.name, self._topic(peer, topic, many.partitions)))

        def work() -> Row:
            before = cpu_seconds(peer.pid)
            produced = load.produce_closed(peer.port, topic, data, many, seconds=self.plan.raw_seconds)
            used = cpu_seconds(peer.pid) - before
            return {**_produced(produced, data), "cpu_us_per_request": used / produced.requests * 1e6}

        return work

    def _cells(self) -> None:
        """Streams × connections × requests in flight × sizes, and what a request costs the server's processor."""
        wanted = [cell for cell in self.plan.cells if self.plan.has_cell(cell)]
        for peer in self._peers:
            for streams in sorted({cell.streams for cell in wanted}):
                topic = next(cell.topic for cell in wanted if cell.streams == streams)
                self._topic(peer, topic, streams, {"retention.bytes": str(CELLS_RETENTION_BYTES)})
        for cell in wanted:  # warm, and not kept: a stream's first records make its files, for which Kafka takes long
            for peer in self._peers:
                cells.measure(cell, peer.port, peer.pid, self.plan.cell_seconds / 2)
        for number in range(self.plan.cell_rounds):
            for cell in shuffled(wanted, number):
                labels = {"cell": cell.name, "round": number}
                for peer in self._in_turn(number, self._peers):
                    settle_disks()
                    measured = cells.measure(cell, peer.port, peer.pid, self.plan.cell_seconds)
                    self.rows.add(what="cell", server=peer.name, **labels, **measured)
                if not cell.is_refused:
                    with cells.instant_server(cell) as (port, pid):
                        measured = cells.measure(cell, port, pid, self.plan.cell_seconds / 2)
                        self.rows.add(what="generator", server="answers at once", **labels, **measured)

    def _clients(self) -> None:
        """Kafka's tools and confluent-kafka write, then all clients read what these wrote."""
        plan = self.plan
        fast = [peer for peer in self._peers if "flush" not in peer.name]
        for size in plan.tool_sizes:
            for number in range(plan.tool_rounds):
                count = plan.tool_records if size == RECORD_BYTES[0] else plan.tool_records // 4
                labels = {"record_bytes": size, "round": number}
                for peer in self._in_turn(number, self._peers):
                    topic = self._topic(peer, f"java-{size}-{number}")
                    self._measure(
                        peer, _java_produce(peer, topic, count, size), what="produce", client="Java", **labels
                    )
                for peer in self._in_turn(number, fast):
                    work = _java_consume(peer, f"java-{size}-{number}", count, size)
                    self._measure(peer, work, what="consume", client="Java", **labels)
            for number in range(plan.read_rounds):
                count = plan.confluent_records if size == RECORD_BYTES[0] else plan.confluent_records // 4
                labels = {"record_bytes": size, "round": number}
                for peer in self._in_turn(number, self._peers):
                    topic = self._topic(peer, f"confluent-{size}-{number}")
                    work = _confluent_produce(peer, topic, count, size)
                    self._measure(peer, work, what="produce", client="confluent-kafka", **labels)
                for peer in self._in_turn(number, fast):
                    for client, consume in CONSUMERS.items():
                        work = _consume(consume, peer, f"confluent-{size}-{number}", count, size)
                        self._measure(peer, work, what="consume", client=client, **labels)

    def _tail(self) -> None:
        """A reader follows a producer: at full speed, and at a pace, where the delay of each fetch is of interest."""
        data = load.payload(100)
        fast = [peer for peer in self._peers if "flush" not in peer.name]
        for peer in fast:
            self._topic(peer, "tail")
        for number in range(-1, self.plan.read_rounds):  # the first warms up
            for peer in self._in_turn(number, fast):
                for pace in ("full", "paced"):

                    def work(peer: Peer = peer, pace: str = pace) -> Row:
                        with ReaderProcess(peer.port, "tail", "follow") as reader:
                            seconds = self.plan.tail_seconds
                            if pace == "full":
                                load.produce_stamped(peer.port, "tail", data, depth=5, seconds=seconds)
                            else:
                                load.produce_paced(
                                    peer.port, "tail", data, per_second=PACED_PER_SECOND, seconds=seconds
                                )
                            with RawConnection(peer.port) as connection:
                                read = reader.finish(connection.list_offset("tail", 0, -1)[1])
                        rate = read["records"] / read["seconds"]
                        figures = {"records_per_s": rate, "mb_per_s": rate * data.record_bytes / 1e6}
                        return {**figures, **percentiles(read["ages_s"])._asdict()}

                    if number < 0:
                        work()
                    else:
                        self._measure(peer, work, what="tail", client="raw", pace=pace, round=number)

    def _reader_beside(self) -> None:
        """A history is read at full speed: alone, and while a producer writes another stream at a pace."""
        fast = [peer for peer in self._peers if "flush" not in peer.name]
        data = load.payload(100)
        history = load.payload(1000, batch_bytes=SERIES_BATCH_BYTES, timestamp_step_ms=1)
        now_ms = time.time_ns() // 1_000_000
        ends: dict[str, int] = {}
        for peer in fast:
            self._topic(peer, "history")
            self._topic(peer, "live")
            first_ms = now_ms - self.plan.history_bytes // 1000 - 60_000
            load.produce_series(peer.port, "history", history, total_bytes=self.plan.history_bytes, first_ms=first_ms)
            with RawConnection(peer.port) as connection:
                ends[peer.name] = connection.list_offset("history", 0, -1)[1]
        for number in range(self.plan.beside_rounds):
            for peer in self._in_turn(number, fast):

                def catch_up(peer: Peer = peer) -> Row:
                    read = load.catch_up(peer.port, "history", ends[peer.name])
                    return {
                        "records_per_s": read.records / read.seconds,
                        "mb_per_s": read.size_bytes / read.seconds / 1e6,
                    }

                def paced(peer: Peer = peer) -> Row:
                    seconds = self.plan.paced_seconds
                    produced = load.produce_paced(peer.port, "live", data, per_second=PACED_PER_SECOND, seconds=seconds)
                    return _produced(produced, data)

                def paced_beside(peer: Peer = peer) -> Row:
                    with ReaderProcess(peer.port, "history", "again") as reader:
                        figures = paced(peer)
                        read = reader.finish()
                    return {**figures, "reader_mb_per_s": read["size_bytes"] / read["seconds"] / 1e6}

                labels = {"client": "raw", "round": number}
                self._measure(peer, catch_up, what="consume", record_bytes=1000, **labels)
                for beside in (False, True) if number % 2 else (True, False):
                    self._measure(peer, paced_beside if beside else paced, what="beside", reader=beside, **labels)

    def _big_log(self) -> None:
        """Fill a stream, kill the server, time its restart to the first ack, and look up moments in the stream."""
        data = load.payload(1000, batch_bytes=SERIES_BATCH_BYTES, timestamp_step_ms=1)
        for at in range(1 + self.plan.with_kafka):
            with self._serving("big", [False] * self.plan.with_kafka) as peers:
                peer = peers[at]
                size = self.plan.big_log_bytes // (1 if at == 0 else KAFKA_BIG_SHARE)
                self.console.log(f"big log, {peer.name}")
                peer.start()
                self._wait_ack(peer, "first", create=True)
                topic = self._topic(peer, "big")
                batches = size // len(data.batch) + 1
                first_ms = time.time_ns() // 1_000_000 - batches * data.records
                filled = load.produce_series(peer.port, topic, data, total_bytes=size, first_ms=first_ms)
                rate = filled.requests * len(data.batch) / filled.seconds / 1e6
                self.rows.add(what="fill", server=peer.name, size_bytes=size, mb_per_s=rate)
                for number in range(self.plan.restarts if at == 0 else 1):
                    load.produce_closed(peer.port, "first", load.payload(100), Shape(depth=5), seconds=0.2)
                    peer.kill()
                    begin = time.perf_counter()
                    peer.start()
                    self._wait_ack(peer, topic, create=False)
                    took = time.perf_counter() - begin
                    self.rows.add(what="restart", server=peer.name, round=number, seconds=took, size_bytes=size)
                self._seek(peer, topic, first_ms, batches * data.records)
                self._topics.clear()  # the server's directory goes as a whole
                memory = peak_memory_mb(peer.pid)
                self.rows.add(what="memory", server=f"{peer.name}, big log", peak_memory_mb=memory)

    def _seek(self, peer: Peer, topic: str, first_ms: int, records: int) -> None:
        latencies_s: list[float] = []
        with RawConnection(peer.port) as connection:
            for number in range(self.plan.seeks + self.plan.seeks // 10):
                wanted = self._dice.randrange(records)
                begin = time.perf_counter()
                _, offset = connection.list_offset(topic, 0, first_ms + wanted)
                if number >= self.plan.seeks // 10:  # those before are to warm up
                    latencies_s.append(time.perf_counter() - begin)
                if offset != wanted:
                    raise RawFailed(f"{peer.name}: the moment of record {wanted} led to {offset}")
        self.rows.add(what="seek", server=peer.name, round=0, **percentiles(latencies_s)._asdict())


def shuffled(wanted: Sequence[Cell], number: int) -> list[Cell]:
    """The cells in the order of a round, which is another one in each round, and the same in each run."""
    return random.Random(number).sample(list(wanted), len(wanted))


def wait_gone(data_path: Path, topic: str, seconds: float = GONE_SECONDS) -> None:
    """Until a server's directory has no file of a deleted topic any more. Raises TimeoutError."""
    deadline = time.perf_counter() + seconds
    patterns = (f"streams/{topic}.*", f"{topic}-*-delete")  # ours, and Kafka's
    while any(next(data_path.glob(pattern), None) is not None for pattern in patterns):
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{data_path} still has files of the deleted topic {topic} after {seconds:.0f} s")
        time.sleep(0.05)


def _produced(produced: Produced, data: Payload) -> Row:
    rate = produced.requests * data.records / produced.seconds
    return {
        "requests": produced.requests,
        "requests_per_s": produced.requests / produced.seconds,
        "records_per_s": rate,
        "mb_per_s": rate * data.record_bytes / 1e6,
        **percentiles(produced.latencies_s)._asdict(),
    }


def _java_produce(peer: Peer, topic: str, count: int, size: int) -> Work:
    warm_up = count // 3
    return lambda: dict(
        kafka_clients.producer_performance(
            f"127.0.0.1:{peer.port}", topic, records=count + warm_up, record_bytes=size, warm_up_records=warm_up
        )
    )


def _java_consume(peer: Peer, topic: str, count: int, size: int) -> Work:
    return lambda: dict(
        kafka_clients.consumer_performance(f"127.0.0.1:{peer.port}", topic, records=count, record_bytes=size)
    )


def _confluent_produce(peer: Peer, topic: str, count: int, size: int) -> Work:
    return lambda: dict(
        kafka_clients.confluent_produce(f"127.0.0.1:{peer.port}", topic, records=count, record_bytes=size)
    )


CONSUMERS: dict[str, Callable[..., kafka_clients.Figures]] = {
    "confluent-kafka": kafka_clients.confluent_consume,
    "kafka-python": kafka_clients.kafka_python_consume,
    "aiokafka": kafka_clients.aiokafka_consume,
}


def _consume(consume: Callable[..., kafka_clients.Figures], peer: Peer, topic: str, count: int, size: int) -> Work:
    return lambda: dict(consume(f"127.0.0.1:{peer.port}", topic, records=count, record_bytes=size))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = options(
        __doc__,
        quick="under two minutes, with a log of 200 MB instead of 10 GiB",
        smoke="seconds: only whether the benchmark works, without Kafka",
        data="where servers keep their data meanwhile (default: a temporary one)",
    )
    parser.add_argument("--only", nargs="+", metavar="PART", default=[], help="stages, or parts of cells' names")
    chosen = parser.parse_args(arguments)
    plan = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    if chosen.only:
        if len(chosen.only) == 1 and not any(map(replace(plan, only=tuple(chosen.only)).has, STAGES)):
            names = ", ".join([*STAGES, *(cell.name for cell in plan.cells)])
            parser.error(f"--only {chosen.only[0]}: no stage and no cell has that name; there are {names}")
        plan = replace(plan, mode=plan.mode if plan.mode != results.FULL else results.PARTIAL, only=tuple(chosen.only))
    folder = results.directory(parser, chosen.results, plan.mode)
    console = Console(log_path=False, width=None if sys.stdout.isatty() else 130)
    with tempfile.TemporaryDirectory(dir=chosen.data, prefix="produce-consume-") as name:
        directory = Path(name)
        about: dict[str, Any] = {
            "benchmark": "produce_consume",
            "mode": plan.mode,
            "machine": machine(directory),
            "versions": versions(),
        }
        begin = time.perf_counter()
        benchmark = Benchmark(plan, directory, console)
        benchmark.run()
        about["seconds"] = round(time.perf_counter() - begin, 1)
        about["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
    produce_consume_report.publish(benchmark.rows, about, folder, console)


if __name__ == "__main__":
    main()
