"""How the engine starts and ends disk jobs: what arrives together shares a write, and a hanging disk stops nobody."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from logstore.base.system import SystemClock
from logstore.disk.files import OsFiles
from logstore.disk.patience import CROWDED, LIMIT_S
from logstore.engine import StoreEngine, open_engine
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer, FileSystem
from logstore.log.jobs import DiskJob, WorkOnFile
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.log.stream_state import AppendTicket
from logstore.testing.reports import RecordedReports
from tests.support.limits import PATIENCE_S

STREAMS = 8


class HangingFiles(OsFiles):
    """Files whose journal can be made to hang in its syncs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_hanging = threading.Event()

    def sync(self, path: str) -> None:
        """As the disk does it, once it goes on."""
        if path.startswith("journal/") and not self.goes_on.is_set():
            self.is_hanging.set()
            self.goes_on.wait()
        super().sync(path)


class FastFiles(HangingFiles):
    """Files whose syncs take no time: what the disk of this machine takes must not decide a test."""

    def sync(self, path: str) -> None:
        """At once, unless it hangs."""
        if path.startswith("journal/") and not self.goes_on.is_set():
            super().sync(path)


@asynccontextmanager
async def running(files: OsFiles) -> AsyncIterator[tuple[StoreEngine, Sequence[Stream]]]:
    """An engine with some streams, which have a first batch: so the next ones may go to the journal."""
    store = Store.open(files, SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=RecordedReports())
    with trio.fail_after(PATIENCE_S):
        async with open_engine(store, files) as engine:
            topic = await engine.wait(store.create_topic("t", STREAMS, {}))
            await append_to(engine, topic.partitions)
            yield engine, topic.partitions
    files.close()


def batch() -> bytearray:
    """One record."""
    return encode_batch([Record(0, SystemClock().wall_ms(), None, b"value", ())])


async def append(engine: StoreEngine, stream: Stream) -> None:
    """Append a batch, and wait until it is acknowledged."""
    await engine.wait(stream.append(batch(), now_ms=SystemClock().wall_ms()))


async def append_to(engine: StoreEngine, streams: Sequence[Stream]) -> None:
    """Append a batch to each stream, by a task for each."""
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(append, engine, stream)


async def make_patient(engine: StoreEngine, stream: Stream) -> None:
    """Append until the engine waits for short jobs, as it does on a fast disk; `running` bounds the time."""
    while not engine.waits_for_short_jobs:
        await append(engine, stream)


def read(stream: Stream) -> list[Buffer]:
    """What readers of the newest batches get."""
    found = stream.read_tail(stream.log_start_offset, 1 << 20)
    return [] if found is None else [entry.buffer for entry in found]


async def test_appends_of_tasks_that_run_together_share_a_block(tmp_path: Path) -> None:
    """Not the first of them alone: the others would wait for its sync, and then for theirs."""
    async with running(FastFiles(tmp_path)) as (engine, streams):
        for is_patient in (False, True):
            if is_patient:
                await make_patient(engine, streams[0])
            blocks, parts = engine.store.journal.blocks, engine.store.journal.parts
            await append_to(engine, streams)
            assert engine.store.journal.parts - parts == STREAMS
            assert engine.store.journal.blocks - blocks == 1


async def test_a_disk_that_hangs_does_not_stop_the_event_loop(tmp_path: Path) -> None:
    """It hangs just when the engine has become used to a fast disk. Readers are served meanwhile, and what waits for
    the disk is acknowledged once it goes on.
    """
    files = FastFiles(tmp_path)
    async with running(files) as (engine, streams):
        await make_patient(engine, streams[0])
        before = read(streams[0])
        files.goes_on.clear()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append, engine, streams[0])
                while not files.is_hanging.is_set():
                    await trio.lowlevel.checkpoint()
                # The loop runs: other tasks get their turns, and readers what is acknowledged.
                for _ in range(100):
                    await trio.lowlevel.checkpoint()
                assert read(streams[0]) == before
                nursery.start_soon(append, engine, streams[1])
                await trio.lowlevel.checkpoint()
                assert streams[0].high_watermark == streams[0].end_offset - 1
                files.goes_on.set()
        finally:
            files.goes_on.set()
        assert streams[0].high_watermark == streams[0].end_offset
        assert len(read(streams[0])) == len(before) + 1
        assert len(read(streams[1])) == 2


async def test_a_hang_ends_the_waiting(tmp_path: Path) -> None:
    """After it the loop serves others while the disk works, until the disk has been fast for a while."""
    files = FastFiles(tmp_path)
    async with running(files) as (engine, streams):
        await make_patient(engine, streams[0])
        files.goes_on.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, engine, streams[0])
            while not files.is_hanging.is_set():
                await trio.lowlevel.checkpoint()
            await trio.sleep(50 * LIMIT_S)  # so long the sync takes
            files.goes_on.set()
        assert not engine.waits_for_short_jobs
        await make_patient(engine, streams[0])


@pytest.mark.parametrize("is_patient", [False, True])
async def test_answers_are_given_before_the_loop_waits_again(tmp_path: Path, is_patient: bool) -> None:
    """What has settled is answered at once: it does not wait for the sync of what came later."""
    files = FastFiles(tmp_path)
    async with running(files) as (engine, streams):
        if is_patient:
            await make_patient(engine, streams[0])
        answered: list[int] = []
        blocks = engine.store.journal.blocks

        def answer() -> None:
            answered.append(engine.store.journal.blocks - blocks)

        def settled(_: object) -> None:
            assert engine.after_settling(answer), "an append settled by itself"

        first = streams[0].append(batch(), now_ms=SystemClock().wall_ms())
        first.add_callback(settled)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.wait, first)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(append, engine, streams[0])
        assert answered == [1]


async def test_a_write_that_is_alone_begins_at_once(tmp_path: Path) -> None:
    """Without a turn of the event loop. One that might have shared a write with another waits for the tasks that are to
    run, and so do those behind it, until writes are alone again for a while.
    """
    async with running(FastFiles(tmp_path)) as (engine, streams):
        tickets: list[AppendTicket] = []

        def begun() -> int:
            return engine.store.journal.blocks + engine.store.queue.in_flight

        def begins(stream: Stream) -> bool:
            tickets.append(stream.append(batch(), now_ms=SystemClock().wall_ms()))
            before = begun()
            engine.begin()
            return begun() > before

        async def all_settled() -> None:
            for ticket in tickets:
                await engine.wait(ticket)
            await make_patient(engine, streams[7])
            await trio.lowlevel.checkpoint()

        for _ in range(3):
            await all_settled()
            assert begins(streams[0])
        await all_settled()
        assert begins(streams[1])
        assert not begins(streams[2])
        crowded = 0
        while not begins(streams[3]):
            crowded += 1
            await all_settled()
            assert crowded <= CROWDED
        assert crowded >= CROWDED - 1
        await all_settled()
        assert {ticket.error for ticket in tickets} == {None}


async def test_a_disk_that_is_slow_is_not_waited_for_at_once(tmp_path: Path) -> None:
    """Not before it was seen to be fast: what is to begin waits for the tasks that are to run."""
    files = FastFiles(tmp_path)
    async with running(files) as (engine, streams):
        await make_patient(engine, streams[0])
        files.goes_on.clear()
        first = streams[0].append(batch(), now_ms=SystemClock().wall_ms())
        engine.begin()
        while not files.is_hanging.is_set():
            await trio.lowlevel.checkpoint()
        await trio.sleep(50 * LIMIT_S)  # so long the sync takes
        files.goes_on.set()
        await engine.wait(first)
        assert not engine.waits_for_short_jobs
        second = streams[0].append(batch(), now_ms=SystemClock().wall_ms())
        engine.begin()
        assert engine.store.queue.may_start
        await engine.wait(second)


class Defect:
    """A source of one job that has a defect: it raises what is not an error of the disk."""

    def __init__(self) -> None:
        self.is_over = False

    def take_job(self) -> DiskJob | None:
        """The job, once."""
        if self.is_over:
            return None
        self.is_over = True
        return DiskJob([WorkOnFile("x", self.work)], self.done, lambda *_: None)

    def work(self, _: FileSystem) -> None:
        """Fails."""
        raise ZeroDivisionError

    def done(self) -> None:
        """Nothing waits for it."""


async def test_a_defect_on_a_writer_thread_ends_the_engine(tmp_path: Path) -> None:
    """The program ends with the error: without its jobs, it would neither serve nor come to an end."""
    ended: list[str] = []
    with pytest.RaisesGroup(ZeroDivisionError):
        async with running(FastFiles(tmp_path)) as (engine, streams):
            streams[0].append(batch(), now_ms=SystemClock().wall_ms())
            engine.store.queue.ready(Defect())
            engine.kick()
            try:
                await trio.sleep_forever()
            finally:
                ended.append("the body")
    assert ended == ["the body"]


async def test_a_defect_that_begins_at_once_ends_the_engine(tmp_path: Path) -> None:
    """And not only whoever has asked for it."""

    class TakesNone(Defect):
        """It raises as soon as it is asked for its job."""

        def take_job(self) -> DiskJob | None:
            """Fails."""
            raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError):
        async with running(FastFiles(tmp_path)) as (engine, streams):
            await make_patient(engine, streams[0])
            engine.store.queue.ready(TakesNone())
            engine.begin()
            await trio.sleep_forever()


async def test_a_cancelled_engine_finishes_what_waits(tmp_path: Path) -> None:
    """Also if the jobs that bring it to its end were not begun: their tasks outlive those around them."""
    with trio.CancelScope() as outer:
        async with running(FastFiles(tmp_path)) as (_, streams):
            tickets = [stream.append(batch(), now_ms=SystemClock().wall_ms()) for stream in streams]
            outer.cancel()
            await trio.lowlevel.checkpoint()
    assert [ticket.done and ticket.error for ticket in tickets] == [None] * STREAMS
