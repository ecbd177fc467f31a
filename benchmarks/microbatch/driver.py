"""The Spark process: runs streaming queries, and says what Spark measured. It is told what to do in JSON lines on
standard input and answers each with one on standard output.

Invariants:
* It ends when its standard input closes, so it never outlives who started it.
* Nothing but answers is written to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.microbatch import engines
from benchmarks.microbatch.engines import ENGINES, Place
from spe_adapter.microbatch.committed import EpochProgress
from spe_adapter.microbatch.query import StatefulQuery

Answer = dict[str, Any]
WATCH_SECONDS = 0.02


def session(directory: Path, heap: str, settings: Sequence[str] = ()) -> SparkSession:
    """Two cores, as many state partitions, everything else as Spark has it but for how often an idle query looks for
    files, and `settings` (NAME=VALUE).
    """
    builder = (
        SparkSession.builder.master(f"local[{engines.PARTITIONS}]")
        .appName("stateful")
        .config("spark.driver.memory", heap)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", str(engines.PARTITIONS))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.pollingDelay", "50ms")
    )
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class HasProgress(Protocol):
    """A query that tells its last epoch."""

    @property
    def progress(self) -> EpochProgress | None:
        """None before the first."""


class Watch:
    """Notes every epoch that this run of Cairn's query had: it tells only its last, and closes windows in epochs of its
    own. What a run finds in the log when it starts is an epoch of the run before it, and no task of this one began.
    """

    def __init__(self, query: HasProgress) -> None:
        self._query = query
        self._epochs: dict[int, EpochProgress] = {}
        self._told = -1
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            self._look()

    def _look(self) -> None:
        progress = self._query.progress
        if progress is not None and progress.started_ms and progress.epoch > self._told:
            self._epochs.setdefault(progress.epoch, replace(progress, how=dict(progress.how)))

    def told(self) -> list[Answer]:
        """Those that were not told yet."""
        self._look()
        epochs, self._epochs = self._epochs, {}
        self._told = max([self._told, *epochs])
        return [asdict(epochs[number]) for number in sorted(epochs)]

    def end(self) -> None:
        """Look no more."""
        self._ended.set()


class Driver:
    """The queries of one Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, StreamingQuery | StatefulQuery] = {}
        self._seen: dict[str, int] = {}
        self._watches: dict[str, Watch] = {}

    def answer(self, wanted: Answer) -> Answer:
        """Do one thing."""
        match wanted.pop("do"):
            case "start":
                return self._start(**wanted)
            case "settle":
                return self._settle(**wanted)
            case "stop":
                watch = self._watches.pop(str(wanted["query"]), None)
                if watch is not None:
                    watch.end()
                self._queries.pop(str(wanted["query"])).stop()
                return {}
            case other:
                raise ValueError(f"unknown command: {other}")

    def _start(self, query: str, engine: str, source: str, checkpoint: str, **rest: Any) -> Answer:
        place = Place(Path(source), Path(checkpoint), rest["address"], query, rest["memory"], rest["options"])
        running = engines.start(self._spark, ENGINES[engine], place)
        self._queries[query] = running
        self._seen[query] = -1
        if isinstance(running, StatefulQuery):
            self._watches[query] = Watch(running)
        return {"run": str(running.runId), "at": time.time()}

    def _settle(self, query: str) -> Answer:
        """Until the query has nothing left to do; answers what it did since the last time."""
        running = self._queries[query]
        running.processAllAvailable()
        progress = [json.loads(each.json) for each in running.recentProgress]
        done = [each for each in progress if "addBatch" in each["durationMs"] and each["batchId"] > self._seen[query]]
        if done:
            self._seen[query] = done[-1]["batchId"]
        watch = self._watches.get(query)
        return {"progress": done, "epochs": watch.told() if watch is not None else [], "at": time.time()}


def main() -> int:
    """Answer until standard input closes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--heap", default="2g")
    parser.add_argument("--setting", action="append", default=[], help="NAME=VALUE of Spark")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the log
    spark = session(options.directory, options.heap, options.setting)
    driver = Driver(spark)
    print(json.dumps({"ready": True, "at": time.time()}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            reply = driver.answer(json.loads(line))
        except Exception as reason:  # noqa: BLE001 - whatever it is, the one who asked must hear of it
            reply = {"error": f"{type(reason).__name__}: {reason}"}
        print(json.dumps(reply), file=answers, flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
