"""Faults of one I/O call, as data.

Invariants: a fault states the error that the caller sees and how much of the call took effect before it; `SimDisk`
applies it.
"""

import enum
import errno
import os
from typing import NamedTuple


class Effect(enum.Enum):
    """How much of a failing call took effect."""

    NOTHING = "nothing"
    """Nothing. After a sync: the pages are marked clean, the content on disk is unknown (Linux since 4.13)."""
    PARTIAL = "partial"
    """The first half of a write's bytes; the same as NOTHING for other calls."""
    DONE = "done"
    """All of it, before the error was reported."""


class Fault(NamedTuple):
    """An error to raise, and the effect of the call before it."""

    errno: int
    effect: Effect = Effect.NOTHING

    def error(self, path: str) -> OSError:
        """The exception that the caller sees."""
        return OSError(self.errno, os.strerror(self.errno), path)


EIO = Fault(errno.EIO)
ENOSPC = Fault(errno.ENOSPC)
SHORT_WRITE = Fault(errno.ENOSPC, Effect.PARTIAL)
FALSE_ALARM = Fault(errno.EIO, Effect.DONE)
"""The call fails, although its effect is (or will be found) on disk."""


class FileCall(NamedTuple):
    """One I/O call as the simulated disk saw it: its number (from 0), name, path and, for writes, how many bytes."""

    number: int
    kind: str
    path: str
    size_bytes: int = 0

    @property
    def changes_disk(self) -> bool:
        """Whether the call is a write or sync point (as opposed to a read)."""
        return self.kind not in LOOKS


LOOKS = frozenset({"read", "size", "exists", "list_directory", "space"})
