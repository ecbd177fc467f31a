"""Memory that is free, and code that does not run, go back to the operating system."""

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


CODE_SCRIPT = """
import llvmlite.binding as llvm

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
from logstore.base.heap import give_back_code

def resident_bytes():
    return 4096 * int(open("/proc/self/statm").read().split()[1])

def compiled():
    target = llvm.Target.from_default_triple().create_target_machine()
    module = llvm.parse_assembly("define i32 @one() { ret i32 1 }")
    return target.emit_object(module)

before, full = compiled(), resident_bytes()
assert give_back_code("libnothing") == 0
assert give_back_code("libllvmlite") > 10_000_000
print(full - resident_bytes(), compiled() == before)
"""


def test_code_that_does_not_run_is_given_back() -> None:
    """Of a large library most of what was read for its code goes, and the library still works."""
    found = subprocess.run([sys.executable, "-c", CODE_SCRIPT], capture_output=True, text=True, check=True)
    given_bytes, still_works = found.stdout.split()
    assert int(given_bytes) > 5_000_000
    assert still_works == "True"


AGAIN_SCRIPT = """
from logstore.base.heap import Heap

def resident_bytes():
    return 4096 * int(open("/proc/self/statm").read().split()[1])

heap = Heap()
lasting = [bytearray(1000) for _ in range(40_000)]
kept = lasting[::100]
del lasting
assert heap.tidy()
for _ in range(2):
    batches = [bytearray(1000) for _ in range(12_000)]
    full = resident_bytes()
    kept += batches[::100]
    del batches
    print(heap.tidy(), full - resident_bytes() > 8_000_000, heap.tidy())
"""


def test_holes_that_are_filled_and_left_again_are_given_back_again() -> None:
    """Beside others that stay as they are, whose pages went back before."""
    found = subprocess.run([sys.executable, "-c", AGAIN_SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True", "False"] * 2
