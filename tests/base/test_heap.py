"""Memory that is free goes back to the operating system, once for each time that there is much of it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from logstore.base.heap import Heap

def resident_bytes():
    return 4096 * int(open("/proc/self/statm").read().split()[1])

heap = Heap()
print(heap.tidy())
batches = [bytearray(1000) for _ in range(40_000)]
print(heap.tidy())
kept = batches[::100]
full = resident_bytes()
del batches
print(heap.tidy(), heap.tidy())
assert full - resident_bytes() > 30_000_000
assert all(batch == bytearray(1000) for batch in kept)
batches = [bytearray(1000) for _ in range(40_000)]
print(heap.tidy())
kept = batches[::100]
del batches
print(heap.tidy())
"""


def test_holes_between_what_stays_are_given_back() -> None:
    """Of 40 MB in small pieces, of which every hundredth stays, most is given back, and what stays is unchanged.
    Without holes, or as long as they are those that were given back, nothing is done.
    """
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False", "True", "False", "False", "True"]
