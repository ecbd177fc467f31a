"""Load from clients written by others: confluent-kafka, and Kafka's own performance tools."""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.harness.kafka import java_tool
from benchmarks.harness.meter import Latency, latency

SAMPLE_EVERY = 50
"""Delivery reports cost a Python call each: one record in so many asks for one."""
TOOL_SECONDS = 300.0
JVM = ("-XX:+UseG1GC",)


class Throughput(NamedTuple):
    """Records per second, and latencies where the client tells them."""

    records_s: float
    latency: Latency | None


class ClientFailed(RuntimeError):
    """A client ended with an error, or did not read what was written."""


def confluent_produce(port: int, topic: str, record_bytes: int, count: int) -> Throughput:
    """`count` records through librdkafka with acks=all and the settings it comes with, except for a queue that holds them."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "acks": "all", "queue.buffering.max.messages": 1_000_000})
    value = b"x" * record_bytes
    samples: list[int] = []
    failures: list[Any] = []

    def report(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error)
        else:
            samples.append(int(message.latency() * 1e9))

    producer.list_topics(topic, timeout=30)
    begun = time.perf_counter()
    for number in range(count):
        while True:
            try:
                if number % SAMPLE_EVERY:
                    producer.produce(topic, value, partition=0)
                else:
                    producer.produce(topic, value, partition=0, on_delivery=report)
                    producer.poll(0)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(120)
    seconds = time.perf_counter() - begun
    if left or failures:
        raise ClientFailed(f"{left} records not acked, {len(failures)} failed: {failures[:1]}")
    return Throughput(count / seconds, latency(samples))


def confluent_consume(port: int, topic: str, count: int) -> Throughput:
    """Read `count` records from the beginning through librdkafka."""
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        got, begun, deadline = 0, 0.0, time.monotonic() + TOOL_SECONDS
        first = 0
        while got < count:
            got += len(consumer.consume(10_000, timeout=0.5))
            if got and not begun:
                begun, first = time.perf_counter(), got
            if time.monotonic() > deadline:
                raise ClientFailed(f"{got} of {count} records read")
        return Throughput((got - first) / (time.perf_counter() - begun) if got > first else 0.0, None)
    finally:
        consumer.close()


_PRODUCED = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .*? ([\d.]+) ms 50th, ([\d.]+) ms 95th, ([\d.]+) ms 99th, ([\d.]+) ms 99.9th"
)


def java_produce(port: int, topic: str, record_bytes: int, count: int) -> Throughput:
    """Kafka's ProducerPerformance with acks=all and the settings it comes with (idempotent, five requests in flight)."""
    arguments = ["--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic, "--num-records", str(count)]
    arguments += ["--record-size", str(record_bytes), "--throughput", "-1", "--command-property", "acks=all"]
    done = java_tool("producer-performance", arguments, heap="512m", flags=JVM, timeout_seconds=TOOL_SECONDS)
    found = _PRODUCED.search(done.stdout.splitlines()[-1]) if done.stdout else None
    if found is None:
        raise ClientFailed(f"ProducerPerformance: {done.stdout[-500:]}{done.stderr[-1500:]}")
    _, rate, p50, _, p99, p999 = found.groups()
    return Throughput(float(rate), Latency(float(p50), float(p99), float(p999)))


def java_consume(port: int, topic: str, count: int) -> Throughput:
    """Kafka's ConsumerPerformance; the rate is the fetch rate it prints, without the time to join a group."""
    arguments = ["--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic, "--num-records", str(count), "--hide-header"]
    done = java_tool("consumer-performance", arguments, heap="512m", flags=JVM, timeout_seconds=TOOL_SECONDS)
    cells = [cell.strip() for cell in done.stdout.strip().splitlines()[-1].split(",")] if done.stdout.strip() else []
    if done.returncode != 0 or len(cells) < 10 or int(cells[4]) < count:
        raise ClientFailed(f"ConsumerPerformance: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return Throughput(float(cells[9]), None)
