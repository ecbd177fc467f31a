"""Copies of chunks on this host, made and served: carries out what `logstore.cluster.copies.copy_flow` and
`logstore.cluster.copies.copy_pace` decide.

Invariants:
* Requests for pieces go out in their turn, and not before.
* COPY_READS pieces are read for other hosts at a time, in the order of their requests; MAX_READS_WAITING wait. Beyond
  that requests are dropped, and who asks asks again.
* Beside appends a piece is read when the last append that was under way has just ended, or GAP_S later: the way of a
  piece, through two hosts, lies between the appends of a producer that sends at some rate. Its pace counts from when it
  was due, so copies are no slower for it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from logstore.cluster.copies.copy_flow import CopyFlow
from logstore.cluster.copies.copy_pace import CopyPace, CopyRates
from logstore.cluster.copies.copy_speed import CopySpeed
from logstore.cluster.interfaces import Links
from logstore.replica.effects import DiskOperation, Effect, Load, StoreDurably, WriteEntries
from logstore.replica.messages import EntriesRead, ReadEntries, Refused

COPY_READS: Final = 2
MAX_READS_WAITING: Final = 256
GAP_S: Final = 0.005
"""With more appends than can be told apart there is no better moment than another."""


@dataclass(slots=True)
class PieceRead:
    """A piece that is read for another host; who reads it says how large it was."""

    size_bytes: int = 0


class Copies:
    """See the module. `run` must run."""

    def __init__(self, links: Links, rates: CopyRates | None = None) -> None:
        self._links = links
        self.pace = CopyPace(rates)
        self.flow = CopyFlow(self.pace, CopySpeed())
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._turns = trio.CapacityLimiter(COPY_READS)
        self._gap = trio.Event()
        """Set when no append is under way any more."""
        self._reads = 0
        self.served_bytes = 0
        """Read for other hosts since the start."""

    async def run(self) -> None:
        """Ask for pieces, until cancelled."""
        while True:
            self._changed = trio.Event()
            now_s = trio.current_time()
            for source, message in self.flow.due(now_s):
                self._links.send(source, message)
            wait_s = self.flow.wait_s(now_s)
            with trio.move_on_after(float("inf") if wait_s is None else wait_s):
                await self._changed.wait()

    def is_beside_appends(self) -> bool:
        """Whether producers write to this host."""
        return self.pace.is_beside_appends(trio.current_time())

    # ---- made here

    def ask(self, source: str, message: ReadEntries) -> None:
        """A replica wants a piece of a chunk."""
        self.flow.ask(source, message)
        self._changed.set()
        if not message.is_urgent:
            self.flow.speed.want(source, trio.current_time())
            self._wanted.set()

    async def wanted(self) -> None:
        """Wait until a piece is wanted."""
        self._wanted = trio.Event()
        await self._wanted.wait()

    def look_again(self) -> None:
        """Copies from some hosts may be faster now."""
        self._changed.set()

    def arrived(self, message: EntriesRead, effects: Sequence[Effect]) -> None:
        """Entries have come; `effects`: what the replica makes of them, which is no write if they are no piece."""
        now_s = trio.current_time()
        self.flow.arrived(message.stream, message.epoch, now_s)
        if not any(isinstance(effect, StoreDurably) for effect in effects):
            self._ended(message.stream, message.epoch, 0)

    def refused(self, message: Refused) -> None:
        """A host does not send entries of a chunk."""
        self._ended(message.stream, message.epoch, 0)

    def write_begun(self, operation: DiskOperation) -> bool:
        """An operation was given to the disk; returns whether it is an append, which `write_ended` is to be told."""
        if not isinstance(operation, WriteEntries) or self.flow.is_in_flight(operation.stream, operation.epoch):
            return False
        self.pace.append_begun(trio.current_time())
        return True

    def write_ended(self, operation: DiskOperation, begun_s: float, *, is_append: bool) -> None:
        """An operation that had begun at a time is durable, or has failed."""
        if is_append:
            self.pace.append_durable(begun_s, trio.current_time())
            if not self.pace.has_append_under_way:
                self._gap.set()
        elif isinstance(operation, WriteEntries):
            self._ended(operation.stream, operation.epoch, sum(len(entry.data) for entry in operation.entries))

    def _ended(self, stream: str, epoch: int, size_bytes: int) -> bool:
        was_piece = self.flow.ended(stream, epoch, size_bytes, trio.current_time())
        if was_piece:
            self._changed.set()
        return was_piece

    # ---- served

    def may_read(self) -> bool:
        """Whether another piece may wait to be read."""
        return self._reads < MAX_READS_WAITING

    @asynccontextmanager
    async def turn_to_read(self, load: Load) -> AsyncIterator[PieceRead]:
        """Wait for a piece's turn; it is read during the block."""
        self._reads += 1
        try:
            async with self.turn(is_urgent=load.is_urgent) as piece:
                try:
                    yield piece
                finally:
                    self.served_bytes += piece.size_bytes
        finally:
            self._reads -= 1

    @asynccontextmanager
    async def turn(self, *, is_urgent: bool = False) -> AsyncIterator[PieceRead]:
        """Wait for the turn of a piece that is read at the pace of copies, for another host or to be checked."""
        async with self._turns:
            while True:
                wait_s = self.pace.wait_s(trio.current_time())
                if is_urgent or wait_s <= 0:
                    break
                await trio.sleep(wait_s)
            piece, begun_s = PieceRead(), trio.current_time()
            if not is_urgent and self.pace.is_beside_appends(begun_s):
                await self._wait_for_gap()
            self.pace.piece_begun()
            try:
                yield piece
            finally:
                self.pace.piece_ended(piece.size_bytes, begun_s, trio.current_time())

    async def _wait_for_gap(self) -> None:
        """Wait until appends that were under way have ended, GAP_S at most."""
        if self._gap.is_set():
            self._gap = trio.Event()
        with trio.move_on_after(GAP_S):
            await self._gap.wait()
