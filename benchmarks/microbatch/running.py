"""One engine's query as the benchmark sees it: its files, its results, what it tells of its epochs.

Invariant: a result counts once it was compared with the averages computed here.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Row
from benchmarks.microbatch import data
from benchmarks.microbatch.data import Digest, Epoch
from benchmarks.microbatch.engines import CAIRN, ENGINES, OBSERVED, PARTITIONS
from benchmarks.microbatch.meters import CheckpointMeter, ControlMeter, StreamMeter
from benchmarks.microbatch.process import SparkProcess

RESULT_SECONDS = 240.0
"""Far more than a recovery takes on a quiet machine: a busy one must not turn it into a wrong result."""
SHARED_MEMORY = Path("/dev/shm")


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
    options: dict[str, str] = field(default_factory=dict)
    """Of Cairn's query, beside those that all runs have."""
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
        given: dict[str, Any] = {
            "query": self.query,
            "engine": self.engine,
            "address": self.address,
            "memory": str(self.memory),
        }
        given["options"] = self.options
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
        return end_of(seen[0][0]), seen[0][1], told
    # Nobody tells the query that there is no more to come: it finds out, as it would in production.
    ended = stream.wait_results(count, RESULT_SECONDS)
    told = spark.ask("settle", query=query.query)
    found = stream.digest()
    stream.close()
    if ended is None:
        raise WrongResult(f"{query.query}: {found}, where {count} results are right, after {RESULT_SECONDS:.0f} s")
    return ended, found, told


def end_of(progress: dict[str, Any]) -> float:
    """The moment (Unix time) at which Spark had finished a batch."""
    began = dt.datetime.fromisoformat(progress["timestamp"]).timestamp()
    return began + float(progress["durationMs"]["triggerExecution"]) / 1000


def spark_times(progress: dict[str, Any]) -> Row:
    """How long a batch took: what it did, and with planning and Spark's own logs."""
    took = progress["durationMs"]
    return {"addBatch_s": took["addBatch"] / 1000, "trigger_s": took["triggerExecution"] / 1000}


def state_times(epochs: Sequence[dict[str, Any]]) -> Row:
    """What Cairn tells of its epoch with rows: where its state came from, what loading it took, each step of a task."""
    with_rows = [epoch for epoch in epochs if epoch["records"] and not epoch["closing"]]
    if not with_rows:
        return {}
    epoch = with_rows[0]
    steps = {f"task_{name}_s": seconds for name, seconds in epoch["task_seconds"].items()}
    return {"state_from": "+".join(sorted(epoch["how"])), "load_s": epoch["load_seconds"], **steps}


def tasks_began(told: dict[str, Any], batches: int) -> list[float] | None:
    """The moments (Unix time) at which the first tasks of so many epochs with rows began; None if not all were seen."""
    with_rows = [epoch for epoch in told["epochs"] if epoch["records"] and not epoch["closing"]]
    return [epoch["started_ms"] / 1000 for epoch in with_rows] if len(with_rows) == batches else None
