"""A real Kafka for tests: the benchmarks' peer with a small heap, and a skip, with its reason, where it cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.harness.jars import KafkaUnavailable, kafka_class_path
from benchmarks.harness.kafka import KafkaPeer, java_tool
from tests.support.limits import PATIENCE_S


def require_kafka() -> None:
    """Skip the test, with the reason, where Kafka's jars cannot be had."""
    try:
        kafka_class_path()
    except KafkaUnavailable as reason:
        pytest.skip(str(reason))


def start_kafka(directory: Path) -> KafkaPeer:
    """A Kafka that serves, with a heap of 512 MiB and no wait before the first rebalance; the caller stops it."""
    require_kafka()
    peer = KafkaPeer(directory, heap="512m", overrides={"group.initial.rebalance.delay.ms": "0"})
    peer.start()
    try:
        peer.wait_serving(PATIENCE_S)
    except BaseException:
        peer.kill()
        raise
    return peer


def run_tool(tool: str, arguments: Sequence[str], *, input_text: str | None = None) -> str:
    """What one of Kafka's Java tools prints; fails the test with its errors when it fails."""
    require_kafka()
    done = java_tool(tool, arguments, input_text=input_text)
    if done.returncode != 0:
        pytest.fail(f"{tool} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout
