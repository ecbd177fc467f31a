"""Peace in a simulated cluster: the online scheduler itself, fed with submissions, acks and lost hosts.

Invariants: the simulator does exactly what the scheduler orders; the scheduler plans with the capacities of the
cluster's topology. Messages take no time; gathered events are planned at the scheduler's `plan_at_ms`.
"""

from collections.abc import Callable, Sequence
from random import Random

from scheduler.peace.online import ChunkStart, EventOutcome, OnlineScheduler, Settings, Submission
from scheduler.peace.plan import Planner, TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.policies.base import ClusterLoad, Orders, PolicyMaker, Start
from scheduler.simulation.scenario import SimulatedJob
from scheduler.topology import Topology


class Peace:
    """The online scheduler as a policy."""

    sample_s: float | None = None

    def __init__(self, cluster: SimulatedCluster, scheduler: OnlineScheduler) -> None:
        self._names = [server.name for server in cluster.topology.servers]
        self._index = cluster.topology.index
        self._scheduler = scheduler
        self._lost: set[int] = set()

    def submit(self, job: SimulatedJob, now_s: float) -> Orders:
        """Submit a request (w, r, k), or a recovery's reads and copies. The jobs of a lost host are given up."""
        if job.host in self._lost:
            return Orders(gave_up=(job.name,))
        submission = Submission(
            name=job.name,
            writer=None if job.kind is TransferKind.COPY else self._names[job.host],
            chunks=job.chunks,
            replicas=job.replicas,
            kind=job.kind,
            sources=tuple(tuple(self._names[host] for host in sources) for sources in job.sources),
        )
        return self._orders(self._scheduler.submit(submission, _ms(now_s)))

    def done(self, start: Start, now_s: float) -> Orders:
        """Report an ack to the scheduler."""
        return self._orders(self._scheduler.done(start.request, start.chunk, start.attempt, _ms(now_s)))

    def host_lost(self, host: int, broken: Sequence[Start], now_s: float) -> Orders:
        """Report a lost host to the scheduler."""
        self._lost.add(host)
        return self._orders(self._scheduler.host_lost(self._names[host], _ms(now_s)))

    @property
    def plan_at_s(self) -> float | None:
        """The time at which gathered events are planned."""
        due_ms = self._scheduler.plan_at_ms
        return None if due_ms is None else due_ms / 1000

    def plan(self, now_s: float) -> Orders:
        """Plan the gathered events."""
        return self._orders(self._scheduler.plan(_ms(now_s)))

    def observe(self, view: ClusterLoad) -> None:
        """Ignore measurements: Peace plans with capacities."""

    def _orders(self, outcome: EventOutcome) -> Orders:
        starts, stops = (tuple(map(self._start, goes)) for goes in (outcome.go, outcome.revoked))
        return Orders(starts, stops, outcome.given_up)

    def _start(self, go: ChunkStart) -> Start:
        return Start(go.request, go.chunk, tuple(self._index[host] for host in go.hosts), go.kind, go.attempt)


def peace(name: str, planner: Callable[[Topology], Planner], settings: Settings) -> PolicyMaker:
    """Peace with a planner and settings; `name` is for tables."""

    def make(cluster: SimulatedCluster, random: Random) -> Peace:
        topology = cluster.topology
        return Peace(cluster, OnlineScheduler(topology, planner(topology), settings, random))

    return PolicyMaker(name, make)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
