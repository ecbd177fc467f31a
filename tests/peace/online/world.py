"""What a coordinator and its writers see of an online scheduler, and the promises they hold it to.

The world knows requests, chunks in flight and stored records only from outcomes; it counts capacity, rounds and
timesteps on its own. A round of a promise ends when all chunks have ended that were in flight when it began.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from random import Random

from benchmarks.yardstick.verify import verify
from scheduler.peace.online import (
    ChunkRecord,
    ChunkStart,
    EventOutcome,
    Mode,
    OnlineScheduler,
    RequestRecord,
    RequestState,
    Settings,
    Stragglers,
    Submission,
)
from scheduler.peace.placement import parse_placement
from scheduler.peace.plan import HostChain, Planner, Request, Residual, Resource, TransferKind, TransferPlan, demands
from scheduler.topology import Topology, disk_capacity

Attempt = tuple[str, int, int]
PROMISES_KEPT = 4
TICK_MS = 7
"""From one event to the next."""


@dataclass
class Promise:
    """A request was told that its next chunk starts within so many rounds (timesteps)."""

    left: int
    round: set[Attempt]
    step: int


@dataclass
class World:
    """One scheduler under observation."""

    topology: Topology
    planner: Callable[[Topology], Planner]
    settings: Settings
    seed: int = 0
    now_ms: int = 1000
    step: int = 0
    lost: set[str] = field(default_factory=set)
    in_flight: dict[Attempt, HostChain] = field(default_factory=dict)
    since_step: dict[Attempt, int] = field(default_factory=dict)
    """The timestep that each attempt was started in, of those in flight or done."""
    stepped: dict[Attempt, HostChain] = field(default_factory=dict)
    """What the newest timestep scheduled, and did not revoke."""
    straggled: set[Attempt] = field(default_factory=set)
    records: dict[tuple[str, ...], RequestRecord | ChunkRecord] = field(default_factory=dict)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    done: dict[str, set[int]] = field(default_factory=dict)
    old: list[Attempt] = field(default_factory=list)
    """Attempts that ended or were revoked."""
    promises: dict[str, list[Promise]] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    events: int = 0
    running: int = 0
    """The sum over events of requests that are running: how interleaved they are."""
    carried: set[Attempt] = field(default_factory=set)
    """What was under way when the network changed: it may be more than the network carries now."""
    spared: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How many attempts of a chunk ended because the network changed: the last one ends no request then."""
    disturbed: bool = False
    """Whether an event since the last plan may have put chunks in front of those that wait."""

    def __post_init__(self) -> None:
        self.scheduler = OnlineScheduler(self.topology, self.planner(self.topology), self.settings, Random(self.seed))

    # ---- events

    def submit(self, submission: Submission) -> EventOutcome:
        """A request arrives."""
        outcome = self.scheduler.submit(submission, self._tick())
        self.done[submission.name] = set()
        self.see(outcome, disturbed=submission.priority > 0)
        return outcome

    def finish(self, attempt: Attempt) -> EventOutcome:
        """A chunk in flight is done."""
        self._end_attempt(attempt)
        self.done[attempt[0]].add(attempt[1])
        outcome = self.scheduler.done(*attempt, self._tick())
        assert outcome.ignored is None
        self.see(outcome)
        return outcome

    def fail(self, attempt: Attempt, suspects: tuple[str, ...] = ()) -> EventOutcome:
        """A chunk in flight fails."""
        self._end_attempt(attempt)
        self.stepped.pop(attempt, None)
        outcome = self.scheduler.failed(*attempt, suspects, self._tick())
        assert outcome.ignored is None
        self.see(outcome, disturbed=True)
        return outcome

    def expire(self, attempt: Attempt) -> EventOutcome:
        """A chunk in flight takes too long: it is revoked, told so, and waits again."""
        self.stepped.pop(attempt, None)
        outcome = self.scheduler.overdue(*attempt, self._tick())
        assert outcome.ignored is None
        assert attempt in {(go.request, go.chunk, go.attempt) for go in outcome.revoked}
        self.see(outcome, disturbed=True)
        return outcome

    def cancel(self, name: str) -> EventOutcome:
        """A request is cancelled."""
        ended = self.request(name).state in {"finished", "cancelled", "failed"}
        outcome = self.scheduler.cancel(name, self._tick())
        assert (outcome.ignored is not None) == ended
        self.see(outcome)
        return outcome

    def resubmit(self, name: str, chunks: int) -> EventOutcome:
        """A waiting request changes its size."""
        self.promises.pop(name, None)
        larger = chunks > self.request(name).chunks
        outcome = self.scheduler.resubmit(name, chunks, self._tick())
        self.see(outcome, disturbed=larger)
        return outcome

    def lose(self, host: str) -> EventOutcome:
        """A host is lost."""
        self.lost.add(host)
        reserved = self.scheduler.status().reserved
        outcome = self.scheduler.host_lost(host, self._tick())
        self.see(outcome, disturbed=bool(outcome.revoked) or host in reserved)
        assert not any(host in self._names(chain.hosts) for chain in self.in_flight.values())
        return outcome

    def regain(self, host: str) -> EventOutcome:
        """A lost host is back."""
        self.lost.discard(host)
        outcome = self.scheduler.host_back(host, self._tick())
        self.see(outcome, disturbed=True)
        return outcome

    def restart(self) -> None:
        """The scheduler dies; another goes on from what was stored, as JSON."""
        before = self.scheduler.status()
        stored = [(type(record), json.loads(json.dumps(asdict(record)))) for record in self.records.values()]
        Random(self.seed + self.events).shuffle(stored)
        records = [kind.load(values) for kind, values in stored]
        assert set(records) == set(self.records.values())
        self.scheduler = OnlineScheduler.restore(
            self.topology,
            self.planner(self.topology),
            self.settings,
            Random(self.seed + self.events),
            records,
            sorted(self.lost & set(self.topology.index)),
            self._tick(),
        )
        restored = self.scheduler.restored
        started = {(go.request, go.chunk) for go in restored.go}
        after = self.scheduler.status()
        assert not restored.revoked
        assert {f for f in after.in_flight if (f.go.request, f.go.chunk) not in started} == set(before.in_flight)
        assert [
            (each.name, each.submitted_ms, each.done, each.in_flight + each.waiting) for each in after.requests
        ] == [(each.name, each.submitted_ms, each.done, each.in_flight + each.waiting) for each in before.requests]
        assert self.scheduler.plan_at_ms is None, "something waits for a plan after a restart"
        self.see(restored, disturbed=True, planned=True)

    def change_network(self, topology: Topology) -> None:
        """Servers and links came, went, moved, or carry another number of chunks."""
        before, seed = self.topology, Random(self.seed + self.events)
        told = {attempt: self._names(chain.hosts) for attempt, chain in self.in_flight.items()}
        kept = {attempt: self._on(topology, chain) for attempt, chain in self.in_flight.items()}
        stepped = {attempt: self._on(topology, chain) for attempt, chain in self.stepped.items()}
        old = self.scheduler.status()
        self.scheduler = self.scheduler.on_network(
            topology, self.planner(topology), seed, sorted(self.lost & set(topology.index)), self._tick()
        )
        outcome = self.scheduler.restored
        assert self.scheduler.plan_at_ms is None, "something waits for a plan after a change of the network"
        assert [each.name for each in self.scheduler.status().requests] == [
            each.name for each in old.requests if each.name not in outcome.given_up
        ], "the queue has another order"
        for go in outcome.revoked:
            attempt = (go.request, go.chunk, go.attempt)
            assert told[attempt] == go.hosts, "the writer is told of hosts that it does not know of"
            assert kept[attempt] is None or go.request in outcome.given_up, "revoked without need"
            self._end_attempt(attempt)
            del kept[attempt]
            self.spared[attempt[:2]] += 1
            stepped.pop(attempt, None)
        for name in outcome.given_up:
            record = self.request(name)
            gone = [host for hosts in record.sources for host in hosts if host not in topology.index]
            assert gone or record.writer not in topology.index, "ended without need"
            assert record.writer is None or record.writer in before.index
        self.topology = topology
        self.in_flight = {attempt: chain for attempt, chain in kept.items() if chain is not None}
        assert len(self.in_flight) == len(kept), "a chunk goes on through what is not there"
        self.stepped = {attempt: chain for attempt, chain in stepped.items() if chain is not None}
        self.carried = {*self.in_flight, *self.stepped}
        self.see(outcome._replace(revoked=()), disturbed=True, planned=True)

    def _on(self, topology: Topology, chain: HostChain) -> HostChain | None:
        """A chain by the numbers of another network; None if a host or link is missing, or a host elsewhere."""
        names = self._names(chain.hosts)
        if not set(names) <= set(topology.index):
            return None
        routes: list[tuple[int, ...]] = []
        for place, route in enumerate(chain.routes):
            at, entered = (topology.servers[topology.index[name]].rack for name in names[place : place + 2])
            followed: list[int] = []
            for link in (self.topology.links[number] for number in route):
                number = next((n for n, each in enumerate(topology.links) if each.source == link.source == at
                               and each.target == link.target), None)  # fmt: skip
                if number is None:
                    return None
                followed.append(number)
                at = link.target
            if at != entered:
                return None
            routes.append(tuple(followed))
        return chain._replace(hosts=tuple(topology.index[name] for name in names), routes=tuple(routes))

    def plan(self) -> EventOutcome:
        """What was gathered is planned, when it is due."""
        due_ms = self.scheduler.plan_at_ms
        assert due_ms is not None
        assert due_ms <= self.now_ms + self.settings.gather_ms, "gathered for longer than it should be"
        self.now_ms = max(self.now_ms, due_ms)
        outcome = self.scheduler.plan(self.now_ms)
        assert self.scheduler.plan_at_ms is None
        self.see(outcome, planned=True)
        return outcome

    def drain(self, random: Random) -> None:
        """All chunks in flight complete, and what starts then, until nothing is in flight."""
        bound = 10 + sum(record.chunks for record in self.requests())
        while self.in_flight or self.scheduler.plan_at_ms is not None:
            if not self.in_flight:
                self.plan()
                continue
            bound -= 1
            assert bound > 0, "more completions than chunks"
            self.finish(random.choice(sorted(self.in_flight)))

    # ---- what was seen

    def requests(self) -> list[RequestRecord]:
        """All requests' newest records."""
        return [record for record in self.records.values() if isinstance(record, RequestRecord)]

    def request(self, name: str) -> RequestRecord:
        """A request's newest record."""
        record = self.records[name,]
        assert isinstance(record, RequestRecord)
        return record

    def see(self, outcome: EventOutcome, *, disturbed: bool = False, planned: bool = False) -> None:
        """Check an outcome against everything seen before, then everything that must hold now.

        `disturbed`: what happened may put chunks in front of those that wait, so they get new promises. `planned`: it
        is a plan's. Promises are looked at when nothing waits for a plan.
        """
        self.events += 1
        self.disturbed |= disturbed
        assert planned or not self.settings.gather_ms or not outcome.go, "an event that is gathered started something"
        new = {
            (record.request, record.chunk, record.attempt): record
            for record in outcome.changed
            if isinstance(record, ChunkRecord) and record.state == "running"
        }
        for go in outcome.revoked:
            self._revoked(go, new)
        for record in outcome.changed:
            key = (record.name,) if isinstance(record, RequestRecord) else (record.request, str(record.chunk))
            self.records[key] = record
        for record in sorted(new.values(), key=lambda record: record.step):
            if record.step > self.step:
                self.step = record.step
                self.stepped.clear()
                self.straggled = set(self.in_flight)
        for go in outcome.go:
            self._started(go, new.pop((go.request, go.chunk, go.attempt)))
        assert not new, "stored as running, but nobody was told to go"
        self._check_requests(outcome)
        self._check_capacity()
        self.running += sum(record.state == "running" for record in self.requests())
        due_ms = self.scheduler.plan_at_ms
        if due_ms is None:
            self._keep_promises()
        elif due_ms <= self.now_ms + TICK_MS:  # before the next event
            self.plan()

    def _revoked(self, go: ChunkStart, new: dict[Attempt, ChunkRecord]) -> None:
        attempt = (go.request, go.chunk, go.attempt)
        assert attempt in self.in_flight, "revoked what is not in flight"
        assert self._names(self.in_flight[attempt].hosts) == go.hosts
        self._end_attempt(attempt)
        self.stepped.pop(attempt, None)

    def _started(self, go: ChunkStart, record: ChunkRecord) -> None:
        attempt = (go.request, go.chunk, go.attempt)
        request = self.request(go.request)
        assert request.state in ("running", "finished"), "a chunk of an ended request started"
        assert 0 <= go.chunk < request.chunks
        assert go.chunk not in self.done[go.request], "a chunk that is done started again"
        assert not any(other[:2] == attempt[:2] for other in self.in_flight), "two attempts of a chunk in flight"
        assert go.attempt == self.attempts.get(attempt[:2], 0) + 1
        assert go.attempt <= self.settings.max_attempts + self.spared[attempt[:2]]
        assert go.hosts == record.hosts
        self.attempts[attempt[:2]] = go.attempt
        assert not self.lost.intersection(go.hosts), "a chain through a lost host"
        chain = self._chain(request, record)
        self._check_chain(request, chain)
        self.in_flight[attempt] = self.stepped[attempt] = chain
        self.promises.pop(go.request, None)

    def _check_chain(self, request: RequestRecord, chain: HostChain) -> None:
        """One chain keeps every promise of a plan, as far as they concern a single one."""
        index = self.topology.index
        kind = TransferKind(request.kind)
        sources = [
            tuple(index[name] for name in names if name in index and name not in self.lost) for names in request.sources
        ]
        asked = Request(
            request.name,
            -1 if request.writer is None else index[request.writer],
            1,
            parse_placement(request.placement) if request.placement else (),
            kind,
            (sources[chain.chunk],) if sources else (),
            (chain.chunk,),
        )
        verify(self.topology, [asked], TransferPlan((chain,)), Residual.full(self.topology))

    def _check_requests(self, outcome: EventOutcome) -> None:
        for record in self.requests():
            done, state = self.done[record.name], RequestState(record.state)
            assert (state is RequestState.FINISHED) == (
                done == set(range(record.chunks)) and state.value != "cancelled"
            )
            mine = [attempt for attempt in self.in_flight if attempt[0] == record.name]
            if state.ended:
                assert not mine, "an ended request has chunks in flight"
            if state is RequestState.WAITING:
                assert not any(name == record.name for name, _ in self.attempts)
            assert self.scheduler.state(record.name) is state
        for name in (*outcome.finished, *outcome.given_up):
            assert RequestState(self.request(name).state).ended
        stored = {
            (record.request, record.chunk, record.attempt)
            for record in self.records.values()
            if isinstance(record, ChunkRecord)
            and record.state == "running"
            and not RequestState(self.request(record.request).state).ended
        }
        assert stored == set(self.in_flight), "what is stored is not what is in flight"

    def _check_capacity(self) -> None:
        if self.settings.mode is Mode.CONTINUOUS:
            self.check_use(self.in_flight)
            return
        self.check_use(self.stepped)
        if self.settings.stragglers is Stragglers.COUNTED:
            self.check_use(self.in_flight)

    def check_use(self, chains: Mapping[Attempt, HostChain]) -> None:
        """These chains together fit into the whole network; where they do not, none began since the network changed."""
        used = Counter(demand for chain in chains.values() for demand in demands(chain))
        new = Counter(
            demand for attempt, chain in chains.items() if attempt not in self.carried for demand in demands(chain)
        )
        for (resource, number), count in used.items():
            server = self.topology.servers[number] if resource is not Resource.LINK else None
            if server is None:
                most = self.topology.links[number].capacity
            elif resource is Resource.DISK:
                most = disk_capacity(server)
            else:
                most = server.send if resource is Resource.SEND else server.receive
            assert count <= most or not new[resource, number], f"{resource} of {number}: {count} of {most} used"

    # ---- promises about waiting

    def _keep_promises(self) -> None:
        disturbed, self.disturbed = self.disturbed, False
        flying = set(self.in_flight)
        requests = self.scheduler.status().requests
        unreachable = {status.name for status in requests if status.unreachable}
        if disturbed or self.unreachable - unreachable:  # one that is stranded no more is ahead again
            self.promises.clear()
        self.unreachable = unreachable
        for status in requests:
            kept = self.promises.setdefault(status.name, [])
            if not status.waiting or status.unreachable:
                kept.clear()
                continue
            assert flying, f"{status.name!r} waits while nothing is in flight"
            for promise in kept:
                self._keep(status.name, promise, flying)
            bound = self.scheduler.place(status.name).starts_within_chunks
            if not kept or (len(kept) < PROMISES_KEPT and bound < kept[-1].left):
                kept.append(Promise(bound, set(flying), self.step))
        for name in set(self.promises) - {status.name for status in requests}:
            del self.promises[name]

    def _keep(self, name: str, promise: Promise, flying: set[Attempt]) -> None:
        if self.settings.mode is Mode.TIMESTEPS:
            assert self.step - promise.step < promise.left, f"{name!r} waits for more timesteps than promised"
            return
        promise.round &= flying
        if not promise.round:
            promise.left -= 1
            promise.round = set(flying)
        assert promise.left > 0, f"{name!r} waits longer than promised"

    # ---- small things

    def _chain(self, request: RequestRecord, record: ChunkRecord) -> HostChain:
        links = {(link.source, link.target): number for number, link in enumerate(self.topology.links)}
        return HostChain(
            record.request,
            record.chunk,
            tuple(self.topology.index[name] for name in record.hosts),
            tuple(tuple(links[ends] for ends in route) for route in record.routes),
            TransferKind(request.kind),
        )

    def _names(self, hosts: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.topology.servers[host].name for host in hosts)

    def _end_attempt(self, attempt: Attempt) -> None:
        del self.in_flight[attempt]
        self.old.append(attempt)

    def _tick(self) -> int:
        self.now_ms += TICK_MS
        return self.now_ms
