"""Reads of members that take long, for readers that cannot wait, such as a Fetch of many partitions.

A member that is away is asked for half a second, and all of a chunk's members three times, before it is said that none
can be reached. A Fetch that waited for that would hold up the records of its other partitions.

Invariants:
* A reader waits for LATE_S, and for QUICK_S while other reads are late. Then the read goes on without it, from the
  beginning, and the stream's waiters are woken at its end; its answer, or its error, is that of the next read of the
  place.
* Bounded: MAX_LATE reads and answers, each of about a mebibyte; so late reads leave room for others
  (`logstore.cluster.streams.entry_reads`). An answer that nobody has asked for again goes after KEPT_S, when its place
  is wanted, and not earlier: a Fetch of more partitions than there are places would drop each answer on its way back
  to it. A read that has no place is not begun, and asked for again.
* A chunk of which no member could be reached is not asked for again for AWAY_S where the tier has it.
"""

from functools import partial
from typing import Final

import trio

from logstore.cluster.interfaces import Spawn, StreamOwners
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.errors import CairnError, ChunkUnreachable
from logstore.log.ticket import Ticket
from logstore.replica.messages import EntriesRead
from logstore.replica.registrations import ChunkRegistration

LATE_S: Final = 0.5
"""As long as one member is waited for."""
QUICK_S: Final = 0.05
MAX_LATE: Final = 16
AWAY_S: Final = 10.0
KEPT_S: Final = 10.0

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
        self._away: dict[tuple[str, int], float] = {}
        """Chunks in the tier of which no member could be reached, and until when they count as such."""

    async def entries(
        self, stream: ReplicatedStream, chunk: ChunkRegistration, offset: int, max_bytes: int
    ) -> EntriesRead | None:
        """Entries from an offset on, from any member; None: they are on their way. Raises ChunkUnreachable."""
        place = (stream.stream, chunk.epoch, offset)
        self._check_away(stream, chunk)
        late = self._late.get(place)
        if late is None:
            is_quick = any(not each.done for each in self._late.values())
            with trio.move_on_after(QUICK_S if is_quick else LATE_S):
                return await self._owners.read_entries(stream.stream, chunk, offset, max_bytes)
            self._begin(place, stream, chunk, max_bytes)
            return None
        await trio.lowlevel.checkpoint()
        if not late.done:
            return None
        if self._late.get(place) is late:
            self._forget(place)
        return late.result()

    def _check_away(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> None:
        until_s = self._away.get((stream.stream, chunk.epoch))
        if until_s is None:
            return
        if trio.current_time() < until_s:
            raise ChunkUnreachable(f"{stream.name}: no member of the chunk from {chunk.base_offset} on has answered")
        del self._away[stream.stream, chunk.epoch]

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
        late, (name, epoch, offset) = self._late[place], place
        is_away = False
        try:
            late.succeed(await self._owners.read_entries(name, chunk, offset, max_bytes))
        except (CairnError, OSError) as error:
            is_away = isinstance(error, ChunkUnreachable) and chunk.tiered is not None
            if is_away:
                while len(self._away) >= MAX_LATE:
                    del self._away[next(iter(self._away))]
                self._away[name, epoch] = trio.current_time() + AWAY_S
            late.fail(error)
        if is_away:
            self._forget(place)  # all reads of the chunk get this answer
        else:
            self._ended_s[place] = trio.current_time()
        stream.wake_waiters()
