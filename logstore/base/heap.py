"""Gives memory that the program has freed back to the operating system.

Small allocations of one load (batches, frames) leave holes between what stays, which the C library keeps for the
program. Under a load of another kind, such as large batches, which are mapped one by one, nothing uses the holes.

Invariants: nothing that is in use changes. While a load fills its holes again and again, their pages stay: giving them
back would cost a page fault for each. Where the C library has no such calls, nothing happens.
"""

import ctypes
from typing import Final

HOLES_BYTES: Final = 16 << 20
"""Free memory above this is a load's that is over: a steady one has a third of the tail's size in holes."""
_FREE_BYTES = "free_bytes"


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
        self._holes_bytes = holes_bytes
        self._is_given_back = False
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._info = getattr(library, "mallinfo2", None)
        if self._info is not None:
            self._info.restype = _Info

    def tidy(self) -> bool:
        """Give back the pages of the holes if these have become large; returns whether it did.

        Blocks for some milliseconds without the interpreter's lock; other threads that allocate wait meanwhile.
        """
        if self._trim is None or self._info is None:
            return False
        # What was given back counts as free, too: the next time is after the holes have been filled.
        has_holes = getattr(self._info(), _FREE_BYTES) >= self._holes_bytes
        is_due = has_holes and not self._is_given_back
        self._is_given_back = has_holes
        if is_due:
            self._trim(0)
        return is_due
