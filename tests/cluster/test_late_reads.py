"""Reads of chunks whose hosts are silent: a Fetch does not wait for them, and gets what they say when they say it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
import trio

from logstore.cluster.interfaces import Answering, ReplicaFiles
from logstore.cluster.streams import late_reads
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.late_reads import ERROR_S, KEPT_S, LATE_S, LateReads
from logstore.engine import StoreEngine
from logstore.errors import ChunkUnreachable
from logstore.log.read_patience import ReadPatience
from logstore.log.reading import ReadResult
from logstore.replica.messages import EntriesRead
from logstore.replica.registrations import ChunkRegistration, TieredCopy
from tests.cluster.support import Front, MemoryOwner, NoFiles

RECORDS = 5
SILENCE_S = 4.5
PATIENT_S = 10 * LATE_S


class SilentOwner(MemoryOwner):
    """An owner whose members are silent for SILENCE_S, and then are away, or answer."""

    is_silent = is_away = False
    reads = 0
    answers = Answering.AT_ONCE

    async def read_entries(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int) -> EntriesRead:
        self.reads += 1
        if self.is_silent:
            await trio.sleep(SILENCE_S)
        if self.is_away:
            raise ChunkUnreachable("no member has answered")
        return await super().read_entries(stream, chunk, offset, max_bytes)

    def answering(self, chunk: ChunkRegistration) -> Answering:
        return self.answers


class Reader:
    """A Fetch of one stream, and all else that it could do meanwhile."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.owner, self.spawn = SilentOwner(), nursery.start_soon
        self.front = Front(self.owner)
        self.woken = trio.Event()
        files = cast(ReplicaFiles, NoFiles())
        self.reads = ChunkReads(
            cast(StoreEngine, None), self.owner, files, self.front.clock, self.front.reports, None, nursery.start_soon
        )

    async def lead(self) -> None:
        self.owner.own(self.front.stream)
        await self.front.tasks.run()
        for number in range(RECORDS):
            self.front.append(b"%d" % number)
            self.owner.ack()

    async def fetch(self, offset: int = 0) -> tuple[ReadResult, float]:
        """What a read that does not wait gives, and how long it lasts."""
        begun_s = trio.current_time()
        found = await self.reads.read(self.front.stream, offset, 1, patience=ReadPatience(PATIENT_S))
        return found, trio.current_time() - begun_s

    async def wait_woken(self) -> None:
        """Wait until something is there."""
        woken = trio.Event()
        self.front.stream.add_waiter(woken.set)
        await woken.wait()
        self.front.stream.remove_waiter(woken.set)


@asynccontextmanager
async def reader() -> AsyncIterator[Reader]:
    """See Reader."""
    async with trio.open_nursery() as nursery:
        at = Reader(nursery)
        await at.lead()
        yield at
        nursery.cancel_scope.cancel()


async def test_a_fetch_does_not_wait_for_hosts_that_are_silent(autojump_clock: Any) -> None:
    """It gets nothing at first, however long it could wait; the stream's waiters are woken when the
    records are there, and the next Fetch has them. Each place is asked for once meanwhile. Who can wait does.
    """
    async with reader() as at:
        at.owner.is_silent = True
        nothing, waited_s = await at.fetch()
        assert (nothing.buffers, nothing.next_offset) == ([], 0)
        assert waited_s == pytest.approx(LATE_S)
        for offset, most_s in ((0, 0.0), (3, LATE_S), (3, 0.0)):
            nothing, waited_s = await at.fetch(offset)
            assert not nothing.buffers
            assert waited_s == pytest.approx(most_s)
        await at.wait_woken()
        assert at.owner.reads == 4
        found, waited_s = await at.fetch()
        assert (found.next_offset, waited_s) == (1, 0)
        patient = await at.reads.read(at.front.stream, 2, 1)
        assert patient.next_offset == 3
        assert (await at.fetch(3))[0].next_offset == 4


async def test_a_fetch_hears_that_hosts_are_away(autojump_clock: Any) -> None:
    """Once for each time that all of them were asked; if none can be reached, at once."""
    async with reader() as at:
        at.owner.is_silent = at.owner.is_away = True
        for _ in range(2):
            assert not (await at.fetch())[0].buffers
            await at.wait_woken()
            with pytest.raises(ChunkUnreachable):
                await at.fetch()
        asked, at.owner.answers = at.owner.reads, Answering.NOBODY
        begun_s = trio.current_time()
        for offset in range(RECORDS):
            with pytest.raises(ChunkUnreachable):
                await at.fetch(offset)
        assert (at.owner.reads, trio.current_time()) == (asked, begun_s)


async def test_a_fetch_does_not_hear_that_hosts_were_away(autojump_clock: Any) -> None:
    """The error of a read that has ended a while ago is nobody's: the members are asked, who are back."""
    async with reader() as at:
        at.owner.is_silent = at.owner.is_away = True
        assert not (await at.fetch())[0].buffers
        await at.wait_woken()
        at.owner.is_silent = at.owner.is_away = False
        await trio.sleep(1.01 * ERROR_S)
        assert (await at.fetch())[0].next_offset == 1
        assert (await at.fetch())[0].next_offset == 1


async def test_nobody_waits_for_hosts_that_are_known_to_be_silent(autojump_clock: Any) -> None:
    """The read begins in the background; of a chunk in the tier, it is done there."""
    async with reader() as at:
        at.owner.is_silent, at.owner.answers = True, Answering.LATE
        nothing, waited_s = await at.fetch()
        assert (nothing.buffers, waited_s, at.owner.reads) == ([], 0, 0)
        await at.wait_woken()
        assert (await at.fetch())[0].next_offset == 1
        at.owner.roll()
        chunk = replace(at.owner.chunks[0].registration, tiered=TieredCopy("0" * 16, 0, (0, 0), None))
        with pytest.raises(ChunkUnreachable):
            await LateReads(at.owner, at.spawn).entries(at.front.stream, chunk, 0, 1, ReadPatience(LATE_S))
        assert at.owner.reads == 1


async def test_the_reads_of_a_request_wait_together(autojump_clock: Any) -> None:
    """What one of them has waited is taken from what the others may wait; what is quick takes next to nothing."""
    async with reader() as at:
        at.owner.is_silent, patience = True, ReadPatience(1.5 * LATE_S)
        begun_s = trio.current_time()
        for offset in range(RECORDS):
            assert not (await at.reads.read(at.front.stream, offset, 1, patience=patience)).buffers
        assert trio.current_time() - begun_s == pytest.approx(1.5 * LATE_S)
        await trio.sleep(SILENCE_S)
        at.owner.is_silent, patience = False, ReadPatience(1.5 * LATE_S)
        for offset in range(RECORDS):
            assert (await at.reads.read(at.front.stream, offset, 1, patience=patience)).next_offset == offset + 1
        assert patience.left_s == 1.5 * LATE_S


async def test_late_reads_are_few(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose read has no place gets nothing, and has it begun later; answers that nobody asks for again make
    room.
    """
    monkeypatch.setattr(late_reads, "MAX_LATE", 2)
    async with reader() as at:
        at.owner.is_silent = True
        for offset in range(3):
            assert not (await at.fetch(offset))[0].buffers
        assert at.owner.reads == 3 + 2
        await trio.sleep(SILENCE_S + KEPT_S)
        assert not (await at.fetch(2))[0].buffers
        await at.wait_woken()
        assert at.owner.reads == 3 + 2 + 2


async def test_what_has_no_place_does_not_drop_what_others_come_back_for(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Fetch of more silent partitions than there are places: answers that have come while it went through the others
    are there when it comes back to theirs, and so each of them comes in turn.
    """
    monkeypatch.setattr(late_reads, "MAX_LATE", 2)
    async with reader() as at:
        at.owner.is_silent = True
        for offset in range(RECORDS):
            assert not (await at.fetch(offset))[0].buffers
        for first in (0, 2):
            await trio.sleep(SILENCE_S)
            for offset in range(first + 2, RECORDS):
                assert not (await at.fetch(offset))[0].buffers
            for offset in (first, first + 1):
                assert (await at.fetch(offset))[0].next_offset == offset + 1
            for offset in range(first + 2, RECORDS):
                assert not (await at.fetch(offset))[0].buffers


async def test_what_only_silent_hosts_have_is_late(autojump_clock: Any) -> None:
    """As long as they are known to be silent; what nobody can be asked about is not, nor what the tier alone has."""
    async with reader() as at:
        for answering in Answering:
            at.owner.answers = answering
            assert at.reads.is_late(at.front.stream, RECORDS) == (answering is Answering.LATE)
        at.owner.answers = Answering.LATE
        copy = TieredCopy("0" * 16, 0, (0, 0), None)
        chunk = at.owner.chunks[0]
        chunk.registration = replace(chunk.registration, tiered=copy, members=())
        at.front.stream.registered(at.owner.registration(""))
        assert not at.reads.is_late(at.front.stream, RECORDS)
