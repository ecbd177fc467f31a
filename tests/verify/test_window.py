"""A check moves a window of fixed size through a chunk: its size changes no finding, and bounds the memory."""

from __future__ import annotations

import pytest

import logstore.verify.window
from logstore.format.batch import HEADER_BYTES, patch_base
from logstore.format.records import Record, encode_batch
from logstore.testing.simdisk import SimDisk
from logstore.verify.chunk import ChunkPlace, check_chunk
from logstore.verify.directory import verify
from logstore.verify.window import WINDOW_BYTES
from tests.crash.tiny import make_tiny
from tests.verify.stores import contents, flipped, stopped_store

PLACE = ChunkPlace("streams/t/0", 0, None)


class _NotedReads(SimDisk):
    """Notes what is read into buffers, and what was announced."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []
        self.announced: list[tuple[int, int]] = []

    def read_into(self, path: str, position: int, buffer: memoryview) -> int:
        count = super().read_into(path, position, buffer)
        self.reads.append((position, position + count))
        return count

    def will_read(self, path: str, position: int, length: int) -> None:
        self.announced.append((position, position + length))


def chunk_of(*value_bytes: int) -> _NotedReads:
    """A disk with a chunk of one batch for each size."""
    disk = _NotedReads()
    for directory in ("streams", "streams/t", "streams/t/0"):
        disk.make_directory(directory)
    path = PLACE.path(".log")
    disk.create(path)
    position = 0
    for offset, size_bytes in enumerate(value_bytes):
        batch = encode_batch([Record(0, 1_700_000_000_000 + offset, None, bytes(size_bytes))])
        patch_base(batch, 0, offset, 0)
        disk.write(path, position, [batch])
        position += len(batch)
    return disk


SIZES = (10, 3 * WINDOW_BYTES, 1000, WINDOW_BYTES - 100, 70, WINDOW_BYTES, *(5000 for _ in range(300)), 1)


def test_each_byte_is_read_once_and_announced_once() -> None:
    """Batches smaller and larger than the window: reads follow each other, none is larger than the window."""
    disk = chunk_of(*SIZES)
    told: list[int] = []
    result = check_chunk(disk, PLACE, progress=told.append)
    size_bytes = disk.size(PLACE.path(".log"))
    assert (result.next_offset, result.findings.counts.batches) == (len(SIZES), len(SIZES))
    assert result.findings.damages == []
    assert sum(told) == result.findings.counts.bytes == size_bytes
    for noted in (disk.reads, disk.announced):
        assert [first for first, _ in noted[1:]] == [end for _, end in noted[:-1]]
        assert noted[-1][1] == size_bytes
    assert max(end - first for first, end in disk.reads) <= WINDOW_BYTES


@pytest.mark.parametrize("at_batch", [0, 1, 2, 5, 6, 100, len(SIZES) - 1])
@pytest.mark.parametrize("at_byte", [0, 8, 16, 20, 30, 60, -1])
def test_damage_is_found_where_it_is(at_batch: int, at_byte: int) -> None:
    """A byte of a header or of the records of a batch of any size, at any place of the window."""
    disk = chunk_of(*SIZES)
    path = PLACE.path(".log")
    begins = [0]
    for size_bytes in SIZES:
        begins.append(begins[-1] + len(encode_batch([Record(0, 1_700_000_000_000, None, bytes(size_bytes))])))
    position = begins[at_batch] + at_byte if at_byte >= 0 else begins[at_batch + 1] - 1
    disk.flip_bit(path, 8 * position + 3)
    place = PLACE._replace(following=len(SIZES))  # a later chunk proves this one
    damages = check_chunk(disk, place).findings.damages
    assert [(found.position, found.first_offset) for found in damages] == [(begins[at_batch], at_batch)]


@pytest.mark.parametrize("window_bytes", [HEADER_BYTES, 100, 333])
def test_its_size_changes_no_finding(window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of intact, damaged and cut chunks with groups and indexes: the same findings with windows of any size."""
    make_tiny(monkeypatch)
    disk = stopped_store().disk
    states = [disk]
    for path in [path for path, content in disk.files() if path.endswith((".log", ".index")) and content]:
        size_bytes = len(contents(disk)[path] or b"")
        states += [flipped(disk, path, bit) for bit in range(0, 8 * size_bytes, 41)]
        for cut_bytes in range(0, size_bytes, 37):
            states.append(disk.kill_state())
            states[-1].truncate(path, cut_bytes)
    for state in states:
        monkeypatch.setattr(logstore.verify.window, "WINDOW_BYTES", 1 << 20)
        whole = verify(state)
        monkeypatch.setattr(logstore.verify.window, "WINDOW_BYTES", window_bytes)
        found = verify(state)
        assert (found.found, found.counts.batches) == (whole.found, whole.counts.batches)
    assert len(states) > 100
