"""A fragment as long tasks on a real Spark: workers are killed and started again, and the output is exact."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from pyspark.sql import SparkSession

from logstore.client.blocking import Client, parse_addresses
from spe_adapter.cec.policy import Targets
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.continuous.fragment import EpochLimits, Fragment, TopicSource
from spe_adapter.continuous.runner import Options
from spe_adapter.continuous.spark import on_spark
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Counting
from tests.continuous.fragments import parse
from tests.continuous.processes import WINDOW, as_text, expected, produce
from tests.foreign_clients.broker import eventually
from tests.support.limits import PATIENCE_S

pytestmark = [pytest.mark.spark, pytest.mark.crash]

PARTITIONS = 2
RECORDS = 6_000

Rows = list[tuple[bytes, int]]


def routed(rows: Rows) -> list[Rows]:
    """Rows by the partition that Kafka's partitioner gives them."""
    keys = pa.array([key for key, _ in rows], pa.binary())
    places = partitions_of(keys, len(rows), PARTITIONS, 0)
    return [[rows[at] for at in np.flatnonzero(places == number)] for number in range(PARTITIONS)]


class Reader:
    """A consumer of one partition that remembers all it has read."""

    def __init__(self, address: str, topic: str, number: int) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "check"})
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
        self.read: list[tuple[bytes | None, bytes | None]] = []

    def read_to(self, count: int) -> None:
        """Read until so many records are here."""
        while len(self.read) < count:
            message = self._consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(self.read)} of {count} records, then silence"
            assert message.error() is None, message.error()
            self.read.append((message.key(), message.value()))

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


def noted(directory: str, driver: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A step that tells which process it runs in; the driver tries steps, too, when it plans."""
    if os.getpid() != driver:
        Path(directory, str(os.getpid())).touch()
    return batch


def kill_workers(directory: Path) -> None:
    """Kill the workers that are at work, and no others: Spark believes of idle ones that they live."""
    pids = [int(path.name) for path in directory.iterdir()]
    assert len(pids) >= PARTITIONS
    for pid in pids:
        with suppress(ProcessLookupError):  # one that has failed is gone
            os.kill(pid, signal.SIGKILL)
        (directory / str(pid)).unlink()


def test_killed_workers_are_replaced_and_the_output_is_exact(
    spark: SparkSession, address: str, topic: str, tmp_path: Path
) -> None:
    """Two partitions, three times more input; between, all its Python workers are killed. At last the query is
    stopped.
    """
    chance = random.Random(11)
    rows = [(b"key-%d" % min(int(chance.paretovariate(0.4)), 300), chance.randint(0, 999)) for _ in range(RECORDS)]
    parts = routed(rows)
    source, target = f"{topic}-in", f"{topic}-out"
    with Client(parse_addresses(address)) as client:
        client.create_topic(source, PARTITIONS, {"retention.ms": "-1"})
    operator = Aggregate(Counting(WINDOW), total=agg.sum("v"), last=agg.last("v"))
    steps = (parse, as_text, partial(noted, str(tmp_path), os.getpid()))
    fragment = Fragment("spark", (TopicSource(source, steps),), ("k",), operator, target, check_keys=True)
    limits = EpochLimits(epoch_records=100, epoch_ms=20, run_records=50)
    query = on_spark(spark, fragment, Options(address, partial(Targets, 200, 500), limits))
    readers = [Reader(address, target, number) for number in range(PARTITIONS)]
    try:
        for third in range(1, 4):
            for number, part in enumerate(parts):
                share = len(part) // 3
                end = len(part) if third == 3 else third * share
                produce(address, source, part[(third - 1) * share : end], partition=number)
                readers[number].read_to(len(expected(part[:end])))
            assert query.is_active
            eventually(lambda: query.running_tasks == PARTITIONS)  # Spark counts behind the events
            if third < 3:
                kill_workers(tmp_path)
        for number, part in enumerate(parts):
            assert readers[number].read == expected(part)
    finally:
        for reader in readers:
            reader.close()
        query.stop()
    assert not query.is_active
    assert query.failure is None
