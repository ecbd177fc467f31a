"""Producer ids of a cluster: reserved in blocks in the metadata store, so that no two hosts give out the same.

Invariants: an id is given out once, over all hosts and starts; what is left of a block when a host ends is lost. A host
has a block that it has not begun, from its start on and behind each one that it begins: so producers begin while the
metadata store is away, BLOCK of them at least.
"""

from typing import Final

import trio

from logstore.base.metadata.errors import MetadataDamaged, MetadataError, OutcomeUnknown
from logstore.base.metadata.interface import Committed, Condition, Put, Transaction
from logstore.cluster.own_store import EntryStore

KEY: Final = "producer-ids"
"""Its value is the first id that is not reserved, in decimal."""
BLOCK: Final = 1000
RETRY_S: Final = 10.0
"""Before a block is asked for again that the metadata store did not give."""


class ProducerIds:
    """See the module. `run` must run for there to be a block that is not begun."""

    def __init__(self, metadata: EntryStore) -> None:
        self._metadata = metadata
        self._left = self._next = range(0)
        self._begun = trio.Event()
        """Set when there is no block that is not begun."""
        self._turn = trio.Lock()

    async def run(self) -> None:
        """Keep a block that is not begun, until cancelled."""
        while True:
            self._begun = trio.Event()
            while not self._next:
                try:
                    self._next = await self._reserve()
                except MetadataError:  # who takes an id is told
                    await trio.sleep(RETRY_S)
            await self._begun.wait()

    async def take(self) -> int:
        """An id that was never given out before. Raises MetadataError."""
        async with self._turn:
            while not self._left:
                if self._next:
                    self._left, self._next = self._next, range(0)
                    self._begun.set()
                else:
                    self._left = await self._reserve()
            first, self._left = self._left[0], self._left[1:]
            return first

    async def _reserve(self) -> range:
        """A block of ids; empty if another host was faster, or if it is not known whether the block is ours."""
        reading = await self._metadata.get(KEY)
        text = b"0" if reading.entry is None else reading.entry.value
        if not text.isdigit():
            raise MetadataDamaged(f"the entry {KEY!r} is {text[:40]!r}, not a number; put one above all ids in use")
        block = range(int(text), int(text) + BLOCK)
        change = Put(KEY, str(block.stop).encode())
        try:
            outcome = await self._metadata.commit(Transaction((Condition(KEY, reading.entry_revision),), (change,)))
        except OutcomeUnknown:
            return range(0)  # the block may be lost; the next one is not
        return block if isinstance(outcome, Committed) else range(0)
