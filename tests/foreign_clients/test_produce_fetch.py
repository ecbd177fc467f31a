"""What a client sends is what every client reads: bytes, order, offsets, compression, limits."""

from __future__ import annotations

import time

import pytest

from tests.foreign_clients.adapters import CLIENTS, CODECS, Client, ConfluentClient, Message, Refused, Sending
from tests.foreign_clients.broker import Broker, eventually

MESSAGE_TOO_LARGE, INVALID_TIMESTAMP = 10, 32


def test_bytes_come_back_unchanged(client: Client, topic: str) -> None:
    """Keys, values, headers and timestamps come back as they were sent, nulls and empty bytes told apart."""
    sent = [
        Message(b"key", b"value", (("one", b"1"), ("two", b""), ("one", b"again")), 1_700_000_000_123),
        Message(None, b"no key", (), 1_700_000_000_124),
        Message(b"tombstone", None, (), 1_700_000_000_125),
        Message(b"", b"", (), 1_700_000_000_126),
        Message(bytes(range(256)), "grüße ☃".encode(), (("ключ", "значение".encode()),), 1_600_000_000_000),
    ]
    assert client.produce(topic, sent) == [0, 1, 2, 3, 4]
    assert client.consume(topic, 5) == [message._replace(offset=offset) for offset, message in enumerate(sent)]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_compressed_batches_are_read_by_every_client(client: Client, codec: str, broker: Broker, topic: str) -> None:
    """A batch compressed by one client is decompressed by all of them: the broker passes it through."""
    if codec not in client.codecs:
        pytest.skip(f"{client.name} has no {codec} here")
    sent = [Message(b"k%d" % number, b"value " * 200 + b"%d" % number) for number in range(50)]
    client.produce(topic, sent, Sending(compression=codec))
    readers = [make_reader(broker.bootstrap) for make_reader in CLIENTS.values()]
    for reader in readers:
        if codec not in reader.codecs:
            continue
        got = reader.consume(topic, 50)
        assert [(message.key, message.value) for message in got] == [(message.key, message.value) for message in sent]


@pytest.mark.parametrize("acks", ["1", "all"])
def test_acked_records_have_offsets(client: Client, acks: str, topic: str) -> None:
    """acks=1 and acks=all answer with the offsets under which the records are read."""
    assert client.produce(topic, [Message(value=b"%d" % number) for number in range(10)], Sending(acks=acks)) == list(
        range(10)
    )
    assert [message.value for message in client.consume(topic, 10)] == [b"%d" % number for number in range(10)]


def test_append_time(client: Client, broker: Broker) -> None:
    """With LogAppendTime every record has the time at which it came, for readers and for offsets by time."""
    topic = broker.create_topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    client.produce(topic, [Message(value=b"x", timestamp_ms=1_600_000_000_000 + number) for number in range(3)])
    times_ms = {message.timestamp_ms for message in client.consume(topic, 3)}
    assert min(times_ms) >= before_ms
    assert max(times_ms) <= int(time.time() * 1000)
    assert client.offset_at(topic, min(times_ms)) == 0
    assert client.offset_at(topic, max(times_ms) + 1) in (-1, 3)


def test_no_more_replicas_are_waited_for_than_there_are(client: Client, broker: Broker) -> None:
    """min.insync.replicas above the number of replicas does not keep records out."""
    topic = broker.create_topic(min_insync_replicas="2")
    assert client.produce(topic, [Message(value=b"x")], Sending(acks="all")) == [0]


def test_old_records_are_refused_where_a_topic_says_so(client: Client, broker: Broker) -> None:
    """message.timestamp.before.max.ms refuses a batch with an older record, compressed or not."""
    topic = broker.create_topic(message_timestamp_before_max_ms="3600000")
    now_ms = int(time.time() * 1000)
    new, old = Message(value=b"new", timestamp_ms=now_ms), Message(value=b"old", timestamp_ms=now_ms - 7_200_000)
    assert client.produce(topic, [new, new]) == [0, 1]
    for compression in ("none", "gzip"):
        with pytest.raises(Refused) as refused:
            client.produce(topic, [old], Sending(compression=compression))
        assert refused.value.code == INVALID_TIMESTAMP
    assert client.produce(topic, [new]) == [2]


def test_acks_0_are_kept_too(client: Client, topic: str) -> None:
    """acks=0 gets no answer, and the records are there all the same."""
    client.produce(topic, [Message(value=b"%d" % number) for number in range(10)], Sending(acks="0"))
    assert [message.value for message in client.consume(topic, 10)] == [b"%d" % number for number in range(10)]


def test_idempotent_producers(client: Client, topic: str) -> None:
    """A producer with a producer id and sequences gets its offsets in order, and a second one goes on behind it."""
    sent = [Message(value=b"%d" % number) for number in range(200)]
    assert client.produce(topic, sent, Sending(idempotent=True)) == list(range(200))
    assert client.produce(topic, sent, Sending(idempotent=True)) == list(range(200, 400))
    assert [message.offset for message in client.consume(topic, 400)] == list(range(400))


def test_partitions_are_separate(client: Client, broker: Broker) -> None:
    """Each partition counts its own offsets and gives back its own records."""
    topic = broker.create_topic(3)
    sent = [Message(value=b"%d" % number, partition=number % 3) for number in range(9)]
    client.produce(topic, sent)
    for partition in range(3):
        got = client.consume(topic, 3, partition=partition)
        assert [(message.offset, message.value) for message in got] == [
            (index, b"%d" % (index * 3 + partition)) for index in range(3)
        ]


def test_reading_starts_at_any_offset(client: Client, topic: str) -> None:
    """A reader that starts in the middle of a batch gets exactly the records from there on."""
    client.produce(topic, [Message(value=b"%d" % number) for number in range(30)])
    assert [message.offset for message in client.consume(topic, 13, offset=17)] == list(range(17, 30))


def test_too_large_records_are_refused(client: Client, broker: Broker) -> None:
    """max.message.bytes of a topic holds: a larger batch is MESSAGE_TOO_LARGE, smaller ones go on being accepted."""
    topic = broker.create_topic(max_message_bytes="20000")
    assert client.produce(topic, [Message(value=b"x" * 10_000)]) == [0]
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Message(value=b"x" * 30_000)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    assert client.produce(topic, [Message(value=b"x" * 19_000)]) == [1]


def test_large_records(client: Client, broker: Broker) -> None:
    """A topic that allows it takes records of 5 MB, and a reader whose fetch limit is smaller still makes progress."""
    topic = broker.create_topic(max_message_bytes="6000000")
    body = bytes(range(256)) * 20_000
    assert client.produce(
        topic, [Message(value=body), Message(value=b"small")], Sending(max_request_bytes=6_000_000)
    ) == [0, 1]
    assert [message.value for message in client.consume(topic, 2)] == [body, b"small"]


def test_topics_are_created_on_first_use(client: Client, broker: Broker) -> None:
    """Producing to a topic that is not there creates it, with one partition."""
    topic = f"auto-{client.name}-{broker.create_topic()}"
    reader = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Message(value=b"first", timestamp_ms=int(time.time() * 1000))])
    eventually(lambda: [message.value for message in reader.consume(topic, 1)] == [b"first"])


def test_many_batches_keep_their_order(client: Client, topic: str) -> None:
    """Thousands of records in many batches and several requests in flight come back complete and in order."""
    client.produce(topic, [Message(value=b"%06d" % number + b"x" * 94) for number in range(5_000)])
    got = client.consume(topic, 5_000)
    assert [int((message.value or b"")[:6]) for message in got] == list(range(5_000))
    assert [message.offset for message in got] == list(range(5_000))
