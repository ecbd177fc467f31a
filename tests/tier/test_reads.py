"""Reads of chunks that have left the disk: the same records as before, and a store that hangs or fails delays and fails
those who read from it, and nobody else.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest
import trio
from kio.schema.errors import ErrorCode

from logstore.base.system import SystemClock
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.errors import ObjectMissing, TierUnavailable
from logstore.events import TIER_CHUNK_NOT_STORED
from logstore.format.batch import iterate_batches
from logstore.format.control import END_TYPE
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.kafka.api_types import BrokerSettings
from logstore.log.read_patience import ReadPatience
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.testing.directory_objects import DirectoryObjects
from logstore.testing.reports import RecordedReports
from logstore.testing.world import ListGroup
from logstore.tier.interface import NoTurns
from logstore.tier.range_cache import RangeCache
from logstore.tier.service import TierService, TierStores
from logstore.tier.store_pauses import MAX_PAUSE_S
from tests.kafka.node import Node
from tests.support.limits import PATIENCE_S

TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "0", "segment.bytes": "4096"}
FIRST_MS = 1_700_000_000_000
BATCHES = 12
LIST_OFFSETS = 2


class Running(NamedTuple):
    """A store with a tier."""

    engine: StoreEngine
    tier: TierService
    objects: DirectoryObjects
    reports: RecordedReports

    async def append(self, stream: Stream, number: int) -> None:
        """One batch of 1 KB."""
        batch = encode_batch([Record(0, FIRST_MS + 1000 * number, None, b"%04d" % number + b"." * 1000)])
        await self.engine.wait(stream.append(batch, now_ms=FIRST_MS))

    async def values(self, stream: Stream) -> list[int]:
        """The numbers of all records."""
        found: list[int] = []
        offset = stream.log_start_offset
        while offset < stream.high_watermark:
            result = await self.engine.read(stream, offset, 1 << 20)
            whole = b"".join(result.buffers)
            for at, header in iterate_batches(whole):
                if not header.is_control:
                    batch = whole[at : at + header.size_bytes]
                    found += [int((record.value or b"")[:4]) for record in decode_batch(batch)]
            offset = result.next_offset
        return found


@asynccontextmanager
async def running(directory: Path, interval_s: float = 0.02) -> AsyncIterator[Running]:
    """A store in a directory, and its tier in another; `interval_s` between its rounds."""
    files, objects = OsFiles(directory / "data"), DirectoryObjects(OsFiles(directory / "tier"))
    for name in ("data", "tier"):
        (directory / name).mkdir(exist_ok=True)
    reports = RecordedReports()
    settings = StoreSettings(has_tier=True)
    store = Store.open(files, SystemClock(), settings, new_id=uuid.uuid4, report=reports)
    async with open_engine(store, files) as engine, trio.open_nursery() as nursery:
        tier = TierService(engine, files, TierStores(objects, NoTurns(), interval_s=interval_s), uuid.uuid4, nursery)
        nursery.start_soon(tier.run)
        yield Running(engine, tier, objects, reports)
        nursery.cancel_scope.cancel()
    files.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that must come."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  rounds come by the clock
            await trio.sleep(0.01)


async def filled(at: Running) -> Stream:
    """A stream with an append group whose chunks but the last have left the disk."""
    topic = await at.engine.wait(at.engine.store.create_topic("t", 1, TIERED))
    stream = topic.partitions[0]
    for number in range(BATCHES):
        if number == 2:
            await at.engine.wait(stream.append_group(ListGroup("q", 0, [])))
        await at.append(stream, number)
    await until(lambda: len(stream.chunks) == 1 and len(stream.tiered) >= 3)
    stream.tail.reset()  # what is in memory is read there
    return stream


@pytest.fixture(autouse=True)
def _directories(tmp_path: Path) -> None:
    for name in ("data", "tier"):
        (tmp_path / name).mkdir()


async def test_all_is_read_as_before(tmp_path: Path) -> None:
    """By offset, by time, the newest, and control records: what the tier alone has is found as on the disk, also after
    a restart.
    """
    async with running(tmp_path) as at:
        await filled(at)
    async with running(tmp_path) as at:
        stream = at.engine.store.stream("t", 0)
        assert stream.log_start_offset == 0 < stream.local_start_offset
        assert await at.values(stream) == list(range(BATCHES))
        found = [await at.engine.find_timestamp(stream, FIRST_MS + 1000 * number) for number in range(BATCHES)]
        assert [at and at.timestamp for at in found] == [FIRST_MS + 1000 * number for number in range(BATCHES)]
        newest = await at.engine.max_timestamp(stream)
        assert newest is not None
        assert newest.timestamp == FIRST_MS + 1000 * (BATCHES - 1)
        ends: list[int] = []
        await at.engine.find_ends(stream, 0, take=lambda offset, _: ends.append(offset))
        assert len(ends) == 1
        controls = await at.engine.scan_controls(stream, -1, (END_TYPE,), 1 << 20)
        assert len(controls.buffers) == 1


async def test_a_chunk_that_cannot_be_stored_is_tried_once_in_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file cannot be read, say: one line of the log, no round that follows at once, and no try before its time.
    Chunks behind it wait, so that it is stored when it can be.
    """
    tries: list[str] = []

    def missing(method: str, key: str) -> None:
        if method == "put" and key.endswith(".log"):
            tries.append(key)
            raise ObjectMissing(key)

    async with running(tmp_path, interval_s=3600.0) as at:
        at.objects.before = missing
        topic = await at.engine.wait(at.engine.store.create_topic("t", 1, TIERED))
        for number in range(BATCHES):
            await at.append(topic.partitions[0], number)
        for _ in range(3):
            assert not await at.engine.wait(at.tier.tiering.round())
        assert len(tries) == 1
        assert len(at.reports.of(TIER_CHUNK_NOT_STORED)) == 1
        assert not topic.partitions[0].tiered
        at.objects.before = lambda method, key: None
        monkeypatch.setattr(at.engine.store.clock, "monotonic_s", lambda: monotonic() + MAX_PAUSE_S)
        while await at.engine.wait(at.tier.tiering.round()):
            pass
        assert topic.partitions[0].tiered.end_offset == topic.partitions[0].chunks[-1].base_offset


async def test_a_store_that_hangs_delays_its_readers_alone(tmp_path: Path) -> None:
    """While the store does not answer, appends and reads of the disk go on, and a reader that cannot wait gets nothing
    yet; when it answers, the reader is woken and gets its records.
    """
    async with running(tmp_path) as at:
        stream = await filled(at)
        answers = threading.Event()

        def hang(method: str, _: str) -> None:
            if method == "get":
                answers.wait(PATIENCE_S)

        at.objects.before = hang
        woken = trio.Event()
        stream.add_waiter(woken.set)
        nothing = await at.engine.read(stream, 0, 1 << 20, patience=ReadPatience(0))
        assert (nothing.buffers, nothing.next_offset) == ([], 0)
        assert not woken.is_set()
        stream.remove_waiter(woken.set)
        await at.append(stream, BATCHES)
        local = await at.engine.read(stream, stream.local_start_offset, 1 << 20)
        assert local.buffers
        stream.add_waiter(woken.set)
        answers.set()
        with trio.fail_after(PATIENCE_S):
            await woken.wait()
        assert (await at.engine.read(stream, 0, 1 << 20, patience=ReadPatience(0))).buffers


async def test_a_start_reads_what_it_needs_on_the_disk(tmp_path: Path) -> None:
    """What lies behind the decision of an epoch that is not over keeps its local copy, for a start searches it for the
    epoch's END before there is a tier; when the epoch is over, it goes.
    """
    async with running(tmp_path) as at:
        topic = await at.engine.wait(at.engine.store.create_topic("t", 1, TIERED))
        stream = topic.partitions[0]
        for number in range(BATCHES):
            if number == BATCHES // 2:
                pin = stream.pin(stream.high_watermark)
                await at.engine.wait(stream.append_group(ListGroup("q", 0, [])))
            await at.append(stream, number)
        await until(lambda: stream.local_start_offset > 0 and len(stream.tiered) == len(stream.kept_chunks) - 1)
        for _ in range(2):
            await at.engine.wait(at.tier.tiering.round())
        stream.tail.reset()
        cache, at.engine.tier.cache = at.engine.tier.cache, None
        ends: list[int] = []
        await at.engine.find_ends(stream, BATCHES // 2, take=lambda offset, _: ends.append(offset))
        assert ends == [BATCHES // 2 + 1]
        at.engine.tier.cache = cache
        pin.release()
        await until(lambda: len(stream.chunks) == 1)


async def test_a_look_up_by_time_waits_once_for_a_store_that_is_silent(tmp_path: Path) -> None:
    """Of a request for many partitions, the first that needs the store waits until it is given up; the others that need
    it are told soon to ask again, and what is on the disk is found.
    """
    async with running(tmp_path) as at:
        tiered = await at.engine.wait(at.engine.store.create_topic("t", 2, TIERED))
        local = await at.engine.wait(at.engine.store.create_topic("local", 1, {}))
        for stream in (*tiered.partitions, *local.partitions):
            for number in range(BATCHES):
                await at.append(stream, number)
            await at.engine.wait(stream.write_backlog())
        await until(lambda: all(len(stream.chunks) == 1 for stream in tiered.partitions))
        answers, asked = threading.Event(), list[str]()

        def silent(method: str, key: str) -> None:
            if method == "get":
                asked.append(key)
                if len(asked) == 1:
                    raise TierUnavailable(f"{key}: no answer in 30 s")
                answers.wait(PATIENCE_S)

        at.objects.before = silent
        node, time = Node(at.engine, BrokerSettings(), at.reports), {"current_leader_epoch": -1, "timestamp": FIRST_MS}
        places = {"t": [0, 1], "local": [0]}
        topics = [
            {"name": name, "partitions": [{"partition_index": number, **time} for number in numbers]}
            for name, numbers in places.items()
        ]
        with trio.fail_after(PATIENCE_S / 2):
            answer = await node.ask(LIST_OFFSETS, 11, replica_id=-1, topics=topics)
        found = [part.error_code for topic in answer.topics for part in topic.partitions]
        assert found == [ErrorCode.kafka_storage_error] * 2 + [ErrorCode.none]
        assert len(asked) == 2
        answers.set()


async def test_a_store_that_fails_says_so_to_its_readers(tmp_path: Path) -> None:
    """The error of the store reaches the reader, who may try again: then the records are there."""
    async with running(tmp_path) as at:
        stream = await filled(at)

        def fail(method: str, key: str) -> None:
            if method == "get":
                raise TierUnavailable(f"{key}: away")

        at.objects.before = fail
        with pytest.raises(TierUnavailable, match="away"):
            await at.values(stream)
        at.objects.before = lambda *_: None
        assert await at.values(stream) == list(range(BATCHES))


async def test_a_batch_that_the_cache_does_not_keep_is_read(tmp_path: Path) -> None:
    """A reader that does not wait gets a batch of more than half of the cache, once it has come."""
    async with running(tmp_path) as at:
        at.engine.tier.cache = RangeCache(at.objects, 1 << 20)
        config = {**TIERED, "max.message.bytes": "2000000"}
        topic = await at.engine.wait(at.engine.store.create_topic("t", 1, config))
        stream = topic.partitions[0]
        value = b"x" * 900_000
        for number in range(3):
            batch = encode_batch([Record(0, FIRST_MS + number, None, value)])
            await at.engine.wait(stream.append(batch, now_ms=FIRST_MS))
        await until(lambda: len(stream.chunks) == 1)
        stream.tail.reset()
        woken = trio.Event()
        stream.add_waiter(woken.set)
        assert not (await at.engine.read(stream, 0, 1 << 20, patience=ReadPatience(0))).buffers
        with trio.fail_after(PATIENCE_S):
            await woken.wait()
        found = await at.engine.read(stream, 0, 1 << 20, patience=ReadPatience(0))
        assert [record.value for record in decode_batch(bytes(found.buffers[0]))] == [value]


async def test_a_damaged_local_copy_is_read_from_the_tier(tmp_path: Path) -> None:
    """A chunk that is on the disk as well is served from the tier when its local bytes no longer match."""
    async with running(tmp_path) as at:
        config = {**TIERED, "local.retention.bytes": "-2"}
        topic = await at.engine.wait(at.engine.store.create_topic("t", 1, config))
        stream = topic.partitions[0]
        for number in range(BATCHES):
            await at.append(stream, number)
        await until(lambda: len(stream.tiered) == len(stream.chunks) - 1)
        path = tmp_path / "data" / stream.chunks[0].log_path
        data = bytearray(path.read_bytes())
        data[500] ^= 1
        path.write_bytes(data)
        stream.tail.reset()
        assert await at.values(stream) == list(range(BATCHES))


async def test_a_full_store_pauses_uploads_alone(tmp_path: Path) -> None:
    """Chunks stay on the disk while the store refuses them, the reason is reported once; then they go."""
    async with running(tmp_path) as at:

        def full(method: str, key: str) -> None:
            if method == "put":
                raise TierUnavailable(f"{key}: no room")

        at.objects.before = full
        topic = await at.engine.wait(at.engine.store.create_topic("t", 1, TIERED))
        stream = topic.partitions[0]
        for number in range(BATCHES):
            await at.append(stream, number)
        await until(lambda: at.tier.figures.failures >= 1)
        assert [event for event, _ in at.reports.events if event.startswith("tier_away")] == ["tier_away"]
        assert len(stream.chunks) > 1
        assert await at.values(stream) == list(range(BATCHES))
        at.objects.before = lambda *_: None
        await until(lambda: len(stream.chunks) == 1)
        assert at.tier.figures.away_since_ms is None
