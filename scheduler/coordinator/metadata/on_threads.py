"""A store on a disk, off the event loop.

Invariant: one function of the store runs at a time, and a cancelled caller waits for its end.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

import trio

from scheduler.coordinator.metadata.interface import BlockingMetadata, Change

OffLoad = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking function; it is called for one function at a time."""


async def in_a_thread(work: Callable[[], None]) -> None:
    """Run a function in a thread; a cancellation waits for the end of the function."""
    await trio.to_thread.run_sync(work)


class MetadataOnThreads:
    """See Metadata: on a blocking store, which this process alone uses, and which takes what its disk takes."""

    obstacle: Final = None
    limit_bytes: Final = inf
    left_bytes: Final = inf

    def __init__(self, metadata: BlockingMetadata, off_load: OffLoad = in_a_thread) -> None:
        self._metadata = metadata
        self._off_load = off_load

    async def load(self) -> Mapping[str, str]:
        """See Metadata."""
        found: dict[str, str] = {}
        await self._off_load(lambda: found.update(self._metadata.load()))
        return found

    async def apply(self, changes: Sequence[Change]) -> None:
        """See Metadata."""
        await self._off_load(partial(self._metadata.apply, changes))
