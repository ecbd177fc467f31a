"""How often others have a turn while something runs: what tells whether long work gives way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turns:
    """Turns that another task had so far."""

    def __init__(self) -> None:
        self.count = 0

    async def take(self) -> None:
        """Take every turn there is, until cancelled."""
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Another task that only counts its turns, as long as the block runs."""
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.take)
        yield turns
        nursery.cancel_scope.cancel()
