"""Cleaning: control records of state that nobody needs go, results and epochs stay, and readers notice nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

from logstore.format.batch import HEADER_BYTES, iterate_batches
from logstore.format.control import END_TYPE, FOOTPRINTS_TYPE, STATE_TYPES, encode_control_record, known_type
from logstore.format.records import decode_batch
from logstore.log.chunks import parse_chunk_name
from logstore.log.cleaning import CleaningLimits
from logstore.log.readers import StreamId
from logstore.testing.faults import EIO, Fault, FileCall
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, ListGroup, Setup, SimulatedStore
from logstore.verify.directory import verify
from tests.log.scan_set import TOPIC, Place, control_batch, opened, plain_batch, scan

SMALL = CleaningLimits(gain_bytes=1, gain_share=0.0, piece_bytes=3000, budget_bytes=1 << 30)


def world_of(epochs: int = 8, limits: CleaningLimits | None = None) -> SimulatedStore:
    """Some epochs with two records of state each, one to a chunk."""
    setup = Setup(seed=1)
    if limits is not None:
        setup = replace(setup, settings=replace(setup.settings, cleaning=limits))
    world = SimulatedStore(SimDisk(), History(), setup)
    world.create_topic("t", 1)
    world.run()
    for epoch in range(epochs):
        world.append_group("t", 0, epoch, batches=1, states=2)
        world.run()
    return world


def kinds(world: SimulatedStore) -> list[list[int]]:
    """The types of the control batches of each chunk."""
    stream = world.store.stream("t", 0)
    found = world.controls(stream)
    return [
        [known_type(data) for at, data in found if chunk.base_offset <= at < chunk.next_offset]
        for chunk in stream.chunks
    ]


def test_only_records_of_state_that_no_reader_holds_go() -> None:
    """Whole sealed chunks below the lowest held offset of all readers lose them; BEGIN, END and results stay."""
    world = world_of()
    stream = world.store.stream("t", 0)
    stream_id = StreamId(world.store.topic("t").topic_id.hex, 0)
    before = kinds(world)
    world.clean()
    assert kinds(world) == before, "nobody said that they may go"
    world.own_state("t", 0, stream.high_watermark)
    world.store.readers.register("other", {stream_id: stream.chunks[3].base_offset + 1})
    world.run()
    world.clean()
    world.check()
    after = kinds(world)
    assert [any(kind in STATE_TYPES for kind in chunk) for chunk in after] == [False] * 3 + [True] * 5
    assert all(END_TYPE in chunk for chunk in after)
    world.store.readers.remove("other")
    world.run()
    world.clean()
    world.check()
    assert [any(kind in STATE_TYPES for kind in chunk) for chunk in kinds(world)] == [False] * 7 + [True], "open chunk"
    world.restart(clean=False)
    world.check()


def test_a_check_finds_nothing_wrong_with_a_cleaned_chunk() -> None:
    """Also where the records of state came right behind BEGIN, so that the index has an entry for their place."""
    world = world_of(2)
    for epoch in range(2, 8):
        world.append_group("t", 0, epoch, batches=0, states=2)
        world.run()
    world.own_state("t", 0, world.store.stream("t", 0).high_watermark)
    world.run()
    world.clean()
    assert not verify(world.disk.kill_state()).found


def test_another_querys_state_stays() -> None:
    """The reader names its query: records between another query's BEGIN and END stay."""
    world = world_of()
    before = kinds(world)
    world.own_state("t", 0, world.store.stream("t", 0).high_watermark, query="another")
    world.run()
    world.clean()
    assert kinds(world) == before
    assert not [name for name in world.disk.list_directory(world.store.stream("t", 0).directory) if ".cleaned" in name]


def test_little_is_not_worth_a_copy() -> None:
    """Below the bytes or the share that are asked for nothing is rewritten."""
    for limits in (CleaningLimits(gain_bytes=1 << 20, gain_share=0.0), CleaningLimits(gain_bytes=1, gain_share=0.99)):
        world = world_of(limits=limits)
        before = kinds(world)
        world.own_state("t", 0, world.store.stream("t", 0).high_watermark)
        world.run()
        world.clean()
        assert kinds(world) == before


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory", "remove"])
def test_a_disk_that_fails_costs_the_cleaning_only(kind: str) -> None:
    """Whichever operation fails: everything can be read, now and in the next life, and newer chunks are not cleaned."""
    for nth in range(1, 4):
        world = world_of()
        world.own_state("t", 0, world.store.stream("t", 0).high_watermark)
        world.run()
        seen = 0

        def fault(call: FileCall, nth: int = nth) -> Fault | None:
            nonlocal seen
            if call.kind != kind or "streams/t" not in call.path:
                return None
            seen += 1
            return EIO if seen == nth else None

        world.disk.fault_for = fault
        world.clean()
        world.disk.fault_for = None
        world.check()
        kept = [any(type_ in STATE_TYPES for type_ in chunk) for chunk in kinds(world)]
        assert kept == sorted(kept), "older records of state are there, newer ones are gone"
        world.append("t")
        world.run()
        world.restart(clean=False)
        world.check()


def test_a_topic_that_is_deleted_meanwhile_leaves_no_file() -> None:
    """Cleaning ends; the files of the topic go, whichever step was under way."""
    for steps in range(0, 60, 7):
        world = world_of(epochs=3)
        directory = world.store.topic("t").directory
        world.own_state("t", 0, world.store.stream("t", 0).high_watermark)
        world.run()
        ticket = world.store.clean()
        world.run(steps)
        world.delete_topic("t")
        world.run()
        while not ticket.done:
            world.store.cleaner.more()
            world.run()
        world.restart(clean=True)
        assert world.disk.list_directory(directory) == []


@asynccontextmanager
async def placed(root: Path) -> AsyncIterator[Place]:
    """An engine on a real directory whose limits are small."""
    async with opened(root, segment_bytes=20_000) as place:
        place.engine.store.cleaner._limits = SMALL
        yield place


async def test_readers_notice_nothing(tmp_path: Path) -> None:
    """Fetches, scans and look-ups beside cleaning never fail, and give the same results before, during and after."""
    seed = 29
    print(f"seed={seed}")
    random = Random(seed)
    async with placed(tmp_path) as place:
        stream, store = place.stream, place.engine.store
        for epoch in range(120):
            pieces = [plain_batch(random.randrange(50, 900))]
            pieces += [control_batch(FOOTPRINTS_TYPE, random.randrange(10, 900), n) for n in range(3)]
            await place.group(pieces, epoch)
        stream_id = StreamId(store.topic(TOPIC).topic_id.hex, 0)
        await place.engine.wait(store.readers.register("state", {stream_id: 0}, state="query"))
        expected = await results(place)
        over = trio.Event()

        async def read() -> None:
            while not over.is_set():
                assert await results(place) == expected
                offset = random.randrange(stream.high_watermark)
                found = await place.engine.read(stream, offset, 2000, include_control=random.random() < 0.5)
                assert found.next_offset > offset
                ends: list[int] = []
                await place.engine.find_ends(stream, 0, take=lambda offset, _, ends=ends: ends.append(offset))  # type: ignore[misc]
                assert len(ends) == 120

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read)
            for chunk in list(stream.chunks[1:]):
                await place.engine.wait(store.readers.acknowledge("state", {stream_id: chunk.base_offset}))
                for saved in store.readers.save():
                    await place.engine.wait(saved)
                await place.engine.wait(store.clean())
                await trio.lowlevel.checkpoint()
            over.set()
        assert all(chunk.revision == 1 for chunk in stream.chunks[:-1])
        assert await results(place) == expected
        sizes = sum(chunk.size_bytes for chunk in stream.chunks[:-1])
        print(f"{len(stream.chunks)} chunks, {sizes} bytes left")


async def results(place: Place) -> list[tuple[int, bytes | None]]:
    """All records of results with their offsets, as a consumer reads them."""
    found: list[tuple[int, bytes | None]] = []
    offset = 0
    while offset < place.stream.high_watermark:
        read = await place.engine.read(place.stream, offset, 5000)
        for buffer in read.buffers:
            for at, header in iterate_batches(buffer):
                if header.size_bytes > HEADER_BYTES:
                    batch = bytes(buffer[at : at + header.size_bytes])
                    found += [(record.offset, record.value) for record in decode_batch(batch)]
        offset = read.next_offset
    return found


def test_a_reader_that_registers_during_the_copy_keeps_its_state() -> None:
    """Whichever step the copy has reached: the chunk stays whole, or the registration came after the exchange."""
    stayed = 0
    for steps in range(1, 60, 2):
        world = world_of(epochs=3)
        stream = world.store.stream("t", 0)
        stream_id = StreamId(world.store.topic("t").topic_id.hex, 0)
        world.own_state("t", 0, stream.high_watermark)
        world.run()
        first = stream.chunks[0]
        ticket = world.store.clean()
        world.run(steps)
        begun = first.rewriting is not None or first.revision > 0
        world.store.readers.register("state", {stream_id: 0}, state="group")
        world.run()
        while not ticket.done:
            world.store.cleaner.more()
            world.run()
        assert (first.revision > 0) == begun, f"after {steps} steps"
        stayed += not begun
        world.check()
    assert stayed, "no registration came before the exchange"


def test_a_trim_that_takes_the_chunk_leaves_no_file() -> None:
    """DeleteRecords and retention beside a copy and an exchange: no file below the log start is left."""
    for steps in range(1, 60, 2):
        for retains in (False, True):
            world = world_of(epochs=3)
            stream = world.store.stream("t", 0)
            world.own_state("t", 0, stream.high_watermark)
            world.run()
            ticket = world.store.clean()
            world.run(steps)
            if retains:
                stream.config = replace(stream.config, retention_bytes=0)
                world.retain()
            else:
                world.trim("t", 0, stream.chunks[1].base_offset)
            world.run()
            while not ticket.done:
                world.store.cleaner.more()
                world.run()
            world.check()
            bases = {chunk.base_offset for chunk in stream.chunks}
            files = world.disk.list_directory(stream.directory)
            parsed = [found for name in files if (found := parse_chunk_name(name)) is not None]
            assert {base for base, _ in parsed} <= bases, f"after {steps} steps: {files}, chunks {sorted(bases)}"
            assert ".cleaned" not in {suffix for _, suffix in parsed}


def test_a_stop_ends_a_round_over_many_streams_at_once() -> None:
    """No other chunk is read once the store stops."""
    world = world_of(epochs=2)
    for partition in range(1, 40):
        world.create_topic(f"t{partition}", 1)
        world.run()
        for epoch in range(2):
            world.append_group(f"t{partition}", 0, epoch, batches=1, states=2)
            world.run()
        stream_id = StreamId(world.store.topic(f"t{partition}").topic_id.hex, 0)
        high = world.store.stream(f"t{partition}", 0).high_watermark
        world.store.readers.register(f"state{partition}", {stream_id: high}, state="group")
        world.run()
    read: set[str] = set()

    def note(call: FileCall) -> Fault | None:
        read.add(call.path)
        return None

    ticket = world.store.clean()
    stopped = world.store.cleaner.stop()
    world.disk.fault_for = note
    world.run()
    assert ticket.done
    assert stopped.done
    assert len({path for path in read if path.endswith(".index")}) <= 1, sorted(read)


async def test_scans_from_memory_find_what_the_disk_has(tmp_path: Path) -> None:
    """The newest batches are kept in memory: what cleaning removes from their chunk, no scan finds any more."""
    async with opened(tmp_path, segment_bytes=4_000, tail_bytes=1 << 20) as place:
        place.engine.store.cleaner._limits = SMALL
        stream, store = place.stream, place.engine.store
        for epoch in range(12):
            await place.group([control_batch(FOOTPRINTS_TYPE, 900), plain_batch(100)], epoch)
        stream_id = StreamId(store.topic(TOPIC).topic_id.hex, 0)
        last = stream.chunks[-1].base_offset
        await place.engine.wait(store.readers.register("state", {stream_id: last}, state="query"))
        await place.engine.wait(store.clean())
        found = await scan(place, types=(FOOTPRINTS_TYPE,))
        assert found
        assert all(offset >= last for offset, _ in found)
        ends = await scan(place, types=(END_TYPE,))
        assert len(ends) == 12
        assert len(await results(place)) == 12


async def test_two_queries_in_the_same_chunks(tmp_path: Path) -> None:
    """Groups of two queries and plain records interleaved: each query's state goes by its own reader's word alone,
    below the lowest held offset of both; everything else keeps offset and bytes, also in the next life.
    """

    def state_of(found: list[tuple[int, bytes]], who: bytes) -> list[tuple[int, bytes]]:
        return [(offset, batch) for offset, batch in found if b'"%s"' % who in batch]

    async with placed(tmp_path) as place:
        stream, store = place.stream, place.engine.store
        for epoch in range(60):
            for query in ("one", "two"):
                piece = encode_control_record(FOOTPRINTS_TYPE, {"of": query}, bytes(600), FIRST_TIMESTAMP)
                pieces = [plain_batch(100), piece]
                await place.engine.wait(stream.append_group(ListGroup(query, epoch, pieces)))
            await place.plain(1, 200)
        stream_id = StreamId(store.topic(TOPIC).topic_id.hex, 0)
        last = stream.chunks[-1].base_offset
        before, expected = await scan(place, types=(FOOTPRINTS_TYPE,)), await results(place)
        ends = await scan(place, types=(END_TYPE,))
        await place.engine.wait(store.readers.register("1", {stream_id: last}, state="one"))
        await place.engine.wait(store.clean())
        after = await scan(place, types=(FOOTPRINTS_TYPE,))
        assert state_of(after, b"two") == state_of(before, b"two")
        assert state_of(after, b"one") == [
            (offset, batch) for offset, batch in state_of(before, b"one") if offset >= last
        ]
        middle = stream.chunks[1].base_offset
        await place.engine.wait(store.readers.register("2", {stream_id: middle}, state="two"))
        await place.engine.wait(store.clean())
        after = await scan(place, types=(FOOTPRINTS_TYPE,))
        kept = [(offset, batch) for offset, batch in state_of(before, b"two") if offset >= middle]
        assert state_of(after, b"two") == kept, "what reader 2 holds stays"
    async with placed(tmp_path) as place:
        assert await scan(place, types=(FOOTPRINTS_TYPE,)) == after
        assert await scan(place, types=(END_TYPE,)) == ends
        assert await results(place) == expected
