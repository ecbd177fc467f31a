"""The clients under measurement: each a function that produces until its load ends.

Invariants: every client is idempotent, waits for all replicas, gives no record up while it is measured, and sends
about 900 records a second; all else is as the client comes, but for settings that are named beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from aiokafka import AIOKafkaProducer
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from benchmarks.clients.load import LOOK_S, PACE_S, PATIENCE_S, ClientLoad
from logstore.testing.cluster import Cluster
from tests.cluster_processes.foreign_producers import run_franz_go, run_java

PATIENCE_MS: Final = int(PATIENCE_S * 1000)
LINGER_MS: Final = 5
EPOCH_ROWS: Final = 20
"""Of a micro-batch of Spark's; its own work is what takes time."""
FRANZ_GO_AGE_MS: Final = 100
"""`MetadataMinAge` of the second measurement of franz-go."""
JAVA: Final = {
    "enable.idempotence": "true",
    "retries": str(2**31 - 1),
    "delivery.timeout.ms": str(PATIENCE_MS),
    "max.block.ms": str(PATIENCE_MS),
    "linger.ms": str(LINGER_MS),
}
"""Kafka's tool makes one try unless it is told otherwise; the client itself does not."""
Run = Callable[[Cluster, ClientLoad], None]


def run_librdkafka(topic: str, cluster: Cluster, load: ClientLoad) -> None:
    """confluent-kafka."""
    settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": LINGER_MS}
    producer = confluent_kafka.Producer(settings | {"message.timeout.ms": PATIENCE_MS, "log_level": 0})

    def note(number: int, error: object, message: Any) -> None:
        if error is not None:
            load.errors.append(repr(error))
        else:
            load.acknowledged(message.offset(), number)

    while not load.ended.wait(PACE_S):
        producer.produce(topic, b"%d" % load.sent, partition=0, on_delivery=partial(note, load.sent))
        load.sent += 1
        producer.poll(0)
    producer.flush(PATIENCE_S)


def run_kafka_python(topic: str, cluster: Cluster, load: ClientLoad) -> None:
    """kafka-python."""
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        delivery_timeout_ms=PATIENCE_MS,
        max_block_ms=PATIENCE_MS,
    )

    def note(number: int, found: Any) -> None:
        load.acknowledged(found.offset, number)

    while not load.ended.wait(PACE_S):
        sent = producer.send(topic, b"%d" % load.sent, partition=0)
        sent.add_callback(partial(note, load.sent))
        sent.add_errback(lambda error: load.errors.append(repr(error)))
        load.sent += 1
    producer.flush(PATIENCE_S)
    producer.close()


def run_aiokafka(topic: str, cluster: Cluster, load: ClientLoad) -> None:
    """aiokafka."""
    asyncio.run(_produce_aiokafka(topic, cluster, load))


async def _produce_aiokafka(topic: str, cluster: Cluster, load: ClientLoad) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True, linger_ms=LINGER_MS
    )

    def note(number: int, done: asyncio.Future[Any]) -> None:
        if done.exception() is not None:
            load.errors.append(repr(done.exception()))
        else:
            load.acknowledged(done.result().offset, number)

    await producer.start()
    try:
        while not load.ended.is_set():
            sent = await producer.send(topic, b"%d" % load.sent, partition=0)
            sent.add_done_callback(partial(note, load.sent))
            load.sent += 1
            await asyncio.sleep(PACE_S)
        await asyncio.wait_for(producer.flush(), PATIENCE_S)
    finally:
        await producer.stop()


def run_spark(spark: SparkSession, checkpoints: Path, topic: str, cluster: Cluster, load: ClientLoad) -> None:
    """Spark's own Kafka sink: a record is acknowledged when its micro-batch is complete. A batch under way at the end
    may leave records that were not.
    """
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", EPOCH_ROWS)
    frame = source.option("numPartitions", 1).load().selectExpr("cast(value as string) as value")
    sink = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    query = sink.option("topic", topic).option("checkpointLocation", str(checkpoints / topic)).start()
    try:
        while not load.ended.wait(LOOK_S):
            progress = query.lastProgress
            done = 0 if progress is None else (progress["batchId"] + 1) * EPOCH_ROWS
            for number in range(load.sent, done):
                load.acknowledged(-1, number)
            load.sent = max(load.sent, done)
            if not query.isActive:
                raise RuntimeError(f"the query has ended: {query.exception()}")
    finally:
        query.stop()


def clients(spark: SparkSession | None, checkpoints: Path) -> Mapping[str, Callable[[str], Run]]:
    """Each client's name, and how to produce to a topic with it. Without a Spark there is no Spark."""
    found: dict[str, Callable[[str], Run]] = {
        "franz-go": run_franz_go,
        f"franz-go, MetadataMinAge {FRANZ_GO_AGE_MS} ms": lambda topic: run_franz_go(topic, FRANZ_GO_AGE_MS),
        "librdkafka": lambda topic: partial(run_librdkafka, topic),
        "Java": lambda topic: run_java(topic, JAVA),
        "kafka-python": lambda topic: partial(run_kafka_python, topic),
        "aiokafka": lambda topic: partial(run_aiokafka, topic),
    }
    if spark is not None:
        found["Spark"] = lambda topic: partial(run_spark, spark, checkpoints, topic)
    return found
