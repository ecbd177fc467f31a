"""What only plain sockets can ask: long polls, limits, damaged batches, and what a server does not know."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from benchmarks.harness.raw import (
    RawConnection,
    RawFailed,
    fetch_frame,
    fetched,
    frame,
    make_batch,
    produce_frame,
    produced_error,
    produced_offset,
)
from tests.foreign_clients.broker import Broker
from tests.support.limits import PATIENCE_S

NOW_MS = 1_700_000_000_000
CORRUPT_MESSAGE, UNKNOWN_TOPIC, UNSUPPORTED_VERSION, OFFSET_OUT_OF_RANGE, INVALID_TIMESTAMP = 2, 3, 35, 1, 32
API_VERSIONS = 18
LONG_POLL_MS = PATIENCE_S * 1000 // 2


@pytest.fixture
def wire(broker: Broker) -> Iterator[RawConnection]:
    """A connection without a client behind it."""
    with RawConnection(broker.port) as connection:
        yield connection


def batch(count: int = 10, size: int = 100) -> bytes:
    """A batch of records that differ."""
    return make_batch([b"%d" % number + b"x" * size for number in range(count)], timestamp_ms=NOW_MS)


def test_an_empty_fetch_waits(wire: RawConnection, topic: str) -> None:
    """A fetch at the end waits as long as it was told, then comes back empty."""
    begun = time.monotonic()
    got = wire.fetch(topic, 0, 0, max_wait_ms=300)
    assert time.monotonic() - begun >= 0.28
    assert (got.high_watermark, bytes(got.records)) == (0, b"")


def test_a_waiting_fetch_wakes(broker: Broker, wire: RawConnection, topic: str) -> None:
    """A fetch that waits at the end is answered as soon as a record is there."""
    with RawConnection(broker.port) as reader:
        reader.send(fetch_frame(topic, 0, 0, max_wait_ms=LONG_POLL_MS))
        wire.produce(topic, 0, batch())
        begun = time.monotonic()
        got = fetched(reader.receive(), topic)
        assert time.monotonic() - begun < LONG_POLL_MS / 1000
        assert got.high_watermark == 10
        assert len(got.records) == len(batch())


def test_min_bytes_are_waited_for(broker: Broker, wire: RawConnection, topic: str) -> None:
    """A fetch with min_bytes is not answered by less, and is by as much."""
    one = batch()
    with RawConnection(broker.port) as reader:
        reader.send(fetch_frame(topic, 0, 0, max_wait_ms=LONG_POLL_MS, min_bytes=len(one) + 1))
        wire.produce(topic, 0, one)
        reader.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            reader.receive()
        reader.socket.settimeout(PATIENCE_S)
        wire.produce(topic, 0, one)
        assert len(fetched(reader.receive(), topic).records) == 2 * len(one)


def test_max_bytes_are_kept(wire: RawConnection, topic: str) -> None:
    """A fetch gives at most max_bytes, except for a first batch that is larger: a reader must not get stuck."""
    one = batch()
    for _ in range(5):
        wire.produce(topic, 0, one)
    assert len(one) * 2 <= len(wire.fetch(topic, 0, 0, max_bytes=len(one) * 3).records) <= len(one) * 3
    assert len(wire.fetch(topic, 0, 0, max_bytes=10).records) == len(one)


def test_what_is_fetched_is_what_was_sent(wire: RawConnection, topic: str) -> None:
    """A batch comes back byte by byte as it was sent, except for its base offset and leader epoch."""
    wire.produce(topic, 0, batch(3))
    sent = batch(7)
    assert wire.produce(topic, 0, sent) == 3
    got = bytes(wire.fetch(topic, 0, 3).records)
    assert got[:8] == struct.pack(">q", 3)
    assert got[8:12] == sent[8:12]
    assert got[16:] == sent[16:]


def test_pipelined_requests_are_answered_in_order(wire: RawConnection, topic: str) -> None:
    """Many requests sent at once are answered one by one, in their order, with rising offsets."""
    for correlation in range(50):
        request = produce_frame(topic, 0, batch(2))
        struct.pack_into(">i", request, 8, correlation)
        wire.send(request)
    for correlation in range(50):
        answer = wire.receive()
        assert struct.unpack_from(">i", answer)[0] == correlation
        assert produced_offset(answer, topic) == correlation * 2


@pytest.mark.parametrize("position", [17, 30, 70, 200])
def test_a_damaged_batch_is_refused(wire: RawConnection, topic: str, position: int) -> None:
    """A batch whose bytes do not match its CRC is CORRUPT_MESSAGE; nothing of it is stored, the connection goes on."""
    damaged = bytearray(batch())
    damaged[position] ^= 1
    answer = wire.call(produce_frame(topic, 0, bytes(damaged)))
    assert produced_error(answer, topic) == CORRUPT_MESSAGE
    assert wire.produce(topic, 0, batch()) == 0


def test_timestamps_far_ahead_are_refused(broker: Broker, wire: RawConnection, topic: str) -> None:
    """A batch dated a day ahead is INVALID_TIMESTAMP."""
    ahead = make_batch([b"x"], timestamp_ms=int(time.time() * 1000) + 86_400_000)
    assert produced_error(wire.call(produce_frame(topic, 0, ahead)), topic) == INVALID_TIMESTAMP
    assert wire.produce(topic, 0, batch()) == 0


def test_offsets_out_of_range(wire: RawConnection, topic: str) -> None:
    """A fetch behind the end or before the beginning is OFFSET_OUT_OF_RANGE."""
    wire.produce(topic, 0, batch())
    for offset in (11, -5, 1 << 40):
        with pytest.raises(RawFailed, match=f"error {OFFSET_OUT_OF_RANGE}"):
            wire.fetch(topic, 0, offset)


def test_unknown_partitions(wire: RawConnection, topic: str) -> None:
    """Produce and fetch of a partition that is not there are UNKNOWN_TOPIC_OR_PARTITION."""
    assert produced_error(wire.call(produce_frame(topic, 7, batch())), topic) == UNKNOWN_TOPIC
    with pytest.raises(RawFailed, match=f"error {UNKNOWN_TOPIC}"):
        wire.fetch(topic, 7, 0)


def test_unknown_requests_end_the_connection(wire: RawConnection) -> None:
    """An API key that does not exist closes the connection."""
    wire.send(frame(999, 0, b""))
    with pytest.raises((RawFailed, ConnectionError)):
        wire.receive()


def test_unknown_versions_of_api_versions(wire: RawConnection) -> None:
    """ApiVersions of a version from the future gets version 0's layout, with UNSUPPORTED_VERSION and a list."""
    answer = wire.call(frame(API_VERSIONS, 99, b"\0" * 8))
    error, count = struct.unpack_from(">hi", answer, 4)
    assert error == UNSUPPORTED_VERSION
    assert len(answer) == 10 + count * 6
    offered = {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", answer[10:])}
    assert offered[API_VERSIONS][0] == 0


def test_oversized_frames_end_the_connection(broker: Broker, wire: RawConnection, topic: str) -> None:
    """A frame that claims two gigabytes closes the connection at once; other connections do not notice."""
    wire.send(struct.pack(">i", 0x7FFFFFFF) + b"\0" * 64)
    with pytest.raises((RawFailed, ConnectionError)):
        wire.receive()
    with RawConnection(broker.port) as other:
        assert other.produce(topic, 0, batch()) == 0


def test_half_a_frame_harms_nobody(broker: Broker, topic: str) -> None:
    """A client that ends in the middle of a frame, or sends what is no request, harms no other."""
    whole = produce_frame(topic, 0, batch())
    for start in (whole[:50], whole[:-1], b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100):
        with socket.create_connection(("127.0.0.1", broker.port)) as rude:
            rude.sendall(start)
    with RawConnection(broker.port) as polite:
        assert polite.produce(topic, 0, batch()) == 0
