"""Epochs over many streams against Kafka's transactions: the same records, exactly once, one epoch after the other.

`python benchmarks/epoch_commits.py [--quick] [--smoke]` starts its peers itself, prints tables, and writes
results/epoch_commits.json. An epoch has one record of 1 KB for each of 8, 64 and 200 partitions. It is timed from the
moment at which its records are handed to the client until the answer that says that it is committed: staged, decided
and published in every stream here; written, decided and marked in every partition there.

Invariants:
* All servers run all the time, and one is loaded at a time: within a round they take turns, in an order that changes
  from round to round.
* Before each measurement the file systems are synced: nobody pays for what another left in the page cache.
* Every epoch counts; none is left out as a warm-up but those of a round of their own, before the first.
"""

from __future__ import annotations

import os
import random
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.disks import settle_disks
from benchmarks.harness.kafka import KafkaPeer
from benchmarks.harness.meter import cpu_seconds, median, percentiles
from benchmarks.harness.process import Peer
from benchmarks.harness.program import content_of, keep, options, scratch
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
from logstore.client.blocking import Client, parse_addresses
from logstore.client.wire import TopicPartition
from logstore.testing.ports import free_ports
from spe_adapter.codec.encode import Columns
from spe_adapter.epochs.client import TaskAttempt, start_commit, take_over
from spe_adapter.epochs.segments import SegmentCutter

RECORD_BYTES = 1000
PARTITIONS = (8, 64, 200)
PATIENCE_S = 60.0
CAIRN, ONE_BY_ONE, KAFKA, KAFKA_FLUSH = "Cairn", "Cairn, no journal", "Kafka", "Kafka, flush.messages=1"
PEERS = (CAIRN, ONE_BY_ONE, KAFKA, KAFKA_FLUSH)
COLOURS = dict(zip(PEERS, ("tab:blue", "tab:cyan", "tab:orange", "tab:red"), strict=True))
Commit = Callable[[], None]
"""Takes one epoch from its records to the answer."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    mode: str
    rounds: int
    seconds: float
    """Of each peer and number of partitions, in each round."""
    with_kafka: bool = True


FULL, QUICK, SMOKE = Plan(results.FULL, 7, 3.0), Plan("quick", 3, 1.0), Plan("smoke", 1, 0.1, with_kafka=False)


class CairnEpochs:
    """A query of one task, which writes a record into each partition in every epoch."""

    def __init__(self, stack: ExitStack, address: str, topic: str, partitions: int) -> None:
        self._client = stack.enter_context(Client(parse_addresses(address)))
        self._client.create_topic(topic, partitions)
        self._streams = [TopicPartition(topic, partition) for partition in range(partitions)]
        self._targets = np.arange(partitions, dtype=np.int32)
        self._values = pa.array([os.urandom(RECORD_BYTES) for _ in range(partitions)], pa.binary())
        self._query, self._run, self._epoch = topic, uuid.uuid4().hex, 0
        take_over(self._client, self._query, self._run)

    def __call__(self) -> None:
        """Stage and commit the next epoch; returns once it is in all streams."""
        cutter = SegmentCutter()
        moments = np.full(len(self._streams), time.time_ns() // 1_000_000, dtype=np.int64)
        columns = Columns(None, self._values, None, moments)
        segments = [*cutter.add_records(columns, self._targets, self._streams), *cutter.rest()]
        attempt = TaskAttempt(self._query, self._run, self._epoch, 0, "a")
        start_commit(self._client, attempt, segments, str(self._epoch)).receive()
        self._epoch += 1


class KafkaTransactions:
    """A transactional producer, which writes a record into each partition in every transaction."""

    def __init__(self, stack: ExitStack, address: str, topic: str, partitions: int) -> None:
        with Client(parse_addresses(address)) as client:
            client.create_topic(topic, partitions)
        self._topic, self._partitions = topic, partitions
        self._values = [os.urandom(RECORD_BYTES) for _ in range(partitions)]
        settings = {"bootstrap.servers": address, "transactional.id": topic, "linger.ms": 0, "log_level": 0}
        self._producer = confluent_kafka.Producer(settings)
        stack.callback(self._producer.flush, PATIENCE_S)
        self._producer.init_transactions(PATIENCE_S)

    def __call__(self) -> None:
        """Write and commit the next transaction."""
        self._producer.begin_transaction()
        for partition, value in enumerate(self._values):
            self._producer.produce(self._topic, value, partition=partition)
        self._producer.commit_transaction(PATIENCE_S)


def syncs(http_port: int) -> float:
    """The syncs that a sidecar has made, of files and directories."""
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("cairn_disk_sync_seconds_count"))


def measure(peer: Peer, commit: Commit, seconds: float, http_port: int | None) -> dict[str, Any]:
    """Commit epochs for so long; the figures of all of them."""
    settle_disks()
    took: list[float] = []
    before = syncs(http_port) if http_port else 0.0
    cpu, begun = cpu_seconds(peer.pid), time.perf_counter()
    while not took or time.perf_counter() - begun < seconds:
        at = time.perf_counter()
        commit()
        took.append(time.perf_counter() - at)
    found = percentiles(took)
    return {
        "epochs": len(took),
        "epochs_s": len(took) / (time.perf_counter() - begun),
        "p50_ms": found.p50_ms,
        "p99_ms": found.p99_ms,
        "server_cpu_ms": (cpu_seconds(peer.pid) - cpu) * 1000 / len(took),
        "syncs": (syncs(http_port) - before) / len(took) if http_port else None,
    }


def run(plan: Plan, data: Path, console: Console) -> Rows:
    """All rounds; the first, whose figures are not kept, warms the servers up."""
    rows, chance = Rows(), random.Random(1)
    with ExitStack() as stack:
        https = dict(zip((CAIRN, ONE_BY_ONE), free_ports(2), strict=True))
        for name in ("cairn", "direct", "kafka", "flush"):
            (data / name).mkdir()
        peers: dict[str, Peer] = {
            CAIRN: SidecarPeer(data / "cairn", flags=("--http", f"127.0.0.1:{https[CAIRN]}")),
            ONE_BY_ONE: SidecarPeer(
                data / "direct", flags=("--journal-bytes", "0", "--http", f"127.0.0.1:{https[ONE_BY_ONE]}")
            ),
        }
        if plan.with_kafka:
            peers[KAFKA] = KafkaPeer(data / "kafka")
            peers[KAFKA_FLUSH] = KafkaPeer(data / "flush", overrides={"log.flush.interval.messages": "1"})
        for peer in peers.values():
            peer.start()
            stack.callback(peer.stop)
        for peer in peers.values():
            peer.wait_serving()
        commits: dict[tuple[str, int], Commit] = {}
        for name, peer in peers.items():
            kind = CairnEpochs if name in https else KafkaTransactions
            for partitions in PARTITIONS:
                commits[name, partitions] = kind(stack, f"127.0.0.1:{peer.port}", f"t{partitions}", partitions)
        for number in range(plan.rounds + 1):
            console.print(f"round {number} of {plan.rounds}")
            cells = list(commits)
            chance.shuffle(cells)
            for name, partitions in sorted(cells, key=lambda cell: cell[1]):
                seconds = plan.seconds if number else min(plan.seconds, 1.0)
                figures = measure(peers[name], commits[name, partitions], seconds, https.get(name))
                if number:
                    rows.add(round=number, peer=name, partitions=partitions, **figures)
    return rows


def find_goals(rows: Rows) -> list[Goal]:
    """Epochs against transactions, and what an epoch costs the disk."""
    goals: list[Goal] = []
    for partitions in PARTITIONS:
        for other in (KAFKA_FLUSH, KAFKA):
            ratios = rows.ratios("epochs_s", {"peer": CAIRN}, {"peer": other}, partitions=partitions)
            if ratios:
                name = f"epochs a second, {partitions} partitions, to {other}"
                goals.append(at_least(name, median(ratios), "×", 1.0, ratios))
        found = rows.values("syncs", peer=CAIRN, partitions=partitions)
        if found:
            goals.append(at_most(f"syncs of an epoch, {partitions} partitions", median(found), "syncs", 4.0, found))
    return goals


def draw(rows: Rows, path: Path) -> None:
    """The median time of an epoch, every round a dot."""
    mpl.use("Agg")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for index, (peer, colour) in enumerate(COLOURS.items()):
        for place, partitions in enumerate(PARTITIONS):
            times = [row["p50_ms"] for row in rows.select(peer=peer, partitions=partitions)]
            x = place + 0.2 * index
            middle = rows.median("p50_ms", peer=peer, partitions=partitions)
            axis.bar([x], [middle or 0], 0.18, color=colour, label=peer if not place else None)
            axis.plot([x] * len(times), times, ".", color="black", alpha=0.5)
    axis.set_xticks([place + 0.3 for place in range(len(PARTITIONS))], [f"{count} partitions" for count in PARTITIONS])
    axis.set_yscale("log")
    axis.set_ylabel("ms for an epoch, median of a round")
    axis.set_title(f"An epoch with a record of {RECORD_BYTES} B in each partition")
    axis.legend()
    figure.savefig(path, dpi=110)


def lines_of(rows: Rows) -> list[list[str]]:
    """A table's lines: the medians of the rounds."""
    lines = []
    for partitions in PARTITIONS:
        for peer in PEERS:
            figures = [
                rows.median(name, peer=peer, partitions=partitions)
                for name in ("epochs_s", "p50_ms", "p99_ms", "server_cpu_ms")
            ]
            count = rows.median("syncs", peer=peer, partitions=partitions) if peer in (CAIRN, ONE_BY_ONE) else None
            lines.append([str(partitions), peer, *(f"{figure or 0:,.2f}" for figure in figures), f"{count or 0:.1f}"])
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = options(
        __doc__,
        quick="three short rounds",
        smoke="does it work at all",
        data="a folder for the data, on the disk to measure",
    )
    given = parser.parse_args(arguments)
    plan = SMOKE if given.smoke else QUICK if given.quick else FULL
    folder = results.directory(parser, given.results, plan.mode)
    console = Console(width=160)
    with scratch("epochs", given.data) as data:
        before = machine(data)
        rows = run(plan, data, console)
    goals = find_goals(rows)
    columns = ("partitions", "server", "epochs/s", "p50 ms", "p99 ms", "server CPU ms", "syncs")
    print_rows(console, "Medians of the rounds, of one epoch", columns, lines_of(rows))
    print_goals(console, goals)
    content = content_of(plan.mode, before, goals, rows.all, plan=asdict(plan))
    keep(folder, "epoch_commits", content, partial(draw, rows), console)


if __name__ == "__main__":
    main()
