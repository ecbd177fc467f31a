"""The metadata store of one host: the map in memory, and each change in an SQLite file before anyone sees it.

Invariants:
* A change is durable before it is installed in memory, and installed before its call returns; one is made at a time.
* Reads are from memory, and show only what is durable.
* After a commit whose outcome is unknown, the file is read again before anything else is answered: it has the map of
  before or that with the change, and nothing else.
* The time of leases is that of the event loop's clock, which tests replace; after a start each lease has its whole time
  again.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import trio

from logstore.base.metadata.errors import MetadataDamaged, MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import (
    MAX_PAGE_ENTRIES,
    Committed,
    ConditionFailed,
    Lease,
    MetadataStatistics,
    Page,
    Reading,
    Transaction,
    WantedPage,
    Watch,
    check_key,
    check_lease_time,
    check_prefix,
)
from logstore.base.metadata.local_watch import ChangeSignal, LocalWatch
from logstore.base.metadata.sqlite_file import SqliteFile, Stored
from logstore.base.metadata.state import MetadataState, Update

RETRY_S: Final = 1.0
"""The pause before the end of a lease is stored again, after a failure."""
T = TypeVar("T")


@asynccontextmanager
async def open_sqlite(path: Path, random: Random) -> "AsyncIterator[SqliteMetadataStore]":
    """Open the store in a file, making it if it is missing; `random` names leases.

    Raises MetadataDamaged, MetadataUnavailable.
    """
    file = SqliteFile(path)
    try:
        stored = await trio.to_thread.run_sync(file.load)
        state = MetadataState(trio.current_time(), stored.revision, stored.entries, stored.leases)
        store = SqliteMetadataStore(file, state, random)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.end_leases)
            yield store
            nursery.cancel_scope.cancel()
    finally:
        file.close()  # short: everything that was acknowledged is synced


class SqliteMetadataStore:
    """See MetadataStore. `end_leases` must run beside it; `open_sqlite` sees to it.

    `state` is what `file` holds.
    """

    def __init__(self, file: SqliteFile, state: MetadataState, random: Random) -> None:
        self._file = file
        self._random = random
        self._state = state
        self._unknown: Update | None = None
        """What the file may or may not hold beyond the state."""
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._changed = ChangeSignal()
        self._leases_changed = ChangeSignal()
        self.statistics = MetadataStatistics()

    async def end_leases(self) -> None:
        """End leases whose time is over, until cancelled."""
        while True:
            next_end_s = self._state.next_end_s()
            with trio.move_on_at(float("inf") if next_end_s is None else next_end_s):
                await self._leases_changed.wait()
            try:
                await self._change_surely(lambda: self._state.prepare_end(self._state.overdue(trio.current_time())))
            except MetadataUnavailable:
                await trio.sleep(RETRY_S)

    # ---- MetadataStore

    async def get(self, key: str) -> Reading:
        """See MetadataStore."""
        check_key(key)
        await self._readable()
        return self._state.get(key)

    async def page(
        self, prefix: str, *, after: str = "", limit: int = MAX_PAGE_ENTRIES, newer_than: int = 0, beside: str = ""
    ) -> Page:
        """See MetadataStore."""
        await self._readable()
        return self._state.page(prefix, after, limit, newer_than, beside)

    async def pages(self, wanted: Sequence[WantedPage]) -> tuple[Page, ...]:
        """See MetadataStore."""
        await self._readable()
        return self._state.pages(wanted)

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """See MetadataStore."""
        self.statistics.transactions += 1
        outcome = await self._change(lambda: self._state.prepare_commit(transaction))
        if isinstance(outcome, ConditionFailed):
            self.statistics.conflicts += 1
        return outcome

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Watch]:
        """See MetadataStore."""
        check_prefix(prefix)
        await self._readable()
        yield LocalWatch(self._state, self._changed, prefix, after_revision)

    async def grant_lease(self, ttl_s: int) -> Lease:
        """See MetadataStore."""
        check_lease_time(ttl_s)
        lease_id = self._random.getrandbits(62) + 1
        await self._change_surely(lambda: self._state.prepare_grant(lease_id, ttl_s))
        return Lease(lease_id, ttl_s)

    async def keep_alive(self, lease_id: int) -> Lease:
        """See MetadataStore."""
        await self._readable()
        lease = self._state.keep_alive(lease_id, trio.current_time())
        self._leases_changed.notify()
        return lease

    async def revoke_lease(self, lease_id: int) -> None:
        """See MetadataStore."""
        await self._change_surely(lambda: self._state.prepare_end([lease_id]))

    async def compact(self, revision: int) -> None:
        """See MetadataStore."""
        await self._readable()
        self._state.compact(revision)

    # ---- details

    async def _readable(self) -> None:
        """Return when the map in memory is what is stored."""
        self.statistics.calls += 1
        await trio.lowlevel.checkpoint()
        if self._unknown is not None:
            async with self._turn:
                await self._reopen()

    async def _change(self, prepare: Callable[[], Update | ConditionFailed]) -> Committed | ConditionFailed:
        self.statistics.calls += 1
        async with self._turn:
            await self._reopen()
            prepared = prepare()
            if isinstance(prepared, ConditionFailed):
                return prepared
            if not prepared.changes_something:
                return Committed(prepared.revision)
            try:
                await self._off_load(partial(self._file.apply, prepared))
            except OutcomeUnknown:
                self.statistics.unknown_outcomes += 1
                self._unknown = prepared
                raise
            return self._install(prepared)

    async def _change_surely(self, prepare: Callable[[], Update | ConditionFailed]) -> None:
        """Make a change that may be made twice. Raises MetadataUnavailable where `_change` raises OutcomeUnknown."""
        try:
            await self._change(prepare)
        except OutcomeUnknown:
            try:
                await self._change(prepare)
            except OutcomeUnknown as error:
                raise MetadataUnavailable(str(error)) from error

    def _install(self, update: Update) -> Committed:
        committed = self._state.install(update, trio.current_time())
        self._changed.notify()
        self._leases_changed.notify()
        return committed

    async def _reopen(self) -> None:
        """Open the file again if it failed, and settle what was unknown. The caller has the turn.

        Raises MetadataDamaged, MetadataUnavailable.
        """
        if self._file.is_open:
            return
        stored = await self._off_load(self._file.load)
        unknown, self._unknown = self._unknown, None
        if unknown is not None and stored != stored_of(self._state):
            self._install(unknown)
        if stored != stored_of(self._state):
            self._file.close()
            raise MetadataDamaged("the metadata file does not hold what this process stored in it: restart")

    async def _off_load(self, work: Callable[[], T]) -> T:
        """Run a blocking call of the file in a thread; a cancellation waits for its end."""
        try:
            result = await trio.to_thread.run_sync(work, limiter=self._thread)
        except (MetadataUnavailable, OutcomeUnknown) as error:
            self.statistics.attempts_failed += 1
            self.statistics.away = str(error)
            raise
        self.statistics.away = ""
        return result


def stored_of(state: MetadataState) -> Stored:
    """What a file holds that has this state."""
    entries = sorted(state.entries.values())
    return Stored(state.revision, tuple(entries), tuple(sorted(state.leases)))
