"""Framing, versions and order of answers, over a real socket to a real sidecar."""

import struct
import time
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from logstore.format.records import Record, encode_batch
from tests.kafka.conftest import HASTE_S, MAX_FRAME_BYTES
from tests.kafka.wire_client import API_VERSIONS, FETCH, METADATA, PRODUCE, WireClient, fetch_values
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

LONG_POLL_MS = PATIENCE_S * 1000 // 2
SASL_HANDSHAKE = 17


def batch(count: int = 1, value: bytes = b"v") -> bytes:
    """A batch of records with today's timestamps."""
    now_ms = int(time.time() * 1000)
    return bytes(encode_batch([Record(n, now_ms, None, value, ()) for n in range(count)]))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_in_every_version(client: WireClient, version: int) -> None:
    """ApiVersions lists what is served; Produce is said to begin at 0, or librdkafka does not compress, and
    SaslHandshake too, or an older librdkafka does not log in.
    """
    answer = client.request(API_VERSIONS, version)
    offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert answer.error_code is ErrorCode.none
    assert offered[PRODUCE] == (0, 13)
    assert offered[SASL_HANDSHAKE] == (0, 1)
    assert offered[METADATA] == (0, 13)
    assert {2, 10, 11, 12, 13, 14, 18, 19, 20, 21, 22, 32, 37, 43, 44, 45, 55, 60, 74, 75} <= set(offered)


@pytest.mark.parametrize("version", [3, 4])
def test_features_are_kafka_s(client: WireClient, version: int) -> None:
    """ApiVersions names Kafka's features, each at its one level here; a level of 0 is left out where clients cannot
    read it, and is never a finalized one.
    """
    answer = client.request(API_VERSIONS, version)
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
    finalized = [(f.name, f.min_version_level, f.max_version_level) for f in answer.finalized_features]
    assert (finalized, answer.finalized_features_epoch) == ([("metadata.version", 29, 29)], 0)
    assert supported["metadata.version"] == (29, 29)
    absent = {"group.version", "transaction.version", "share.version", "streams.version", "kraft.version"}
    absent.add("eligible.leader.replicas.version")
    assert {name: levels for name, levels in supported.items() if name != "metadata.version"} == dict.fromkeys(
        absent if version == 4 else (), (0, 0)
    )


def test_api_versions_of_the_future(client: WireClient) -> None:
    """An unknown version of ApiVersions is answered in version 0's layout: UNSUPPORTED_VERSION and what is served."""
    client.send_frame(client.header(API_VERSIONS, 99, flexible=True) + b"\x05abcd\x05efgh\x00")
    _, answer = client.receive(API_VERSIONS, 0)
    assert answer.error_code is ErrorCode.unsupported_version
    assert {api.api_key for api in answer.api_keys} >= {PRODUCE, FETCH}


def test_known_request_in_an_unknown_version(client: WireClient, topic: str) -> None:
    """A version that is not served is refused with UNSUPPORTED_VERSION, and the connection goes on."""
    client.send_frame(client.header(METADATA, 55, flexible=True) + b"whatever")
    _, answer = client.receive(METADATA, 13)
    assert answer.error_code is ErrorCode.unsupported_version
    assert client.latest(topic) == 0


def test_unknown_version_of_an_answer_without_a_code(client: WireClient) -> None:
    """Produce has no place for such an error: the connection is closed, as Kafka does."""
    client.send_frame(client.header(PRODUCE, 2, flexible=False) + b"whatever")
    assert client.receive_frame() == b""


@pytest.mark.parametrize("key", [24, 26, 27, 77, 4242, -1])
def test_unknown_request_closes_the_connection(client: WireClient, key: int) -> None:
    """An API key that is not served ends the connection, as Kafka does."""
    client.send_frame(client.header(key, 0, flexible=False))
    assert client.receive_frame() == b""


@pytest.mark.parametrize("size", [-1, 0, 7, MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_impossible_frame_size_closes_the_connection(client: WireClient, sidecar: Sidecar, size: int) -> None:
    """A frame that is too large, or too small for a header, ends its connection and nobody else's."""
    client.socket.sendall(struct.pack(">i", size) + bytes(64))
    assert client.receive_frame() == b""
    with WireClient(sidecar.port) as other:
        assert other.request(API_VERSIONS, 0).error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (METADATA, 1, struct.pack(">i", 2**31 - 1)),
        (METADATA, 12, b"\xff\xff\xff\xff\x0f"),
        (19, 5, b"\xff\xff\xff\xff\x07" + bytes(100)),
        (PRODUCE, 8, struct.pack(">hhii", -1, -1, 1000, 2**31 - 1)),
        (PRODUCE, 9, struct.pack(">bhi", 0, -1, 1000) + b"\xff\xff\xff\xff\x0f"),
        (FETCH, 11, struct.pack(">iiiibiii", -1, 0, 1, 1 << 20, 0, 0, -1, 2**31 - 1)),
        (METADATA, 1, struct.pack(">ih", 1, 9999) + b"short"),
        (METADATA, 1, struct.pack(">ih", 1, 2) + b"\xff\xfe"),
        (PRODUCE, 8, b""),
    ],
)
def test_malformed_request_closes_the_connection(
    client: WireClient, sidecar: Sidecar, key: int, version: int, body: bytes
) -> None:
    """Counts and lengths that the frame cannot hold end the connection; the process stays, and stays small."""
    client.send_frame(client.header(key, version, flexible=(key, version) in ((0, 9), (3, 12), (19, 5))) + body)
    assert client.receive_frame() == b""
    with WireClient(sidecar.port) as other:
        assert other.request(API_VERSIONS, 0).error_code is ErrorCode.none


def test_silent_connection_is_closed(hasty: Sidecar) -> None:
    """A client that never sends a whole request is not kept."""
    with WireClient(hasty.port) as client:
        client.socket.sendall(b"\x00\x00")
        assert client.receive_frame() == b""


def test_frames_cut_anywhere(client: WireClient, topic: str) -> None:
    """A request arrives byte by byte, and several in one piece: both are understood."""
    part = {"index": 0, "records": batch()}
    values: dict[str, Any] = {"acks": -1, "topic_data": [{"name": topic, "partition_data": [part]}]}
    sent = [client.frame(PRODUCE, 8, **values) for _ in range(3)]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in sent)
    for at in range(len(stream) - 40):
        client.socket.sendall(stream[at : at + 1])
    client.socket.sendall(stream[-40:])
    assert [client.receive_produced().base_offset for _ in range(3)] == [0, 1, 2]
    client.socket.sendall(stream)
    assert [client.receive_produced().base_offset for _ in range(3)] == [3, 4, 5]


def test_pipelined_answers_come_in_order(client: WireClient, topic: str) -> None:
    """Produce requests are answered in their order with consecutive offsets; what follows them sees what they wrote."""
    count = 200
    sent = [client.send_produce(topic, batch(value=b"x" * (n % 7 * 1000))) for n in range(count)]
    part = {"partition_index": 0, "timestamp": -1}
    client.send(2, 5, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    answers = [client.receive_produced() for _ in range(count)]
    assert [answer.correlation_id for answer in answers] == sent
    assert [answer.base_offset for answer in answers] == list(range(count))
    _, latest = client.receive(2, 5)
    assert latest.topics[0].partitions[0].offset == count


def test_waiting_fetch_holds_back_what_follows(client: WireClient, sidecar: Sidecar, topic: str) -> None:
    """A long poll keeps the connection's order, as in Kafka; others are served meanwhile, and wake it."""
    client.send(FETCH, 11, **fetch_values(topic, 0, max_wait_ms=LONG_POLL_MS))
    client.send(METADATA, 5, topics=[])
    with WireClient(sidecar.port) as other:
        assert other.produce(topic, batch()).base_offset == 0
    started_s = time.monotonic()
    _, fetched = client.receive(FETCH, 11)
    assert len(fetched.responses[0].partitions[0].records) > 0
    client.receive(METADATA, 5)
    assert time.monotonic() - started_s < LONG_POLL_MS / 1000


def test_acks_0_is_not_answered(client: WireClient, topic: str) -> None:
    """A client that wants no answer gets none; its records are there for whatever follows."""
    client.send_produce(topic, batch(), acks=0)
    assert client.latest(topic) == 1


def test_acks_0_error_closes_the_connection(client: WireClient) -> None:
    """The only way to tell such a client that it failed, as Kafka does."""
    client.send_produce("nobody-made-this", batch(), acks=0)
    assert client.receive_frame() == b""


def test_too_large_record_batch_is_refused(client: WireClient, topic: str) -> None:
    """A batch above max.message.bytes is MESSAGE_TOO_LARGE, and the connection goes on."""
    assert client.produce(topic, batch(value=b"x" * 1_100_000)).error == ErrorCode.message_too_large
    assert client.produce(topic, batch()).base_offset == 0


def test_fetch_that_waits_in_vain_is_answered_in_time(client: WireClient, topic: str) -> None:
    """A long poll without records ends when its time is up, with none."""
    started_s = time.monotonic()
    part = client.fetch(topic, 0, max_wait_ms=300)
    assert part.error_code is ErrorCode.none
    assert not part.records
    assert time.monotonic() - started_s >= 0.25


def test_idle_client_is_told_apart_from_a_waiting_one(hasty: Sidecar, topic: str) -> None:
    """A fetch may wait for longer than a new connection may be silent."""
    with WireClient(hasty.port) as client:
        assert client.create_topic(topic) == 0
        answer = client.request(FETCH, 11, **fetch_values(topic, 0, max_wait_ms=HASTE_S * 1500))
        assert answer.error_code is ErrorCode.none
        assert answer.throttle_time == timedelta(0)
