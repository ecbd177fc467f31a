"""Small networks, placements and requests for Hypothesis, in the shapes that planners must cope with.

Capacities are small and often zero, so that requests compete and some must wait.
"""

from random import Random

from hypothesis import strategies as st

from scheduler.peace.placement import Placement, PlacementRule, Relation, default_placement
from scheduler.peace.plan import Request, Residual, TransferKind
from scheduler.topology import Link, Server, Topology

capacities = st.sampled_from([0, 1, 1, 1, 2, 2, 3])
disks = st.sampled_from([None, None, 0, 1, 2])


@st.composite
def servers_in(draw: st.DrawFn, racks: list[str], *, max_hosts: int = 4, fewest: int = 0) -> list[Server]:
    """Servers for these racks, at least one in all."""
    servers = []
    for rack in racks:
        count = draw(st.integers(fewest, max_hosts))
        servers += [
            Server(f"{rack}h{host}", rack, draw(capacities), draw(capacities), draw(disks)) for host in range(count)
        ]
    return servers or [Server(f"{racks[0]}h0", racks[0])]


def connection(draw: st.DrawFn, a: str, b: str, cost: int) -> list[Link]:
    """A connection whose two directions have capacities of their own."""
    return [Link(a, b, draw(capacities), cost), Link(b, a, draw(capacities), cost)]


@st.composite
def rack_trees(draw: st.DrawFn, *, max_racks: int = 3, max_hosts: int = 4) -> Topology:
    """Racks below one switch, or (two racks) connected to each other, or a single rack."""
    racks = [f"r{n}" for n in range(draw(st.integers(1, max_racks)))]
    servers = draw(servers_in(racks, max_hosts=max_hosts))
    if len(racks) == 2 and draw(st.booleans()):
        return Topology(servers, connection(draw, racks[0], racks[1], 1), switches=racks, name="two racks")
    links = [link for rack in racks for link in connection(draw, rack, "core", 1)]
    return Topology(servers, links, switches=["core", *racks], name="racks below one switch")


@st.composite
def deep_trees(draw: st.DrawFn, *, max_switches: int = 7, max_hosts: int = 2) -> Topology:
    """A tree of switches of any shape; servers on any of them."""
    count = draw(st.integers(1, max_switches))
    names = [f"s{n}" for n in range(count)]
    links = []
    for number in range(1, count):
        parent = draw(st.integers(0, number - 1))
        links += connection(draw, names[parent], names[number], draw(st.sampled_from([1, 1, 2])))
    return Topology(draw(servers_in(names, max_hosts=max_hosts)), links, switches=names, name="deep tree")


@st.composite
def graphs(
    draw: st.DrawFn, *, max_switches: int = 5, max_hosts: int = 2, costs: tuple[int, ...] = (0, 1, 1, 2)
) -> Topology:
    """A ring with chords: several paths between most switches; links that cost nothing too."""
    count = draw(st.integers(1, max_switches))
    names = [f"s{n}" for n in range(count)]
    ring = {(n, (n + 1) % count) for n in range(count)} if count > 1 else set()
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    chords = set(draw(st.lists(st.sampled_from(pairs), max_size=4))) if pairs else set()
    links = [Link(names[a], names[b], draw(capacities), draw(st.sampled_from(costs))) for a, b in sorted(ring | chords)]
    return Topology(draw(servers_in(names, max_hosts=max_hosts)), links, switches=names, name="ring with chords")


@st.composite
def placements(draw: st.DrawFn, *, max_replicas: int = 4) -> Placement:
    """The default or any other; rules may contradict each other, then nothing can be planned."""
    replicas = draw(st.integers(1, max_replicas))
    if draw(st.booleans()):
        return default_placement(replicas, draw(st.sampled_from([1, 2])))
    relations = st.sampled_from([Relation.SAME_RACK, Relation.OTHER_RACK, Relation.OTHER_RACK, Relation.OTHER_HOST])
    rules: list[tuple[PlacementRule, ...]] = []
    for number in range(1, replicas + 1):
        wanted = draw(st.lists(st.builds(PlacementRule, relations, st.integers(0, number - 1)), max_size=2))
        if number == 1 and draw(st.integers(0, 3)) == 0:
            wanted = [PlacementRule(Relation.SAME_HOST, 0)]
        rules.append(tuple(wanted))
    return tuple(rules)


@st.composite
def requests_for(
    draw: st.DrawFn,
    topology: Topology,
    *,
    max_requests: int = 4,
    max_chunks: int = 3,
    placement: st.SearchStrategy[Placement] | None = None,
    kinds: tuple[TransferKind, ...] = (TransferKind.WRITE, TransferKind.WRITE, TransferKind.READ, TransferKind.COPY),
) -> list[Request]:
    """Requests with unique names; `placement` for all writes, else each its own."""
    hosts = st.integers(0, len(topology.servers) - 1)
    requests = []
    for number in range(draw(st.integers(1, max_requests))):
        kind, chunks = draw(st.sampled_from(kinds)), draw(st.integers(1, max_chunks))
        sources = tuple(
            tuple(sorted(draw(st.sets(hosts, min_size=1, max_size=2))))
            for _ in range(chunks if kind is not TransferKind.WRITE else 0)
        )
        template: Placement = ()
        if kind is TransferKind.WRITE:
            template = draw(placement if placement is not None else placements())
        elif kind is TransferKind.COPY:
            relation = st.sampled_from([Relation.SAME_RACK, Relation.OTHER_RACK])
            template = (tuple(draw(st.lists(st.builds(PlacementRule, relation, st.just(0)), max_size=1))),)
        requests.append(
            Request(
                f"q{number}",
                -1 if kind is TransferKind.COPY else draw(hosts),
                chunks,
                template,
                kind,
                sources,
                tuple(range(10, 10 + chunks)) if draw(st.booleans()) else (),
                draw(st.frozensets(hosts, max_size=1)) if draw(st.booleans()) else frozenset(),
            )
        )
    return requests


@st.composite
def residuals(draw: st.DrawFn, topology: Topology) -> Residual:
    """All capacity, or some of it in use, or a host lost."""
    residual = Residual.full(topology)
    match draw(st.sampled_from(["full", "full", "used", "lost"])):
        case "used":
            random = Random(draw(st.integers(0, 1 << 16)))
            for counts in (residual.send, residual.receive, residual.link):
                for number in range(len(counts)):
                    counts[number] = random.randint(0, int(counts[number]))
        case "lost":
            residual.without(draw(st.integers(0, len(topology.servers) - 1)))
    return residual


def chances(seed: int) -> Random:
    """The randomness of one test case; its seed is in Hypothesis's report of a failure."""
    return Random(seed)


seeds = st.integers(0, (1 << 32) - 1)
