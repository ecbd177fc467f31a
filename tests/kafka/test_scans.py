"""Scans through the front: bounds on answers, errors inside them, and what the operator is told."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
import trio.testing

from logstore.errors import CairnError, MalformedRequest, OffsetOutOfRange, StorageFailed, UnknownTopicOrPartition
from logstore.events import READ_FAILED
from logstore.format.batch import iterate_batches
from logstore.format.control import MARK_TYPE, encode_control_record
from logstore.format.epoch_api import SCAN, ScanReply, ScanRequest, decode_reply, encode_request
from logstore.kafka.api_types import BrokerSettings
from logstore.kafka.scans import MAX_SCAN_BYTES
from logstore.log.journal import JournalLimits
from logstore.log.store import StoreSettings
from logstore.testing.world import ListGroup
from tests.kafka.front_driver import NOW_MS, TOPIC, Peer, Server, batch, request_frame, serving, wait_until
from tests.support.limits import PATIENCE_S

ON_DISK = StoreSettings(tail_bytes=1, journal=JournalLimits(file_bytes=0))


async def fill(server: Server, batches: int, tail_bytes: int) -> None:
    """A group with so many control batches."""
    pieces = [encode_control_record(MARK_TYPE, {"n": n}, bytes(tail_bytes), NOW_MS) for n in range(batches)]
    await server.engine.wait(server.stream.append_group(ListGroup("query", 0, pieces)))


def frame_of(request: ScanRequest) -> bytes:
    """A scan as it is sent."""
    whole = b"".join(encode_request(request, correlation_id=5))
    return len(whole).to_bytes(4, "big") + whole


async def ask(peer: Peer, max_bytes: int, before_offset: int = -1, topic: str = TOPIC) -> ScanReply:
    """One scan; raises what the answer says."""
    body = await peer.ask(frame_of(ScanRequest(topic, 0, before_offset, (), max_bytes)))
    _, reply = decode_reply(SCAN, b"\0\0\0\5" + body)
    if isinstance(reply, CairnError):
        raise reply
    assert isinstance(reply, ScanReply)
    return reply


async def test_answers_have_a_bound(tmp_path: Path) -> None:
    """Whatever is asked for, an answer is at most 16 MiB, one batch at least, and the last one says that it is."""
    settings = BrokerSettings(total_answer_bytes=1 << 30)
    async with serving(tmp_path, settings, store_settings=ON_DISK) as server, await server.connect() as peer:
        await fill(server, 40, 1_000_000)
        assert MAX_SCAN_BYTES - 1_001_000 < len((await ask(peer, 2**31 - 1)).batches) <= MAX_SCAN_BYTES
        for max_bytes in (0, 1, 200):
            reply = await ask(peer, max_bytes, before_offset=41)
            assert len(list(iterate_batches(reply.batches))) == 1
            assert 40 <= reply.next_before <= 41
        found, before = 0, -1
        while True:
            reply = await ask(peer, 5 << 20, before)
            found += len(list(iterate_batches(reply.batches)))
            before = reply.next_before
            if before <= reply.log_start_offset:
                break
        assert found == 42


async def test_unread_answers_to_scans_are_bounded(tmp_path: Path) -> None:
    """Clients that scan much and read nothing make later answers smaller; what they held is given back."""
    settings = BrokerSettings(total_answer_bytes=4 << 20)
    async with serving(tmp_path, settings, store_settings=ON_DISK) as server:
        await fill(server, 60, 200_000)
        frame = frame_of(ScanRequest(TOPIC, 0, -1, (), 50 << 20))
        deaf = [await server.connect(receive_buffer_bytes=2048) for _ in range(20)]
        for peer in deaf:
            await peer.send(frame, frame, frame)
        await wait_until(lambda: server.kafka._answers.free_bytes < 1 << 20)
        await trio.testing.wait_all_tasks_blocked(0.3)
        assert (4 << 20) - server.kafka._answers.free_bytes <= (4 << 20) + len(deaf) * 256 * 1024
        async with await server.connect() as peer:
            assert 200_000 <= len((await ask(peer, 50 << 20)).batches) < 3 << 20
        for peer in deaf:
            await peer.stream.aclose()
        with trio.fail_after(PATIENCE_S):
            while server.kafka._connections:
                await trio.lowlevel.checkpoint()
        assert server.kafka._answers.free_bytes == 4 << 20


async def test_errors_stand_in_the_answer(tmp_path: Path) -> None:
    """A topic that is not there, an offset that is not, bytes that are no scan: told, and the connection serves on."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        with pytest.raises(UnknownTopicOrPartition):
            await ask(peer, 1, topic="nowhere")
        with pytest.raises(OffsetOutOfRange):
            await ask(peer, 1, before_offset=1)
        body = await peer.ask(request_frame(SCAN, 0, b"nonsense"))
        with pytest.raises(MalformedRequest):
            raise cast_error(decode_reply(SCAN, b"\0\0\0\5" + body)[1])
        assert (await ask(peer, 1)).high_watermark == 0
        assert server.reported(READ_FAILED) == []
        assert server.kafka._answers.free_bytes == BrokerSettings().total_answer_bytes


def cast_error(reply: object) -> CairnError:
    """The error that an answer is."""
    assert isinstance(reply, CairnError)
    return reply


async def test_a_disk_that_cannot_be_read(tmp_path: Path) -> None:
    """The client is told to try again, the operator what happened; afterwards it works."""
    async with serving(tmp_path, store_settings=ON_DISK) as server, await server.connect() as peer:
        await fill(server, 3, 100)
        await server.engine.wait(server.stream.append(bytearray(batch(1, 10)), now_ms=NOW_MS))
        server.files.failure = OSError(errno.EIO, "the disk is away")
        with pytest.raises(StorageFailed, match="the disk is away"):
            await ask(peer, 1 << 20)
        assert "the disk is away" in str(server.reported(READ_FAILED))
        server.files.failure = None
        assert len(list(iterate_batches((await ask(peer, 1 << 20)).batches))) == 5
