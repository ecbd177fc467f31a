"""One number of keys: queries that take turns, epoch by epoch, until the time is up; then their recoveries.

Invariants:
* All queries read the same rows, each from files of its own, and one works at a time.
* Every recovery's results are compared with averages computed here.
* Bytes are those that a query's side has written: Spark's checkpoint, and for Cairn what its sidecar wrote and the
  files of its checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness.report import Rows
from benchmarks.harness.sidecar import SidecarPeer
from benchmarks.microbatch import data
from benchmarks.microbatch.engines import CAIRN, PARTITIONS, ROCKSDB_CHANGELOG
from benchmarks.microbatch.meters import CheckpointMeter, WriteMeter
from benchmarks.microbatch.process import SparkProcess
from benchmarks.microbatch.running import (
    Running,
    end_of,
    forget_state,
    state_times,
    stream_of,
    tasks_began,
    wait_results,
)

CHECKPOINTS, LOG_ALONE, ROCKSDB = "checkpoints", "log alone", "RocksDB with changelog"
HOUR_MINUTES = 60.0
EPOCHS_AN_HOUR = 360
"""An epoch every ten seconds."""
EVERY_S, MIN_EVERY_S = 600.0, 10.0
"""The default policy of checkpoints, of an hour; it is scaled with the time."""
RETENTION_MS = 1_000
SEGMENT_BYTES = 8 << 20
SETTLE_S = 30.0
CLOSING_FILES = 2
"""The first moves the watermark, the next is the epoch in which windows are due."""
SIDECAR = ("--retention-check-interval-ms", "1000")


class Load(NamedTuple):
    """What is run: keys, which queries, how long, and how often each recovers."""

    keys: int
    queries: tuple[str, ...]
    minutes: float
    epochs: int
    recoveries: int
    heap: str


class Side(NamedTuple):
    """A query and the directory of its checkpoints."""

    name: str
    query: Running
    sink: Path
    files: CheckpointMeter


class LongRun:
    """One load. `directory` lies on the file system that all write to."""

    def __init__(self, load: Load, directory: Path, rows: Rows, say: Callable[[str], None]) -> None:
        self._load = load
        self._directory = directory / f"keys-{load.keys}"
        self._rows = rows
        self._say = say
        self._sides: list[Side] = []
        self._sidecars: dict[str, SidecarPeer] = {}
        """Each of Cairn's queries has one of its own: its log's size and its bytes are the query's."""

    def run(self) -> None:
        """Epochs, then recoveries; nothing is left behind."""
        try:
            for name in self._load.queries:
                self._sides.append(self._side(name))
            self._run_epochs()
            for number in range(self._load.recoveries):
                for side in self._turned(number):
                    self._recover(side, number)
        finally:
            for side in self._sides:
                side.query.remove()
            for sidecar in self._sidecars.values():
                sidecar.kill()

    def _side(self, name: str) -> Side:
        text = name.split()[0].lower()
        directory = self._directory / text
        directory.mkdir(parents=True)
        address = ""
        if name != ROCKSDB:
            sidecar = self._sidecars[name] = SidecarPeer(directory, flags=SIDECAR)
            sidecar.start()
            sidecar.wait_serving()
            address = sidecar.bootstrap
            _create_topic(address, _query_name(text, self._load.keys))
        engine = ROCKSDB_CHANGELOG if name == ROCKSDB else CAIRN
        query = Running(engine, self._load.keys, directory, _query_name(text, self._load.keys), address)
        sink = directory / "checkpoints-of-state"
        query.options = {"stateLimit": "16g"} if engine == CAIRN else {}
        if name == CHECKPOINTS:
            scale = min(self._load.minutes / HOUR_MINUTES, 1.0)
            query.options |= {
                "checkpoints": sink.as_uri(),
                "checkpointEvery": f"{max(int(EVERY_S * scale * 1000), 1000)}ms",
                "checkpointMinEvery": f"{max(int(MIN_EVERY_S * scale * 1000), 500)}ms",
                "checkpointMinState": "0",
            }
        return Side(name, query, sink, CheckpointMeter(sink))

    def _turned(self, number: int) -> list[Side]:
        at = number % len(self._sides)
        return [*self._sides[at:], *self._sides[:at]]

    # ---- epochs

    def _run_epochs(self) -> None:
        spark = SparkProcess(self._directory / "spark", self._load.heap)
        try:
            spark.wait_ready()
            for side in self._sides:
                side.query.start(spark)
            began = time.monotonic()
            self._run_epoch(spark, 0, data.fill(self._load.keys), began)
            began = time.monotonic()
            number = 1
            while number <= self._load.epochs and time.monotonic() - began < self._load.minutes * 60:
                self._run_epoch(spark, number, data.update(self._load.keys, number), began)
                number += 1
            self._wait_for_checkpoints(number, began)
        finally:
            spark.kill()

    def _run_epoch(self, spark: SparkProcess, number: int, epoch: data.Epoch, began: float) -> None:
        for side in self._turned(number):
            os.sync()
            meter = WriteMeter(self._sidecars[side.name].pid) if side.name in self._sidecars else None
            shown = side.query.reveal(epoch)
            told = spark.ask("settle", query=side.query.query)
            side.query.last_moment = time.time()
            first = told["progress"][0]
            figures = {"wall_s": end_of(first) - shown, **state_times(told["epochs"])}
            side.query.checkpointed()
            self._note(side, number, began, meter, figures)

    def _note(self, side: Side, number: int, began: float, meter: WriteMeter | None, figures: dict[str, Any]) -> None:
        """Keep the sizes behind an epoch, and what was written for the epoch."""
        written = {"spark_bytes": side.query.file_bytes, "checkpoint_bytes": side.files.grown()}
        if meter is not None:
            written["sidecar_bytes"] = meter.grown()
        sizes = {"sink_bytes": size_of(side.sink)}
        if side.name in self._sidecars:
            sizes["log_bytes"] = size_of(self._sidecars[side.name].data_path)
        figures |= {**written, **sizes, "written_bytes": sum(written.values()), "at_s": time.monotonic() - began}
        what = "update" if number else "fill"
        self._rows.add(what=what, keys=self._load.keys, side=side.name, round=number, **figures)
        self._say(
            f"{self._load.keys:,} keys, {side.name}, epoch {number}: {figures.get('wall_s', 0):.1f} s, "
            f"log {sizes.get('log_bytes', 0) / 1e6:.0f} MB, checkpoints {sizes['sink_bytes'] / 1e6:.0f} MB"
        )

    def _wait_for_checkpoints(self, number: int, began: float) -> None:
        """Bytes of checkpoints that are being written count too; a row of their own notes them."""
        for side in self._sides:
            if side.name == CHECKPOINTS:
                until = time.monotonic() + SETTLE_S * min(self._load.minutes, 1.0)
                before = -1
                while time.monotonic() < until and (now := size_of(side.sink)) != before:
                    before = now
                    time.sleep(2.0)
                grown = side.files.grown()
                label = {"keys": self._load.keys, "side": side.name, "round": number}
                self._rows.add(what="after", **label, written_bytes=grown, at_s=time.monotonic() - began)

    # ---- recovery

    def _recover(self, side: Side, number: int) -> None:
        """kill -9 has come, the host's memory is lost; a new Spark brings the first correct results of a window."""
        query = side.query
        window = number - data.EARLY_WINDOWS
        for _ in range(CLOSING_FILES):
            query.reveal(data.closing(self._load.keys, len(query.epochs), window))
        forget_state(query)
        count = data.expected(query.epochs, window, window).results
        stream = stream_of(query)
        spark = SparkProcess(self._directory / f"spark-{query.query}-{number}", self._load.heap)
        try:
            ready = spark.wait_ready()
            asked = time.time()
            query.start(spark)
            ended, found, told = wait_results(spark, query, count, stream)
            query.expect(found, window, window)
            figures: dict[str, Any] = {"query_s": ended - asked, "spark_start_s": ready - spark.began}
            figures |= state_times(told["epochs"])
            for name in ("checkpoint_bytes", "log_bytes"):
                figures[f"read_{name}"] = sum(epoch.get(name, 0) for epoch in told["epochs"])
            began = tasks_began(told, CLOSING_FILES)
            if began is not None:
                figures["own_s"] = ended - began[0]
            label = {"keys": self._load.keys, "side": side.name, "round": number}
            self._rows.add(what="recovery", **label, **figures)
            self._say(f"{self._load.keys:,} keys, {side.name}, recovery {number}: {figures}")
        finally:
            spark.kill()


def size_of(directory: Path) -> int:
    """Bytes of all files below a directory."""
    total = 0
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_size
            except FileNotFoundError:  # removed meanwhile
                continue
    return total


def _query_name(text: str, keys: int) -> str:
    return f"long-{text}-{keys}"


def _create_topic(address: str, topic: str) -> None:
    """A topic whose results may go at once: what is measured is what the state keeps in the log."""
    config = {"retention.ms": str(RETENTION_MS), "retention.bytes": "-1", "segment.bytes": str(SEGMENT_BYTES)}
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)]).values():
        made.result(30)
