"""Leader epochs of a topic that has had one leader: a Kafka of one broker answers the same. And beside a Kafka, the
model of its table of epochs, with which those of a cluster are compared (`tests/cluster/test_leader_epochs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logstore.format.records import Record, encode_batch
from tests.foreign_clients.broker import Broker, connect
from tests.kafka.wire_client import FETCH, LIST_OFFSETS, WireClient
from tests.support.kafka_epochs import KafkaEpochs
from tests.support.kafka_peer import start_kafka
from tests.support.limits import PATIENCE_S

START_MS = 1_700_000_000_000
LEADER_EPOCH = 23
NONE, OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH = 0, 1, 75


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    """One connection."""
    with WireClient(broker.port) as client:
        yield client


def send(wire: WireClient, topic: str, count: int) -> None:
    """A batch of records, a second apart."""
    records = [Record(0, START_MS + 1000 * number, None, b"x") for number in range(count)]
    assert wire.produce(topic, bytes(encode_batch(records))).error == NONE


def end_of(wire: WireClient, topic: str, epoch: int, current: int = -1) -> tuple[int, int, int]:
    """Error, epoch and end that OffsetForLeaderEpoch answers."""
    part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    asked = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
    answer = wire.request(LEADER_EPOCH, 4, **asked).topics[0].partitions[0]
    return answer.error_code.value, answer.leader_epoch, answer.end_offset


def listed(wire: WireClient, topic: str, timestamp: int) -> tuple[int, int]:
    """Offset and epoch that ListOffsets answers."""
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    answer = wire.request(LIST_OFFSETS, 10, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    found = answer.topics[0].partitions[0]
    return found.offset, found.leader_epoch


def fetched(wire: WireClient, topic: str, offset: int, last_epoch: int) -> Any:
    """The partition's answer to a Fetch that names the epoch of the record in front of its offset."""
    part = {
        "partition": 0,
        "current_leader_epoch": 0,
        "fetch_offset": offset,
        "last_fetched_epoch": last_epoch,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    asked = {"replica_id": -1, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1, "rack_id": ""}
    answer = wire.request(FETCH, 12, **asked, topics=[{"topic": topic, "partitions": [part]}])
    return answer.responses[0].partitions[0]


def test_the_ends_of_epochs(wire: WireClient, broker: Broker, topic: str) -> None:
    """That of the one epoch is the end of the log, of an empty one, of one with records and of one whose first records
    are deleted; epochs that there never were have none, and a client that knows of a later leader is told to wait.
    """
    assert end_of(wire, topic, 0) == (NONE, 0, 0)
    send(wire, topic, 5)
    for start in (0, 3, 5):
        broker.admin().delete_records([TopicPartition(topic, 0, start)])[TopicPartition(topic, 0)].result(PATIENCE_S)
        assert [end_of(wire, topic, epoch, 0) for epoch in (-1, 0, 1)] == [
            (NONE, -1, -1),
            (NONE, 0, 5),
            (NONE, -1, -1),
        ]
    assert end_of(wire, topic, 0, current=1) == (UNKNOWN_LEADER_EPOCH, -1, -1)


def test_the_epochs_of_offsets(wire: WireClient, topic: str) -> None:
    """An offset comes with the epoch of its record, and the latest with the newest one; where there is none, none."""
    assert [listed(wire, topic, timestamp) for timestamp in (-2, -1, -3)] == [(0, 0), (0, 0), (-1, -1)]
    send(wire, topic, 5)
    found = [listed(wire, topic, timestamp) for timestamp in (-2, -1, -3, START_MS + 2000, START_MS + 9000)]
    assert found == [(0, 0), (5, 0), (4, 0), (2, 0), (-1, -1)]


def test_a_fetch_that_names_the_epoch_that_was_read(wire: WireClient, topic: str) -> None:
    """With the epoch of the log there are records; with one that there never was, the offset is out of range."""
    send(wire, topic, 5)
    for offset, has_records in ((0, True), (5, False)):
        part = fetched(wire, topic, offset, 0)
        assert (part.error_code.value, bool(part.records), part.diverging_epoch.epoch) == (NONE, has_records, -1)
    assert fetched(wire, topic, 5, 1).error_code.value == OUT_OF_RANGE


@pytest.mark.slow
def test_the_model_answers_as_a_kafka_whose_leader_begins_anew(tmp_path: Path) -> None:
    """Each start of a broker is a leader with a new epoch. Some write, some do not, and records are deleted: the ends
    of all epochs, and the epochs of the first record and of the end, are those of the model.
    """
    kafka, model, log_end, newest = start_kafka(tmp_path), KafkaEpochs(), 0, -1
    try:
        topic = connect("kafka", kafka.port).create_topic()
        for count, start in ((3, 0), (0, 0), (2, 0), (4, 4), (0, 9), (1, 9)):
            broker = connect("kafka", kafka.port)
            with WireClient(broker.port) as wire:
                before, newest = newest, listed(wire, topic, -1)[1]
                assert newest > before
                model.assign(newest, log_end)
                if count:
                    send(wire, topic, count)
                log_end += count
                place = TopicPartition(topic, 0, start)
                broker.admin().delete_records([place])[place].result(PATIENCE_S)
                model.truncate_from_start(start)
                for epoch in range(-1, newest + 2):
                    assert end_of(wire, topic, epoch) == (NONE, *model.end_for(epoch, log_end))
                assert listed(wire, topic, -2) == (start, model.epoch_for(start))
                assert listed(wire, topic, -1) == (log_end, newest)
            kafka.stop()
            kafka.start()
            kafka.wait_serving(PATIENCE_S)
    finally:
        kafka.kill()
