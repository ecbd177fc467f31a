"""The coordinator: joins the online scheduler, the hosts' keep-alives, the writers' events and what must be stored.

Invariants:
* Every change of the plan goes through `_commit`: recorded first, told when it is durable.
* The scheduler runs on one task at a time: calls into it never wait.
* While nothing can be stored, nothing changes: callers get StoreError (503) before the scheduler hears of it.
* Time for the scheduler never goes back, also over restarts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

import trio

from scheduler.coordinator.api_types import shown
from scheduler.coordinator.errors import ApiError, StartError, StoreDamaged, StoreError
from scheduler.coordinator.events import Event
from scheduler.coordinator.hosts import HostRecord, Hosts
from scheduler.coordinator.http.server import Report
from scheduler.coordinator.journal import Journal
from scheduler.coordinator.ledger import Ledger, Tracked, asked_text, host_change, restore_hosts
from scheduler.coordinator.metadata.interface import Change
from scheduler.errors import PlanInvalid, RequestError, SchedulerError
from scheduler.peace.online import OnlineScheduler, Place, Settings, Status, Submission
from scheduler.peace.online.records import ChunkRecord, Outcome, RequestRecord, RequestState
from scheduler.peace.plan import Planner
from scheduler.topology import Topology

NOT_FOUND = 404
CONFLICT = 409
UNAVAILABLE = 503


class Clock(Protocol):
    """Time, as an argument."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        ...


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """How a coordinator behaves."""

    scheduler: Settings = field(default_factory=Settings)
    host_deadline_ms: int = 10_000
    """A registered host that says nothing for so long is lost."""
    writer_deadline_ms: int = 600_000
    """A request whose writer neither asks nor reports for so long is cancelled: it would hold capacity for ever."""
    remember_ms: int = 600_000
    """How long a request that is over can be asked for."""
    most_remembered: int = 10_000
    """How many of them, at most."""
    tick_s: float = 0.5
    """How often deadlines are looked at."""


@dataclass(frozen=True, slots=True)
class World:
    """What a coordinator gets from outside: the network, who plans on it, time, randomness, and who listens."""

    topology: Topology
    planner: Planner
    clock: Clock
    random: Random
    report: Report


class Coordinator:
    """The service's state and what can be done with it. `run` keeps time; the journal must run too."""

    def __init__(self, world: World, settings: CoordinatorSettings, journal: Journal) -> None:
        self.world = world
        self.settings = settings
        self.journal = journal
        self.ledger = Ledger()
        self.hosts = Hosts(
            {server.name: server.address for server in world.topology.servers}, settings.host_deadline_ms
        )
        # What is over, the ledger knows.
        self._scheduling = replace(settings.scheduler, most_remembered=0)
        self._scheduler = OnlineScheduler(world.topology, world.planner, self._scheduling, world.random)
        self._started_s = world.clock.monotonic_s()
        self._base_ms = world.clock.wall_ms()
        self._stopping = False
        self.counts = {"go": 0, "revoked": 0, "finished": 0, "cancelled": 0, "failed": 0, "hosts_lost": 0}
        """Events since this process started."""

    def restore(self, entries: Mapping[str, str]) -> None:
        """Go on where the stored entries end. Raises StoreDamaged, StartError."""
        records, latest_ms = self.ledger.restore(entries, self._base_ms)
        self._base_ms = max(self._base_ms, latest_ms)
        self.hosts.restore(restore_hosts(entries), self.now_ms())
        lost = [record.name for record in self.hosts.known() if record.lost]
        world = self.world
        try:
            self._scheduler = OnlineScheduler.restore(
                world.topology, world.planner, self._scheduling, world.random, records, lost, self.now_ms()
            )
        except PlanInvalid as error:
            raise StoreDamaged(f"the stored plan contradicts itself ({error})") from error
        except SchedulerError as error:
            raise StartError(
                f"the stored plan does not fit this topology ({error}): start with the topology that it was made for "
                "until nothing is under way"
            ) from error
        for tracked in self.ledger.requests.values():
            tracked.heard_ms = self.now_ms()
            tracked.ended_ms = self.now_ms() if tracked.ended_ms is not None else None
        self._commit(self._scheduler.restored)

    # ---- time

    def now_ms(self) -> int:
        """Milliseconds, near the time of day, that never go back."""
        return self._base_ms + self.uptime_ms()

    def uptime_ms(self) -> int:
        """Milliseconds since this process started."""
        return int((self.world.clock.monotonic_s() - self._started_s) * 1000)

    async def run(self) -> None:
        """Look at deadlines and forget what is old, until cancelled."""
        before_ms = self.now_ms()
        while True:
            await trio.sleep(self.settings.tick_s)
            now_ms = self.now_ms()
            late_ms = now_ms - before_ms - int(self.settings.tick_s * 1000)
            before_ms = now_ms
            if late_ms > self.settings.host_deadline_ms // 4:
                # We were stopped, or the machine was busy: what the hosts said meanwhile was not heard.
                self.hosts.grant(late_ms)
                for tracked in self.ledger.requests.values():
                    tracked.heard_ms += late_ms
            if self.journal.failing is None:
                for host in self.hosts.missed(now_ms):
                    self._lose(host, "missed its deadline")
                settings = self.settings
                for name in self.ledger.silent(now_ms - settings.writer_deadline_ms):
                    self.world.report("writer silent", {"request": name})
                    self._commit(self._scheduler.cancel(name, now_ms))
                self.journal.record(self.ledger.forget(now_ms - settings.remember_ms, settings.most_remembered))

    def stop(self) -> None:
        """Answer everyone who waits: the service ends."""
        self._stopping = True
        for tracked in self.ledger.requests.values():
            tracked.log.wake()

    # ---- hosts

    async def register(self, name: str, address: str | None) -> HostRecord:
        """A host is there, or back."""
        self.hosts.check(name, "name")
        await self.journal.ready()
        before = self.hosts.record(name)
        record = self.hosts.register(name, address, self.now_ms())
        if record != before:
            outcome = self._scheduler.host_back(name, self.now_ms()) if before.lost else Outcome()
            self.world.report("host registered", {"host": name, "address": address or "", "was_lost": before.lost})
            self._commit(outcome, [host_change(record)])
        await self.journal.durable()
        return record

    def alive(self, name: str) -> HostRecord:
        """A host lives."""
        return self.hosts.alive(name, self.now_ms())

    async def deregister(self, name: str) -> HostRecord:
        """A host leaves."""
        self.hosts.check(name, "name")
        await self.journal.ready()
        if not self.hosts.record(name).lost:
            self._lose(name, "left")
        await self.journal.durable()
        return self.hosts.record(name)

    def _lose(self, host: str, why: str) -> None:
        self.world.report("host lost", {"host": host, "why": why})
        self.counts["hosts_lost"] += 1
        record = self.hosts.lose(host)
        self._commit(self._scheduler.host_lost(host, self.now_ms()), [host_change(record)])

    # ---- requests

    async def submit(self, name: str | None, ask: Callable[[str], Submission]) -> tuple[Tracked, bool]:
        """A request, and whether it is new. Without a name it gets one; `ask` makes the submission of that name."""
        await self.journal.ready()
        wanted = ask(name or self._new_name())
        known = self.ledger.requests.get(wanted.name)
        if known is not None:
            await self.journal.durable()
            if known.asked != asked_text(wanted):
                raise ApiError(CONFLICT, f"name={shown(wanted.name)}: there is another request of that name", "name")
            return known, False
        if self.ledger.live >= self.settings.scheduler.most_waiting:
            raise ApiError(UNAVAILABLE, f"the queue is full: {self.ledger.live} requests wait; try again later")
        if wanted.writer is not None and self.hosts.record(wanted.writer).lost:
            raise ApiError(CONFLICT, f"writer={shown(wanted.writer)}: this host is lost; register it first", "writer")
        for chunk, names in enumerate(wanted.sources):
            if names and all(self.hosts.record(one).lost for one in names):
                raise ApiError(
                    CONFLICT, f"sources[{chunk}]={shown(names)}: all are lost; register one first", f"sources[{chunk}]"
                )
        try:
            outcome = self._scheduler.submit(wanted, self.now_ms())
        except RequestError as error:
            if error.field == "placement" and wanted.placement is None:
                # The placement is what the scheduler made of the number.
                raise RequestError("replicas", f"{wanted.replicas}: {error}") from error
            raise
        tracked, change = self.ledger.open(wanted)
        tracked.heard_ms = self.now_ms()
        self.world.report("submitted", {"request": wanted.name, "writer": wanted.writer, "chunks": wanted.chunks})
        self._commit(outcome, [change])
        try:
            await self.journal.durable()
        except StoreError:
            if name is None:
                # Nobody knows its name, so nobody could ever write it or cancel it.
                self._commit(self._scheduler.cancel(wanted.name, self.now_ms()))
            raise
        return tracked, True

    def _new_name(self) -> str:
        """A name that no request has: with the same seed, a restarted coordinator makes the same names again."""
        while True:
            name = f"request-{self.world.random.getrandbits(64):016x}"
            if name not in self.ledger.requests:
                return name

    async def request(self, name: str) -> Tracked:
        """A request; what is stored of it may be told. Raises ApiError if there is none, StoreError if nothing is."""
        tracked = self._tracked(name)
        if tracked.told is None:
            await self.journal.durable()
        return tracked

    def place(self, name: str) -> Place | None:
        """A request's place in the queue, if it is not over."""
        return None if self._tracked(name).state.ended else self._scheduler.place(name)

    async def done(self, name: str, chunk: int, attempt: int) -> tuple[Tracked, bool]:
        """A chunk is done; its request, and whether that was news."""
        return await self._report(name, chunk, lambda: self._scheduler.done(name, chunk, attempt, self.now_ms()))

    async def failed(self, name: str, chunk: int, attempt: int, suspects: tuple[str, ...]) -> tuple[Tracked, bool]:
        """A chunk could not be moved as planned; its request, and whether that was news."""
        for suspect in suspects:
            self.hosts.check(suspect, "suspects")
        return await self._report(
            name, chunk, lambda: self._scheduler.failed(name, chunk, attempt, suspects, self.now_ms())
        )

    async def _report(self, name: str, chunk: int, event: Callable[[], Outcome]) -> tuple[Tracked, bool]:
        tracked = self._tracked(name)
        if tracked.record is not None and chunk >= tracked.record.chunks:
            raise ApiError(
                NOT_FOUND, f"chunk={chunk}: request {shown(name)} has chunks 0 to {tracked.record.chunks - 1}", "chunk"
            )
        await self.journal.ready()
        outcome = Outcome(ignored="over") if tracked.state.ended else event()
        self._commit(outcome)
        await self.journal.durable()
        return tracked, outcome.ignored is None

    async def cancel(self, name: str) -> Tracked:
        """Give a request up; one that is over stays as it is."""
        tracked = self._tracked(name)
        await self.journal.ready()
        if not tracked.state.ended:
            self._commit(self._scheduler.cancel(name, self.now_ms()))
        await self.journal.durable()
        return tracked

    async def resubmit(self, name: str, chunks: int) -> Tracked:
        """Change the number of chunks of a request that nothing was started of. One that has so many stays as it is."""
        tracked = self._tracked(name)
        await self.journal.ready()
        if tracked.record is None or tracked.record.chunks != chunks:
            if tracked.state is not RequestState.WAITING:
                why = f"request {shown(name)} is {tracked.state}: only one of which nothing was started can change"
                raise ApiError(CONFLICT, why, "name")
            self._commit(self._scheduler.resubmit(name, chunks, self.now_ms()))
        await self.journal.durable()
        return tracked

    async def wait(self, name: str, after: int, wait_s: float) -> tuple[Tracked, list[Event]]:
        """Events behind number `after`; none if nothing came in time."""
        tracked = self._tracked(name)
        log = tracked.log
        if after > len(log.events):
            raise ApiError(
                400, f"after={after}: request {shown(name)} has {log.durable} events so far; start from 0", "after"
            )
        if not self._stopping:
            tracked.listening += 1
            try:
                with trio.move_on_after(wait_s):
                    await log.news(after)
            finally:
                tracked.listening -= 1
                tracked.heard_ms = self.now_ms()
        return tracked, log.after(after)

    def status(self) -> Status:
        """The scheduler's state."""
        return self._scheduler.status()

    # ---- what all changes go through

    def _commit(self, outcome: Outcome, extra: list[Change] | None = None) -> None:
        """Record what an event led to, and tell those concerned once it is durable."""
        changes = (extra or []) + self.ledger.take(outcome, self.now_ms())
        records: dict[str, list[RequestRecord | ChunkRecord]] = {}
        for record in outcome.changed:
            name = record.name if isinstance(record, RequestRecord) else record.request
            records.setdefault(name, []).append(record)
        # Not by name later: by then it may be forgotten, and be another's.
        concerned = [(name, self.ledger.requests[name]) for name in records]
        news = [(name, tracked, len(tracked.log.events)) for name, tracked in concerned]

        def tell() -> None:
            for name, tracked, number in news:
                for event in tracked.log.events[tracked.log.durable : number]:
                    self._say(name, event)
                tracked.tell(records[name], number)

        self.journal.record(changes, tell)

    def _say(self, name: str, event: Event) -> None:
        kind = event["event"]
        self.counts[kind] += 1
        if event["chunk"] is None:
            self.world.report(kind, {"request": name})
        else:
            hosts = ",".join(event["hosts"])
            self.world.report(
                kind, {"request": name, "chunk": event["chunk"], "attempt": event["attempt"], "hosts": hosts}
            )

    def _tracked(self, name: str) -> Tracked:
        tracked = self.ledger.requests.get(name)
        if tracked is None:
            raise ApiError(NOT_FOUND, f"name={shown(name)}: no such request; it may be over and forgotten", "name")
        tracked.heard_ms = self.now_ms()
        return tracked
