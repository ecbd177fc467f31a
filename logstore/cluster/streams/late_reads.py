"""Reads of members that take long, for readers that cannot wait, such as a Fetch of many partitions.

A member that is away is asked for half a second, and all of a chunk's members three times, before it is said that none
can be reached. A Fetch that waited for that would hold up the records of its other partitions.

Invariants:
* A reader waits for LATE_S, and for what all reads of its request may wait together (`ReadPatience`). Then the read
  goes on without it, from the beginning, and the stream's waiters are woken at its end; its answer is that of the next
  read of the place. So is its error for ERROR_S: who comes later hears what is so then, and not what was.
* For members that are known to be silent nobody waits (`logstore.cluster.streams.entry_reads`): if the tier has the
  chunk, it is read there; else the read goes on without its reader from the first moment. Of a chunk of which no host
  can be reached, that is said at once. So a request of many partitions waits for each silent host once, not for each
  partition.
* Bounded: MAX_LATE reads and answers, each of about a mebibyte; so late reads leave room for others. An answer that
  nobody has asked for again goes after KEPT_S, when its place is wanted, and not earlier: a Fetch of more partitions
  than there are places would drop each answer on its way back to it. A read that has no place is not begun, and asked
  for again.
"""

from functools import partial
from typing import Final

import trio

from logstore.cluster.interfaces import Answering, Spawn, StreamOwners
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.errors import CairnError, ChunkUnreachable
from logstore.log.read_patience import ReadPatience
from logstore.log.ticket import Ticket
from logstore.replica.messages import EntriesRead
from logstore.replica.registrations import ChunkRegistration

LATE_S: Final = 0.2
"""Longer than members take that are well; one that takes longer counts as silent from then on."""
MAX_LATE: Final = 16
KEPT_S: Final = 10.0
ERROR_S: Final = 1.0
"""A client whose Fetch was answered with nothing comes back in less, and one that waits is woken."""

Place = tuple[str, int, int]
"""Stream, epoch of a chunk, offset."""


class LateReads:
    """See the module. `spawn` runs a task."""

    def __init__(self, owners: StreamOwners, spawn: Spawn) -> None:
        self._owners = owners
        self._spawn = spawn
        self._late: dict[Place, Ticket[EntriesRead]] = {}
        self._ended_s: dict[Place, float] = {}
        """When those of them ended that have."""

    async def entries(
        self,
        stream: ReplicatedStream,
        chunk: ChunkRegistration,
        offset: int,
        max_bytes: int,
        patience: ReadPatience,
    ) -> EntriesRead | None:
        """Entries from an offset on, from any member; None: they are on their way. Raises ChunkUnreachable."""
        place = (stream.stream, chunk.epoch, offset)
        late = self._late.get(place)
        if late is not None and self._is_old_error(place, late):
            self._forget(place)
            late = None
        if late is not None and late.done:
            self._forget(place)  # at once: another reader may begin the place anew during the checkpoint
            await trio.lowlevel.checkpoint()
            return late.result()
        answering = self._owners.answering(chunk)
        if answering is Answering.NOBODY or (answering is Answering.LATE and chunk.tiered is not None):
            raise ChunkUnreachable(f"{stream.name}: no host that has the chunk from {chunk.base_offset} on answers")
        if late is not None:
            return None
        begun_s = trio.current_time()
        left_s = patience.left_at(begun_s)
        if answering is Answering.AT_ONCE and left_s > 0:
            patience.begin(begun_s)
            try:
                with trio.move_on_after(min(LATE_S, left_s)):
                    return await self._owners.read_entries(stream.stream, chunk, offset, max_bytes)
            finally:
                patience.end(trio.current_time())
        self._begin(place, stream, chunk, max_bytes)
        return None

    def _is_old_error(self, place: Place, late: Ticket[EntriesRead]) -> bool:
        """Whether a read has failed so long ago that its error says nothing any more."""
        return late.error is not None and trio.current_time() - self._ended_s[place] > ERROR_S

    def _begin(self, place: Place, stream: ReplicatedStream, chunk: ChunkRegistration, max_bytes: int) -> None:
        if place in self._late:
            return  # another reader has waited for it
        if len(self._late) >= MAX_LATE:
            latest_s = trio.current_time() - KEPT_S
            left = next((each for each, ended_s in self._ended_s.items() if ended_s <= latest_s), None)
            if left is None:
                return
            self._forget(left)
        self._late[place] = Ticket()
        self._spawn(partial(self._read, place, stream, chunk, max_bytes))

    def _forget(self, place: Place) -> None:
        self._late.pop(place, None)
        self._ended_s.pop(place, None)

    async def _read(self, place: Place, stream: ReplicatedStream, chunk: ChunkRegistration, max_bytes: int) -> None:
        late, (name, _, offset) = self._late[place], place
        try:
            late.succeed(await self._owners.read_entries(name, chunk, offset, max_bytes))
        except (CairnError, OSError) as error:
            late.fail(error)
        self._ended_s[place] = trio.current_time()
        stream.wake_waiters()
