"""The blocking client and a real sidecar: control batches staged, published and scanned; topics made and trimmed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from logstore.client.blocking import Client, SidecarRefused, TopicPartition, parse_addresses
from logstore.client.errors import TOPIC_ALREADY_EXISTS
from logstore.errors import (
    CorruptChunk,
    InvalidConfig,
    InvalidPartitions,
    InvalidRecord,
    OffsetOutOfRange,
    TopicExists,
    UnknownTopicOrPartition,
)
from logstore.format.batch import HEADER_BYTES, iterate_batches
from logstore.format.control import (
    BEGIN_TYPE,
    END_TYPE,
    FOOTPRINTS_TYPE,
    MARK_TYPE,
    TOMBSTONES_TYPE,
    decode_control_record,
    encode_control_record,
)
from logstore.format.epoch_api import EpochCommitRequest, Part, ScanReply, ScanRequest, StageRequest, TaskOutput
from logstore.format.records import Record, encode_batch
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

NOW_MS = 1_700_000_000_000
OUT = TopicPartition("out", 0)
PLAIN = bytes(encode_batch([Record(0, NOW_MS, b"k", b"v" * 50)] * 10))


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    """A sidecar that keeps next to nothing in memory, so that scans go to disk and memory both."""
    with Sidecar(tmp_path / "data", "--tail-bytes", str(1 << 20)) as running:
        yield running


@pytest.fixture
def client(sidecar: Sidecar) -> Iterator[Client]:
    """A client of it, with the topic."""
    with Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S) as connected:
        connected.create_topic(OUT.topic, 2)
        yield connected


def control(kind: int, epoch: int, tail_bytes: int = 100) -> bytes:
    """A control batch of a query's state."""
    return bytes(encode_control_record(kind, {"query": "q", "epoch": epoch}, bytes(tail_bytes), NOW_MS))


def stage(client: Client, epoch: int, batches: Sequence[bytes], position: int = 0) -> None:
    """Stage one segment for the stream; a plain batch has 10 records, a control batch one."""
    records = sum(header.record_count for batch in batches for _, header in iterate_batches(batch))
    data = b"".join(batches)
    part = Part(OUT.topic, OUT.partition, len(data), len(batches), records)
    client.stage(StageRequest("q", "r", epoch, 0, "a", position, (part,), data))


def commit(client: Client, epoch: int, segments: int = 1) -> None:
    """Commit an epoch."""
    tasks = (TaskOutput(0, "a", segments),)
    client.commit(EpochCommitRequest("q", "r", epoch, "error", tasks, f"positions of {epoch}", forget=False))


def publish(client: Client, epoch: int, footprint_bytes: int = 100) -> None:
    """An epoch as a stateful query writes it."""
    batches = [PLAIN, control(FOOTPRINTS_TYPE, epoch, footprint_bytes), control(MARK_TYPE, epoch)]
    stage(client, epoch, batches)
    commit(client, epoch)


def kinds(reply: ScanReply) -> list[tuple[int, int]]:
    """Offsets and types of a scan's control batches, as they come."""
    return [
        (header.base_offset, decode_control_record(reply.batches, position).kind)
        for position, header in iterate_batches(reply.batches)
    ]


def test_state_goes_through_staging_into_the_stream(client: Client) -> None:
    """Control batches come out of a scan as they were staged, newest first, between BEGIN and END."""
    publish(client, 0)
    stage(client, 1, [PLAIN, control(FOOTPRINTS_TYPE, 1)])
    stage(client, 1, [control(TOMBSTONES_TYPE, 1), control(MARK_TYPE, 1)], position=1)
    commit(client, 1, segments=2)
    reply = client.scan(ScanRequest("out", 0, -1, (), 1 << 20))
    assert kinds(reply) == [
        (28, END_TYPE),
        (27, MARK_TYPE),
        (26, TOMBSTONES_TYPE),
        (25, FOOTPRINTS_TYPE),
        (14, BEGIN_TYPE),
        (13, END_TYPE),
        (12, MARK_TYPE),
        (11, FOOTPRINTS_TYPE),
        (0, BEGIN_TYPE),
    ]
    assert (reply.next_before, reply.log_start_offset, reply.high_watermark) == (0, 0, 29)
    assert control(TOMBSTONES_TYPE, 1)[HEADER_BYTES:] in bytes(reply.batches)


def test_as_of_an_earlier_epoch(client: Client) -> None:
    """The END of an epoch is found by type; a scan from right behind it sees the stream as it was then."""
    for epoch in range(4):
        publish(client, epoch)
    ends = client.scan(ScanRequest("out", 0, -1, (END_TYPE,), 1 << 20))
    offsets = [
        header.base_offset
        for position, header in iterate_batches(ends.batches)
        if decode_control_record(ends.batches, position).fields["epoch"] == 1
    ]
    then = client.scan(ScanRequest("out", 0, offsets[0] + 1, (), 1 << 20))
    epochs = [decode_control_record(then.batches, at).fields["epoch"] for at, _ in iterate_batches(then.batches)]
    assert epochs == [1, 1, 1, 1, 0, 0, 0, 0]
    assert then.high_watermark == ends.high_watermark


def test_pieces_are_asked_for_ahead(client: Client) -> None:
    """A large stream comes in pieces, each asked for while the one before it is looked at; a restart is not noticed."""
    for epoch in range(12):
        publish(client, epoch, footprint_bytes=400_000)
    found: list[tuple[int, int]] = []
    pending = client.start_scan(ScanRequest("out", 0, -1, (), 1 << 20))
    while True:
        reply = pending.receive()
        assert len(reply.batches) <= 1 << 20
        if reply.next_before <= reply.log_start_offset:
            found += kinds(reply)
            break
        pending = client.start_scan(ScanRequest("out", 0, reply.next_before, (), 1 << 20))
        found += kinds(reply)
    assert [kind for _, kind in found] == [END_TYPE, MARK_TYPE, FOOTPRINTS_TYPE, BEGIN_TYPE] * 12
    assert [offset for offset, _ in found] == sorted((offset for offset, _ in found), reverse=True)


def test_a_scan_survives_a_restart(client: Client, sidecar: Sidecar) -> None:
    """Whoever asked before the sidecar died gets the answer of the next one."""
    publish(client, 0)
    expected = client.scan(ScanRequest("out", 0, -1, (), 1 << 20))
    pending = client.start_scan(ScanRequest("out", 0, -1, (), 1 << 20))
    sidecar.kill()
    sidecar.restart()
    reply = pending.receive()
    assert bytes(reply.batches) == bytes(expected.batches)


def test_what_a_scan_refuses(client: Client) -> None:
    """Errors come back as their classes; the connection serves on."""
    with pytest.raises(UnknownTopicOrPartition):
        client.scan(ScanRequest("nowhere", 0, -1, (), 1))
    with pytest.raises(UnknownTopicOrPartition):
        client.scan(ScanRequest("out", 2, -1, (), 1))
    with pytest.raises(OffsetOutOfRange) as caught:
        client.scan(ScanRequest("out", 0, 1, (), 1))
    assert (caught.value.offset, caught.value.start_offset, caught.value.high_watermark) == (1, 0, 0)
    reply = client.scan(ScanRequest("out", 0, -1, (), 1))
    assert (bytes(reply.batches), reply.next_before, reply.log_start_offset) == (b"", 0, 0)


@pytest.mark.parametrize("kind", [0, 1, BEGIN_TYPE, END_TYPE, MARK_TYPE + 1])
def test_other_control_records_cannot_be_staged(client: Client, kind: int) -> None:
    """Neither Kafka's own, nor the log's BEGIN and END, nor types that nobody knows."""
    with pytest.raises(InvalidRecord, match=f"type {kind} "):
        stage(client, 0, [PLAIN, control(kind, 0)])


def test_other_readers_see_records_only(client: Client) -> None:
    """An ordinary fetch gets empty batches over the offsets of control batches, however large they are."""
    publish(client, 0, footprint_bytes=300_000)
    fetched = client.start_fetch(OUT, 0, 1 << 20).receive()
    seen = [
        (header.base_offset, header.record_count, header.size_bytes) for _, header in iterate_batches(fetched.records)
    ]
    assert seen == [
        (0, 0, HEADER_BYTES),
        (1, 10, len(PLAIN)),
        (11, 0, HEADER_BYTES),
        (12, 0, HEADER_BYTES),
        (13, 0, HEADER_BYTES),
    ]


def test_trimmed_and_damaged(client: Client, sidecar: Sidecar) -> None:
    """A scan ends at the log start; a damaged control batch is an error with its offset, and what is in front of it can
    still be had.
    """
    for epoch in range(3):
        publish(client, epoch)
    assert client.delete_records(OUT, 12) == 12
    reply = client.scan(ScanRequest("out", 0, -1, (MARK_TYPE, FOOTPRINTS_TYPE), 1 << 20))
    assert (kinds(reply)[-1], reply.next_before, reply.log_start_offset) == ((12, MARK_TYPE), 12, 12)
    sidecar.terminate()
    (path,) = sidecar.data_dir.glob("streams/out.*/0/*.log")
    data = bytearray(path.read_bytes())
    data[data.rindex(control(MARK_TYPE, 2)[HEADER_BYTES:]) + 40] ^= 1
    path.write_bytes(data)
    sidecar.restart()
    newest = client.scan(ScanRequest("out", 0, -1, (), 1 << 20))
    assert kinds(newest) == [(41, END_TYPE)]
    with pytest.raises(CorruptChunk) as caught:
        client.scan(ScanRequest("out", 0, newest.next_before, (), 1 << 20))
    assert (caught.value.first_offset, caught.value.last_offset) == (40, 40)
    older = client.scan(ScanRequest("out", 0, 40, (), 1 << 20))
    assert kinds(older)[0] == (39, FOOTPRINTS_TYPE)


# ---- topics


def test_topics_are_made_once(client: Client) -> None:
    """A topic has the partitions and settings asked for, and more partitions later; another one of that name is told
    apart from other refusals.
    """
    client.create_topic("made", 3, {"segment.bytes": "4096", "retention.ms": "-1"})
    assert client.partitions("made") == 3
    settings = client.topic_configs("made")
    assert (settings["segment.bytes"], settings["retention.ms"]) == ("4096", "-1")
    assert settings["max.message.bytes"] == "1048588"
    client.create_partitions("made", 5)
    assert client.partitions("made") == 5
    with pytest.raises(InvalidPartitions, match="'made' has 5 partitions; 5 would not be more"):
        client.create_partitions("made", 5)
    with pytest.raises(SidecarRefused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        client.create_partitions("nowhere", 5)
    with pytest.raises(TopicExists, match="made"):
        client.create_topic("made", 1)
    with pytest.raises(InvalidConfig, match="nonsense"):
        client.create_topic("other", 1, {"nonsense": "1"})
    with pytest.raises(SidecarRefused) as caught:
        client.create_topic("other", 0)
    assert caught.value.code not in (0, TOPIC_ALREADY_EXISTS)
    with pytest.raises(SidecarRefused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        client.topic_configs("other")


def test_streams_are_trimmed(client: Client) -> None:
    """The answer is where the stream starts now; what cannot be is refused."""
    for _ in range(3):
        client.produce(OUT, PLAIN)
    assert client.delete_records(OUT, 15) == 15
    assert client.delete_records(OUT, 5) == 15
    assert client.delete_records(OUT, -1) == 30
    with pytest.raises(SidecarRefused, match="OFFSET_OUT_OF_RANGE"):
        client.delete_records(OUT, 31)
    with pytest.raises(SidecarRefused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        client.delete_records(TopicPartition("nowhere", 0), 0)
