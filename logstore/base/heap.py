"""Gives memory that the program has freed, and code that it does not run, back to the operating system.

Small allocations of one load (batches, frames) leave holes between what stays, which the C library keeps for the
program. Under a load of another kind, such as large batches, which are mapped one by one, nothing uses the holes.

Invariants: nothing that is in use changes. A steady load has fewer holes than HOLES_BYTES, and its pages stay: giving
them back would cost a page fault for each. Where the C library has no such calls, nothing happens.
"""

import ctypes
import mmap
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

HOLES_BYTES: Final = 8 << 20
"""Free memory above this is a load's that is over: a steady one has a third of the tail's size in holes."""
GROWN_BYTES: Final = 4 << 20
"""So much more memory than at its least may be holes with pages, and not only holes whose pages went back."""
_FREE_BYTES = "free_bytes"
_MAPS: Final = Path("/proc/self/maps")
_SIZES: Final = Path("/proc/self/statm")
_CODE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \d+ +(/.*)")


class _Info(ctypes.Structure):
    """`struct mallinfo2` of the C library; only the free bytes in all its heaps are of interest."""

    _fields_ = (
        *((f"_{number}", ctypes.c_size_t) for number in range(8)),
        (_FREE_BYTES, ctypes.c_size_t),
        ("_8", ctypes.c_size_t),
    )


class Heap:
    """The C library's heap."""

    def __init__(self, holes_bytes: int = HOLES_BYTES) -> None:
        self.times_given_back = 0
        self._holes_bytes = holes_bytes
        self._least_bytes = _resident_bytes()
        """The least memory that was resident at a look since the holes went back."""
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._info = getattr(library, "mallinfo2", None)
        if self._info is not None:
            self._info.restype = _Info

    def tidy(self) -> bool:
        """Give back the holes' pages if these have become large; returns whether it did. Blocks as `give_back`."""
        if self._trim is None or self._info is None:
            return False
        resident_bytes = _resident_bytes()
        self._least_bytes = min(self._least_bytes, resident_bytes)
        # What was given back counts as free, too, and holes between what stays may be as large for ever: only where
        # memory has grown since, they may have been filled and left again.
        has_grown = resident_bytes - self._least_bytes >= GROWN_BYTES
        is_due = has_grown and getattr(self._info(), _FREE_BYTES) >= self._holes_bytes
        if is_due:
            self.give_back()
        return is_due

    def give_back(self) -> None:
        """Give back the pages of the holes.

        Blocks for some milliseconds without the interpreter's lock; other threads that allocate wait meanwhile.
        """
        if self._trim is not None:
            self._trim(0)
            self.times_given_back += 1
            self._least_bytes = _resident_bytes()


def _resident_bytes() -> int:
    """What of the program's own memory is resident, without pages of files; 0 where the system does not say."""
    with suppress(OSError):
        _, resident, shared, *_ = _SIZES.read_bytes().split()
        return (int(resident) - int(shared)) * mmap.PAGESIZE
    return 0


def give_back_code(library: str) -> int:
    """Give back the pages of the code of a loaded library, whose file's name begins so; returns the bytes of its code.

    Code that runs again is read from the file again, or from the system's cache of it. Blocks for a moment.
    """
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    given_bytes = 0
    with suppress(OSError):
        for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            found = _CODE.fullmatch(line)
            if advise is not None and found and Path(found[3]).name.startswith(library):
                begin, end = int(found[1], 16), int(found[2], 16)
                if advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED) == 0:
                    given_bytes += end - begin
    return given_bytes
