"""Control batches read backwards: against a naive list, at what cost, through damage, trims and appends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.disk.files import OsFiles
from logstore.errors import CorruptChunk, OffsetOutOfRange, UnknownTopicOrPartition
from logstore.format.batch import check_batch, iterate_batches
from logstore.format.control import (
    BEGIN_TYPE,
    END_TYPE,
    FOOTPRINTS_TYPE,
    MARK_TYPE,
    TOMBSTONES_TYPE,
    decode_control,
    known_type,
)
from logstore.format.index import decode_blocks, encode_block
from logstore.log.reading import WINDOW_LIMIT_BYTES
from logstore.log.scanning import GAP_BYTES, LOOK_BYTES, ScanRange, scan_chunk
from tests.log.scan_set import (
    TOPIC,
    Place,
    SlowGroup,
    control_batch,
    naive,
    opened,
    plain_batch,
    scan,
    until,
)

TYPES = (FOOTPRINTS_TYPE, TOMBSTONES_TYPE, MARK_TYPE)
STEPS = st.one_of(
    st.tuples(st.just("plain"), st.integers(1, 5), st.sampled_from([10, 700, 20_000])),
    st.tuples(
        st.just("group"),
        st.integers(0, 3),
        st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from([0, 50, 900, 9_000])), max_size=5),
    ),
    st.tuples(st.just("trim"), st.floats(0, 1), st.none()),
    st.tuples(st.just("reopen"), st.none(), st.none()),
)
ASKED = st.tuples(
    st.floats(0, 1),
    st.lists(st.sampled_from((BEGIN_TYPE, END_TYPE, *TYPES)), max_size=2),
    st.sampled_from([0, 1, 300, 2_000, 10_000, 1 << 20]),
)


# ---- against a naive list


@given(
    steps=st.lists(STEPS, min_size=1, max_size=12),
    asked=st.lists(ASKED, min_size=1, max_size=4),
    segment_bytes=st.sampled_from([600, 5_000, 1 << 20]),
    tail_bytes=st.sampled_from([1, 4_000, 1 << 20]),
)
@settings(deadline=None)
def test_a_scan_is_the_naive_list(
    steps: Sequence[tuple[str, object, object]],
    asked: Sequence[tuple[float, list[int], int]],
    segment_bytes: int,
    tail_bytes: int,
) -> None:
    """Whatever was written, trimmed and rolled, in memory or on disk: exactly the control batches, newest first."""

    async def run() -> None:
        with TemporaryDirectory() as directory:
            todo = list(steps)
            while True:
                async with opened(Path(directory), segment_bytes=segment_bytes, tail_bytes=tail_bytes) as place:
                    todo = await take_steps(place, todo)
                    await compare(place, asked)
                if not todo:
                    return

    trio.run(run)


async def take_steps(place: Place, steps: list[tuple[str, object, object]]) -> list[tuple[str, object, object]]:
    """Do steps up to the next reopening; returns what is left."""
    for number, (what, first, second) in enumerate(steps):
        if what == "reopen":
            return steps[number + 1 :]
        if what == "plain":
            await place.plain(int(str(first)), int(str(second)))
        elif what == "group":
            controls = [control_batch(kind, size, number) for kind, size in second]  # type: ignore[attr-defined]
            plain = [plain_batch(300) for _ in range(int(str(first)))]
            await place.group([*plain, *controls], number)
        else:
            await place.trim(int(float(str(first)) * place.stream.high_watermark))
    return []


async def compare(place: Place, asked: Sequence[tuple[float, list[int], int]]) -> None:
    """Scans equal the naive list."""
    for share, types, max_bytes in [*asked, (1.0, [], 1 << 20)]:
        before = int(share * place.stream.high_watermark)
        assert await scan(place, before, types, max_bytes) == naive(place, before, types)


# ---- what it costs


async def fill(root: Path, groups: int, plain_bytes: int) -> int:
    """Groups of so much data each, with some control batches, over several chunks; the bytes of control batches."""
    async with opened(root, segment_bytes=1 << 20) as place:
        for epoch in range(groups):
            controls = [control_batch(FOOTPRINTS_TYPE, 60_000), control_batch(MARK_TYPE, 100)]
            await place.group([plain_batch(plain_bytes), plain_batch(plain_bytes), *controls], epoch)
        assert len(place.stream.chunks) > 2
        return sum(len(batch) for _, batch in naive(place, place.stream.high_watermark, ()))


@pytest.mark.parametrize("types", [(), (END_TYPE,), (FOOTPRINTS_TYPE,)])
async def test_the_cost_follows_the_control_batches(tmp_path: Path, types: tuple[int, ...]) -> None:
    """However much data lies between: as many reads, of as many bytes, and few beyond what is returned."""
    costs = []
    for number, plain_bytes in enumerate((100_000, 400_000)):
        root = tmp_path / str(number)
        root.mkdir()
        await fill(root, 12, plain_bytes)
        async with opened(root, segment_bytes=1 << 20) as place:
            wanted = naive(place, place.stream.high_watermark, types)
            place.files.reads.clear()
            assert await scan(place, types=types, max_bytes=4 << 20) == wanted
            reads, read_bytes = place.files.read_from_chunks()
            useful_bytes = sum(len(batch) for _, batch in wanted)
            assert useful_bytes <= read_bytes <= useful_bytes + GAP_BYTES * reads
            # A group's MARK and END, and the BEGIN that follows, are one read with its footprints.
            assert reads <= 2 * 12 + 2 * len(place.stream.chunks)
            costs.append((reads - len(place.stream.chunks), useful_bytes))
    assert abs(costs[0][0] - costs[1][0]) <= 12
    assert abs(costs[0][1] - costs[1][1]) <= 12 * 4


async def test_neighbours_are_one_read(tmp_path: Path) -> None:
    """Many small control batches side by side come in one read, and those of another type are not read at all."""
    async with opened(tmp_path, segment_bytes=1 << 20) as place:
        await place.group([control_batch(TOMBSTONES_TYPE, 100) for _ in range(500)])
        place.files.reads.clear()
        assert len(await scan(place)) == 502
        assert place.files.read_from_chunks()[0] == 1
        place.files.reads.clear()
        assert len(await scan(place, types=(END_TYPE,))) == 1
        reads, read_bytes = place.files.read_from_chunks()
        assert (reads, read_bytes < 300) == (1, True)


async def test_one_look_reads_so_much_and_no_more(tmp_path: Path) -> None:
    """Small control batches with other data between them: however many are asked for, a look at a chunk holds a bounded
    piece of it in memory.
    """
    async with opened(tmp_path, segment_bytes=64 << 20) as place:
        for epoch in range(40):
            await place.group([control_batch(MARK_TYPE, 10), plain_batch(GAP_BYTES - 500)] * 50, epoch)
        place.files.reads.clear()
        before = place.stream.high_watermark
        view = place.stream.chunk_below(before)
        assert view is not None
        wanted = ScanRange(0, before, ())
        piece = scan_chunk(place.files, place.engine.store.indexes, view, wanted, 16 << 20, at_least_one=True)
        assert 0 < piece.next_before < before
        assert LOOK_BYTES * 0.9 < place.files.read_from_chunks()[1] <= LOOK_BYTES
        assert max(read.length for read in place.files.reads) <= WINDOW_LIMIT_BYTES
        assert await scan(place, max_bytes=16 << 20) == naive(place, place.stream.high_watermark, ())


async def test_an_ordinary_reader_is_answered_amid_control_batches(tmp_path: Path) -> None:
    """A reader who sees none of them does not wait until a whole chunk of them is passed."""
    async with opened(tmp_path, segment_bytes=64 << 20) as place:
        await place.group([control_batch(FOOTPRINTS_TYPE, 500_000) for _ in range(80)])
        place.files.reads.clear()
        result = await place.engine.read(place.stream, 0, 1 << 20)
        assert 0 < result.next_offset < 50
        assert place.files.read_from_chunks()[1] < 24 << 20


async def test_a_reader_amid_control_batches_reads_them_once(tmp_path: Path) -> None:
    """An ordinary reader that stands amid a long run of control batches starts there, not at the last record."""
    async with opened(tmp_path, segment_bytes=16 << 20) as place:
        await place.plain(1, 10)
        await place.group([control_batch(FOOTPRINTS_TYPE, 100_000) for _ in range(40)])
        middle = place.stream.high_watermark - 5
        place.files.reads.clear()
        result = await place.engine.read(place.stream, middle, 100)
        assert check_batch(bytes(result.buffers[0])).base_offset == middle
        assert place.files.read_from_chunks()[1] <= 5 * 101_000


# ---- memory and disk


async def test_memory_answers_without_a_read(tmp_path: Path) -> None:
    """What the tail holds is served from it; what is older follows from disk, in the same order."""
    async with opened(tmp_path, segment_bytes=1 << 20, tail_bytes=60_000) as place:
        for epoch in range(30):
            await place.group([plain_batch(1_000), control_batch(MARK_TYPE, 1_000, epoch)], epoch)
        place.files.reads.clear()
        piece = await place.engine.scan_controls(place.stream, -1, (), 1 << 20)
        assert place.files.reads == []
        assert 3 < len(list(iterate_batches(b"".join(piece.buffers)))) < 90
        assert await scan(place) == naive(place, place.stream.high_watermark, ())
        assert place.files.read_from_chunks()[0] > 0


async def test_nothing_above_the_high_watermark(tmp_path: Path) -> None:
    """A group that is being written is not there, from memory or from disk, until its END is."""
    async with opened(tmp_path, segment_bytes=1 << 20, tail_bytes=1 << 20) as place:
        await place.group([control_batch(MARK_TYPE, 100)], 1)
        before = naive(place, place.stream.high_watermark, ())
        slow = SlowGroup([control_batch(FOOTPRINTS_TYPE, 2_000_000), control_batch(MARK_TYPE, 10)])
        ticket = place.stream.append_group(slow)
        place.engine.kick()
        await until(lambda: place.stream.end_offset > place.stream.high_watermark)
        assert await scan(place) == before
        with pytest.raises(OffsetOutOfRange):
            await place.engine.scan_controls(place.stream, place.stream.end_offset, (), 1)
        slow.gate.succeed(None)
        await place.engine.wait(ticket)
        assert len(await scan(place)) == len(before) + 4


async def test_appends_go_on_meanwhile(tmp_path: Path) -> None:
    """A scan from a fixed offset sees the same whatever is appended, rolled and sealed while it pages."""
    async with opened(tmp_path, segment_bytes=3_000) as place, trio.open_nursery() as nursery:
        for epoch in range(20):
            await place.group([plain_batch(500), control_batch(MARK_TYPE, 300, epoch)], epoch)
        before = place.stream.high_watermark
        expected = naive(place, before, ())

        async def append() -> None:
            for epoch in range(20, 60):
                await place.group([plain_batch(500), control_batch(MARK_TYPE, 300, epoch)], epoch)

        nursery.start_soon(append)
        for max_bytes in (1, 700, 5_000, 1 << 20):
            assert await scan(place, before, (), max_bytes) == expected
    assert place.stream.high_watermark > before


# ---- trims


async def test_a_trim_while_it_reads(tmp_path: Path) -> None:
    """A chunk that goes under a scan is where the log starts now: the scan ends there, without an error."""
    async with opened(tmp_path, segment_bytes=3_000) as place:
        for epoch in range(20):
            await place.group([plain_batch(500), control_batch(MARK_TYPE, 300, epoch)], epoch)
        chunks = len(place.stream.chunks)
        victim = place.stream.chunks[chunks // 2]
        token = trio.lowlevel.current_trio_token()
        trim = partial(trio.from_thread.run, place.trim, victim.next_offset, trio_token=token)

        def before_log_read(path: str) -> None:
            if path == victim.log_path:
                place.files.before_log_read = None
                trim()
                while (tmp_path / path).exists():
                    os.sched_yield()

        place.files.before_log_read = before_log_read
        found = await scan(place, max_bytes=1 << 20)
        assert place.stream.log_start_offset == victim.next_offset
        assert found == naive(place, place.stream.high_watermark, ())
        assert found


async def test_the_log_start_inside_a_group(tmp_path: Path) -> None:
    """Control batches in front of the log start are not shown, though their chunk is still there."""
    async with opened(tmp_path, segment_bytes=1 << 20) as place:
        await place.group([control_batch(FOOTPRINTS_TYPE, 100), control_batch(MARK_TYPE, 100)])
        await place.trim(2)
        assert [offset for offset, _ in await scan(place)] == [3, 2]
        piece = await place.engine.scan_controls(place.stream, 1, (), 1 << 20)
        assert (piece.buffers, piece.next_before) == ([], 1)
        await place.trim(-1)
        assert await scan(place) == []


async def test_a_topic_that_goes_while_it_is_read(tmp_path: Path) -> None:
    """The error says that the topic is gone, not that a file is."""
    async with opened(tmp_path, segment_bytes=3_000) as place:
        for epoch in range(5):
            await place.group([plain_batch(2_000), control_batch(MARK_TYPE, 300, epoch)], epoch)
        stream = place.stream
        token = trio.lowlevel.current_trio_token()

        async def delete() -> None:
            await place.engine.wait(place.engine.store.delete_topic(TOPIC))

        def before_log_read(path: str) -> None:
            place.files.before_log_read = None
            trio.from_thread.run(delete, trio_token=token)
            while (tmp_path / path).exists():
                os.sched_yield()

        place.files.before_log_read = before_log_read
        with pytest.raises(UnknownTopicOrPartition):
            await place.engine.scan_controls(stream, -1, (), 1 << 20)


# ---- damage


async def build_damaged(root: Path) -> tuple[Path, bytes, list[tuple[int, bytes]]]:
    """A closed store with one sealed and one open chunk: the sealed one's path and bytes, and all control batches."""
    async with opened(root, segment_bytes=2_500) as place:
        for epoch in range(3):
            await place.group(
                [plain_batch(100), control_batch(TOMBSTONES_TYPE, 20), control_batch(MARK_TYPE, 5)], epoch
            )
        await place.plain(1, 2_000)
        assert len(place.stream.chunks) == 2
        path = root / place.stream.chunks[0].log_path
        return path, path.read_bytes(), naive(place, place.stream.high_watermark, ())


async def scan_around(place: Place) -> tuple[list[tuple[int, bytes]], set[int]]:
    """All that can be read, and the offsets that the errors say are lost; damage is moved past."""
    found: list[tuple[int, bytes]] = []
    lost: set[int] = set()
    before = place.stream.high_watermark
    while before > place.stream.log_start_offset:
        try:
            piece = await place.engine.scan_controls(place.stream, before, (), 1 << 20)
        except CorruptChunk as error:
            lost |= set(range(error.first_offset, error.last_offset + 1))
            before = error.first_offset
            continue
        whole = b"".join(piece.buffers)
        found += [(header.base_offset, whole[at : at + header.size_bytes]) for at, header in iterate_batches(whole)]
        before = piece.next_before
    return found, lost


@pytest.mark.parametrize("index", ["whole", "lost at start", "lost while serving"])
async def test_every_damaged_bit_is_an_error_or_changes_nothing(tmp_path: Path, index: str) -> None:
    """Flip any bit of a sealed chunk: a damaged control batch is reported with its offset, never skipped silently and
    never served; with the index lost too, what cannot be told apart is reported with it.
    """
    path, data, expected = await build_damaged(tmp_path)
    index_path = path.with_suffix(".index")
    good_index = index_path.read_bytes()
    for bit in range(0, len(data) * 8, 211):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        path.write_bytes(flipped)
        index_path.write_bytes(good_index)
        if index == "lost at start":
            index_path.unlink()
        async with opened(tmp_path, segment_bytes=2_500) as place:
            if index == "lost while serving":
                index_path.unlink()
            found, lost = await scan_around(place)
            hit = [offset for offset, batch in expected if is_in(bytes(data), batch, bit // 8)]
            assert {offset for offset, _ in expected} <= {offset for offset, _ in found} | lost, bit
            assert [pair for pair in expected if pair in found] == found, bit
            assert set(hit) <= lost, bit
            if index == "whole":
                assert lost == set(hit), bit


def is_in(data: bytes, batch: bytes, at: int) -> bool:
    """Whether a byte of the chunk belongs to a batch, which is in it once."""
    start = data.index(batch) if batch in data else len(data)
    return start <= at < start + len(batch)


async def test_an_index_of_before_the_types(tmp_path: Path) -> None:
    """Control batches whose entries have no type are looked at one by one; the answer is the same."""
    async with opened(tmp_path, segment_bytes=1 << 20) as place:
        for epoch in range(5):
            await place.group([plain_batch(100), control_batch(MARK_TYPE, 5)], epoch)
        path = place.stream.chunks[0].index_path
    blocks, _ = decode_blocks((tmp_path / path).read_bytes())
    bare = [
        block._replace(entries=[entry._replace(flags=entry.flags & 1) for entry in block.entries]) for block in blocks
    ]
    (tmp_path / path).write_bytes(b"".join(map(encode_block, bare)))
    async with opened(tmp_path, segment_bytes=1 << 20) as place:
        for types in ((), (END_TYPE,), (MARK_TYPE, BEGIN_TYPE)):
            assert await scan(place, types=types) == naive(place, place.stream.high_watermark, types)
        ends: list[bytes] = []
        await place.engine.find_ends(place.stream, 5, take=lambda _, batch: ends.append(batch))
        assert [decode_control(batch).epoch for batch in ends] == [4, 3, 2, 1]  # type: ignore[union-attr]


async def test_a_lost_chunk_is_an_error(tmp_path: Path) -> None:
    """A scan does not step over offsets that no chunk holds: a footprint may have been among them."""
    async with opened(tmp_path, segment_bytes=1_000) as place:
        for epoch in range(4):
            await place.group([plain_batch(600), control_batch(MARK_TYPE, 300)], epoch)
        chunks = [(chunk.log_path, chunk.base_offset, chunk.next_offset) for chunk in place.stream.chunks]
    assert len(chunks) == 4
    lost_path, first, behind = chunks[2]
    for path in (tmp_path / lost_path, (tmp_path / lost_path).with_suffix(".index")):
        path.unlink()
    async with opened(tmp_path, segment_bytes=1_000) as place:
        with pytest.raises(CorruptChunk, match="lost") as caught:
            await scan(place)
        assert (caught.value.first_offset, caught.value.last_offset) == (first, behind - 1)
        found, lost = await scan_around(place)
        assert lost == set(range(first, behind))
        assert [known_type(batch) for _, batch in found] == [END_TYPE, MARK_TYPE, BEGIN_TYPE] * 3


# ---- age


async def test_chunks_of_control_batches_have_an_age(tmp_path: Path) -> None:
    """State without results for days is trimmed by age as records are, also what a former life wrote, and does not keep
    what follows it.
    """
    week_ms = 7 * 24 * 3600 * 1000
    async with opened(tmp_path, segment_bytes=1_000) as place:
        for epoch in range(3):
            await place.group([control_batch(MARK_TYPE, 800)], epoch)
    async with opened(tmp_path, segment_bytes=1_000) as place:
        await place.group([control_batch(MARK_TYPE, 800)], 3)
        await place.plain(2, 800)
        place.clock.advance(week_ms - 1000)
        place.engine.store.tick()
        place.engine.kick()
        await until(lambda: place.engine.store.queue.idle)
        assert place.stream.log_start_offset == 0
        place.clock.advance(2000)
        place.engine.store.tick()
        place.engine.kick()
        await until(lambda: place.stream.log_start_offset == place.stream.high_watermark)


async def test_files_of_the_store_are_as_expected(tmp_path: Path) -> None:
    """The naive list reads what the store wrote, with nothing of this module in between."""
    async with opened(tmp_path) as place:
        await place.group([control_batch(MARK_TYPE, 1)])
        assert isinstance(place.files, OsFiles)
        assert [known_type(batch) for _, batch in naive(place, 99, ())] == [END_TYPE, MARK_TYPE, BEGIN_TYPE]
