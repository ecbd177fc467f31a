"""The coordinator: combines the online scheduler, the hosts' keep-alives, the writers' events and the stored state.

Invariants:
* Every change of the plan goes through `_commit`: it is recorded first; writers are notified when it is durable.
* One task at a time calls the scheduler, and these calls never wait.
* While the store fails, nothing changes: callers get StoreError (503) before the scheduler gets the event.
* After an error in the middle of an event nothing changes (503) until the plan is rebuilt from the store.
* A chunk holds capacity for a bounded time, whatever its writer does; only actions of the writer keep a request alive.
* The scheduler's time never goes back, not even over restarts.
* Gathered events are planned when they are due; if the store fails then, at the first tick after it works again.
  Records do not contain gathered events: a restart, and a rebuilt plan, plan all waiting chunks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from traceback import format_exception

import trio

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.base.fields import shown
from scheduler.coordinator.checkpoints.service import CheckpointService
from scheduler.coordinator.copy_slots import CopySlots
from scheduler.coordinator.deadlines import chunk_deadline_ms
from scheduler.coordinator.errors import ApiError, PlanNotMoved, StartError, StoreDamaged, StoreError
from scheduler.coordinator.events import Event
from scheduler.coordinator.hosts import HostRecord, Hosts
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.log_events import (
    CHUNK_OVERDUE,
    HOST_LOST,
    HOST_REGISTERED,
    PLAN_NOT_REBUILT,
    PLAN_REBUILT,
    REQUEST_CRASHED,
    REQUEST_HAS_A_PATH_AGAIN,
    REQUEST_STRANDED,
    SUBMITTED,
    TOLD_TO_WRITERS,
    WRITER_SILENT,
)
from scheduler.coordinator.metadata.interface import Change
from scheduler.coordinator.registry import RequestEntry, RequestRegistry, host_change, restore_hosts, submission_text
from scheduler.coordinator.state_room import StateRoom
from scheduler.errors import PlanInvalid, RequestError, SchedulerError
from scheduler.peace.online import GATHER_MS, OnlineScheduler, QueuePosition, Settings, Status, Submission
from scheduler.peace.online.records import ChunkRecord, EventOutcome, RequestRecord
from scheduler.peace.online.states import RequestEvent, allows
from scheduler.peace.plan import Planner
from scheduler.topology import Topology

NOT_FOUND = 404
CONFLICT = 409
UNAVAILABLE = 503
INCONSISTENT = "an event failed in the middle; the plan is rebuilt from the stored state"
MAX_REBUILD_PAUSE_S = 30.0
NEARLY_FULL_BYTES = 16 << 20
"""While the store takes less than this, requests that are over are remembered for no longer than FULL_REMEMBER_MS: they
must not keep out requests and checkpoints."""
FULL_REMEMBER_MS = 60_000
"""As long as clients ask again whose answer was lost."""
PLAN_PATIENCE_S = 1.0
"""How long an answer waits for the plan, beyond the time for which events are gathered."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """The settings of a coordinator."""

    scheduler: Settings = field(default_factory=lambda: Settings(gather_ms=GATHER_MS))
    host_deadline_ms: int = 10_000
    """A registered host is lost after this time without a keep-alive."""
    writer_deadline_ms: int = 600_000
    """A request is cancelled if its writer neither polls nor reports for this time; else it would hold its capacity."""
    chunk_deadline_ms: int | None = None
    """A chunk in flight for this time is revoked and planned again; None: computed from the topology's rates."""
    remember_ms: int = 600_000
    """How long an ended request is remembered."""
    max_remembered: int = 10_000
    """The number of ended requests that are remembered at most."""
    tick_s: float = 0.5
    """The interval at which deadlines are checked."""


@dataclass(frozen=True, slots=True)
class CoordinatorEnvironment:
    """A coordinator's dependencies: the network, its planner, a clock, a random generator, a receiver of reports."""

    topology: Topology
    planner: Planner
    clock: Clock
    random: Random
    report: Report


class Coordinator:
    """The state of the service and its operations. `run` checks deadlines; the journal must run too."""

    def __init__(
        self, environment: CoordinatorEnvironment, settings: CoordinatorSettings, journal: MetadataJournal
    ) -> None:
        self.environment = environment
        self.settings = settings
        self.journal = journal
        self.registry = RequestRegistry()
        self.room = StateRoom(journal, self.registry)
        self.checkpoints = CheckpointService(journal, self._ready, environment.report)
        self.hosts = Hosts(
            {server.name: server.address for server in environment.topology.servers}, settings.host_deadline_ms
        )
        # The registry remembers ended requests, so the scheduler need not.
        self._scheduling = replace(settings.scheduler, max_remembered=0)
        self._scheduler = OnlineScheduler(
            environment.topology, environment.planner, self._scheduling, environment.random
        )
        self.copy_slots = CopySlots(lambda event: self._change(lambda: event(self._scheduler)), self.now_ms)
        self._started_s = environment.clock.monotonic_s()
        self._base_ms = environment.clock.wall_ms()
        self._stopping = False
        self.chunk_deadline_ms = settings.chunk_deadline_ms or chunk_deadline_ms(environment.topology)
        self.unreachable: frozenset[str] = frozenset()
        """The requests whose waiting chunks had no path at the last tick."""
        self._inconsistent: str | None = None
        self._rebuild_at_s = 0.0
        self._rebuild_pause_s = 0.0
        self._gathering = trio.Event()
        """Set when an event is gathered, and then replaced."""
        self._planned = trio.Event()
        """Set when the gathered events are planned, and then replaced."""
        self.counts = dict.fromkeys(
            ("go", "revoked", "finished", "cancelled", "failed", "hosts_lost", "overdue", "rebuilt"), 0
        )
        """The number of events of each kind since this process started."""

    def restore(self, entries: Mapping[str, str]) -> None:
        """Restore the state from the stored entries. Raises StoreDamaged, StartError."""
        records, latest_ms = self.registry.restore(entries, self._base_ms)
        self._base_ms = max(self._base_ms, latest_ms)
        self.hosts.restore(restore_hosts(entries), self.now_ms())
        self.checkpoints.restore(entries)
        lost = [record.name for record in self.hosts.known() if record.lost]
        environment = self.environment
        try:
            self._scheduler = OnlineScheduler.restore(
                environment.topology,
                environment.planner,
                self._scheduling,
                environment.random,
                records,
                lost,
                self.now_ms(),
            )
        except PlanInvalid as error:
            raise StoreDamaged(f"the stored plan contradicts itself ({error})") from error
        except SchedulerError as error:
            raise StartError(
                f"the stored plan does not fit this topology ({error}): start with the topology that it was made for "
                "until nothing is under way"
            ) from error
        for entry in self.registry.requests.values():
            entry.heard_ms = self.now_ms()
            entry.ended_ms = self.now_ms() if entry.ended_ms is not None else None
        self.registry.restart_deadlines(self.now_ms())
        self.room.look()
        self._commit(self._scheduler.restored)

    # ---- time

    def now_ms(self) -> int:
        """The time in milliseconds since the epoch; it never goes back."""
        return self._base_ms + self.uptime_ms()

    def uptime_ms(self) -> int:
        """Milliseconds since this process started."""
        return int((self.environment.clock.monotonic_s() - self._started_s) * 1000)

    async def run(self) -> None:
        """Plan gathered events, check deadlines and forget old requests, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._plan_when_due)
            await self._tick()

    async def _plan_when_due(self) -> None:
        """Wait for the time at which gathered events are planned."""
        while True:
            await self._gathering.wait()
            self._gathering = trio.Event()
            due_ms = self._scheduler.plan_at_ms
            if due_ms is not None:
                await trio.sleep(max(0, due_ms - self.now_ms()) / 1000)
                self._plan_gathered()

    def _plan_gathered(self) -> None:
        """Plan the gathered events, if there are any and the store works."""
        if self._scheduler.plan_at_ms is None or self.failing is not None:
            return
        try:
            self._change(lambda: self._scheduler.plan(self.now_ms()))
        except Exception as error:  # noqa: BLE001  one event that fails must not end the service
            self.environment.report(REQUEST_CRASHED, operation="plan", trace="".join(format_exception(error)))

    async def _tick(self) -> None:
        """Check deadlines, rebuild the plan if necessary, and plan events whose plan could not be stored in time."""
        before_ms = self.now_ms()
        while True:
            await trio.sleep(self.settings.tick_s)
            now_ms = self.now_ms()
            passed_ms, before_ms = now_ms - before_ms, now_ms
            late_ms = passed_ms - int(self.settings.tick_s * 1000)
            if late_ms > self.settings.host_deadline_ms // 4:
                # This process was stopped, or the machine was busy: keep-alives of that time were not received.
                self.hosts.extend_deadlines(late_ms)
                self.registry.extend_deadlines(late_ms)
            if self._inconsistent is not None:
                await self._rebuild()
            if self.journal.obstacle is not None:
                self.hosts.extend_deadlines(passed_ms)  # nothing is answered, keep-alives neither
            if self.failing is not None:
                self.registry.extend_deadlines(passed_ms)  # reports could not be stored, and were refused
                continue
            self._plan_gathered()  # events that were due while the store failed
            try:
                self._check_deadlines(now_ms)
            except Exception as error:  # noqa: BLE001  one event that fails must not end the service
                self.environment.report(REQUEST_CRASHED, operation="tick", trace="".join(format_exception(error)))

    def _check_deadlines(self, now_ms: int) -> None:
        settings = self.settings
        for host in self.hosts.overdue_hosts(now_ms):
            self._lose(host, "missed its deadline")
        for name in self.registry.silent(now_ms - settings.writer_deadline_ms):
            self.environment.report(WRITER_SILENT, request=name)
            self._change(lambda name=name: self._scheduler.cancel(name, now_ms))  # type: ignore[misc]
        for record in self.registry.overdue(now_ms, self.chunk_deadline_ms):
            self._revoke_overdue(record, now_ms)
        self.copy_slots.end_over()
        self._report_unreachable()
        self.room.look()
        is_full = self.room.left_bytes < NEARLY_FULL_BYTES
        remember_ms = min(settings.remember_ms, FULL_REMEMBER_MS) if is_full else settings.remember_ms
        self.journal.record(self.registry.forget(now_ms - remember_ms, settings.max_remembered))

    def _revoke_overdue(self, record: ChunkRecord, now_ms: int) -> None:
        """Revoke a chunk that hangs: its capacity is free again, and its hosts are avoided when it is planned again."""
        name, chunk, attempt = record.request, record.chunk, record.attempt
        if self.registry.running.get((name, chunk)) is not record:
            return  # its request ended with the chunk before
        self.environment.report(
            CHUNK_OVERDUE,
            request=name,
            chunk=chunk,
            attempt=attempt,
            hosts=",".join(record.hosts),
            for_ms=now_ms - record.since_ms,
        )
        self.counts["overdue"] += 1
        self._change(lambda: self._scheduler.overdue(name, chunk, attempt, now_ms))

    def _report_unreachable(self) -> None:
        """Report the requests that have lost all paths, and those that have a path again."""
        before, self.unreachable = self.unreachable, self._scheduler.unreachable()
        lost = ",".join(host.name for host in self.hosts.known() if host.lost)
        for name in sorted(self.unreachable - before):
            self.environment.report(REQUEST_STRANDED, request=name, hosts_lost=lost)
        for name in sorted(before - self.unreachable):
            if name in self.registry.requests and not self.registry.requests[name].state.ended:
                self.environment.report(REQUEST_HAS_A_PATH_AGAIN, request=name)

    async def change_network(self, topology: Topology, planner: Planner) -> EventOutcome:
        """Go on with another network, as `OnlineScheduler.on_network` says; returns what came of it.

        Raises StoreError while nothing can be changed, PlanNotMoved if the plan does not go on there: it goes on here.
        """
        await self._ready()
        lost = self.hosts.lost(topology.index)
        try:
            scheduler = self._scheduler.on_network(topology, planner, self.environment.random, lost, self.now_ms())
        except Exception as error:
            self.environment.report(REQUEST_CRASHED, operation="topology", trace="".join(format_exception(error)))
            raise PlanNotMoved(f"the plan cannot go on with {topology.name}: {error!r}") from error

        def move() -> EventOutcome:
            self.environment = replace(self.environment, topology=topology, planner=planner)
            self.hosts.change_topology({server.name: server.address for server in topology.servers}, self.now_ms())
            self.chunk_deadline_ms = self.settings.chunk_deadline_ms or chunk_deadline_ms(topology)
            self._scheduler = scheduler
            return scheduler.restored

        outcome = self._change(move)
        await self._wait_durable()
        return outcome

    def stop(self) -> None:
        """Answer all waiting clients, because the service ends."""
        self._stopping = True
        for entry in self.registry.requests.values():
            entry.log.wake()

    # ---- hosts

    async def register(self, name: str, address: str | None) -> HostRecord:
        """Register a host, new or returned. Raises ApiError, StoreError."""
        self.hosts.check(name, "name")
        await self._ready()
        before = self.hosts.record(name)
        record = self.hosts.register(name, address, self.now_ms())
        if record != before:
            self.environment.report(HOST_REGISTERED, host=name, address=address or "", was_lost=before.lost)
            self._change(
                lambda: self._scheduler.host_back(name, self.now_ms()) if before.lost else EventOutcome(),
                [host_change(record)],
            )
        await self._wait_durable()
        return record

    def alive(self, name: str) -> HostRecord:
        """Take a keep-alive of a host. Raises ApiError."""
        return self.hosts.alive(name, self.now_ms())

    async def deregister(self, name: str) -> HostRecord:
        """Deregister a host. Raises ApiError, StoreError."""
        self.hosts.check(name, "name")
        await self._ready()
        if not self.hosts.record(name).lost:
            self._lose(name, "left")
        await self._wait_durable()
        return self.hosts.record(name)

    def _lose(self, host: str, why: str) -> None:
        self.environment.report(HOST_LOST, host=host, why=why)
        self.counts["hosts_lost"] += 1
        record = self.hosts.lose(host)
        self._change(lambda: self._scheduler.host_lost(host, self.now_ms()), [host_change(record)])

    # ---- requests

    async def submit(self, name: str | None, ask: Callable[[str], Submission]) -> tuple[RequestEntry, bool]:
        """Submit a request; returns it, and whether it is new.

        Without a `name` the request gets a new name; `ask` makes the submission of a name. Raises ApiError,
        RequestError, StoreError.
        """
        await self._ready()
        submission = ask(name or self._new_name())
        known = self.registry.requests.get(submission.name)
        if known is not None:
            known.heard_ms = self.now_ms()
            await self.journal.durable()
            if known.submission != submission_text(submission):
                raise ApiError(
                    CONFLICT, f"name={shown(submission.name)}: there is another request of that name", "name"
                )
            return known, False
        if self.registry.live >= self.settings.scheduler.max_waiting:
            raise ApiError(UNAVAILABLE, f"the queue is full: {self.registry.live} requests wait; try again later")
        self.room.admit(submission.name, submission.chunks, len(submission_text(submission)))
        if submission.writer is not None and self.hosts.record(submission.writer).lost:
            raise ApiError(
                CONFLICT, f"writer={shown(submission.writer)}: this host is lost; register it first", "writer"
            )
        for chunk, names in enumerate(submission.sources):
            if names and all(self.hosts.record(host).lost for host in names):
                raise ApiError(
                    CONFLICT, f"sources[{chunk}]={shown(names)}: all are lost; register one first", f"sources[{chunk}]"
                )
        try:
            self._change(lambda: self._scheduler.submit(submission, self.now_ms()), opens=submission)
        except RequestError as error:
            if error.field == "placement" and submission.placement is None:
                # The placement is what the scheduler made of the number.
                raise RequestError("replicas", f"{submission.replicas}: {error}") from error
            raise
        entry = self.registry.requests[submission.name]
        self.environment.report(SUBMITTED, request=submission.name, writer=submission.writer, chunks=submission.chunks)
        try:
            await self._wait_durable()
        except StoreError:
            if name is None and self._inconsistent is None:
                # The client does not know the name, so it could neither write the request nor cancel it.
                self._change(lambda: self._scheduler.cancel(submission.name, self.now_ms()))
            raise
        return entry, True

    def _new_name(self) -> str:
        """An unused name: with the same seed, a restarted coordinator draws the same names again."""
        while True:
            name = f"request-{self.environment.random.getrandbits(64):016x}"
            if name not in self.registry.requests:
                return name

    async def request(self, name: str) -> RequestEntry:
        """A request with a stored record. Raises ApiError if there is none, StoreError if it cannot be stored."""
        entry = self._entry(name)
        if entry.stored is None:
            await self.journal.durable()
        return entry

    def place(self, name: str) -> QueuePosition | None:
        """The place of a request in the queue; None if the request ended."""
        return None if self._entry(name).state.ended else self._scheduler.place(name)

    async def done(self, name: str, chunk: int, attempt: int) -> tuple[RequestEntry, bool]:
        """Take the report that a chunk is done; returns its request, and whether the report counted."""
        return await self._report(name, chunk, lambda: self._scheduler.done(name, chunk, attempt, self.now_ms()))

    async def failed(self, name: str, chunk: int, attempt: int, suspects: tuple[str, ...]) -> tuple[RequestEntry, bool]:
        """Take the report that a chunk could not be moved; returns its request, and whether the report counted."""
        suspects = tuple(suspect for suspect in suspects if not self.hosts.has_left(suspect))
        for suspect in suspects:
            self.hosts.check(suspect, "suspects")
        return await self._report(
            name, chunk, lambda: self._scheduler.failed(name, chunk, attempt, suspects, self.now_ms())
        )

    async def _report(self, name: str, chunk: int, event: Callable[[], EventOutcome]) -> tuple[RequestEntry, bool]:
        entry = self._entry(name)
        if entry.record is not None and chunk >= entry.record.chunks:
            raise ApiError(
                NOT_FOUND, f"chunk={chunk}: request {shown(name)} has chunks 0 to {entry.record.chunks - 1}", "chunk"
            )
        await self._ready()
        self._note_contact(entry)
        outcome = EventOutcome(ignored="over") if entry.state.ended else self._change(event)
        await self._wait_durable()
        return entry, outcome.ignored is None

    async def cancel(self, name: str) -> RequestEntry:
        """Cancel a request; a request that ended is not changed."""
        entry = self._entry(name)
        await self._ready()
        if not entry.state.ended:
            self._change(lambda: self._scheduler.cancel(name, self.now_ms()))
        await self._wait_durable()
        return entry

    async def resubmit(self, name: str, chunks: int) -> RequestEntry:
        """Change the number of chunks of a request without a started chunk. The same number changes nothing."""
        entry = self._entry(name)
        await self._ready()
        self._note_contact(entry)
        if entry.record is None or entry.record.chunks != chunks:
            if not allows(entry.state, RequestEvent.RESUBMIT):
                why = f"request {shown(name)} is {entry.state}: only one of which nothing was started can change"
                raise ApiError(CONFLICT, why, "name")
            self.room.admit(name, chunks - (entry.record.chunks if entry.record is not None else 0))
            self._change(lambda: self._scheduler.resubmit(name, chunks, self.now_ms()))
        await self._wait_durable()
        return entry

    async def wait(self, name: str, after: int, wait_s: float) -> tuple[RequestEntry, list[Event]]:
        """The events after number `after`; none if no event came within `wait_s`."""
        entry = self._entry(name)
        self._note_contact(entry)
        log = entry.log
        if after > len(log.events):
            raise ApiError(
                400, f"after={after}: request {shown(name)} has {log.durable} events so far; start from 0", "after"
            )
        if not self._stopping:
            entry.open_polls += 1
            try:
                with trio.move_on_after(wait_s):
                    await log.wait_after(after)
            finally:
                entry.open_polls -= 1
                self._note_contact(entry)
        return entry, log.after(after)

    def status(self) -> Status:
        """The scheduler's state."""
        return self._scheduler.status()

    # ---- changes

    @property
    def failing(self) -> str | None:
        """The reason why nothing can be changed at present; None if changes are possible."""
        return self._inconsistent or self.journal.failing

    async def _ready(self) -> None:
        """Raises StoreError while nothing can be changed."""
        if self._inconsistent is not None:
            raise StoreError(self._inconsistent)
        await self.journal.ready()

    def _change(
        self, event: Callable[[], EventOutcome], extra: Sequence[Change] = (), opens: Submission | None = None
    ) -> EventOutcome:
        """Run one event of the scheduler and record its effects. `opens`: the request that begins with the event.

        A refused event (RequestError) has changed nothing. Any other error may have come in the middle of the event:
        then the state in memory is not used any more.
        """
        if self._inconsistent is not None:
            raise StoreError(self._inconsistent)
        try:
            outcome = event()
            changes = list(extra)
            if opens is not None:
                entry, change = self.registry.open(opens)
                self._note_contact(entry)
                changes.append(change)
            self._commit(outcome, changes)
        except RequestError:
            raise
        except Exception:
            self._inconsistent = INCONSISTENT
            raise
        self._schedule_plan()
        return outcome

    async def _wait_durable(self) -> None:
        """Wait until the changes are planned and durable. Raises StoreError if they cannot be stored."""
        await self.planned()
        await self.journal.durable()

    async def planned(self) -> None:
        """Wait for the plan, for a bounded time: its timer may be late, or the store may fail."""
        if self._scheduler.plan_at_ms is not None:
            with trio.move_on_after(self._scheduling.gather_ms / 1000 + PLAN_PATIENCE_S):
                await self._planned.wait()

    def _schedule_plan(self) -> None:
        """Set the timer of the next plan, or wake the waiters if there is none to make."""
        if self._scheduler.plan_at_ms is not None:
            self._gathering.set()
        else:
            self._planned.set()
            self._planned = trio.Event()

    async def _rebuild(self) -> None:
        """Rebuild the plan from the store, after an event that failed in the middle."""
        if self.environment.clock.monotonic_s() < self._rebuild_at_s or self.copy_slots.left_ms:
            return
        environment, now_ms = self.environment, self.now_ms()
        try:
            stored = RequestRegistry()
            records, _ = stored.restore(await self.journal.load(), now_ms)
            lost = [record.name for record in self.hosts.known() if record.lost]
            scheduler = OnlineScheduler.restore(
                environment.topology, environment.planner, self._scheduling, environment.random, records, lost, now_ms
            )
        except Exception as error:  # noqa: BLE001  any error: nothing was changed, and the next try follows
            self._rebuild_pause_s = min(MAX_REBUILD_PAUSE_S, 2 * self._rebuild_pause_s + self.settings.tick_s)
            self._rebuild_at_s = environment.clock.monotonic_s() + self._rebuild_pause_s
            environment.report(PLAN_NOT_REBUILT, trace="".join(format_exception(error)))
            return
        self.registry.replace_with(stored, now_ms)
        self.registry.restart_deadlines(now_ms)
        self.copy_slots.forget()
        self._scheduler, self._inconsistent, self._rebuild_pause_s = scheduler, None, 0.0
        self.counts["rebuilt"] += 1
        environment.report(PLAN_REBUILT, requests=self.registry.live)
        self._commit(scheduler.restored, [host_change(record) for record in self.hosts.known()])
        self._schedule_plan()

    def _commit(self, outcome: EventOutcome, extra: list[Change] | None = None) -> None:
        """Record the effects of an event, and notify the writers concerned when they are durable."""
        outcome = self.copy_slots.apart(outcome)
        changes = (extra or []) + self.registry.take(outcome, self.now_ms())
        records: dict[str, list[RequestRecord | ChunkRecord]] = {}
        for record in outcome.changed:
            name = record.name if isinstance(record, RequestRecord) else record.request
            records.setdefault(name, []).append(record)
        # The entries, not the names: until then a request may be forgotten, and its name may be another request's.
        concerned = [(name, self.registry.requests[name]) for name in records]
        news = [(name, entry, len(entry.log.events)) for name, entry in concerned]

        def note_stored() -> None:
            for name, entry, number in news:
                for event in entry.log.events[entry.log.durable : number]:
                    self._report_event(name, event)
                entry.note_stored(records[name], number)

        self.journal.record(changes, note_stored)

    def _report_event(self, name: str, event: Event) -> None:
        kind = event["event"]
        self.counts[kind] += 1
        if event["chunk"] is None:
            self.environment.report(TOLD_TO_WRITERS[kind], request=name)
        else:
            hosts = ",".join(event["hosts"])
            self.environment.report(
                TOLD_TO_WRITERS[kind], request=name, chunk=event["chunk"], attempt=event["attempt"], hosts=hosts
            )

    def _entry(self, name: str) -> RequestEntry:
        entry = self.registry.requests.get(name)
        if entry is None:
            raise ApiError(NOT_FOUND, f"name={shown(name)}: no such request; it may be over and forgotten", "name")
        return entry

    def _note_contact(self, entry: RequestEntry) -> None:
        """Note that the request's writer lives. Calls that any client may make (view, status) do not count."""
        entry.heard_ms = self.now_ms()
