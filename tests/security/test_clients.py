"""Clients written by others, over TLS and with logins."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import uuid
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest

from tests.security.conftest import PASSWORD, USER, Certificates, Secured
from tests.support.limits import PATIENCE_S

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
RECORDS = [b"%d" % number for number in range(20)]
WAYS = [
    ("SSL", "", False),
    ("SSL", "", True),
    ("SASL_SSL", "SCRAM-SHA-512", False),
    ("SASL_SSL", "SCRAM-SHA-256", False),
    ("SASL_SSL", "PLAIN", False),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512", False),
]


def round_trip_confluent(address: str, protocol: str, mechanism: str, files: Certificates, *, mutual: bool) -> None:
    """Produce and consume with librdkafka."""
    config: dict[str, Any] = {"bootstrap.servers": address, "security.protocol": protocol}
    if protocol.endswith("SSL"):
        config["ssl.ca.location"] = str(files.ca)
    if mutual:
        config |= {"ssl.certificate.location": str(files.client_chain), "ssl.key.location": str(files.client_key)}
    if mechanism:
        config |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    topic = f"t-{uuid.uuid4().hex}"
    producer = confluent_kafka.Producer(config)
    for value in RECORDS:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        got: list[bytes | None] = []
        while len(got) < len(RECORDS):
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.error() is None
            got.append(message.value())
        assert got == RECORDS
    finally:
        consumer.close()


def round_trip_kafka_python(address: str, protocol: str, mechanism: str, files: Certificates, *, mutual: bool) -> None:
    """Produce and consume with kafka-python."""
    config: dict[str, Any] = {"bootstrap_servers": address, "security_protocol": protocol}
    if protocol.endswith("SSL"):
        config["ssl_cafile"] = str(files.ca)
    if mutual:
        config |= {"ssl_certfile": str(files.client_chain), "ssl_keyfile": str(files.client_key)}
    if mechanism:
        config |= {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    topic = f"t-{uuid.uuid4().hex}"
    config["bootstrap_timeout_ms"] = PATIENCE_S * 1000
    producer = kafka.KafkaProducer(**config)
    try:
        for value in RECORDS:
            producer.send(topic, value)
        producer.flush(PATIENCE_S)
    finally:
        producer.close(PATIENCE_S)
    consumer = kafka.KafkaConsumer(topic, **config, auto_offset_reset="earliest", consumer_timeout_ms=PATIENCE_S * 1000)
    try:
        assert [next(consumer).value for _ in RECORDS] == RECORDS
    finally:
        consumer.close()


def round_trip_aiokafka(address: str, protocol: str, mechanism: str, files: Certificates, *, mutual: bool) -> None:
    """Produce and consume with aiokafka."""
    config: dict[str, Any] = {"bootstrap_servers": address, "security_protocol": protocol}
    if protocol.endswith("SSL"):
        context = ssl.create_default_context(cafile=str(files.ca))
        if mutual:
            context.load_cert_chain(str(files.client_chain), str(files.client_key))
        config["ssl_context"] = context
    if mechanism:
        config |= {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    topic = f"t-{uuid.uuid4().hex}"

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(**config)
        await producer.start()
        try:
            for value in RECORDS:
                await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(topic, **config, auto_offset_reset="earliest")
        await consumer.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert [(await consumer.getone()).value for _ in RECORDS] == RECORDS
        finally:
            await consumer.stop()

    asyncio.run(run())


ROUND_TRIPS: dict[str, Callable[..., None]] = {
    "confluent": round_trip_confluent,
    "kafka-python": round_trip_kafka_python,
    "aiokafka": round_trip_aiokafka,
}


@pytest.mark.parametrize(("protocol", "mechanism", "mutual"), WAYS)
@pytest.mark.parametrize("client", ROUND_TRIPS)
def test_clients_produce_and_consume(
    client: str, protocol: str, mechanism: str, mutual: bool, secured: Secured
) -> None:
    """Each client writes and reads over each kind of listener, with its usual options."""
    ROUND_TRIPS[client](secured.address(protocol), protocol, mechanism, secured.certificates, mutual=mutual)


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_the_kcat_of_distributions_logs_in(secured: Secured) -> None:
    """A kcat on an older librdkafka, such as Debian 12's, logs in with PLAIN over TLS, writes and reads: it does so
    only where it sees SaslHandshake 0. (Its SCRAM repeats the client's nonce, which RFC 5802 forbids, as Kafka 4 does.)
    """
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.certificates.ca),
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    command = ["kcat", "-b", secured.address("SASL_SSL"), "-m", str(PATIENCE_S), "-t", f"t-{uuid.uuid4().hex}"]
    command += [word for name, value in options.items() for word in ("-X", f"{name}={value}")]
    for action, sent, got in ((["-P"], "hello\n", ""), (["-C", "-e", "-q"], "", "hello\n")):
        done = subprocess.run(
            [*command, *action], input=sent, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (done.returncode, done.stdout) == (0, got), done.stderr
