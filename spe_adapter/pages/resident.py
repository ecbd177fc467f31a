"""State beyond memory: pages of a mapped file on a disk are written out and dropped, and read again on access.

Invariants:
* Nothing is lost: a page is written to its file before it is dropped, and a dropped page has the same content when it
  is read again. What another process maps stays in memory until the other process lets go of it.
* The bound holds whenever `write_out` has run, not while pages are used: a change of rows all over a table needs all
  of its pages for a moment.
* The system may keep pages in larger units than these: then more is dropped than needed.
* In a file system that lies in memory (tmpfs) nothing can be dropped.

Source: statfs(2), mincore(2), sync_file_range(2), madvise(2), posix_fadvise(2).
"""

import ctypes
import mmap
import os
import sys
from pathlib import Path
from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Bytes, Int64s

_libc: Final = ctypes.CDLL(None, use_errno=True)
_WRITE_AND_WAIT: Final = 7
"""SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER."""
_IN_MEMORY: Final = frozenset((0x01021994, 0x858458F6))
"""TMPFS_MAGIC and RAMFS_MAGIC, the kinds of file systems that have no disk below them."""
_STATFS_BYTES: Final = 512
"""More than the system writes."""
_KIND_BYTES: Final = 4
"""Of the first field, which is long: the numbers of all kinds fit into its low half (on little-endian machines)."""
_ROUNDS: Final = 16
"""Tries of one call; each but the first takes at minimum twice as many pages."""
_SLACK: Final = 10
"""One part in so many of the bound is freed beyond what is needed, so that not every call has work."""


def lies_in_memory(path: Path) -> bool:
    """Whether what is written at a path lies in memory alone (tmpfs, ramfs). The path may be still to be made. Raises
    OSError.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.statfs(os.fsencode(path), answer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return int.from_bytes(answer.raw[:_KIND_BYTES], sys.byteorder) in _IN_MEMORY


def resident_bytes(block: Bytes) -> int:
    """The bytes of a mapped file that are in memory. The block is the map's, from its first byte on."""
    return int(np.count_nonzero(_resident(block))) * mmap.PAGESIZE


def write_out(block: Bytes, descriptor: int, start: int, page_bytes: int, order: Int64s, limit_bytes: int) -> int:
    """Drop pages until at most `limit_bytes` of a mapped file are in memory; how many bytes were dropped.

    `block` is the whole map, its pages begin at byte `start`, and are dropped in the given order of numbers. Raises
    OSError where pages cannot be written.
    """
    dropped = 0
    behind = 0
    for _ in range(_ROUNDS):
        in_memory = _resident(block)
        excess = int(np.count_nonzero(in_memory)) * mmap.PAGESIZE - limit_bytes
        if excess <= 0 or behind == len(order):
            break
        counts: Int64s = np.concatenate((np.zeros(1, np.int64), np.cumsum(in_memory, dtype=np.int64)))
        starts = np.minimum((start + order * page_bytes) // mmap.PAGESIZE, len(in_memory))
        ends = np.minimum((start + (order + 1) * page_bytes) // mmap.PAGESIZE, len(in_memory))
        gained: Int64s = np.cumsum(np.subtract(counts[ends], counts[starts])) * mmap.PAGESIZE
        enough = int(np.searchsorted(gained, excess + limit_bytes // _SLACK)) + 1
        # The system drops large units of its own only as a whole: what did not go alone goes with its neighbours.
        behind = min(max(enough, 2 * behind), len(order))
        numbers = np.sort(order[:behind])
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            _drop(block, descriptor, start + int(run[0]) * page_bytes, start + (int(run[-1]) + 1) * page_bytes)
        dropped += int(np.count_nonzero(in_memory)) * mmap.PAGESIZE - resident_bytes(block)
    return dropped


def let_go(block: Bytes) -> None:
    """Take a file's pages out of this process's map, so that other processes can drop them."""
    _check(_libc.madvise(ctypes.c_void_p(block.ctypes.data), ctypes.c_size_t(len(block)), mmap.MADV_DONTNEED))


def _drop(block: Bytes, descriptor: int, start: int, end: int) -> None:
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, min(end, len(block)) // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= start:
        return
    length = end - start
    _check(
        _libc.sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(length), ctypes.c_uint(_WRITE_AND_WAIT))
    )
    _check(_libc.madvise(ctypes.c_void_p(block.ctypes.data + start), ctypes.c_size_t(length), mmap.MADV_DONTNEED))
    os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def _resident(block: Bytes) -> Bytes:
    """For each page of the system, whether it is in memory."""
    out: Bytes = np.zeros(-(-len(block) // mmap.PAGESIZE), np.uint8)
    _check(
        _libc.mincore(ctypes.c_void_p(block.ctypes.data), ctypes.c_size_t(len(block)), ctypes.c_void_p(out.ctypes.data))
    )
    out &= 1
    return out


def _check(status: int) -> None:
    if status:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
