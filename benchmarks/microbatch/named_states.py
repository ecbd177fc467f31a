"""Named states per key: what an operation costs, and a query with them beside Spark's own transformWithState.

`python -m benchmarks.microbatch.named_states [--keys N] [--spark] [--spark-keys N] [--epochs N]` prints µs per key of
each operation at N keys (100,000), one row a key, in an epoch that opens the states and in later ones. With
`--spark`, two queries over the same files add each row to a value, a list and a map of its key: Cairn's, and Spark's
in Python (Row); it prints µs per key of Spark's own `addBatch` for the epochs behind the first. About a minute, two
with Spark.

Invariants:
* Both queries get the same epochs, one file each, and one query works at a time, in turn.
* A figure is the smallest of the epochs: what else the machine does only adds to it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.harness.sidecar import SidecarPeer
from benchmarks.microbatch.driver import session
from spe_adapter import stateful
from spe_adapter.operators.base import Emitted, Rows
from spe_adapter.operators.clock import CallTimes
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.processor import Processor
from spe_adapter.operators.states.declared import ListState, MapState, ValueState
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import Timers
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.table import Table

SCHEMA = pa.schema([("key", pa.int64()), ("n", pa.int64())])
EPOCHS = 4
HEAP = "2g"


class Sums(StatefulOperator):
    """A value."""

    states = {"total": ValueState(pa.int64())}  # noqa: RUF012  as users write it

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The number of keys."""
        return pa.schema([("keys", pa.int64())])

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Read and write it."""
        total = states.total.get()
        np.add.at(total, rows.window, rows.batch.column("n").to_numpy())
        states.total.set(total)
        return None


class SumsForAnHour(Sums):
    """A value with a TTL."""

    states = {"total": ValueState(pa.int64(), ttl="1 hour")}  # noqa: RUF012


class Appends(Sums):
    """A list."""

    states = {"items": ListState(pa.int64())}  # noqa: RUF012

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Append to it."""
        states.items.append(rows.window, rows.batch.column("n"))
        return None


class Puts(Sums):
    """A map."""

    states = {"kinds": MapState(pa.int64(), pa.int64())}  # noqa: RUF012

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Read and write an entry."""
        n = rows.batch.column("n")
        known = states.kinds.get(rows.window, n).values.column(0).fill_null(0).to_numpy()
        states.kinds.put(rows.window, n, known + 1)
        return None


class Registers(Sums):
    """Timers."""

    states = {}  # noqa: RUF012
    processing_time = True

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Register one."""
        timers.register(None, timers.now_ms + 3_600_000)
        return None


class All(Sums):
    """A value, a list and a map, as in the query of Spark's."""

    states = {**Sums.states, **Appends.states, **Puts.states}  # noqa: RUF012

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """One of each."""
        for kind in (Sums, Appends, Puts):
            kind.handle_rows(self, rows, states, timers)
        return None


class SparkAll(StatefulProcessor):
    """The same in Spark's Python."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """The states."""
        self._total = handle.getValueState("total", "total bigint")
        self._items = handle.getListState("items", "n bigint")
        self._kinds = handle.getMapState("kinds", "n bigint", "count bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """One of each."""
        for row in rows:
            total = self._total.get()
            self._total.update(((total[0] if total else 0) + row.n,))
            self._items.appendValue((row.n,))
            known = self._kinds.getValue((row.n,))
            self._kinds.updateValue((row.n,), ((known[0] if known else 0) + 1,))
        return iter(())

    def close(self) -> None:
        """Nothing."""


def epoch_of(keys: int, epoch: int) -> pa.RecordBatch:
    """A row for each key."""
    return pa.RecordBatch.from_arrays([pa.array(np.arange(keys)), pa.array(np.full(keys, epoch % 3))], schema=SCHEMA)


def operations(keys: int, epochs: int) -> None:
    """µs per key of each operation."""
    for operator in (Sums(), SumsForAnHour(), Appends(), Puts(), Registers(), All()):
        codec = KeyCodec(SCHEMA, ["key"])
        table = Table.in_memory(operator.state_schema(SCHEMA), seed=7)
        taken = []
        for epoch in range(epochs):
            store = Overlay(table)
            processor = Processor(operator, codec, SCHEMA, store)
            processor.clock = CallTimes(0, 1000 + epoch)
            rows = epoch_of(keys, epoch)
            started_s = time.perf_counter()
            processor.process(rows)
            processor.expire(0)
            taken.append((time.perf_counter() - started_s) / keys * 1e6)
            table.put(store.changes().footprints, (epoch, epoch, epoch))
        sys.stdout.write(f"{type(operator).__name__:14} first {taken[0]:6.2f}  later {min(taken[1:]):6.2f} µs/key\n")


def queries(keys: int, epochs: int) -> None:
    """µs per key of whole epochs, Cairn's and Spark's."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        files = directory / "input"
        files.mkdir()
        sidecar = SidecarPeer(directory)
        sidecar.start()
        sidecar.wait_serving()
        spark = session(directory, HEAP)
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )

        def frame() -> DataFrame:
            return spark.readStream.schema("key long, n long").parquet(str(files))

        grouped = frame().groupBy("key").transformWithState(SparkAll(), "keys long", "append", "none")
        theirs = grouped.writeStream.format("noop").option("checkpointLocation", str(directory / "theirs")).start()
        made = stateful(frame(), key="key", operator=All(), partitions=2)
        made.option("kafka.bootstrap.servers", sidecar.bootstrap).option("stateDirectory", directory / "state")
        ours = made.start(topic="named", checkpointLocation=str(directory / "ours"))
        for epoch in range(epochs):
            pq.write_table(pa.Table.from_batches([epoch_of(keys, epoch)]), files / f".{epoch}.parquet")
            (files / f".{epoch}.parquet").rename(files / f"{epoch}.parquet")
            for query in (ours, theirs):
                query.processAllAvailable()
        for name, query in (("Cairn", ours), ("transformWithState", theirs)):
            taken = [
                each["durationMs"]["addBatch"] / each["numInputRows"] * 1000
                for each in query.recentProgress
                if each["numInputRows"]
            ]
            sys.stdout.write(f"{name:20} first {taken[0]:7.1f}  later {min(taken[1:]):7.1f} µs/key\n")
            query.stop()
        spark.stop()
        sidecar.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--spark-keys", type=int, default=20_000)
    given = parser.parse_args()
    operations(given.keys, given.epochs)
    if given.spark:
        queries(given.spark_keys, given.epochs)


if __name__ == "__main__":
    main()
