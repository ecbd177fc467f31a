"""The scrub: what nobody reads is checked within the period, at a bounded rate, and what is damaged is told once."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from errno import EIO, EMFILE
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from logstore.base.system import SystemClock
from logstore.disk.files import OsFiles
from logstore.disk.reads_beside import ReadsBeside
from logstore.disk.scrub import ALONE, DAMAGE_PAUSE_S, HOLD_S, Scrub, ScrubHooks, ScrubTurn
from logstore.engine import open_engine
from logstore.format.records import Record, encode_batch
from logstore.format.snapshot import BLOCK
from logstore.interfaces import FileSystem
from logstore.log.jobs import DiskJob, Operation, Sync
from logstore.log.replica_chunk import ChunkPrefix
from logstore.log.scrubbing import (
    DAY_S,
    KEY,
    LEAST_BYTES,
    PIECE_BYTES,
    WALK_SHARE,
    ScrubPlace,
    ScrubProgress,
    ScrubSettings,
    check_piece,
    decode_progress,
)
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.log.ticket import TicketView
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.driver import JobDriver
from logstore.testing.faults import Fault, FileCall
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from tests.cluster.batches import FIRST_MS, STREAM, ChunkOfOwner
from tests.support.limits import PATIENCE_S
from tests.support.virtual_time import run_virtual

PERIOD_DAYS = 2
SETTINGS = ScrubSettings(PERIOD_DAYS * DAY_S)
"""Short, so that a run has fewer steps."""
LIMIT_S = 60.0 * DAY_S
VALUE = bytes(range(256)) * 400


class VirtualClock(ManualClock):
    """A wall clock that goes with trio's."""

    def wall_ms(self) -> int:
        """See Clock."""
        with suppress(RuntimeError):
            return FIRST_MS + int(trio.current_time() * 1000)
        return FIRST_MS


class Turn:
    """See ScrubTurn."""

    size_bytes = 0


class ScrubWorld:
    """A store on a simulated disk, its scrub in virtual time, and what the scrub does."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self.reports = RecordedReports()
        settings = StoreSettings(topic_defaults=TopicConfig(segment_bytes=450_000))
        self.store = Store.open(
            self.disk, VirtualClock(FIRST_MS), settings, new_id=lambda: uuid.UUID(int=7), report=self.reports
        )
        self.driver = JobDriver(self.store.queue, self.disk)
        self.store.replicas.prepare()
        self.driver.run()
        self.beside = ReadsBeside(lambda: False)
        self.scrub = Scrub(self.store, self.beside, self._read, self._wait)
        self.told: list[tuple[str, int]] = []
        self.heard = trio.Event()
        self.pieces: list[tuple[float, int]] = []
        """When each began, and its bytes."""
        self.before_piece: Callable[[], None] = lambda: None
        self.run = partial(self.scrub.run, SETTINGS, ScrubHooks(self._turn, self._found))

    async def _read(self, work: Callable[[FileSystem], ScrubPlace]) -> ScrubPlace:
        await trio.lowlevel.checkpoint()
        self.before_piece()
        return work(self.disk)

    async def _wait(self, ticket: TicketView[None]) -> None:
        await trio.lowlevel.checkpoint()
        self.driver.run()
        ticket.result()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[ScrubTurn]:
        turn, begun_s = Turn(), trio.current_time()
        yield turn
        self.pieces.append((begun_s, turn.size_bytes))

    def _found(self, stream: str, epoch: int) -> None:
        self.told.append((stream, epoch))
        self.heard.set()

    def replica(self, epoch: int, *, entries: int = 8, base_offset: int = 0, is_sealed: bool = True) -> ChunkOfOwner:
        """A replica with so many batches of 100 KB."""
        sent = ChunkOfOwner(epoch, base_offset)
        for _ in range(entries):
            write = sent.write(value=VALUE)
            at = ChunkPrefix(*write.at)
            ticket = self.store.replicas.append(write.stream, write.epoch, at, write.entries, write.founding)
            self.driver.run()
            ticket.result()
        if is_sealed:
            self._done(self.store.replicas.cut(STREAM, epoch, ChunkPrefix(*sent.end)))
        return sent

    def stream(self, batches: int = 9) -> Stream:
        """A stream of a sidecar alone: several chunks of four batches of 100 KB."""
        created = self.store.create_topic("t", 1, {})
        self.driver.run()
        (stream,) = created.result().partitions
        for _ in range(batches):
            append = stream.append(encode_batch([Record(0, FIRST_MS, None, VALUE)]), now_ms=FIRST_MS)
            self.driver.run()
            append.result()
        return stream

    def remove(self, epoch: int) -> None:
        """Remove a replica, and its files."""
        self._done(self.store.replicas.remove(STREAM, epoch))

    def _done(self, ticket: TicketView[None]) -> None:
        self.driver.run()
        ticket.result()

    def log_path(self, epoch: int) -> str:
        """The file with a replica's batches."""
        log = self.store.replicas.log(STREAM, epoch)
        assert log is not None
        return log.chunks[0].log_path

    def flip(self, epoch: int, byte: int = 250_000, bit: int = 3) -> None:
        """A bit of a replica rots."""
        self.disk.flip_bit(self.log_path(epoch), 8 * byte + bit)

    def restarted(self) -> ScrubWorld:
        """A clean stop, and the next life."""
        self.store.close()
        self.driver.run()
        return ScrubWorld(self.disk.next_life())

    async def for_days(self, days: float) -> None:
        """Let the scrub run for so long."""
        with trio.move_on_after(days * DAY_S):
            await self.run()


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test of many days."""
    run_virtual(test, limit_s=LIMIT_S, still_s=60)


def written_out(world: ScrubWorld, *epochs: int) -> None:
    """What the journal has of replicas comes into their files."""
    for epoch in epochs:
        log = world.store.replicas.log(STREAM, epoch)
        assert log is not None
        if log.has_unwritten:
            log.write_backlog()
            world.driver.run()


# ---- what is found


@pytest.mark.parametrize(("byte", "bit"), [(0, 0), (14, 0), (15, 6), (30, 0), (250_000, 0), (700_000, 7)])
def test_a_flipped_bit_of_a_replica_that_nobody_reads_is_told_within_the_period(byte: int, bit: int) -> None:
    """Also one of the leader epoch, which no batch's checksum covers: the chunk's checksum does. No other is told."""

    async def test() -> None:
        world = ScrubWorld()
        for epoch in (1, 2, 3):
            world.replica(epoch, base_offset=epoch * 100)
        written_out(world, 1, 2, 3)
        world.flip(2, byte, bit)
        await world.for_days(PERIOD_DAYS)
        assert set(world.told) == {(STREAM, 2)}
        assert "scrub_found_damage" in world.reports.names()

    in_virtual_time(test)


def test_whole_replicas_are_passed_and_counted() -> None:
    """All of them, once in each walk; replicas that are open are not read."""

    async def test() -> None:
        world = ScrubWorld()
        size_bytes = sum(world.replica(epoch, base_offset=epoch * 100).end.length_bytes for epoch in (1, 2))
        world.replica(3, base_offset=300, is_sealed=False)
        await world.for_days(PERIOD_DAYS)
        assert not world.told
        figures = world.scrub.figures
        assert figures.chunks >= 2
        assert figures.checked_bytes >= size_bytes
        assert figures.completed_ms > FIRST_MS
        assert "scrub_completed" in world.reports.names()

    in_virtual_time(test)


def test_the_producers_state_of_a_replica_is_checked() -> None:
    """Copies of the replica, and takeovers, need it."""

    async def test() -> None:
        world = ScrubWorld()
        world.replica(1)
        log = world.store.replicas.log(STREAM, 1)
        assert log is not None
        world.disk.flip_bit(log.chunks[0].producers_path, 8 * 20)
        await world.for_days(PERIOD_DAYS)
        assert world.told

    in_virtual_time(test)


def test_a_damaged_length_of_the_producers_state_is_not_believed() -> None:
    """No more is read than the file has: memory for gigabytes may be missing, and the host would end each time."""

    async def test() -> None:
        world = ScrubWorld()
        world.replica(1)
        log = world.store.replicas.log(STREAM, 1)
        assert log is not None
        path = log.chunks[0].producers_path
        world.disk.flip_bit(path, 8 * (BLOCK.size - 8) + 6)
        await world.for_days(PERIOD_DAYS)
        assert world.told
        read = [call.size_bytes for call in world.disk.log if call.kind == "read" and call.path == path]
        assert read
        assert max(read) <= max(BLOCK.size, world.disk.size(path))

    in_virtual_time(test)


def test_damage_of_a_sidecar_alone_is_an_event_and_nothing_is_removed() -> None:
    """The sealed chunks of its streams are read; the files stay as they are."""

    async def test() -> None:
        world = ScrubWorld()
        stream = world.stream()
        assert len(stream.chunks) > 2
        path, chunks = stream.chunks[1].log_path, list(stream.chunks)
        world.disk.flip_bit(path, 8 * 120_000)
        await world.for_days(PERIOD_DAYS)
        found = [fields for event, fields in world.reports.events if event == "scrub_found_damage"]
        assert found
        assert all(path.rpartition("/")[2].partition(".")[0] in str(each["chunk"]) for each in found)
        assert stream.chunks == chunks
        assert world.disk.exists(path)
        assert not world.told

    in_virtual_time(test)


def test_a_read_error_that_passes_is_no_damage() -> None:
    """A bit that only one read saw wrong, and a process without descriptors, say nothing of the chunk."""

    async def test() -> None:
        world = ScrubWorld()
        world.replica(1)
        written_out(world, 1)
        path, seen = world.log_path(1), 0

        def flip_once() -> None:
            nonlocal seen
            seen += 1
            if seen in (3, 4):
                world.disk.flip_bit(path, 8 * 250_000)

        world.before_piece = flip_once
        await world.for_days(0.1)
        world.before_piece = lambda: None
        world.disk.fault_for = partial(_fails, number=EMFILE)
        await world.for_days(0.1)
        world.disk.fault_for = None
        await world.for_days(1)
        assert not world.told
        assert "scrub_found_damage" not in world.reports.names()

    in_virtual_time(test)


def _fails(call: FileCall, *, number: int, path: str = ".log") -> Fault | None:
    return Fault(number) if call.kind == "read" and call.path.endswith(path) else None


def test_a_disk_that_fails_as_a_whole_damages_nothing_and_is_reported_once() -> None:
    """Each read is refused: no replica is told to be damaged, however many there are."""

    async def test() -> None:
        world = ScrubWorld()
        for epoch in range(1, 6):
            world.replica(epoch, base_offset=epoch * 100, entries=2)
        written_out(world, *range(1, 6))
        world.disk.fault_for = partial(_fails, number=EIO)
        await world.for_days(PERIOD_DAYS)
        assert not world.told
        assert world.reports.names().count("scrub_could_not_read") == 1
        assert world.scrub.figures.unreadable_chunks > 5

    in_virtual_time(test)


def test_one_chunk_that_the_disk_refuses_is_damaged_when_others_can_be_read() -> None:
    """A sector that has gone is what disks lose most: the copy is replaced, as if a reader had met it."""

    async def test() -> None:
        world = ScrubWorld()
        for epoch in (1, 2, 3):
            world.replica(epoch, base_offset=epoch * 100)
        written_out(world, 1, 2, 3)
        world.disk.fault_for = partial(_fails, number=EIO, path=world.log_path(2))
        await world.for_days(PERIOD_DAYS)
        assert set(world.told) == {(STREAM, 2)}

    in_virtual_time(test)


def test_findings_lie_apart() -> None:
    """What is copied because of them is bounded, however much is damaged."""

    async def test() -> None:
        world = ScrubWorld()
        for epoch in range(1, 9):
            world.replica(epoch, base_offset=epoch * 100, entries=1)
        written_out(world, *range(1, 9))
        times: list[float] = []
        for epoch in range(1, 9):
            world.flip(epoch, 5_000)
        hooks = ScrubHooks(world._turn, lambda stream, epoch: times.append(trio.current_time()))
        with trio.move_on_after(DAY_S):
            await world.scrub.run(replace_settings(period_s=60), hooks)
        assert len(times) >= 8
        assert min(late - early for early, late in pairwise(times)) >= DAMAGE_PAUSE_S

    in_virtual_time(test)


def replace_settings(**fields: float) -> ScrubSettings:
    """Settings with other values."""
    return SETTINGS._replace(**fields)  # type: ignore[arg-type]


# ---- races


def test_a_replica_that_is_removed_while_it_is_read_is_not_damaged() -> None:
    """Nor one that is copied anew: damage is of the copy that was read."""

    async def test() -> None:
        world = ScrubWorld()
        world.replica(1)
        written_out(world, 1)
        world.flip(1)
        pieces = 0

        def replace_it() -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 3:
                world.remove(1)
                world.replica(1)

        world.before_piece = replace_it
        await world.for_days(PERIOD_DAYS)
        assert pieces > 6
        assert not world.told
        assert "scrub_could_not_read" not in world.reports.names()
        assert world.scrub.figures.damaged_chunks == 0

    in_virtual_time(test)


def test_a_chunk_that_is_trimmed_while_it_is_read_is_not_damaged() -> None:
    """Its file is gone, and the walk goes on behind it."""

    async def test() -> None:
        world = ScrubWorld()
        stream = world.stream(16)
        second = stream.chunks[1]

        def trim() -> None:
            if len(world.pieces) == 1 and stream.chunks[0] is not second:
                stream.delete_records(second.base_offset)
                world.driver.run()

        world.before_piece = trim
        await world.for_days(PERIOD_DAYS)
        assert stream.chunks[0] is second
        assert world.scrub.figures.chunks >= 2
        assert {"scrub_found_damage", "scrub_could_not_read"}.isdisjoint(world.reports.names())

    in_virtual_time(test)


# ---- pace


def test_a_walk_takes_its_share_of_the_period_and_keeps_the_rate() -> None:
    """Planned for less than a half of the period; with much to check, no more than the highest rate."""
    settings = ScrubSettings(10 * DAY_S, 1 << 20)
    total_bytes = 100 << 30
    assert settings.rate(total_bytes) == pytest.approx(total_bytes / (10 * DAY_S * WALK_SHARE))
    assert settings.rate(100 << 40) == 1 << 20
    assert settings.pause_s(PIECE_BYTES, 100 << 40, 1 << 30) == PIECE_BYTES / (1 << 20)
    assert settings.pause_s(0, 100 << 40, 0) == LEAST_BYTES / (1 << 20)

    async def test() -> None:
        world = ScrubWorld()
        for epoch in (1, 2, 3):
            world.replica(epoch, base_offset=epoch * 100)
        with trio.move_on_after(3600):
            await world.scrub.run(ScrubSettings(1, 100_000), ScrubHooks(world._turn, world._found))
        assert len(world.pieces) > 100
        for (begun_s, size_bytes), (next_s, _) in pairwise(world.pieces):
            assert next_s - begun_s >= size_bytes / 100_000 - 1e-6

    in_virtual_time(test)


def test_pieces_rest_beside_writes_and_the_period_holds_all_the_same() -> None:
    """While writes never pause, each piece waits as long as pieces lie apart; when they pause, none waits."""

    async def test() -> None:
        world = ScrubWorld()
        for epoch in range(1, 11):
            world.replica(epoch, base_offset=epoch * 100)
        written_out(world, 10)
        world.flip(10)
        job = _write()

        async def hold() -> None:
            world.beside.started(job)
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await trio.testing.wait_all_tasks_blocked()
            await world.for_days(PERIOD_DAYS)
            nursery.cancel_scope.cancel()
        beside = [late[0] - early[0] for early, late in pairwise(world.pieces)]
        assert world.told
        alone = ScrubWorld(world.disk)
        await alone.for_days(PERIOD_DAYS)
        apart = [late[0] - early[0] for early, late in pairwise(alone.pieces)]
        assert sorted(beside)[len(beside) // 2] >= 1.9 * sorted(apart)[len(apart) // 2]

    in_virtual_time(test)


def _write() -> DiskJob:
    operations: list[Operation] = [Sync("x")]
    return DiskJob(operations, lambda: None, lambda operation, error: None)


def test_the_scrub_can_be_switched_off() -> None:
    """A period of 0: nothing is read, and `run` returns."""

    async def test() -> None:
        world = ScrubWorld()
        world.replica(1)
        await world.scrub.run(replace_settings(period_s=0))
        assert not world.pieces
        assert world.scrub.figures.checked_bytes == 0

    in_virtual_time(test)


# ---- restarts


def test_a_restart_goes_on_where_the_walk_was() -> None:
    """Chunks at the end are reached although no life is as long as a walk."""

    async def test() -> None:
        world = ScrubWorld()
        for epoch in range(1, 31):
            world.replica(epoch, base_offset=epoch * 100, entries=3)
        written_out(world, *range(1, 31))
        world.flip(9, 5_000)  # the last one in the order of names
        for _ in range(20):
            await world.for_days(PERIOD_DAYS / 20)
            if world.told:
                break
            world = world.restarted()
        assert world.told == [(STREAM, 9)]

    in_virtual_time(test)


def test_damage_is_found_again_after_a_restart_that_comes_before_the_repair() -> None:
    """What a life has found damaged is in its memory alone: the progress stays in front of it for an hour."""

    async def test() -> None:
        world = ScrubWorld()
        for epoch in range(1, 9):
            world.replica(epoch, base_offset=epoch * 100, entries=2)
        written_out(world, *range(1, 9))
        world.flip(4, 5_000)
        with trio.move_on_after(PERIOD_DAYS * DAY_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.run)
                await world.heard.wait()
                await trio.sleep(HOLD_S / 2)
                nursery.cancel_scope.cancel()
        kept = decode_progress(world.store.catalogue.get(KEY))
        assert kept.after < world.log_path(4).rpartition("/")[0]
        world = world.restarted()
        await world.for_days(PERIOD_DAYS / 2)
        assert (STREAM, 4) in world.told

    in_virtual_time(test)


def test_progress_that_cannot_be_read_begins_a_walk_anew() -> None:
    """It is a hint: no start fails for it."""
    kept = ScrubProgress("replicas/x", 5, 7)
    assert decode_progress(kept.encode()) == kept
    for value in (None, b"", b"x", b"[]", b'{"v":2}', b'{"v":1}', b'{"v":1,"after":1,"begun":"x","completed":0}'):
        assert decode_progress(value) == ScrubProgress()


# ---- bounds


def test_a_piece_is_one_read_and_its_pages_are_dropped() -> None:
    """Whatever the size of batches: no byte is read twice but the begin of a batch that two reads share."""
    disk = SimDisk()
    world = ScrubWorld(disk)
    sent = world.replica(1, entries=20)
    written_out(world, 1)
    log = world.store.replicas.log(STREAM, 1)
    assert log is not None
    view = log.chunks[0].view(is_cold=True)
    at, pieces, reads = ScrubPlace(0, 0, 0), 0, len(disk.log)
    while at.position < view.size_bytes:
        at, pieces = check_piece(disk, view, at), pieces + 1
    assert (at.position, at.next_offset, at.checksum) == tuple(sent.end)
    read = [call for call in disk.log[reads:] if call.kind == "read"]
    assert len(read) == pieces
    assert max(call.size_bytes for call in read) <= PIECE_BYTES


async def test_a_running_store_checks_its_files(tmp_path: Path) -> None:
    """On real files and threads: the damaged replica is told, the whole one is not, and both can be read on."""
    files = OsFiles(tmp_path)
    store = Store.open(files, SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=RecordedReports())
    told: list[tuple[str, int]] = []
    heard = trio.Event()

    def found(stream: str, epoch: int) -> None:
        told.append((stream, epoch))
        heard.set()

    with trio.fail_after(PATIENCE_S):
        async with open_engine(store, files) as engine, trio.open_nursery() as nursery:
            await engine.wait(store.replicas.prepare())
            for epoch in (1, 2):
                sent = ChunkOfOwner(epoch, epoch * 100)
                write = sent.write(8, value=VALUE)
                at = ChunkPrefix(*write.at)
                await engine.wait(store.replicas.append(STREAM, epoch, at, write.entries, write.founding))
                await engine.wait(store.replicas.cut(STREAM, epoch, ChunkPrefix(*sent.end)))
            log = store.replicas.log(STREAM, 2)
            assert log is not None
            if log.has_unwritten:
                await engine.wait(log.write_backlog())
            path = tmp_path / log.chunks[0].log_path
            content = bytearray(path.read_bytes())
            content[600_000] ^= 1
            path.write_bytes(content)
            nursery.start_soon(engine.scrub.run, ScrubSettings(1, 1 << 30), ALONE._replace(found_damaged=found))
            await heard.wait()
            nursery.cancel_scope.cancel()
    files.close()
    assert told == [(STREAM, 2)]
    assert engine.scrub.figures.chunks == 1
