"""The simulator: chunks as flows through links, disks and clients, from event to event in virtual time.

A chunk's pipeline is one flow. HDFS sends packets of 64 KB with up to 80 of them in flight: 5 MB of a chunk of 64 MB.
So all links of a chain run at the speed of the slowest link, and the flow has one rate. Rates are max-min fair over all
resources. They change when a chunk starts or ends, and when a host's memory for written data is full.

A disk serves n clients at the rates of table 8 for n, in turns: a client's share of time is its rate divided by the
total that the disk would give n such clients. Reads take the time that they need first. Written data goes into memory,
and the disk drains it in the remaining time; when memory is full, writers wait for the disk.

A chunk may take time besides the transfer (`Physics.overheads_s`), to create files, set up pipelines and wait for acks.
The simulation puts all of it before the first byte: the chunk is in flight and counts as a chunk, but moves no bytes.

Invariants:
* The same scenario, policy and seed give the same run.
* Bytes are conserved: the bytes carried by a resource are the bytes of the chunks over it (`SimulatedRun.carried`).
* Every job ends (acked or given up); otherwise SimulationStuck names the jobs that did not end.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

import numpy as np

from scheduler.errors import SchedulerError
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.fairness import Floats, Integers, max_min
from scheduler.simulation.policies.base import ClusterLoad, Orders, PolicyMaker, SchedulingPolicy, Start
from scheduler.simulation.run import ChunkRun, RequestRun, SimulatedRun, TracePoint
from scheduler.simulation.scenario import Loss, Scenario, SimulatedJob

WIDTH = 48
"""The number of resources that one chain may use."""
SLACK_BYTES = 1 << 20
"""A memory counts as full within this distance of its limit, so that it does not alternate between full and free."""
DONE_BYTES = 1e-3
SAME_TIME_S = 1e-9


class Transfer(NamedTuple):
    """A chunk in flight, and the time of its start."""

    start: Start
    began_s: float


class Opened(NamedTuple):
    """The time of a chunk's first byte; it counts only if the chunk is still in its slot."""

    slot: int
    flight: Transfer


Event = SimulatedJob | Loss | tuple[Loss, tuple[Start, ...]] | Opened | None
"""A submission, a loss, the notice of a loss with the chunks that it interrupted, a chunk's first byte, or (None) a
time to observe the cluster."""


class SimulationStuck(SchedulerError):
    """Nothing is in flight and no event is due, but jobs are not finished."""


class Flows:
    """The chunks in flight: the resources, remaining bytes and rate of each. Slots are reused.

    Invariant: `active` lists the slots whose bytes move, in the order they began to.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        size = 64
        self.uses: Integers = np.full((size, WIDTH), -1, np.int64)
        self.writes = np.zeros((size, WIDTH), bool)
        self.reads = np.zeros((size, WIDTH), bool)
        self.caps: Floats = np.zeros(size)
        self.left: Floats = np.zeros(size)
        self.rates: Floats = np.zeros(size)
        self.flights: dict[int, Transfer] = {}
        self._moving: dict[int, None] = {}
        self.active: Integers = np.zeros(0, np.int64)
        self.open: Integers = np.zeros(cluster.resources, np.int64)
        self._free = list(range(size - 1, -1, -1))

    def add(self, flight: Transfer) -> int:
        """Add a chunk in flight; its bytes move after `move`. Returns its slot."""
        start = flight.start
        if not self._free:
            self._grow()
        slot = self._free.pop()
        uses = self._cluster.uses(start.hosts, start.kind)
        if len(uses) > WIDTH:
            raise SchedulerError(f"chain {start.hosts}: uses {len(uses)} resources, at most {WIDTH} are provided for")
        self.uses[slot] = -1
        for place, use in enumerate(uses):
            self.uses[slot, place] = use.resource
            self.writes[slot, place] = use.disk_write
            self.reads[slot, place] = use.disk_read
            self.open[use.resource] += 1
        physics = self._cluster.physics
        client = physics.client_write if start.kind == "write" else physics.client_read
        self.caps[slot] = np.inf if start.kind == "copy" else client.per_client(1)
        self.left[slot] = self._cluster.topology.chunk_bytes
        self.rates[slot] = 0.0
        self.flights[slot] = flight
        return slot

    def move(self, slot: int) -> None:
        """Let the bytes of a chunk move."""
        self._moving[slot] = None
        self.active = np.array([*self._moving], np.int64)

    def remove(self, slot: int) -> Transfer:
        """Remove a chunk that ended."""
        if slot in self._moving:
            del self._moving[slot]
            self.active = np.array([*self._moving], np.int64)
        for resource in self.uses[slot]:
            if resource >= 0:
                self.open[resource] -= 1
        self._free.append(slot)
        return self.flights.pop(slot)

    def _grow(self) -> None:
        size = len(self.caps)
        self.uses = np.vstack([self.uses, np.full((size, WIDTH), -1, np.int64)])
        self.writes = np.vstack([self.writes, np.zeros((size, WIDTH), bool)])
        self.reads = np.vstack([self.reads, np.zeros((size, WIDTH), bool)])
        self.caps, self.left, self.rates = (
            np.append(old, np.zeros(size)) for old in (self.caps, self.left, self.rates)
        )
        self._free = list(range(2 * size - 1, size - 1, -1))


class Disks:
    """The hosts' disks and the memory in front of them. Invariant: 0 ≤ cached ≤ the limit."""

    def __init__(self, cluster: SimulatedCluster, *, full: bool) -> None:
        self._cluster = cluster
        first = cluster.disk(0)
        self.at = slice(first, first + cluster.hosts)
        self.cached: Floats = np.zeros(cluster.hosts)
        self._limit = cluster.physics.cache_bytes
        if full:
            self.cached += self._limit
        self._slack = min(SLACK_BYTES, self._limit / 64)
        self._filling: Floats = np.zeros(cluster.hosts)
        self._write_total: Floats = np.ones(cluster.hosts)
        self._read_total: Floats = np.ones(cluster.hosts)

    @property
    def full(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """The hosts with full memory, whose writers must wait for the disk."""
        return self.cached >= self._limit - self._slack

    def weigh(self, open_chunks: Integers) -> tuple[Floats, Floats]:
        """The share of a disk's time that a byte per second written to it, or read from it, costs now."""
        physics = self._cluster.physics
        clients = np.minimum(open_chunks[self.at], len(physics.disk_write.totals) - 1)
        self._write_total = physics.disk_write.totals[clients] * self._cluster.disk_factor
        self._read_total = physics.disk_read.totals[clients] * self._cluster.disk_factor
        return np.where(self.full, 1.0 / self._write_total, 0.0), 1.0 / self._read_total

    def settle(self, inflow: Floats, reading: Floats) -> None:
        """Set the rates: the bytes per second written to each host, and the share of its disk's time for reads."""
        self._filling = inflow - self._write_total * np.clip(1.0 - reading, 0.0, 1.0)

    def full_in(self) -> float:
        """Seconds until the next memory is full."""
        rising = (self._filling > 1.0) & ~self.full
        if not rising.any():
            return np.inf
        return float(((self._limit - self.cached[rising]) / self._filling[rising]).min())

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.cached = np.clip(self.cached + self._filling * seconds, 0.0, self._limit)


class Simulation:
    """One run; see `simulate`."""

    def __init__(self, scenario: Scenario, policy: SchedulingPolicy, random: Random) -> None:
        """`random` draws the overhead of each chunk."""
        self._cluster = scenario.cluster
        self._policy = policy
        self._random = random
        self._flows = Flows(self._cluster)
        self._disks = Disks(self._cluster, full=scenario.memory_full)
        self._now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._waiting_events = 0
        self._lost: set[int] = set()
        self._jobs = {job.name: job for job in scenario.jobs}
        self._to_ack = {job.name: job.chunks for job in scenario.jobs}
        self._go: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._gave_up: list[str] = []
        self._chunks: list[ChunkRun] = []
        self._carried: Floats = np.zeros(self._cluster.resources)
        self._rates: Floats = np.zeros(self._cluster.resources)
        self._trace: list[TracePoint] | None = [] if scenario.trace else None
        for job in scenario.jobs:
            self._push(job.at_s, job)
        for loss in scenario.losses:
            self._push(loss.at_s, loss)
        if policy.sample_s is not None:
            self._push(policy.sample_s, None)

    def run(self, name: str, seed: int) -> SimulatedRun:
        """Run until every job has ended. Raises SimulationStuck."""
        while self._to_ack:
            self._share_out()
            self._advance(self._next_time())
            self._finish_chunks()
            while self._events and self._events[0][0] <= self._now + SAME_TIME_S:
                self._happen(heappop(self._events)[2])
            plan_at_s = self._policy.plan_at_s
            if plan_at_s is not None and plan_at_s <= self._now + SAME_TIME_S:
                self._obey(self._policy.plan(self._now))
        requests = [
            RequestRun(job.name, job.host, job.kind, job.at_s, self._go[job.name], self._ended[job.name])
            for job in self._jobs.values()
            if job.name in self._ended
        ]
        trace = tuple(self._trace or ())
        return SimulatedRun(
            name, seed, tuple(requests), tuple(self._chunks), self._carried, trace, tuple(self._gave_up)
        )

    # ---- time

    def _push(self, time_s: float, event: Event) -> None:
        heappush(self._events, (time_s, len(self._jobs) + self._waiting_events, event))
        self._waiting_events += 1

    def _next_time(self) -> float:
        active = self._flows.active
        soonest = np.inf
        if len(active):
            rates = self._flows.rates[active]
            with np.errstate(divide="ignore"):
                soonest = float((self._flows.left[active] / rates).min())
            soonest = min(soonest, self._disks.full_in())
        plan_at_s = self._policy.plan_at_s
        at = min(self._now + soonest, np.inf if plan_at_s is None else max(self._now, plan_at_s))
        if not len(active) and plan_at_s is None and not any(event is not None for _, _, event in self._events):
            raise SimulationStuck(f"at {self._now:.3f} s nothing is under way, but {sorted(self._to_ack)[:5]} wait")
        return min(at, self._events[0][0]) if self._events else at

    def _share_out(self) -> None:
        """Compute the max-min fair rates of the chunks in flight."""
        cluster, flows, disks = self._cluster, self._flows, self._disks
        physics, hosts = cluster.physics, cluster.hosts
        write_cost, read_cost = (np.zeros(cluster.resources) for _ in range(2))
        write_cost[disks.at], read_cost[disks.at] = disks.weigh(flows.open)
        active = flows.active
        uses = flows.uses[active]
        costs = np.zeros_like(flows.writes, float)
        costs[active] = np.where(flows.writes[active], write_cost[uses], 1.0)
        costs[active] = np.where(flows.reads[active], read_cost[uses], costs[active])
        capacity = cluster.capacity.copy()
        capacity[disks.at] = 1.0
        for curve, group in ((physics.client_write, 3), (physics.client_read, 4)):
            at = slice(group * hosts, (group + 1) * hosts)
            capacity[at] = curve.totals[np.minimum(flows.open[at], len(curve.totals) - 1)]
        left = np.empty_like(capacity)
        max_min(active, flows.uses, costs, flows.caps, capacity, flows.rates, left)
        used = uses >= 0
        rates = np.broadcast_to(flows.rates[active][:, None], uses.shape)
        self._rates = np.bincount(uses[used], rates[used], cluster.resources).astype(np.float64)
        reading = used & flows.reads[active]
        read = np.bincount(uses[reading], rates[reading], cluster.resources)
        disks.settle((self._rates - read)[disks.at], (read * read_cost)[disks.at])
        if self._trace is not None:
            self._trace.append(TracePoint(self._now, self._rates, disks.cached.copy()))

    def _advance(self, to_s: float) -> None:
        seconds = max(0.0, to_s - self._now)
        active = self._flows.active
        self._flows.left[active] -= self._flows.rates[active] * seconds
        self._carried += self._rates * seconds
        self._disks.advance(seconds)
        self._now = to_s

    # ---- events

    def _finish_chunks(self) -> None:
        flows = self._flows
        near = np.maximum(flows.rates[flows.active] * SAME_TIME_S, DONE_BYTES)
        for slot in flows.active[flows.left[flows.active] <= near]:
            start, began = flows.remove(int(slot))
            self._chunks.append(ChunkRun(start.request, start.chunk, start.hosts, start.kind, began, self._now))
            self._acked(start.request)
            self._obey(self._policy.done(start, self._now))

    def _acked(self, request: str) -> None:
        if request in self._to_ack:
            self._to_ack[request] -= 1
            if not self._to_ack[request]:
                del self._to_ack[request]
                self._ended[request] = self._now

    def _happen(self, event: Event) -> None:
        match event:
            case None:
                hosts = self._cluster.hosts
                down = self._flows.open[: 2 * hosts].reshape(2, hosts).sum(axis=0)
                self._policy.observe(ClusterLoad(self._now, self._rates, tuple(int(count) for count in down)))
                self._push(self._now + (self._policy.sample_s or np.inf), None)
            case SimulatedJob():
                self._obey(self._policy.submit(event, self._now))
            case Loss():
                self._lost.add(event.host)
                hit = [slot for slot, flight in self._flows.flights.items() if event.host in flight.start.hosts]
                self._push(self._now + event.notice_s, (event, tuple(self._break_off(hit))))
            case Opened(slot, flight):
                if self._flows.flights.get(slot) is flight:
                    self._flows.move(slot)
            case (loss, broken):
                self._obey(self._policy.host_lost(loss.host, broken, self._now))

    def _break_off(self, slots: Iterable[int]) -> list[Start]:
        broken = []
        for slot in slots:
            start, began = self._flows.remove(slot)
            self._chunks.append(ChunkRun(start.request, start.chunk, start.hosts, start.kind, began, self._now, False))
            broken.append(start)
        return broken

    def _obey(self, orders: Orders) -> None:
        stops = Counter(orders.stop)
        self._break_off([slot for slot, flight in self._flows.flights.items() if flight.start in stops])
        for request in orders.gave_up:
            if self._to_ack.pop(request, None) is not None:
                self._gave_up.append(request)
        for start in orders.start:
            self._go.setdefault(start.request, self._now)
            if self._lost.intersection(start.hosts):  # the loss is not known yet: the chunk ends at once, with a notice
                self._push(self._now, (Loss(min(self._lost.intersection(start.hosts)), self._now), (start,)))
                continue
            self._begin(start)

    def _begin(self, start: Start) -> None:
        flight = Transfer(start, self._now)
        slot = self._flows.add(flight)
        overheads_s = self._cluster.physics.overheads_s
        if overheads_s:
            self._push(self._now + self._random.choice(overheads_s), Opened(slot, flight))
        else:
            self._flows.move(slot)


def simulate(scenario: Scenario, policy: PolicyMaker, seed: int) -> SimulatedRun:
    """Run a scenario under a policy; all randomness comes from the seed."""
    random = Random(seed)  # noqa: S311  randomness of a simulation
    own = Random(f"overheads {seed}")  # noqa: S311  so that overheads do not change the policy's random numbers
    return Simulation(scenario, policy.make(scenario.cluster, random), own).run(policy.name, seed)
