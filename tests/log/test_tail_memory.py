"""The tail takes the memory that it is allowed, whatever the batches' size."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
