"""Control batches are for the server's own use: no client shows one, and every client's position passes it.

On the sidecar they come from an epoch's group (BEGIN, records, a query's state, END), on a real Kafka from a
transaction's marker.
"""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from benchmarks.harness.raw import RawConnection, make_batch
from logstore.format import epoch_api
from logstore.format.control import FOOTPRINTS_TYPE, MARK_TYPE, TOMBSTONES_TYPE, encode_control_record
from tests.clients.adapters import LATEST, Client, ConfluentClient, Message
from tests.clients.broker import Broker, eventually
from tests.support.limits import PATIENCE_S

TIMESTAMP_MS = 1_700_000_000_000


def commit_epoch(broker: Broker, topic: str, values: list[bytes]) -> None:
    """Publish one epoch with these records, and state behind them, through the private requests."""
    query, incarnation, attempt = uuid.uuid4().hex, uuid.uuid4().hex, "0-0"
    state = [
        encode_control_record(kind, {"query": query}, bytes(size), TIMESTAMP_MS)
        for kind, size in ((FOOTPRINTS_TYPE, 400_000), (FOOTPRINTS_TYPE, 100), (TOMBSTONES_TYPE, 100), (MARK_TYPE, 0))
    ]
    data = b"".join([make_batch(values, timestamp_ms=TIMESTAMP_MS), *state])
    part = epoch_api.Part(topic, 0, len(data), 1 + len(state), len(values) + len(state))
    stage = epoch_api.StageRequest(query, incarnation, 0, 0, attempt, 0, (part,), data)
    commit = epoch_api.EpochCommitRequest(
        query, incarnation, 0, "error", (epoch_api.TaskOutput(0, attempt, 1),), "{}", False
    )
    with RawConnection(broker.port) as connection:
        for request, key in ((stage, epoch_api.STAGE), (commit, epoch_api.EPOCH_COMMIT)):
            request_bytes = b"".join(bytes(piece) for piece in epoch_api.encode_request(request, correlation_id=1))
            answer = connection.call(len(request_bytes).to_bytes(4, "big") + request_bytes)
            _, reply = epoch_api.decode_reply(key, answer)
            if isinstance(reply, Exception):
                raise reply


def commit_transaction(broker: Broker, topic: str, values: list[bytes]) -> None:
    """Publish one Kafka transaction with these records."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0, timestamp=TIMESTAMP_MS)
    producer.commit_transaction(PATIENCE_S)


def publish_hidden(broker: Broker, topic: str, values: list[bytes]) -> None:
    """Records with control batches around them. Waits for those too: Kafka writes its marker behind the answer."""
    client = ConfluentClient(broker.bootstrap)
    before = client.offset_at(topic, LATEST)
    (commit_transaction if broker.is_kafka else commit_epoch)(broker, topic, values)
    eventually(lambda: client.offset_at(topic, LATEST) > before + len(values))


def test_no_client_sees_control_batches(client: Client, broker: Broker, topic: str) -> None:
    """Readers get the records before, inside and behind a group and nothing else; offsets leave control records out."""
    plain = ConfluentClient(broker.bootstrap)
    plain.produce(topic, [Message(value=b"before")])
    publish_hidden(broker, topic, [b"inside 1", b"inside 2"])
    plain.produce(topic, [Message(value=b"behind")])
    got = client.consume(topic, 4)
    assert [message.value for message in got] == [b"before", b"inside 1", b"inside 2", b"behind"]
    assert client.offset_at(topic, LATEST) > 4
    assert client.offset_at(topic, LATEST) == got[-1].offset + 1


def test_readers_get_past_control_batches_at_the_end(client: Client, broker: Broker, topic: str, group: str) -> None:
    """A group's member that read all records of an epoch commits, and the next one gets only what came behind it."""
    publish_hidden(broker, topic, [b"1", b"2"])
    assert [message.value for message in client.consume_as_group(topic, group, 2)] == [b"1", b"2"]
    publish_hidden(broker, topic, [b"3"])
    assert [message.value for message in client.consume_as_group(topic, group, 1)] == [b"3"]


def test_transactions_are_refused_by_name(broker: Broker) -> None:
    """A transactional producer is told that transactions are not supported, at once and not by a time-out."""
    if broker.is_kafka:
        pytest.skip("Kafka has transactions")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "refused"})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(PATIENCE_S)
    assert refused.value.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
