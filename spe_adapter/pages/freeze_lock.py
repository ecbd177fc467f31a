"""The lock that says whether the owner of a freeze lives: a lock on a byte far behind the end of the file. A second one
lets one process at a time begin a freeze.

Invariants:
* The lock belongs to an opening of the file (an open file description lock), so that it goes when the last descriptor
  of the opening is closed, by a crash too. Forked children share the opening, and with it the lock.
* The lock is independent of `flock` on the same file.

Source: fcntl(2), "Open file description locks".
"""

import fcntl
import os
import struct
from typing import Final

_FLOCK: Final = struct.Struct("@hhlli4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, process."""
_AT: Final = 1 << 62
_BEGIN_AT: Final = _AT + 1


def acquire(descriptor: int) -> None:
    """Lock the byte through this descriptor; several openings may hold the lock."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, _AT, 1, 0))


def release(descriptor: int) -> None:
    """Unlock the byte."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, _AT, 1, 0))


def begin(descriptor: int) -> bool:
    """Become the only process that begins a freeze of this file; False if another one is at it."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _BEGIN_AT, 1, 0))
    except BlockingIOError:
        return False
    return True


def end(descriptor: int) -> None:
    """Let other processes begin a freeze."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, _BEGIN_AT, 1, 0))


def is_held(descriptor: int) -> bool:
    """Whether another opening of the file than this descriptor's holds the lock."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _AT, 1, 0)
    found: bytes = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
