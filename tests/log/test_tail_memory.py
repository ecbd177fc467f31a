"""The tail takes the memory that it is allowed, whatever the batches' size, and while their size changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from logstore.log.tail import HOLES_BYTES
from tests.support.tails import PushedTail

BOUND_BYTES = 16 << 20
PROGRAM = """
import sys

sys.modules["hypothesis"] = None

from logstore.log.tail import StreamTail, Tail, TailEntry


def resident_bytes():
    return 4096 * int(open("/proc/self/statm").read().split()[1])


bound, size = map(int, sys.argv[1:])
tail, stream, before, offset = Tail(bound), StreamTail(), resident_bytes(), 1_000_000
while tail.used_bytes < bound - size - 1000:
    frame = memoryview(bytearray(size + 90))
    tail.push(stream, TailEntry(offset, offset + 7, frame[60 : 60 + size], False))
    offset += 7
print(resident_bytes() - before)
"""


@pytest.mark.parametrize("size", [100, 300, 1_000, 16_000])
def test_a_tail_of_small_batches_takes_what_it_is_allowed(size: int) -> None:
    """Filled with batches of one size, each in a frame as it arrived: a quarter above the bound at most, which the list
    and the order of entries need when they grow.
    """
    command = [sys.executable, "-c", PROGRAM, str(BOUND_BYTES), str(size)]
    taken_bytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 0.8 * BOUND_BYTES < taken_bytes < 1.25 * BOUND_BYTES


CHANGE = """
import mmap
import sys

sys.modules["hypothesis"] = None

from logstore.base.heap import Heap
from logstore.log.tail import StreamTail, Tail, TailEntry


def resident_bytes():
    return 4096 * int(open("/proc/self/statm").read().split()[1])


blank = bytes(1_000_000)
bound, is_heard = int(sys.argv[1]), sys.argv[2] == "True"
heap, tail, stream, before, most, kept = Heap(), Tail(bound), StreamTail(), resident_bytes(), 0, []
if is_heard:
    tail.on_holes = heap.give_back
for offset in range(2 * bound // 16_000):
    tail.push(stream, TailEntry(offset, offset + 1, memoryview(bytearray(16_000)), False))
    tail.evict()
    kept.append(bytes(600))
for offset in range(offset + 1, offset + 1 + 2 * bound // 1_000_000):
    frame = mmap.mmap(-1, 1_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    frame.write(blank)
    tail.push(stream, TailEntry(offset, offset + 1, memoryview(frame), False))
    tail.evict()
    del frame
    most = max(most, resident_bytes() - before)
print(most)
"""


def _most_bytes(is_heard: bool) -> int:
    command = [sys.executable, "-c", CHANGE, str(BOUND_BYTES), str(is_heard)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_change_to_large_batches_takes_little_more_than_either() -> None:
    """While batches of 1 MB replace those of 16 KB, resident memory stays within one and a half times the bound and the
    holes that are allowed, if who listens gives them back; with nobody who does, it does not.
    """
    assert _most_bytes(is_heard=True) < 1.5 * BOUND_BYTES + HOLES_BYTES < _most_bytes(is_heard=False)


class _Filled:
    """A tail, and how often it said that there are holes."""

    def __init__(self) -> None:
        self.tail = PushedTail(BOUND_BYTES)
        self.times = 0
        self.tail.on_holes = self._heard

    def _heard(self) -> None:
        self.times += 1


@pytest.mark.parametrize("size", [100, 16_000, 1_000_000])
def test_a_steady_load_makes_no_holes(size: int) -> None:
    """Batches of one size, four times what the tail holds, ask for nothing to be given back."""
    filled = _Filled()
    filled.tail.push_all(size, 4 * BOUND_BYTES)
    assert filled.times == 0


def test_small_batches_of_changing_size_make_no_holes() -> None:
    """Whatever replaces small batches and is small fills their holes."""
    filled = _Filled()
    for size in (16_000, 100, 1_000, 16_000, 1_000):
        filled.tail.push_all(size, BOUND_BYTES)
    assert filled.times == 0


def test_small_batches_beside_large_ones_make_no_holes() -> None:
    """A load of both asks for something only while it takes the place of the load before it."""
    filled = _Filled()
    filled.tail.push_all(16_000, BOUND_BYTES)
    for _ in range(40):
        filled.tail.push_all(16_000, 1_000_000)
        filled.tail.push_all(1_000_000, 1_000_000)
    settled = filled.times
    assert settled <= BOUND_BYTES // HOLES_BYTES
    for _ in range(100):
        filled.tail.push_all(16_000, 1_000_000)
        filled.tail.push_all(1_000_000, 1_000_000)
    assert filled.times == settled


def test_each_change_to_large_batches_makes_holes() -> None:
    """Large batches that replace a tail of small ones ask each time for HOLES_BYTES of them, and then no more; the next
    small ones fill holes and ask for nothing.
    """
    filled = _Filled()
    for number in (1, 2, 3):
        filled.tail.push_all(16_000, BOUND_BYTES)
        before = filled.times
        filled.tail.push_all(100_000, 2 * BOUND_BYTES)
        assert filled.times - before == BOUND_BYTES // HOLES_BYTES - 1, f"change {number}: the last part is not whole"


def test_the_tail_gives_way_to_large_requests_on_their_way() -> None:
    """A large request takes its place in the bound as soon as it has come, up to a half of it; small ones with the next
    batch. When nothing is on its way any more, the tail has all of the bound again.
    """
    filled, coming = _Filled(), [0]
    filled.tail.coming_bytes = lambda: coming[0]
    filled.tail.push_all(1_000_000, 2 * BOUND_BYTES)
    for coming[0], used_bytes in ((5 << 20, 11 << 20), (20 << 20, BOUND_BYTES // 2)):
        filled.tail.make_room()
        assert used_bytes - 1_001_000 < filled.tail.used_bytes <= used_bytes
    coming[0] = 0
    filled.tail.push_all(1_000, 2 * BOUND_BYTES)
    assert filled.tail.used_bytes > BOUND_BYTES - 2_000
    coming[0] = 1 << 20
    filled.tail.push_all(1_000, 1_000)
    assert filled.tail.used_bytes <= 15 << 20
