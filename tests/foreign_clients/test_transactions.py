"""Transactions are refused, and each client says so to its user within seconds instead of trying for ever."""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
import pytest

from benchmarks.harness.kafka import java_tool
from tests.foreign_clients.broker import Broker
from tests.support.kafka_peer import require_kafka
from tests.support.limits import PATIENCE_S

WORDS = "transactions are not supported here; leave transactional.id unset"
TRANSACTIONAL_ID = "bank"


@pytest.fixture(autouse=True)
def refused_here(broker: Broker) -> None:
    """A real Kafka has transactions."""
    if broker.is_kafka:
        pytest.skip("a real Kafka serves transactions")


def test_librdkafka_shows_the_reason(broker: Broker) -> None:
    """librdkafka's producer has a fatal error with the sidecar's own words."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": TRANSACTIONAL_ID, "log_level": 0}
    )
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        producer.init_transactions(PATIENCE_S)
    error = failure.value.args[0]
    assert error.fatal()
    assert not error.retriable()
    assert WORDS in str(error)


@pytest.mark.kafka_peer
def test_the_java_client_shows_the_reason(broker: Broker, topic: str) -> None:
    """The Java producer ends with the sidecar's own words."""
    require_kafka()
    sizes = ("--num-records", "10", "--record-size", "10", "--throughput", "-1")
    transaction = ("--transactional-id", TRANSACTIONAL_ID, "--transaction-duration-ms", "100")
    done = java_tool(
        "producer-performance", ["--topic", topic, *sizes, *transaction, "--bootstrap-server", broker.bootstrap]
    )
    assert done.returncode != 0
    assert WORDS in done.stderr


def test_kafka_python_gives_up(broker: Broker) -> None:
    """kafka-python shows no server's words; its error names the coordinator of transactions, and is final."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        bootstrap_timeout_ms=PATIENCE_S * 1000,
        transactional_id=TRANSACTIONAL_ID,
        max_block_ms=int(PATIENCE_S * 1000),
    )
    try:
        with pytest.raises(kafka.errors.KafkaError, match=r"Could not find a coordinator.*bank.*UnsupportedVersion"):
            producer.init_transactions()
    finally:
        producer.close(0)


def test_aiokafka_gives_up(broker: Broker) -> None:
    """aiokafka shows no server's words; its error names the transactional id, and is final."""

    async def start() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=TRANSACTIONAL_ID)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.TransactionalIdAuthorizationFailed, match=TRANSACTIONAL_ID):
        asyncio.run(start())
