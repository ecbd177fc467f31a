"""A stateful query without Spark: the real driver and the real tasks against a real sidecar, batch by batch.

What stands in for Spark is a checkpoint (`offsets/N` and `commits/N` in a directory, as Spark writes them) and a
planner that takes the next rows of an input: so a checkpoint can be cut back, copied and lost, and the query goes on
with it as Spark would.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.epochs.client import TaskAttempt
from spe_adapter.host import ThisHost
from spe_adapter.microbatch.driver import QueryDriver
from spe_adapter.microbatch.epoch import EpochPlan, Probe, QueryDefinition, silent
from spe_adapter.microbatch.frames import check
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.microbatch.shuffle import Received
from spe_adapter.microbatch.task import run_task
from spe_adapter.operators.base import Operator
from spe_adapter.spark_checkpoint.files import LocalCheckpoint, planned_in, query_of
from spe_adapter.spark_checkpoint.planned import Planned, offset_lines
from tests.microbatch.operators import Row, Visits
from tests.support.streams import read_all

SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("amount", pa.int64())])
EAGER_FLAGS = ("--retention-check-interval-ms", "20")
"""Of a sidecar that applies retention all the time."""
PARTITIONS = 2
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


class Query:
    """A query that tells visits: an input that grows, a checkpoint, an output topic of two partitions."""

    def __init__(self, address: str, topic: str, directory: Path, source: str = "in") -> None:
        self.address = address
        self.topic = topic
        self.source = source
        self.partitions = PARTITIONS
        self.checkpoint = directory / "checkpoint"
        self.rows: list[Row] = []
        self.ran: list[list[Row]] = []
        self.operator: Operator = Visits()
        self.probe: Probe = silent
        self._state = directory / "state"

    @property
    def id(self) -> str:
        """The query's id, from its checkpoint."""
        found = query_of(LocalCheckpoint(self.checkpoint))
        assert found is not None
        return found

    def told(self) -> list[tuple[str, int, int, bool]]:
        """What stands in the topic."""
        values = [json.loads(row.value or b"null") for row in read_all(self.address, self.topic)]
        return [(value["key"], value["n"], value["total"], value["last"]) for value in values]

    # ---- what Spark does

    def run(self, *, rows_per_batch: int = 10, dies_before_commit: bool = False, **options: str) -> None:
        """One run over the input that there is, as with the trigger `availableNow`: first the batch that is planned and
        not committed, then new ones. `dies_before_commit`: before Spark notes the first new batch as committed.
        """
        fixed = self.fixed(options)
        driver = self.driver(fixed)
        newest = self.newest("offsets")
        if newest is not None and self.newest("commits") != newest:
            self.batch(driver, fixed, newest)
            self.write(f"commits/{newest}", COMMIT)
        batch = 0 if newest is None else newest + 1
        while self.end(batch - 1) < len(self.rows):
            self.plan(batch, min(len(self.rows), self.end(batch - 1) + rows_per_batch))
            self.batch(driver, fixed, batch)
            if dies_before_commit:
                return
            self.write(f"commits/{batch}", COMMIT)
            batch += 1

    def plan(self, batch: int, end: int) -> None:
        """Note that a batch ends there."""
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + end, "conf": {"a": "1"}})
        self.write(f"offsets/{batch}", f'v1\n{metadata}\n{{"{self.source}":{{"0":{end}}}}}')

    def end(self, batch: int) -> int:
        """Where a batch ends."""
        if batch < 0:
            return 0
        (line,) = offset_lines((self.checkpoint / f"offsets/{batch}").read_text())
        return int(json.loads(line)[self.source]["0"])

    def newest(self, folder: str) -> int | None:
        """The newest batch of a folder of the checkpoint."""
        return max(
            (int(name) for name in LocalCheckpoint(self.checkpoint).names(folder) if name.isdigit()), default=None
        )

    def forget(self, *batches: int) -> None:
        """Batches go from the checkpoint, as by a power cut, or an old copy of it brought back."""
        for batch in batches:
            for folder in ("offsets", "commits"):
                (self.checkpoint / folder / str(batch)).unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """A file of the checkpoint."""
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    # ---- an epoch

    def driver(self, fixed: QueryDefinition, probe: Probe | None = None) -> QueryDriver:
        """The driver of a new incarnation."""
        if not (self.checkpoint / "metadata").exists():
            self.write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        return QueryDriver(fixed, self.id, uuid.uuid4().hex, ThisHost(), probe or self.probe)

    def close_due(self, driver: QueryDriver, fixed: QueryDefinition) -> bool:
        """An epoch without input, if one is due; whether there was one."""
        return driver.close_due(
            lambda plan: [self._task(fixed, plan, partition, []) for partition in range(self.partitions)]
        )

    def fixed(self, options: dict[str, str]) -> QueryDefinition:
        """What a run is made of."""
        given = {"kafka.bootstrap.servers": self.address, "stateDirectory": str(self._state), **options}
        operator = self.operator
        fingerprint = check(operator, SCHEMA, ("key",))
        return QueryDefinition(
            operator, ("key",), SCHEMA, fingerprint, self.partitions, parse_stateful(given, self.topic)
        )

    def batch(self, driver: QueryDriver, fixed: QueryDefinition, batch: int) -> None:
        """One batch that is planned."""

        def execute(plan: EpochPlan) -> Sequence[str]:
            rows = self.rows[self.end(batch - 1) : self.end(batch)]
            self.ran.append(rows)
            return [self._task(fixed, plan, partition, rows) for partition in range(self.partitions)]

        driver.run_batch(batch, self._planned, execute)

    def _planned(self, batch: int) -> Planned:
        found = planned_in(LocalCheckpoint(self.checkpoint), batch)
        assert found is not None
        return found

    def _task(self, fixed: QueryDefinition, plan: EpochPlan, partition: int, rows: Sequence[Row]) -> str:
        keys = pa.array([row.key.encode() for row in rows], pa.binary())
        mine = partitions_of(keys, len(rows), self.partitions, 0) == partition
        own = [row for row, is_mine in zip(rows, mine, strict=True) if is_mine]
        columns = {
            "key": [row.key for row in own],
            "ts": [row.ms * 1000 for row in own],
            "amount": [row.amount for row in own],
        }
        batches = iter([Received(False, pa.RecordBatch.from_pydict(columns, schema=SCHEMA))] if own else [])
        attempt = TaskAttempt(plan.query, plan.incarnation, plan.epoch, partition, uuid.uuid4().hex)
        return run_task(fixed, plan, attempt, ThisHost(), self.probe, batches).to_json()
