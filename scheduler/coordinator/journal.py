"""Group commit: changes are stored in transactions; callbacks run when the changes are durable.

Invariants:
* One transaction is in flight; changes recorded meanwhile go into the next.
* A callback runs when the changes recorded with it are durable, and not before.
* A failed transaction is tried again as a whole before newer changes; while it fails, callers that ask first (`ready`)
  record nothing new.
* No caller waits longer than STALLED_S: a store that hangs counts as a store that fails.
* When `run` is cancelled, who waits for changes that are not durable gets StoreError.
"""

from collections.abc import Callable, Mapping, Sequence

import trio

from logstore.base.events import Report
from scheduler.coordinator.errors import StoreError
from scheduler.coordinator.log_events import STORE_FAILS, STORE_WORKS_AGAIN
from scheduler.coordinator.metadata.interface import Change, Metadata, SetValue

RETRY_S = 1.0
"""The pause before a failed transaction is tried again, unless a caller asks for it earlier."""
PAUSE_S = 0.05
"""The shortest pause."""
STALLED_S = 5.0
"""Callers do not wait for a longer transaction: they would hold all connections, also those of keep-alives."""
STALLED = f"a transaction takes longer than {STALLED_S:g} s"
ENDED = "the coordinator has ended here: ask again"


class _Transaction:
    """The end of one transaction, for its waiters."""

    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: str | None = None


class MetadataJournal:
    """Stores changes in batches. `run` must run for anything to become durable."""

    def __init__(self, metadata: Metadata, report: Report) -> None:
        self._metadata = metadata
        self._report = report
        self._pending: dict[str, Change] = {}
        self._unstored_bytes = 0
        """Of the values that were recorded and are not durable."""
        self._callbacks: list[Callable[[], None]] = []
        self._upcoming = _Transaction()
        self._in_flight: _Transaction | None = None
        self._work = trio.Event()
        self._retry_now = trio.Event()
        self._error: str | None = None
        self._began_s: float | None = None
        self._stall_reported = False
        self.commits = 0
        self.changes = 0
        self.failures = 0

    @property
    def failing(self) -> str | None:
        """The reason why changes cannot be stored; None while they can."""
        return STALLED if self._stalled else self._error or self._metadata.obstacle

    @property
    def obstacle(self) -> str | None:
        """See Metadata."""
        return self._metadata.obstacle

    @property
    def limit_bytes(self) -> float:
        """See Metadata."""
        return self._metadata.limit_bytes

    @property
    def left_bytes(self) -> float:
        """How many bytes of keys and values may be recorded beside those that are."""
        return self._metadata.left_bytes - self._unstored_bytes

    @property
    def _stalled(self) -> bool:
        return self._began_s is not None and trio.current_time() - self._began_s >= STALLED_S

    def record(self, changes: Sequence[Change], then: Callable[[], None] | None = None) -> None:
        """Record changes to store in one transaction; `then` is called, on the event loop, when they are durable."""
        if not changes and then is None:
            return
        _merge(self._pending, changes)
        self._unstored_bytes += _bytes(changes)
        if then is not None:
            self._callbacks.append(then)
        self._work.set()

    async def durable(self) -> None:
        """Wait until all recorded changes are durable. Raises StoreError if their transaction fails."""
        round_ = self._upcoming if self._pending or self._callbacks else self._in_flight
        if round_ is not None:
            with trio.move_on_after(STALLED_S) as scope:
                await round_.ended.wait()
            if scope.cancelled_caught:
                if not self._stall_reported:
                    self._stall_reported = True
                    self._report(STORE_FAILS, why=STALLED)
                raise StoreError(STALLED)
            if round_.error is not None:
                raise StoreError(round_.error)

    async def ready(self) -> None:
        """Return at once if the store works; else try it now. Raises StoreError if it still fails."""
        if self._stalled:
            raise StoreError(STALLED)
        if self._error is not None:
            self._retry_now.set()
            await self.durable()
            if self._error is not None:
                raise StoreError(self._error)
        if self._metadata.obstacle is not None:
            raise StoreError(self._metadata.obstacle)

    async def load(self) -> Mapping[str, str]:
        """All stored entries, after all recorded changes. Raises StoreDamaged, StoreError.

        The caller must record nothing meanwhile.
        """
        await self.durable()
        return await self._metadata.load()

    async def run(self) -> None:
        """Store the recorded changes, until cancelled. A disk finishes the transaction in flight first."""
        try:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                await self._store()
                if self._error is not None:
                    await self._pause()
        finally:
            self._error = self._error or ENDED
            for waited_for in (self._in_flight, self._upcoming):
                if waited_for is not None:
                    waited_for.error = self._error
                    waited_for.ended.set()

    async def _store(self) -> None:
        """One transaction with everything that is recorded."""
        batch, then, round_ = self._pending, self._callbacks, self._upcoming
        self._pending, self._callbacks, self._upcoming, self._in_flight = {}, [], _Transaction(), round_
        size_bytes = self._unstored_bytes
        self._began_s = trio.current_time()
        try:
            await self._metadata.apply(list(batch.values()))
        except StoreError as error:
            self._put_back(batch, then, str(error))
        else:
            self.commits += 1
            self.changes += len(batch)
            self._unstored_bytes -= size_bytes
            if self._error is not None or self._stall_reported:
                self._error, self._stall_reported = None, False
                self._report(STORE_WORKS_AGAIN)
            for notify in then:
                notify()
        self._in_flight = self._began_s = None
        round_.error = self._error
        round_.ended.set()

    def _put_back(self, batch: dict[str, Change], then: list[Callable[[], None]], why: str) -> None:
        """Put a failed batch back, before the changes that were recorded meanwhile."""
        newer = list(self._pending.values())
        self._pending = batch
        _merge(self._pending, newer)
        self._callbacks = then + self._callbacks
        self.failures += 1
        if self._error is None:
            self._report(STORE_FAILS, why=why)
        self._error = why
        self._work.set()

    async def _pause(self) -> None:
        await trio.sleep(PAUSE_S)
        with trio.move_on_after(RETRY_S):
            await self._retry_now.wait()
        self._retry_now = trio.Event()


def _bytes(changes: Sequence[Change]) -> int:
    return sum(len(change.key) + len(change.value) for change in changes if isinstance(change, SetValue))


def _merge(pending: dict[str, Change], changes: Sequence[Change]) -> None:
    """Append changes to the pending ones; of several changes of a key, or of a prefix, the last counts."""
    for change in changes:
        if isinstance(change, SetValue):
            pending.pop(change.key, None)
            pending[change.key] = change
        else:
            # Pending keys below the prefix are stored and then removed: to search for them would cost more.
            # The marker is no key: a prefix ends in a slash, and keys never do.
            pending.pop(f"{change.prefix} all", None)
            pending[f"{change.prefix} all"] = change
