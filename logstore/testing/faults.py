"""What can go wrong with one I/O call, as data.

Invariants: a fault says which error the caller sees and how much of the call took place before it; `SimDisk` does it.
"""

import enum
import errno
import os
from typing import NamedTuple


class Effect(enum.Enum):
    """How much of a failing call took place."""

    NOTHING = "nothing"
    """Nothing was done. A sync: the pages are marked clean, what is on disk is unknown (Linux since 4.13)."""
    PARTIAL = "partial"
    """The first half of a write's bytes was written; the same as NOTHING for other calls."""
    DONE = "done"
    """All was done, and then the error was reported."""


class Fault(NamedTuple):
    """An error to raise, and what happened before it."""

    errno: int
    effect: Effect = Effect.NOTHING

    def error(self, path: str) -> OSError:
        """The exception that the caller sees."""
        return OSError(self.errno, os.strerror(self.errno), path)


EIO = Fault(errno.EIO)
ENOSPC = Fault(errno.ENOSPC)
SHORT_WRITE = Fault(errno.ENOSPC, Effect.PARTIAL)
FALSE_ALARM = Fault(errno.EIO, Effect.DONE)
"""The call fails, yet what it did is (or will be found) on disk."""


class Call(NamedTuple):
    """One I/O call as the simulated disk saw it: its number (from 0), name, path and, for writes, how many bytes."""

    number: int
    kind: str
    path: str
    size_bytes: int = 0

    @property
    def changes_disk(self) -> bool:
        """Whether it is a write or sync point (as opposed to looking at what is there)."""
        return self.kind not in LOOKS


LOOKS = frozenset({"read", "size", "exists", "list_directory"})
