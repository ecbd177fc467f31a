"""The scheduler's answers about itself: a request's place in the queue, and the status of everything.

Invariants:
* The functions here change no state.
* `used` counts chunks in flight, not reservations.
"""

from collections import Counter
from typing import NamedTuple

from scheduler.peace.online.continuous import Continuous
from scheduler.peace.online.conversion import go_of
from scheduler.peace.online.jobs import ChunkAttempt, TransferJob
from scheduler.peace.online.ranked_queue import RankedQueue
from scheduler.peace.online.records import (
    HostStatus,
    InFlight,
    Mode,
    QueuePosition,
    RequestStatus,
    ResourceUse,
    Settings,
    Status,
)
from scheduler.peace.online.timesteps import Timesteps
from scheduler.peace.plan import Resource, demands
from scheduler.topology import Topology

ROUNDS_PER_CHUNK = {Mode.CONTINUOUS: 2, Mode.TIMESTEPS: 1}
"""The bound, in longest chunk times (timesteps) per chunk ahead; proven in `scheduler.peace.online`."""


class SchedulerView(NamedTuple):
    """The parts of the scheduler that status and places are computed from."""

    topology: Topology
    settings: Settings
    policy: Continuous | Timesteps
    queue: RankedQueue
    jobs: dict[str, TransferJob]
    lost: set[int]


def place_of(view: SchedulerView, job: TransferJob) -> QueuePosition:
    """The place of a request in the queue."""
    if not job.waiting:
        return QueuePosition(0, 0, 0)
    requests, chunks = view.queue.ahead(job.rank)
    return QueuePosition(requests, chunks, ROUNDS_PER_CHUNK[view.settings.mode] * (chunks + 1))


def status_of(view: SchedulerView) -> Status:
    """The state of the queue, the hosts and all capacities."""
    topology = view.topology
    active = sorted((job for job in view.jobs.values() if not job.state.ended), key=lambda job: job.rank)
    flights = [flight for job in active for flight in job.flights.values()]
    at_host = Counter(host for flight in flights for host in set(flight.chain.hosts))
    reservation = view.policy.reservation
    chain = reservation[1] if reservation is not None else None
    return Status(
        mode=view.settings.mode,
        step=view.policy.step,
        hosts=tuple(
            HostStatus(server.name, number in view.lost, at_host[number])
            for number, server in enumerate(topology.servers)
        ),
        requests=tuple(map(_request_status, active)),
        in_flight=tuple(InFlight(go_of(topology, flight), flight.since_ms) for flight in flights),
        uses=_uses(topology, flights),
        head=reservation[0] if reservation is not None else None,
        reserved=tuple(topology.servers[host].name for host in chain.hosts) if chain is not None else (),
    )


def _request_status(job: TransferJob) -> RequestStatus:
    return RequestStatus(
        name=job.name,
        state=job.state,
        kind=job.kind,
        writer=job.writer_name,
        priority=job.priority,
        done=len(job.done),
        in_flight=len(job.flights),
        waiting=job.waiting,
        submitted_ms=job.submitted_ms,
        unreachable=job.unreachable,
        reason=job.reason,
    )


def _uses(topology: Topology, flights: list[ChunkAttempt]) -> tuple[ResourceUse, ...]:
    used = Counter(demand for flight in flights for demand in demands(flight.chain))
    uses = []
    for number, server in enumerate(topology.servers):
        for resource, total in (
            (Resource.SEND, server.send),
            (Resource.RECEIVE, server.receive),
            (Resource.DISK, server.disk),
        ):
            if total is not None:
                uses.append(ResourceUse(resource.value, server.name, used[resource, number], total))
    for number, link in enumerate(topology.links):
        uses.append(
            ResourceUse(Resource.LINK.value, f"{link.source}>{link.target}", used[Resource.LINK, number], link.capacity)
        )
    return tuple(uses)
