"""Carries out what replicas ask of the disk, and tells them what came of it.

Invariants:
* What a burst asks of the disk begins together when the burst ends, behind the messages that leave then.
* An operation is reported once, when it is durable or has failed. A cut that finds other bytes is damage; a disk that
  refuses is not.
* LOADS_AT_ONCE reads for readers have their entries in memory at a time, and MAX_LOADS wait: beyond that they are
  dropped, and who asks asks again. A read that fails for want of a descriptor or of memory says nothing about the
  chunk, and is dropped as well.
* Reads for copies wait for their turn (`logstore.cluster.copies.copies`), apart from those for readers.
"""

from collections.abc import Callable
from typing import Final

import trio

from logstore.base.events import Report
from logstore.cluster.copies.copies import Copies
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.links.bursts import Bursts
from logstore.errors import PASSING_ERRORS, CorruptChunk, UnknownTopicOrPartition
from logstore.events import REPLICA_DAMAGED
from logstore.log.ticket import Ticket
from logstore.replica.effects import Effect, Load, StoreDurably
from logstore.replica.replica import Replica

MAX_LOADS: Final = 64
LOADS_AT_ONCE: Final = 8
"""Each has a mebibyte in memory, and as much again on its way through the link."""


class DiskWork:
    """See the module. `carry_out` takes the effects of what has come back. `run` must run for reads."""

    def __init__(
        self,
        files: ReplicaFiles,
        replica: Replica,
        copies: Copies,
        carry_out: Callable[[list[Effect]], None],
        report: Report,
        bursts: Bursts,
    ) -> None:
        self._bursts = bursts
        self._files = files
        self._replica = replica
        self._carry_out = carry_out
        self._report = report
        self._copies = copies
        self._loads = 0
        self._turns = trio.CapacityLimiter(LOADS_AT_ONCE)
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Let reads run, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def store(self, store: StoreDurably) -> None:
        """Carry out an operation."""
        begun_s = trio.current_time()

        def settled(ticket: Ticket[None]) -> None:
            if not self._bursts.is_open and self._files.after_settling(self._bursts.end):
                self._bursts.begin()
            self._copies.write_ended(store.operation, begun_s, is_append=is_append)
            if ticket.error is None:
                self._carry_out(self._replica.stored(store.token))
                return
            is_damaged = isinstance(ticket.error, CorruptChunk)
            self._report(REPLICA_DAMAGED, operation=type(store.operation).__name__, error=ticket.error)
            self._carry_out(self._replica.store_failed(store.token, is_damaged=is_damaged))

        is_append = self._copies.write_begun(store.operation)
        self._files.perform(store.operation).add_callback(settled)
        if self._bursts.is_open:
            self._bursts.gather(self._files.begin)
        else:
            self._files.begin_soon()

    def found_damaged(self, stream: str, epoch: int) -> None:
        """A check that nobody asked for has found a copy damaged, and has reported it."""
        self._carry_out(self._replica.found_damaged(stream, epoch))

    def load(self, load: Load) -> None:
        """Read entries."""
        may_wait = self._copies.may_read() if load.for_copy else self._loads < MAX_LOADS
        if self._nursery is None or not may_wait:
            self._replica.load_dropped(load.token)
        elif load.for_copy:
            self._nursery.start_soon(self._load_for_copy, load)
        else:
            self._loads += 1
            self._nursery.start_soon(self._load_for_reader, load)

    async def _load_for_copy(self, load: Load) -> None:
        async with self._copies.turn_to_read(load) as piece:
            piece.size_bytes = await self._load(load)

    async def _load_for_reader(self, load: Load) -> None:
        try:
            async with self._turns:
                await self._load(load)
        finally:
            self._loads -= 1

    async def _load(self, load: Load) -> int:
        """Returns the bytes of the entries."""
        try:
            found = await self._files.load(load)
        except (CorruptChunk, UnknownTopicOrPartition, OSError) as error:
            if isinstance(error, OSError) and error.errno in PASSING_ERRORS:
                self._replica.load_dropped(load.token)
            else:
                self._report(REPLICA_DAMAGED, operation="Load", stream=load.stream, epoch=load.epoch, error=error)
                self._carry_out(self._replica.load_failed(load.token))
            return 0
        self._carry_out(self._replica.loaded(load.token, *found))
        return sum(len(entry.data) for entry in found.entries)
