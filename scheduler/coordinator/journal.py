"""Group commit: changes are stored in transactions, off the event loop; callbacks run when the changes are durable.

Invariants:
* One transaction is in flight; changes recorded meanwhile go into the next.
* A callback runs when the changes recorded with it are durable, and not before.
* A failed transaction is tried again as a whole before newer changes; while it fails, callers that ask first (`ready`)
  record nothing new.
* No caller waits longer than STALLED_S: a disk that hangs counts as a disk that fails.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

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


class _Transaction:
    """The end of one transaction, for its waiters."""

    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: str | None = None


OffLoad = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking function; the journal calls it for one function at a time."""


async def in_a_thread(work: Callable[[], None]) -> None:
    """Run a function in a thread; a cancellation waits for the end of the function."""
    await trio.to_thread.run_sync(work)


class MetadataJournal:
    """Stores changes in batches. `run` must run for anything to become durable."""

    def __init__(self, metadata: Metadata, report: Report, off_load: OffLoad = in_a_thread) -> None:
        self._metadata = metadata
        self._report = report
        self._off_load = off_load
        self._pending: dict[str, Change] = {}
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
        return STALLED if self._stalled else self._error

    @property
    def _stalled(self) -> bool:
        return self._began_s is not None and trio.current_time() - self._began_s >= STALLED_S

    def record(self, changes: Sequence[Change], then: Callable[[], None] | None = None) -> None:
        """Record changes to store in one transaction; `then` is called, on the event loop, when they are durable."""
        if not changes and then is None:
            return
        _merge(self._pending, changes)
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

    async def load(self) -> Mapping[str, str]:
        """All stored entries, after all recorded changes. Raises StoreDamaged, StoreError.

        The caller must record nothing meanwhile.
        """
        await self.durable()
        found: dict[str, str] = {}
        await self._off_load(lambda: found.update(self._metadata.load()))
        return found

    async def run(self) -> None:
        """Store the recorded changes, until cancelled. The transaction in flight is finished first."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            batch, then, round_ = self._pending, self._callbacks, self._upcoming
            self._pending, self._callbacks, self._upcoming, self._in_flight = {}, [], _Transaction(), round_
            self._began_s = trio.current_time()
            try:
                await self._off_load(partial(self._metadata.apply, list(batch.values())))
            except StoreError as error:
                self._put_back(batch, then, str(error))
            else:
                self.commits += 1
                self.changes += len(batch)
                if self._error is not None or self._stall_reported:
                    self._error, self._stall_reported = None, False
                    self._report(STORE_WORKS_AGAIN)
                for notify in then:
                    notify()
            self._in_flight = self._began_s = None
            round_.error = self._error
            round_.ended.set()
            if self._error is not None:
                await self._pause()

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
