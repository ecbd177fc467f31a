"""A metadata service for simulations: one map, a store for each host, and a network between them that fails on demand.

Invariants:
* The map is the one that `logstore.base.metadata.sqlite` has, so a simulated cluster lives with the real meaning of
  transactions, watches and leases.
* Every delay and every loss comes from `random` and `faults`; time is the event loop's. Under a deterministic scheduler
  the same seed gives the same run.
* A request that reached the service is carried out, also when its host has given up: it may come late.
* Stores fail as those on etcd do: a read that got no answer is MetadataUnavailable, a transaction OutcomeUnknown.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

import trio

from logstore.base.metadata.errors import MetadataError, MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import (
    MAX_PAGE_ENTRIES,
    Changes,
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
    check_page,
    check_pages,
    check_prefix,
    check_transaction,
)
from logstore.base.metadata.local_watch import ChangeSignal, LocalWatch
from logstore.base.metadata.state import MetadataState, Update

T = TypeVar("T")


@dataclass(slots=True)
class MetadataFaults:
    """How the network between hosts and service fails; may be changed at any time."""

    max_delay_s: float = 0.0
    """A message takes up to this time, each its own: messages may overtake each other."""
    lost_requests: float = 0.0
    """The share of requests that do not arrive."""
    lost_answers: float = 0.0
    """The share of answers that do not arrive: what was asked is done."""
    attempt_s: float = 0.5
    patience_s: float = 5.0
    """As in `EtcdSettings`."""


class _StoreAnswer(Generic[T]):
    __slots__ = ("arrived", "error", "value")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.value: T | None = None
        self.error: MetadataError | None = None


class SimulatedMetadata:
    """The service. `serve` must run for anything to be answered."""

    def __init__(self, random: Random, faults: MetadataFaults) -> None:
        self.faults = faults
        self.random = random
        self.state = MetadataState(trio.current_time())
        self.changed = ChangeSignal()
        self._network_changed = ChangeSignal()
        self._leases_changed = ChangeSignal()
        self._cut_off: set[str] = set()
        self._stopped = False
        self._nursery: trio.Nursery | None = None

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer requests and end leases, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await self._end_leases()

    def store(self, host: str) -> "SimulatedMetadataStore":
        """The store of a host."""
        return SimulatedMetadataStore(self, host)

    # ---- faults

    def cut_off(self, host: str) -> None:
        """Let no message pass between the service and a host."""
        self._cut_off.add(host)

    def heal(self, host: str) -> None:
        """Let messages pass again."""
        self._cut_off.discard(host)
        self._network_changed.notify()

    def stop(self) -> None:
        """End the service. What it has stored stays; leases do not end meanwhile."""
        self._stopped = True

    def start(self) -> None:
        """Start the service again. Every lease has its whole time again; history is as it was."""
        self._stopped = False
        for lease in self.state.leases:
            self.state.keep_alive(lease.lease_id, trio.current_time())
        self._network_changed.notify()
        self._leases_changed.notify()

    def reaches(self, host: str) -> bool:
        """Whether messages pass between the service and a host."""
        return not self._stopped and host not in self._cut_off

    # ---- for stores

    def install(self, update: Update) -> Committed:
        """Make an update of the map, and wake who waits for it."""
        committed = self.state.install(update, trio.current_time())
        self.changed.notify()
        self._leases_changed.notify()
        return committed

    async def travel(self) -> None:
        """Take the time of a message."""
        await trio.sleep(self.random.uniform(0, self.faults.max_delay_s) if self.faults.max_delay_s else 0)

    async def reached(self, host: str) -> None:
        """Wait until messages pass between the service and a host."""
        while not self.reaches(host):
            await self._network_changed.wait()

    async def attempt(self, host: str, work: Callable[[], T]) -> T | None:
        """Send a request once; None if no answer came in time. Raises what `work` raises at the service."""
        if self._nursery is None:
            raise AssertionError("the simulated service does not run")
        answer = _StoreAnswer[T]()
        self._nursery.start_soon(self._handle, host, work, answer)
        with trio.move_on_after(self.faults.attempt_s):
            await answer.arrived.wait()
        if answer.error is not None:
            raise answer.error
        return answer.value

    # ---- details

    async def _handle(self, host: str, work: Callable[[], T], answer: _StoreAnswer[T]) -> None:
        await self.travel()
        if not self.reaches(host) or self.random.random() < self.faults.lost_requests:
            return
        error: MetadataError | None = None
        value: T | None = None
        try:
            value = work()
        except MetadataError as raised:
            error = raised
        await self.travel()
        if not self.reaches(host) or self.random.random() < self.faults.lost_answers:
            return
        answer.value, answer.error = value, error
        answer.arrived.set()

    async def _end_leases(self) -> None:
        while True:
            next_end_s = self.state.next_end_s()
            with trio.move_on_at(float("inf") if next_end_s is None or self._stopped else next_end_s):
                await self._leases_changed.wait()
            if not self._stopped:
                update = self.state.prepare_end(self.state.overdue(trio.current_time()))
                if update.changes_something:
                    self.install(update)


class SimulatedMetadataStore:
    """See MetadataStore. Made by `SimulatedMetadata.store`."""

    def __init__(self, service: SimulatedMetadata, host: str) -> None:
        self._service = service
        self._host = host
        self.statistics = MetadataStatistics()

    async def get(self, key: str) -> Reading:
        """See MetadataStore."""
        check_key(key)
        return await self._surely(lambda: self._service.state.get(key))

    async def page(
        self, prefix: str, *, after: str = "", limit: int = MAX_PAGE_ENTRIES, newer_than: int = 0, beside: str = ""
    ) -> Page:
        """See MetadataStore."""
        check_page(prefix, after, limit, newer_than, beside)
        return await self._surely(lambda: self._service.state.page(prefix, after, limit, newer_than, beside))

    async def pages(self, wanted: Sequence[WantedPage]) -> tuple[Page, ...]:
        """See MetadataStore."""
        check_pages(wanted)
        return await self._surely(lambda: self._service.state.pages(wanted))

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """See MetadataStore."""
        check_transaction(transaction)
        self.statistics.calls += 1
        self.statistics.transactions += 1
        outcome = await self._service.attempt(self._host, lambda: self._commit(transaction))
        if outcome is None:
            self._failed()
            self.statistics.unknown_outcomes += 1
            raise OutcomeUnknown("the simulated service gave no answer to a transaction: read its keys")
        self.statistics.conflicts += isinstance(outcome, ConditionFailed)
        self.statistics.away = ""
        return outcome

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Watch]:
        """See MetadataStore."""
        check_prefix(prefix)
        yield _SimulatedWatch(self._service, self._host, prefix, after_revision)

    async def grant_lease(self, ttl_s: int) -> Lease:
        """See MetadataStore."""
        check_lease_time(ttl_s)
        lease_id = self._service.random.getrandbits(62) + 1
        await self._surely(lambda: self._install(self._service.state.prepare_grant(lease_id, ttl_s)))
        return Lease(lease_id, ttl_s)

    async def keep_alive(self, lease_id: int) -> Lease:
        """See MetadataStore."""
        return await self._surely(lambda: self._service.state.keep_alive(lease_id, trio.current_time()))

    async def revoke_lease(self, lease_id: int) -> None:
        """See MetadataStore."""
        await self._surely(lambda: self._install(self._service.state.prepare_end([lease_id])))

    async def compact(self, revision: int) -> None:
        """See MetadataStore."""
        await self._surely(lambda: self._compact(revision))

    def _compact(self, revision: int) -> bool:
        self._service.state.compact(revision)
        return True

    def _commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        prepared = self._service.state.prepare_commit(transaction)
        return prepared if isinstance(prepared, ConditionFailed) else self._install(prepared)

    def _install(self, update: Update) -> Committed:
        return self._service.install(update) if update.changes_something else Committed(update.revision)

    async def _surely(self, work: Callable[[], T]) -> T:
        """Try until an answer comes, for calls that may be repeated. Raises MetadataUnavailable."""
        self.statistics.calls += 1
        with trio.move_on_after(self._service.faults.patience_s):
            while True:
                found = await self._service.attempt(self._host, work)
                if found is not None:
                    self.statistics.away = ""
                    return found
                self._failed()
        raise MetadataUnavailable(f"the simulated service did not answer {self._host}; nothing was changed")

    def _failed(self) -> None:
        self.statistics.attempts_failed += 1
        self.statistics.away = "no answer"


class _SimulatedWatch:
    """See Watch. Changes come late, and not while the host is cut off, but never out of order."""

    def __init__(self, service: SimulatedMetadata, host: str, prefix: str, after_revision: int) -> None:
        self._service = service
        self._host = host
        self._found = LocalWatch(service.state, service.changed, prefix, after_revision)
        self._under_way: Changes | None = None

    async def receive(self) -> Changes:
        """See Watch."""
        while True:
            await self._service.reached(self._host)
            if self._under_way is None:
                self._under_way = await self._found.receive()
            await self._service.travel()
            if self._service.reaches(self._host):
                changes, self._under_way = self._under_way, None
                return changes
