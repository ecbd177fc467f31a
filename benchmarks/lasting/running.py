"""Queries over large states that take turns, epoch by epoch, at a steady pace; then their recoveries.

Invariants:
* All queries of a number of keys read the same rows, each from files of its own, and one query works at a time.
* Every recovery's results are compared with averages computed here, of windows that changed until the last epochs;
  the query's files were dropped from the page cache before.
* Bytes are those that a query's side has written to files for its recovery: Spark's checkpoint, and for Cairn what its
  sidecar wrote and the files of its checkpoints. RocksDB's table files on the local disk are counted apart.
* A query that fails is over, and `left_out` says so; the others go on.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness.disks import settle_disks
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.report import Rows
from benchmarks.harness.sidecar import SidecarPeer
from benchmarks.microbatch import data
from benchmarks.microbatch.engines import CAIRN, PARTITIONS, ROCKSDB_CHANGELOG
from benchmarks.microbatch.meters import CheckpointMeter, TableFileMeter, WriteMeter
from benchmarks.microbatch.process import DriverFailed, SparkProcess
from benchmarks.microbatch.running import (
    Running,
    WrongResult,
    end_of,
    forget_state,
    state_times,
    stream_of,
    tasks_began,
    wait_results,
)

CHECKPOINTS, LOG_ALONE, ROCKSDB = "checkpoints", "log alone", "RocksDB with changelog"
TOPIC = {"retention.ms": "60000", "retention.bytes": "-1", "segment.bytes": str(8 << 20)}
"""Results may go after a minute: what is measured is what the state keeps in the log. With the default of seven days
the log holds seven days, whatever a recovery needs."""
EPOCH_S = 10.0
EVERY_S, MIN_EVERY_S, RETENTION_CHECK_S, MAINTENANCE_S = 600.0, 10.0, 300.0, 60.0
"""The defaults of an hour: the policy of checkpoints, how often a sidecar trims, how often Spark writes snapshots of
RocksDB.
"""
MAINTENANCE_SETTING = "spark.sql.streaming.stateStore.maintenanceInterval"
BIG_KEYS = 1_000_000
BIG = {"stateLimit": "16g"}
"""With more than BIG_KEYS keys: the default of 2 GB is too low for the state and a copy that grows."""
FILL_EPOCHS = 12
"""In which windows are filled: enough for a first snapshot of RocksDB, which comes after ten."""
SETTLE_S = 30.0
SNAPSHOT_INTERVALS = 2.2
"""The first round of Spark's maintenance may come before enough epochs are there for a snapshot."""
CLOSING_FILES = 2
"""The first moves the watermark, the next is the epoch in which windows are due."""
_FAILURES = (DriverFailed, WrongResult, PeerFailed)


class Load(NamedTuple):
    """A number of keys, the queries that run with it, and their pace: `epochs` of updates, one every `every_s` seconds
    as far as all queries keep up, for `minutes` at most; then so many recoveries of each query. RocksDB's query gets
    one of `rare` epochs. `options` are further ones of the query with checkpoints.
    """

    keys: int
    queries: tuple[str, ...]
    minutes: float
    epochs: int
    every_s: float
    rare: int
    recoveries: int
    heap: str
    options: Mapping[str, str]
    is_pinned: bool = False
    """Whether updates have one processor, for a machine that is used by others too; recoveries always have all."""

    def seconds(self, of_hour: float, side: str) -> float:
        """So many seconds of a query with an epoch every EPOCH_S. Where its epochs follow one another faster or slower,
        all intervals of its engine are scaled, so that an epoch has its share of what is done by the clock.
        """
        return of_hour * self.every_s * (self.rare if side == ROCKSDB else 1) / EPOCH_S


class Side(NamedTuple):
    """A query and what it writes into."""

    name: str
    query: Running
    sink: Path
    files: CheckpointMeter
    sidecar: SidecarPeer | None
    """Of its own: the log's size and its bytes are the query's."""
    log: WriteMeter | None
    """Of the sidecar, from its start on: what it writes between two epochs counts too."""

    @property
    def label(self) -> dict[str, Any]:
        """What rows of the query have in common."""
        return {"keys": self.query.keys, "side": self.name}


class LongRun:
    """One load. `directory` lies on the file system that all write to."""

    def __init__(self, load: Load, directory: Path, rows: Rows, say: Callable[[str], None]) -> None:
        self._load = load
        self._directory = directory = directory / f"keys-{load.keys}"
        self._rows = rows
        self._say = say
        self._sides: list[Side] = []
        self._over: set[str] = set()
        self._local = TableFileMeter(directory / "spark" / "local")
        self._began = time.monotonic()
        self.left_out: list[str] = []

    def run(self) -> None:
        """Epochs, then recoveries; nothing is left behind."""
        processors = os.sched_getaffinity(0)
        try:
            if self._load.is_pinned:
                os.sched_setaffinity(0, {max(processors)})
            for name in self._load.queries:
                self._sides.append(self._side(name))
            self._run_epochs()
            os.sched_setaffinity(0, processors)
            for number in range(self._load.recoveries):
                for side in self._turned(number):
                    self._guarded(side, self._recover, side, number)
        finally:
            os.sched_setaffinity(0, processors)
            for side in self._sides:
                side.query.remove()
                if side.sidecar is not None:
                    side.sidecar.kill()

    def _side(self, name: str) -> Side:
        keys, text = self._load.keys, name.split()[0].lower()
        directory = self._directory / text
        directory.mkdir(parents=True)
        topic, sidecar = f"long-{text}-{keys}", None
        if name != ROCKSDB:
            flags = ("--retention-check-interval-ms", f"{self._load.seconds(RETENTION_CHECK_S, name) * 1000:.0f}")
            sidecar = SidecarPeer(directory, flags=flags)
            sidecar.start()
            sidecar.wait_serving()
            _create_topic(sidecar.bootstrap, topic)
        engine = ROCKSDB_CHANGELOG if sidecar is None else CAIRN
        query = Running(engine, keys, directory, topic, "" if sidecar is None else sidecar.bootstrap)
        sink = directory / "checkpoints-of-state"
        if sidecar is not None and keys > BIG_KEYS:
            query.options |= BIG
        if name == CHECKPOINTS:
            intervals = {"checkpointEvery": EVERY_S, "checkpointMinEvery": MIN_EVERY_S}
            query.options |= {
                key: f"{max(self._load.seconds(value, CHECKPOINTS) * 1000, 1000):.0f}ms"
                for key, value in intervals.items()
            }
            query.options |= {"checkpoints": sink.as_uri(), **self._load.options}
        log = None if sidecar is None else WriteMeter(sidecar.pid)
        return Side(name, query, sink, CheckpointMeter(sink), sidecar, log)

    def _turned(self, number: int) -> list[Side]:
        at = number % len(self._sides)
        return [side for side in [*self._sides[at:], *self._sides[:at]] if side.query.query not in self._over]

    def _guarded(self, side: Side, what: Callable[..., object], *arguments: Any) -> None:
        try:
            what(*arguments)
        except _FAILURES as error:
            self._over.add(side.query.query)
            self.left_out.append(f"{side.name}, {side.query.keys:,} keys: {type(error).__name__}: {error}")
            self._say(f"failed: {self.left_out[-1][:2000]}")

    # ---- epochs

    def _run_epochs(self) -> None:
        maintenance_s = self._load.seconds(MAINTENANCE_S, ROCKSDB)
        settings = {MAINTENANCE_SETTING: _ms(maintenance_s)}
        spark = SparkProcess(self._directory / "spark", self._load.heap, settings)
        try:
            spark.wait_ready()
            for side in reversed(self._sides):
                self._guarded(side, side.query.start, spark)
                self._guarded(side, self._fill, spark, side)
            for side in self._sides:
                self._wait_for_snapshot(side, maintenance_s)
            self._began = time.monotonic()
            number = 1
            while number <= self._load.epochs and self._wait_until((number - 1) * self._load.every_s):
                epoch = updates_of(self._load.keys, number)
                for side in self._turned(number):
                    if side.name != ROCKSDB or number % self._load.rare == 0:
                        self._guarded(side, self._run_epoch, spark, side, number, epoch)
                number += 1
            for side in self._turned(0):
                self._note_rest(side, number)
        finally:
            spark.kill()

    def _wait_until(self, at_s: float) -> bool:
        """Wait for a moment of the updates; whether there is time for an epoch then."""
        time.sleep(max(self._began + at_s - time.monotonic(), 0.0))
        return time.monotonic() - self._began < self._load.minutes * 60

    def _fill(self, spark: SparkProcess, side: Side) -> None:
        """Windows open, in FILL_EPOCHS epochs."""
        whole = data.fill(side.query.keys)
        for epoch in data.pieces(whole, -(-len(whole.keys) // FILL_EPOCHS)):
            self._run_epoch(spark, side, 0, epoch)

    def _wait_for_snapshot(self, side: Side, maintenance_s: float) -> None:
        """RocksDB's first snapshot holds what was filled, and does not count as an update."""
        until = time.monotonic() + SNAPSHOT_INTERVALS * maintenance_s
        while side.name == ROCKSDB and time.monotonic() < until and not any(side.query.checkpoint.rglob("*.zip")):
            time.sleep(1.0)
        self._note_rest(side, 0)

    def _run_epoch(self, spark: SparkProcess, side: Side, number: int, epoch: data.Epoch) -> None:
        settle_disks()
        shown = side.query.reveal(epoch)
        # What a recovery closes is all that is compared: the rows of an hour would take gigabytes.
        side.query.epochs[-1] = data.of_windows(epoch, -data.EARLY_WINDOWS, -1)
        told = spark.ask("settle", query=side.query.query)
        figures = {"wall_s": end_of(told["progress"][0]) - shown, **state_times(told["epochs"])}
        figures["control_bytes"] = side.query.checkpointed() - side.query.file_bytes
        written = {"spark_bytes": side.query.file_bytes, "checkpoint_bytes": side.files.grown()}
        sizes = {"sink_bytes": size_of(side.sink)}
        figures["first_bytes"] = sum(size_of(first) for first in side.sink.glob(f"*-{1:010}"))
        if side.sidecar is not None and side.log is not None:
            written["sidecar_bytes"] = side.log.grown()
            sizes["log_bytes"] = size_of(side.sidecar.data_path)
        else:
            figures["local_bytes"] = self._local.grown()
        figures |= {**written, **sizes, "written_bytes": sum(written.values())}
        self._note("update" if number else "fill", side, number, **figures)
        self._say(
            f"{side.query.keys:,} keys, {side.name}, epoch {number}: {figures['wall_s']:.1f} s, "
            f"log {sizes.get('log_bytes', 0) / 1e6:.0f} MB, checkpoints {sizes['sink_bytes'] / 1e6:.0f} MB"
        )

    def _note_rest(self, side: Side, number: int) -> None:
        """Bytes of checkpoints that are being written count too, and what the sidecar wrote between the epochs."""
        until, before = time.monotonic() + SETTLE_S, -1
        while time.monotonic() < until and (now := size_of(side.query.directory)) != before:
            before = now
            time.sleep(2.0)
        side.query.checkpointed()
        log_bytes = 0 if side.log is None else side.log.grown()
        self._note(
            "after" if number else "fill",
            side,
            number,
            written_bytes=side.files.grown() + side.query.file_bytes + log_bytes,
        )

    def _note(self, what: str, side: Side, number: int, **figures: Any) -> None:
        at_s = time.monotonic() - self._began
        self._rows.add(what=what, **side.label, round=number, **figures, at_s=at_s)

    # ---- recovery

    def _recover(self, side: Side, number: int) -> None:
        """kill -9 has come, the host's memory is lost; a new Spark brings the first correct results of a window."""
        query = side.query
        window = number - data.EARLY_WINDOWS
        for _ in range(CLOSING_FILES):
            query.reveal(data.closing(query.keys, len(query.epochs), window))
        forget_state(query)
        dropped = drop_cached(query.directory)
        count = data.expected(query.epochs, window, window).results
        stream = stream_of(query)
        load = os.getloadavg()[0]
        place = self._directory / f"spark-{query.query}-{number}"
        spark = SparkProcess(place, self._load.heap)
        try:
            ready = spark.wait_ready()
            asked = time.time()
            query.start(spark)
            ended, found, told = wait_results(spark, query, count, stream)
            query.expect(found, window, window)
        finally:
            spark.kill()
            shutil.rmtree(place, ignore_errors=True)
        figures: dict[str, Any] = {"query_s": ended - asked, "spark_start_s": ready - spark.began}
        figures |= {"load_average": load, "processors": len(os.sched_getaffinity(0))}
        figures["processors"] = len(os.sched_getaffinity(0))
        figures |= {"results": found.results, "dropped_bytes": dropped, **state_times(told["epochs"])}
        for name in ("checkpoint_bytes", "log_bytes"):
            figures[f"read_{name}"] = sum(epoch.get(name, 0) for epoch in told["epochs"])
        began = tasks_began(told, CLOSING_FILES)
        if began is not None:
            figures["own_s"] = ended - began[0]
        self._note("recovery", side, number, **figures)
        self._say(f"{query.keys:,} keys, {side.name}, recovery {number}: {figures}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"


def updates_of(keys: int, number: int) -> data.Epoch:
    """The rows of `data.update`; those of keys with early windows go to an early one, another in each epoch: what a
    recovery closes has changed until the end.
    """
    epoch = data.update(keys, number)
    back_ms = (number % data.EARLY_WINDOWS + 1) * data.WINDOW_MS
    return epoch._replace(times_ms=epoch.times_ms - np.where(epoch.keys % data.EARLY_SHARE == 0, back_ms, 0))


def size_of(directory: Path) -> int:
    """Bytes of all files below a directory."""
    total = 0
    for path in _files(directory):
        with suppress(FileNotFoundError):  # removed meanwhile
            total += path.stat().st_size
    return total


def drop_cached(directory: Path) -> int:
    """Drop all files below a directory from the page cache, so that they are read from the disk; their bytes."""
    total = 0
    settle_disks()
    for path in _files(directory):
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                total += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
    return total


def _files(directory: Path) -> Iterable[Path]:
    for path, _, names in os.walk(directory):
        for name in names:
            yield Path(path, name)


def _create_topic(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=TOPIC)]).values():
        made.result(30)
