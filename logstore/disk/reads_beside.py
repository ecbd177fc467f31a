"""Catch-up reads beside writes: they keep to their share (`ReadShare`), and let a write go first.

Invariants:
* Only jobs that sync data count as writes; what looks at the disk, or removes files, holds no read up.
* A read that has to wait for the share also lets a write go first that is under way, queued, or arrives in the same
  turn of the event loop, for WRITE_WAIT_S at most: reads go on whatever the disk does, at their share while a sync
  hangs.
* Reads that wait begin in the order in which they came.
"""

from collections.abc import Callable
from typing import Final

import trio

from logstore.log.jobs import DiskJob
from logstore.log.read_share import BESIDE_S, ReadShare

WRITE_WAIT_S: Final = 0.001
"""The longest wait of a catch-up read for a write: the two compete for the interpreter and the processors."""
LOOKS: Final = 50
"""Looks at most for a pause of the writes, beside which a read has time."""


class ReadsBeside:
    """The share of one store's catch-up reads, and the writes that are under way."""

    def __init__(self, may_start: Callable[[], bool]) -> None:
        """`may_start` says whether a job is queued that may start."""
        self._may_start = may_start
        self._share = ReadShare()
        self._turn = trio.Lock()
        self._settled = trio.Event()

    def started(self, job: DiskJob) -> None:
        """A disk job starts."""
        if job.is_synced:
            self._share.begin_write(trio.current_time())

    def ended(self, job: DiskJob) -> None:
        """A disk job has ended."""
        if job.is_synced:
            self._share.end_write(trio.current_time())

    def settled(self) -> None:
        """The jobs that ended together have settled."""
        self._settled.set()

    @property
    def may_read(self) -> bool:
        """Whether a catch-up read may begin without `wait`."""
        return not self._share.wait_s(trio.current_time())

    def begin(self, most_bytes: int) -> int:
        """A catch-up read begins that is to give so many bytes at most; returns how many of them are paid for, which
        `end` is to be told.
        """
        return self._share.begin_read(most_bytes, trio.current_time())

    def end(self, paid_bytes: int, size_bytes: int) -> None:
        """That read has given so many bytes."""
        self._share.end_read(paid_bytes, size_bytes)

    async def wait(self) -> None:
        """Before a catch-up read: beside writes, wait until reads have their share again, first come, first served."""
        if not self.may_read:
            async with self._turn:
                await trio.sleep(self._share.wait_s(trio.current_time()))
                await self._let_write_pass()

    async def wait_for_pause(self, most_s: float) -> None:
        """Before a read that has time: wait until streams are not being written, `most_s` seconds at most. It looks
        every 50th part of that time: writes are not to wake anybody for it.
        """
        with trio.move_on_after(most_s):
            while self.is_beside_writes:  # noqa: ASYNC110  time alone ends it, and a write begins it anew
                await trio.sleep(max(BESIDE_S, most_s / LOOKS))

    async def wait_ahead(self) -> None:
        """Before a read ahead, which nobody waits for: beside writes, let a write go first."""
        if self.is_beside_writes:
            await self._let_write_pass()

    @property
    def is_beside_writes(self) -> bool:
        """Whether streams are being written."""
        return self._share.is_beside_writes(trio.current_time())

    async def _let_write_pass(self) -> None:
        """Wait for a write that is under way or about to start, WRITE_WAIT_S at most."""
        await trio.lowlevel.checkpoint()  # what has arrived in this turn is appended first
        if self._share.is_writing or self._may_start():
            if self._settled.is_set():
                self._settled = trio.Event()
            with trio.move_on_after(WRITE_WAIT_S):
                await self._settled.wait()
