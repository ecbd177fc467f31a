"""Whether the registration of a stream names a chunk that was stored.

The owner asks for that once, and its state machine asks the metadata store until it answers. It may never: an entry of
the registration may be damaged, and the owner can neither go on nor be replaced.

Invariant: what is said of a chunk is what the owner has read or written last, while the ownership lasts that has asked.
"""

from enum import Enum
from typing import NamedTuple

import trio

from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.errors import NotLeader
from logstore.format.tiered_chunk import TieredChunk


class Naming(Enum):
    """What is known."""

    NAMED = "named"
    OTHER = "other"
    """It names what was stored before, or the chunk is gone: nobody will ever name this."""
    PENDING = "pending"
    UNKNOWN = "unknown"
    """The ownership has ended: the next owner finds out, and sweeps."""


class StoredCopy(NamedTuple):
    """A chunk that was stored, and the ownership that has asked for it to be registered."""

    stream: ReplicatedStream
    ownership: int
    found: TieredChunk

    @property
    def naming(self) -> Naming:
        """What is known now."""
        if self.stream.ownership != self.ownership:
            return Naming.UNKNOWN
        try:
            chunk = self.stream.registration.chunk(self.found.leader_epoch)
        except NotLeader:
            return Naming.UNKNOWN
        if chunk is None:
            return Naming.OTHER
        if chunk.tiered is None:
            return Naming.PENDING
        return Naming.NAMED if chunk.tiered.attempt == self.found.attempt else Naming.OTHER

    async def settled(self, limit_s: float) -> Naming:
        """What is known when it is no longer PENDING, or behind a limit."""
        with trio.move_on_after(limit_s):
            while self.naming is Naming.PENDING:
                await self.stream.moved.wait()
        return self.naming
