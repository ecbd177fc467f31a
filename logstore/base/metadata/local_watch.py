"""A watch on a `MetadataState` in this process.

Invariants: a watch keeps a position in the state's history and the changes that it has found and not delivered; a
watcher that is slower than the history is long gets Compacted, so a slow one holds no memory of its own.
"""

from collections import deque

import trio

from logstore.base.metadata.interface import Changes
from logstore.base.metadata.state import MetadataState


class ChangeSignal:
    """Wakes all who wait for the next change."""

    def __init__(self) -> None:
        self._changed = trio.Event()

    def notify(self) -> None:
        """Wake them."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        """Wait for the next `notify`."""
        await self._changed.wait()


class LocalWatch:
    """See Watch."""

    def __init__(self, state: MetadataState, signal: ChangeSignal, prefix: str, after: int) -> None:
        self._state = state
        self._signal = signal
        self._prefix = prefix
        self._position = after
        self._found: deque[Changes] = deque()

    async def receive(self) -> Changes:
        """See Watch."""
        await trio.lowlevel.checkpoint()
        while not self._found:
            self._found.extend(self._state.changes_after(self._position, self._prefix))
            self._position = self._state.revision
            if not self._found:
                await self._signal.wait()
        return self._found.popleft()
