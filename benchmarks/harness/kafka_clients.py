"""Loads made by clients that others wrote: Kafka's own performance tools, and confluent-kafka.

Invariant: every server gets the same settings, which are the clients' own defaults but for acks=all and what is said
here.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import kafka
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AsyncPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.harness.kafka import java_tool
from benchmarks.harness.meter import percentiles

TOOL_HEAP = "512m"
TOOL_SECONDS = 300.0
SAMPLE_EVERY = 64
"""confluent-kafka: of how many messages one tells its latency; a callback for each would slow the client down."""
_PRODUCED = re.compile(
    r"([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99.9th"
)
Figures = dict[str, float]


class ToolFailed(RuntimeError):
    """A client did not do what it was asked for; the message is its output."""


def producer_performance(
    bootstrap: str, topic: str, *, records: int, record_bytes: int, warm_up_records: int
) -> Figures:
    """Kafka's ProducerPerformance at full speed: idempotent, acks=all, 16 KB batches, 5 requests in flight."""
    arguments = [
        "--topic",
        topic,
        "--num-records",
        str(records),
        "--record-size",
        str(record_bytes),
        "--throughput",
        "-1",
    ]
    arguments += [
        "--bootstrap-server",
        bootstrap,
        "--warmup-records",
        str(warm_up_records),
        "--command-property",
        "acks=all",
    ]
    done = java_tool("producer-performance", arguments, heap=TOOL_HEAP, flags=(), timeout_seconds=TOOL_SECONDS)
    found = _PRODUCED.findall(done.stdout)
    if done.returncode or not found:
        raise ToolFailed(done.stdout[-1000:] + done.stderr[-1000:])
    rate, _, _, _, p50, _, p99, p999 = map(float, found[-1])
    return {"records_per_s": rate, "mb_per_s": rate * record_bytes / 1e6, "p50_ms": p50, "p99_ms": p99, "p999_ms": p999}


def consumer_performance(bootstrap: str, topic: str, *, records: int, record_bytes: int) -> Figures:
    """Kafka's ConsumerPerformance from the beginning; the time to join its group is not counted."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records), "--timeout", "20000"]
    done = java_tool("consumer-performance", arguments, heap=TOOL_HEAP, flags=(), timeout_seconds=TOOL_SECONDS)
    cells = [cell.strip() for cell in (done.stdout.strip().splitlines() or [""])[-1].split(",")]
    if done.returncode or len(cells) < 10 or int(cells[4]) < records:
        raise ToolFailed(done.stdout[-1000:] + done.stderr[-1000:])
    rate = float(cells[9])
    return {"records_per_s": rate, "mb_per_s": rate * record_bytes / 1e6}


def confluent_produce(bootstrap: str, topic: str, *, records: int, record_bytes: int) -> Figures:
    """confluent-kafka's producer at full speed, acks=all."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "queue.buffering.max.messages": 1_000_000})
    value = bytes(index & 0xFF for index in range(record_bytes))
    latencies_s: list[float] = []
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            latencies_s.append(message.latency())

    begin = time.perf_counter()
    for number in range(records):
        while True:
            try:
                if number % SAMPLE_EVERY:
                    producer.produce(topic, value, partition=0)
                else:
                    producer.produce(topic, value, partition=0, on_delivery=on_delivery)
            except BufferError:
                producer.poll(0.01)
            else:
                break
    left = producer.flush(60.0)
    seconds = time.perf_counter() - begin
    if left or failed:
        raise ToolFailed(f"confluent-kafka: {left} messages not delivered: {failed[:1]}")
    rate = records / seconds
    return {"records_per_s": rate, "mb_per_s": rate * record_bytes / 1e6, **percentiles(latencies_s)._asdict()}


def confluent_consume(bootstrap: str, topic: str, *, records: int, record_bytes: int) -> Figures:
    """confluent-kafka's consumer from the beginning, in lots of 10,000."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    # By default it stops fetching for a second whenever its queue is full, from any server: that is all one would see.
    settings["fetch.queue.backoff.ms"] = 1
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = 0
    begin = time.perf_counter()
    try:
        while got < records:
            messages = consumer.consume(min(10_000, records - got), 20.0)
            if not messages:
                raise ToolFailed(f"confluent-kafka: {got} of {records} messages came")
            got += len(messages)
    finally:
        seconds = time.perf_counter() - begin
        consumer.close()
    rate = got / seconds
    return {"records_per_s": rate, "mb_per_s": rate * record_bytes / 1e6}


FETCH_MAX_BYTES = 1 << 20
"""What the pure-Python clients ask for at a time, in each partition: their default."""
CLIENT_PATIENCE_MS = 120_000


def kafka_python_consume(bootstrap: str, topic: str, *, records: int, record_bytes: int) -> Figures:
    """kafka-python's consumer from the beginning, in lots."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, max_partition_fetch_bytes=FETCH_MAX_BYTES
    )
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        got = 0
        begin = time.perf_counter()
        while got < records:
            found = consumer.poll(timeout_ms=CLIENT_PATIENCE_MS, max_records=10_000)
            if not found:
                raise ToolFailed(f"kafka-python: {got} of {records} records came")
            got += sum(map(len, found.values()))
        seconds = time.perf_counter() - begin
    finally:
        consumer.close()
    return {"records_per_s": got / seconds, "mb_per_s": got * record_bytes / seconds / 1e6}


def aiokafka_consume(bootstrap: str, topic: str, *, records: int, record_bytes: int) -> Figures:
    """aiokafka's consumer from the beginning, in lots."""
    return asyncio.run(_aiokafka_consume(bootstrap, topic, records, record_bytes))


async def _aiokafka_consume(bootstrap: str, topic: str, records: int, record_bytes: int) -> Figures:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, max_partition_fetch_bytes=FETCH_MAX_BYTES
    )
    await consumer.start()
    try:
        partition = AsyncPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        got = 0
        begin = time.perf_counter()
        while got < records:
            found = await consumer.getmany(timeout_ms=CLIENT_PATIENCE_MS, max_records=10_000)
            if not found:
                raise ToolFailed(f"aiokafka: {got} of {records} records came")
            got += sum(map(len, found.values()))
        seconds = time.perf_counter() - begin
    finally:
        await consumer.stop()
    return {"records_per_s": got / seconds, "mb_per_s": got * record_bytes / seconds / 1e6}
