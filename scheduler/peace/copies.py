"""Copies of log chunks between the hosts of a cluster, by the online scheduler: who copies what, when, and from where.

A copy is a request of Peace with one chunk: its target reads it from one of the hosts that have it. It takes a token of
the source, one of each link between switches on the way, and one of the target, from its go to its end; the scheduler
chooses the source by min-cost flow over the topology, so the nearest one with tokens left. The head of the queue
reserves, others go on with what it leaves (`scheduler.peace.online`), so no copy waits forever.

Invariants:
* Copies with fewer live copies of their chunk go first, and moves last; among equals whoever asked first. An age of
  PRIORITY_MS overtakes a step.
* What the tokens are: a host of the middle disk has HOST_COPIES to send and as many to receive, others in proportion to
  their disks, from 1 to MAX_HOST_COPIES. A link whose rate is known has as many as LINK_SHARE of it carries at
  COPY_BYTES_S each, others as many as are asked for.
* Nothing outlives an instance but what the caller keeps: a new one, for another network or after a crash, begins with
  the copies that are under way, whose tokens are taken, and is asked anew for all others.
* Sans-I/O: the caller says what time it is.

Sources: SGuard, section 5 (requests, capacities, callbacks that say when; the paper plans writes of checkpoints alone);
decision 0011 (tokens in flight).
"""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from scheduler.errors import RequestError
from scheduler.peace.online.records import ChunkRecord, ChunkStart, EventOutcome, RequestRecord, Settings, Submission
from scheduler.peace.online.scheduler import OnlineScheduler
from scheduler.peace.online.states import ChunkState, RequestState
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.plan import TransferKind
from scheduler.peace.replica_sets import Domain
from scheduler.topology import UNLIMITED, Link, Server, Topology, both_ways

HOST_COPIES: Final = 2
"""While the pieces of one chunk are on their way, those of another are written (`cluster.copies.copy_flow`)."""
MAX_HOST_COPIES: Final = 8
LINK_SHARE: Final = 0.25
COPY_BYTES_S: Final = 4 << 20
"""What a copy takes of a link: a host's copies together have 8 MiB a second at the least."""
PRIORITY_MS: Final = 86_400_000
MOVE_PRIORITY: Final = 0
TOP_PRIORITY: Final = 9
MAX_WAITING: Final = 10_000


class CopyStart(NamedTuple):
    """A copy that may be made now, or is under way."""

    name: str
    target: str
    source: str


class CopyScheduler:
    """See the module. `places`: domains and disks of hosts; `links`: bytes per second into domains, where known;
    `under_way`: copies that have begun, each with its name, target and source.
    """

    def __init__(
        self,
        places: Mapping[str, tuple[Domain, float]],
        links: Mapping[Domain, float],
        under_way: Iterable[tuple[str, str, str]],
        random: Random,
        now_ms: int,
    ) -> None:
        self._hosts = frozenset(places)
        self._ways = {host: domain for host, (domain, _) in places.items()}
        settings = Settings(max_waiting=MAX_WAITING, priority_ms=PRIORITY_MS, max_remembered=0)
        topology = copy_topology(places, links)
        records: list[RequestRecord | ChunkRecord] = []
        self._names: set[str] = set()
        for number, start in enumerate((CopyStart(*copy) for copy in under_way), 1):
            if self._knows(start.target, start.source) and start.name not in self._names:
                self._names.add(start.name)
                records += self._records(start, number, now_ms)
        self._scheduler = OnlineScheduler.restore(
            topology, PaperPlanner(topology), settings, random, records, (), now_ms
        )

    def ask(
        self, name: str, target: str, sources: Sequence[str], live: int, now_ms: int, *, is_move: bool
    ) -> list[CopyStart] | None:
        """Ask for a copy of a chunk with so many `live` copies to `target`; returns the copies that may begin now.

        None: it cannot be planned here now, because a host is not known, or too many wait.
        """
        known = tuple(dict.fromkeys(each for each in sources if each in self._hosts and each != target))
        if target not in self._hosts or not known or name in self._names:
            return None
        priority = MOVE_PRIORITY if is_move else max(MOVE_PRIORITY + 1, TOP_PRIORITY - live)
        submission = Submission(name, target, 1, 1, None, priority, TransferKind.READ, (known,))
        try:
            outcome = self._scheduler.submit(submission, now_ms)
        except RequestError:
            return None
        self._names.add(name)
        return self._starts(outcome)

    def end(self, name: str, now_ms: int) -> list[CopyStart]:
        """A copy is made, was given up, or is not wanted any more; returns the copies that may begin now."""
        if name not in self._names:
            return []
        self._names.discard(name)
        return self._starts(self._scheduler.cancel(name, now_ms))

    @staticmethod
    def _starts(outcome: EventOutcome) -> list[CopyStart]:
        return [_start(go) for go in outcome.go]

    def _knows(self, *hosts: str) -> bool:
        return all(host in self._hosts for host in hosts)

    def _records(self, start: CopyStart, number: int, now_ms: int) -> tuple[RequestRecord, ChunkRecord]:
        request = RequestRecord(
            start.name, number, now_ms, start.target, 1, (), MOVE_PRIORITY, TransferKind.READ.value,
            ((start.source,),), RequestState.RUNNING.value, "", (),
        )  # fmt: skip
        route = _route(self._ways[start.source], self._ways[start.target])
        chunk = ChunkRecord(
            start.name, 0, 1, ChunkState.RUNNING.value, (start.source, start.target), (route,), now_ms, 0
        )
        return request, chunk


def copy_topology(places: Mapping[str, tuple[Domain, float]], links: Mapping[Domain, float]) -> Topology:
    """The network of a cluster, with tokens for copies: domains are switches, in each other."""
    disks = sorted(bytes_s for _, bytes_s in places.values())
    middle = disks[len(disks) // 2]
    servers = [
        Server(host, _switch(domain), *(2 * (_tokens(bytes_s / middle),))) for host, (domain, bytes_s) in places.items()
    ]
    domains = sorted({domain[:depth] for domain, _ in places.values() for depth in range(1, len(domain) + 1)})
    hops: list[Link] = []
    for domain in domains:
        capacity = max(1, int(links[domain] * LINK_SHARE / COPY_BYTES_S)) if domain in links else UNLIMITED
        hops += both_ways(_switch(domain[:-1]), _switch(domain), min(capacity, UNLIMITED))
    return Topology(servers, hops, switches=[_switch(()), *map(_switch, domains)], name="copies")


def _tokens(share: float) -> int:
    return max(1, min(round(HOST_COPIES * share), MAX_HOST_COPIES))


def _switch(domain: Domain) -> str:
    return "/" + "/".join(domain)


def _route(source: Domain, target: Domain) -> tuple[tuple[str, str], ...]:
    """The links between switches from one domain to another."""
    shared = 0
    while shared < min(len(source), len(target)) and source[shared] == target[shared]:
        shared += 1
    up = [(_switch(source[:depth]), _switch(source[: depth - 1])) for depth in range(len(source), shared, -1)]
    down = [(_switch(target[: depth - 1]), _switch(target[:depth])) for depth in range(shared + 1, len(target) + 1)]
    return (*up, *down)


def _start(go: ChunkStart) -> CopyStart:
    return CopyStart(go.request, go.hosts[-1], go.hosts[0])


MAKE: Final = CopyScheduler
"""For who loads this module by name: only the host that coordinates copies needs it."""
