"""Finding a place in a stream: its ends, a moment, its newest record, and what is left after deleting."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from logstore.format.records import Record, encode_batch
from tests.foreign_clients.adapters import EARLIEST, LATEST, Client, ConfluentClient, Message, Sending, confluent_poll
from tests.foreign_clients.broker import Broker
from tests.kafka.wire_client import LIST_OFFSETS, WireClient
from tests.support.compressed import CODECS, compressed
from tests.support.limits import PATIENCE_S

START_MS = 1_700_000_000_000
MAX_TIMESTAMP = -3


def send_seconds(broker: Broker, topic: str, seconds: list[int]) -> None:
    """One record per entry, each in a batch of its own, `seconds` after START_MS."""
    client = ConfluentClient(broker.bootstrap)
    for second in seconds:
        client.produce(topic, [Message(value=b"%d" % second, timestamp_ms=START_MS + second * 1000)])


def test_the_ends_of_a_stream(client: Client, topic: str) -> None:
    """Earliest and latest are 0 and 0 in an empty stream, 0 and the number of records in one that was written."""
    assert (client.offset_at(topic, EARLIEST), client.offset_at(topic, LATEST)) == (0, 0)
    client.produce(topic, [Message(value=b"x")] * 7)
    assert (client.offset_at(topic, EARLIEST), client.offset_at(topic, LATEST)) == (0, 7)


def test_offsets_by_timestamp(client: Client, broker: Broker, topic: str) -> None:
    """A moment leads to the first record that is not older, between, at and outside of the records' times."""
    send_seconds(broker, topic, [0, 10, 20, 30])
    found = {second: client.offset_at(topic, START_MS + second * 1000) for second in (-5, 0, 5, 10, 29, 30)}
    assert found == {-5: 0, 0: 0, 5: 1, 10: 1, 29: 3, 30: 3}
    assert client.offset_at(topic, START_MS + 31_000) in (-1, 4)  # librdkafka turns "none" into the end


def test_timestamps_inside_a_batch(client: Client, topic: str) -> None:
    """The record is found inside a batch too, not only the batch."""
    client.produce(topic, [Message(value=b"x", timestamp_ms=START_MS + index * 1000) for index in range(50)])
    assert client.offset_at(topic, START_MS + 33_000) == 33
    assert client.offset_at(topic, START_MS + 32_500) == 33


def test_timestamps_out_of_order(client: Client, broker: Broker, topic: str) -> None:
    """With times out of order it is the first record, in the order of offsets, that is not older."""
    send_seconds(broker, topic, [10, 5, 30, 20, 40])
    found = [client.offset_at(topic, START_MS + second * 1000) for second in (4, 6, 11, 35)]
    assert found == [0, 0, 2, 4]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_timestamps_of_compressed_batches(client: Client, broker: Broker, topic: str, codec: str) -> None:
    """A moment inside a compressed batch leads to its record, as each client compresses; so does the newest record."""
    if codec not in client.codecs:
        pytest.skip(f"{client.name} has no {codec} here")
    messages = [Message(value=b"x" * 50, timestamp_ms=START_MS + index * 1000) for index in range(50)]
    client.produce(topic, [*messages, messages[0]], Sending(compression=codec))
    found = [client.offset_at(topic, START_MS + second * 1000 - 500) for second in (0, 1, 33, 49)]
    assert found == [0, 1, 33, 49]
    place = TopicPartition(topic, 0)
    newest = broker.admin().list_offsets({place: OffsetSpec.max_timestamp()})[place].result(PATIENCE_S)
    assert (newest.offset, newest.timestamp) == (49, START_MS + 49_000)


def test_the_newest_record(broker: Broker, topic: str) -> None:
    """The maximum timestamp's offset is the record's that has it, wherever it stands; none in an empty stream."""
    admin = broker.admin()

    def newest() -> tuple[int, int]:
        place = TopicPartition(topic, 0)
        found = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(PATIENCE_S)
        return found.offset, found.timestamp

    assert newest() == (-1, -1)
    send_seconds(broker, topic, [0, 50, 20])
    assert newest() == (1, START_MS + 50_000)
    times_ms = (START_MS + 60_000, START_MS + 90_000, START_MS + 70_000)
    ConfluentClient(broker.bootstrap).produce(topic, [Message(value=b"x", timestamp_ms=at_ms) for at_ms in times_ms])
    assert newest() == (4, START_MS + 90_000)


def test_deleted_records_are_gone(client: Client, broker: Broker, topic: str) -> None:
    """DeleteRecords moves the beginning; readers that ask for the earliest start there; the end stays."""
    client.produce(topic, [Message(value=b"%d" % number) for number in range(10)])
    place = TopicPartition(topic, 0, 4)
    assert broker.admin().delete_records([place])[place].result(PATIENCE_S).low_watermark == 4
    assert (client.offset_at(topic, EARLIEST), client.offset_at(topic, LATEST)) == (4, 10)
    assert [message.value for message in client.consume(topic, 6, offset=4)] == [
        b"%d" % number for number in range(4, 10)
    ]


def test_deleting_beyond_the_end_is_refused(broker: Broker, topic: str) -> None:
    """DeleteRecords behind the end is OFFSET_OUT_OF_RANGE and deletes nothing; -1 means all there is."""
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Message(value=b"x")] * 3)
    admin = broker.admin()
    beyond = TopicPartition(topic, 0, 4)
    with pytest.raises(KafkaException) as refused:
        admin.delete_records([beyond])[beyond].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    assert client.offset_at(topic, EARLIEST) == 0
    everything = TopicPartition(topic, 0, -1)
    assert admin.delete_records([everything])[everything].result(PATIENCE_S).low_watermark == 3
    assert client.offset_at(topic, EARLIEST) == 3


def test_reading_what_was_deleted(broker: Broker, topic: str) -> None:
    """A position before the beginning is out of range: the reader resets as it was told to, and never silently."""
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Message(value=b"%d" % number) for number in range(5)])
    place = TopicPartition(topic, 0, 3)
    broker.admin().delete_records([place])[place].result(PATIENCE_S)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "fetch.wait.max.ms": 100}
    for reset, expected in (("earliest", b"3"), ("error", None)):
        consumer = Consumer({**settings, "auto.offset.reset": reset})
        try:
            consumer.assign([TopicPartition(topic, 0, 1)])
            if expected is not None:
                assert confluent_poll(consumer, 1)[0].value == expected
                continue
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
        finally:
            consumer.close()


def test_any_batches_are_found_by_time_as_a_list_finds_them(broker: Broker, topic: str) -> None:
    """Batches of every codec, with few moments for many records: a moment finds the first record that is not older, and
    the newest moment the first record that has it; a server's answers are those that a list of all records gives.
    """
    chance = random.Random(18)
    records: list[int] = []
    with WireClient(broker.port) as wire:
        for number in range(60):
            times = [START_MS + chance.randrange(number, number + 8) for _ in range(chance.randrange(1, 20))]
            batch = encode_batch([Record(0, time, None, b"value" * 40) for time in times])
            codec = chance.choice(["none", *CODECS])
            sent = batch if codec == "none" else compressed(batch, codec)
            assert wire.produce(topic, bytes(sent)).base_offset == len(records)
            records += times

        def asked(time: int) -> tuple[int, int]:
            part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": time}
            answer = wire.request(LIST_OFFSETS, 10, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
            found = answer.topics[0].partitions[0]
            assert found.error_code == 0
            return found.offset, found.timestamp

        def first_at(time: int) -> tuple[int, int]:
            return next(((offset, at) for offset, at in enumerate(records) if at >= time), (-1, -1))

        for time in (0, *range(START_MS - 1, max(records) + 2)):
            assert asked(time) == first_at(time)
        assert asked(MAX_TIMESTAMP) == first_at(max(records))
