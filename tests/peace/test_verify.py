"""The verifier: valid plans pass, and whichever promise is broken in one is found and named, with the chain."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.yardstick.verify import Promise, verify
from scheduler.errors import PlanInvalid, RequestError
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.placement import PlacementRule, Relation, parse_placement
from scheduler.peace.plan import HostChain, Request, Residual, Resource, TransferKind, TransferPlan, demands
from scheduler.topology import Topology, racks
from tests.peace.strategies import deep_trees, graphs, rack_trees, requests_for, seeds


class Case:
    """A valid plan and what belongs to it, to be broken."""

    def __init__(self, topology: Topology, requests: list[Request], plan: TransferPlan, before: Residual) -> None:
        self.topology = topology
        self.requests = requests
        self.chains = list(plan.chains)
        self.waiting = list(plan.waiting)
        self.before = before

    def verify(self) -> None:
        """Let the verifier look."""
        plan = TransferPlan(tuple(self.chains), tuple(self.waiting))
        verify(self.topology, self.requests, plan, self.before)

    def request(self, name: str) -> Request:
        """The request of that name."""
        return next(request for request in self.requests if request.name == name)

    def change(self, name: str, change: Callable[[Request], Request]) -> None:
        """Change a request, and what of it waits."""
        self.requests = [change(request) if request.name == name else request for request in self.requests]
        self.waiting = [change(rest) if rest.name == name else rest for rest in self.waiting]


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[TransferKind, ...]) -> Case:
    """Plans with at least one chain."""
    topology = draw(st.one_of(rack_trees(), deep_trees(), graphs()))
    requests = draw(requests_for(topology, kinds=kinds))
    before = Residual.full(topology)
    for counts in (before.send, before.receive, before.disk, before.link):
        counts += draw(st.integers(0, 2))
    plan = PaperPlanner(topology).plan(requests, before.copy(), Random(draw(seeds)))
    assume(plan.chains)
    return Case(topology, requests, plan, before)


def pick(data: st.DataObject, case: Case, fits: Callable[[HostChain], bool] = lambda chain: True) -> int:
    """The place of a chain that fits."""
    places = [place for place, chain in enumerate(case.chains) if fits(chain)]
    assume(places)
    return data.draw(st.sampled_from(places))


def other_host(data: st.DataObject, case: Case, not_these: set[int]) -> int:
    """A host besides these."""
    others = sorted(set(range(len(case.topology.servers))) - not_these)
    assume(others)
    return data.draw(st.sampled_from(others))


def unknown_request(data: st.DataObject, case: Case) -> None:
    """A chain of a request that nobody made, or that moves something else."""
    place = pick(data, case)
    chain = case.chains[place]
    kinds = [kind for kind in TransferKind if kind is not chain.kind]
    case.chains[place] = data.draw(
        st.sampled_from([chain._replace(request="nobody's"), chain._replace(kind=data.draw(st.sampled_from(kinds)))])
    )


def others_chunk(data: st.DataObject, case: Case) -> None:
    """A chunk number that the request does not have."""
    place = pick(data, case)
    case.chains[place] = case.chains[place]._replace(chunk=data.draw(st.sampled_from([-1, 9, 99])))


def chunk_twice(data: st.DataObject, case: Case) -> None:
    """The same chunk once more."""
    case.chains.append(case.chains[pick(data, case)])


def replica_missing(data: st.DataObject, case: Case) -> None:
    """A chain cut short, or with a route too few."""
    place = pick(data, case)
    chain = case.chains[place]
    short = chain._replace(hosts=chain.hosts[:-1], routes=chain.routes[:-1])
    case.chains[place] = data.draw(st.sampled_from([short, chain._replace(routes=chain.routes[:-1])]))


def other_writer(data: st.DataObject, case: Case) -> None:
    """A chain from another writer, or to another reader."""
    place = pick(data, case)
    chain = case.chains[place]
    hosts = list(chain.hosts)
    end = 0 if chain.kind is TransferKind.WRITE else -1
    hosts[end] = other_host(data, case, {hosts[end]})
    case.chains[place] = chain._replace(hosts=tuple(hosts))


def no_source(data: st.DataObject, case: Case) -> None:
    """A chunk taken from a host that does not have it."""
    place = pick(data, case)
    chain = case.chains[place]
    request = case.request(chain.request)
    number = next(chunk for chunk in range(request.chunks) if request.number(chunk) == chain.chunk)
    host = other_host(data, case, set(request.sources[number]))
    case.chains[place] = chain._replace(hosts=(host, chain.hosts[1]))


def host_twice(data: st.DataObject, case: Case) -> None:
    """A replica on a host that has one, or that writes; a copy to a host that has the chunk."""
    place = pick(data, case)
    chain = case.chains[place]
    if chain.kind is TransferKind.COPY:
        case.chains[place] = chain._replace(hosts=(chain.hosts[0], chain.hosts[0]))
        return
    local = PlacementRule(Relation.SAME_HOST, 0) in case.request(chain.request).placement[0]
    positions = [(a, b) for b in range(1, len(chain.hosts)) for a in range(b) if not (local and b == 1)]
    assume(positions)
    a, b = data.draw(st.sampled_from(positions))
    hosts = list(chain.hosts)
    hosts[b] = hosts[a]
    case.chains[place] = chain._replace(hosts=tuple(hosts))


def rule_broken(data: st.DataObject, case: Case) -> None:
    """A rule that the chain does not follow."""
    chain = case.chains[pick(data, case)]
    replica = data.draw(st.integers(1, len(chain.hosts) - 1))
    of = data.draw(st.integers(0, replica - 1))
    rack_of = case.topology.rack_of
    together = rack_of[chain.hosts[replica]] == rack_of[chain.hosts[of]]
    rule = PlacementRule(Relation.OTHER_RACK if together else Relation.SAME_RACK, of)
    if (
        chain.hosts[replica] != chain.hosts[of]
        and replica == 1
        and chain.kind is TransferKind.WRITE
        and data.draw(st.booleans())
    ):
        rule = PlacementRule(Relation.SAME_HOST, 0)

    def stricter(request: Request) -> Request:
        placement = list(request.placement)
        placement[replica - 1] = (*placement[replica - 1], rule)
        return replace(request, placement=tuple(placement))

    case.change(chain.request, stricter)


def not_avoided(data: st.DataObject, case: Case) -> None:
    """A chosen host that was to be avoided."""
    chain = case.chains[pick(data, case)]
    chosen = chain.hosts[1:] if chain.kind is TransferKind.WRITE else chain.hosts[:1]
    host = data.draw(st.sampled_from(chosen))
    case.change(chain.request, lambda request: replace(request, avoid=request.avoid | {host}))


def wrong_route(data: st.DataObject, case: Case) -> None:
    """A link too few, too many, twice, one that is not there, or one from elsewhere; a host that is not there."""
    place = pick(data, case)
    chain = case.chains[place]
    hop = data.draw(st.integers(0, len(chain.routes) - 1))
    route, links = chain.routes[hop], case.topology.links
    broken = [(*route, len(links)), (-1, *route)]
    if route:
        broken += [route[:-1], route[1:], (*route, *route)]
        broken += [
            (number, *route[1:]) for number in range(len(links)) if links[number].source != links[route[0]].source
        ]
    else:
        broken += [(number,) for number in range(len(links))]
    routes = list(chain.routes)
    routes[hop] = data.draw(st.sampled_from(broken))
    case.chains[place] = chain._replace(routes=tuple(routes))


def too_much(data: st.DataObject, case: Case) -> None:
    """One unit less of something than the plan uses."""
    used = Counter(unit for chain in case.chains for unit in demands(chain))
    resource, number = data.draw(st.sampled_from(sorted(used)))
    case.before.counts(resource)[number] = used[resource, number] - 1


def incomplete(data: st.DataObject, case: Case) -> None:
    """Something is neither planned nor waits, or does both, or waits changed."""
    place = pick(data, case)
    chain = case.chains[place]
    request = case.request(chain.request)
    ways = ["lost", "both", "unknown"] + (["rest lost", "writer", "avoid"] if case.waiting else [])
    match data.draw(st.sampled_from(ways)):
        case "lost":
            del case.chains[place]
        case "both":
            case.waiting.append(request)
        case "unknown":
            case.waiting.append(replace(request, name="nobody's"))
        case "rest lost":
            del case.waiting[0]
        case "writer":
            case.waiting[0] = replace(case.waiting[0], writer=case.waiting[0].writer + 1)
        case "avoid":
            case.waiting[0] = replace(case.waiting[0], avoid=case.waiting[0].avoid ^ {0})


FETCHES, ALL = (TransferKind.READ, TransferKind.COPY), tuple(TransferKind)
BREAKS: dict[Promise, tuple[Callable[[st.DataObject, Case], None], tuple[TransferKind, ...]]] = {
    Promise.KNOWN_REQUEST: (unknown_request, ALL),
    Promise.OWN_CHUNK: (others_chunk, ALL),
    Promise.CHUNK_ONCE: (chunk_twice, ALL),
    Promise.ALL_REPLICAS: (replica_missing, ALL),
    Promise.WRITER: (other_writer, (TransferKind.WRITE, TransferKind.READ)),
    Promise.SOURCE: (no_source, FETCHES),
    Promise.DISTINCT_HOSTS: (host_twice, (TransferKind.WRITE, TransferKind.COPY)),
    Promise.PLACEMENT: (rule_broken, (TransferKind.WRITE, TransferKind.COPY)),
    Promise.AVOIDED: (not_avoided, ALL),
    Promise.ROUTE: (wrong_route, ALL),
    Promise.CAPACITY: (too_much, ALL),
    Promise.COMPLETE: (incomplete, ALL),
}


def test_every_promise_is_broken_below() -> None:
    """There is a way to break each."""
    assert set(BREAKS) == set(Promise)


@pytest.mark.parametrize("promise", Promise)
@given(data=st.data())
@settings(max_examples=settings().max_examples // 8)
def test_a_broken_promise_is_found(promise: Promise, data: st.DataObject) -> None:
    """A valid plan passes; with one promise broken the verifier names this promise, the request, and the hosts."""
    breaks, kinds = BREAKS[promise]
    case = data.draw(cases(kinds))
    case.verify()
    breaks(data, case)
    with pytest.raises(PlanInvalid) as broken:
        case.verify()
    message = str(broken.value)
    assert message.startswith(f"{promise}: ")
    if promise is not Promise.COMPLETE:
        assert any(f"chunk {chain.chunk} of {chain.request!r}" in message for chain in case.chains)
        assert any(
            " → ".join(repr(case.topology.servers[host].name) for host in chain.hosts) in message
            for chain in case.chains
        )


@pytest.mark.parametrize("resource", Resource)
@pytest.mark.parametrize("kind", TransferKind)
def test_every_resource_is_counted(kind: TransferKind, resource: Resource) -> None:
    """Two chains over the same hosts and links pass with two units of everything, and not with one of something."""
    topology = racks([2, 2], 2)
    placement = ((),) if kind is not TransferKind.READ else ()
    sources = ((0,), (0,)) if kind is not TransferKind.WRITE else ()
    writer = {TransferKind.WRITE: 0, TransferKind.READ: 2, TransferKind.COPY: -1}[kind]
    request = Request("q", writer, 2, placement, kind, sources)
    plan = TransferPlan(tuple(HostChain("q", chunk, (0, 2), ((0, 3),), kind) for chunk in range(2)))
    before = Residual.full(topology)
    verify(topology, [request], plan, before)
    for number in {unit for used, unit in demands(plan.chains[0]) if used is resource}:
        less = before.copy()
        less.counts(resource)[number] = 1
        with pytest.raises(PlanInvalid, match=r"^capacity: chain 'r1h1' → 'r2h1', chunk 1 of 'q': .* 2 used, 1 left"):
            verify(topology, [request], plan, less)


def test_hosts_that_are_not_there() -> None:
    """A number that is no host's is named, not a crash."""
    topology = racks([2, 2], 1)
    plan = TransferPlan((HostChain("q", 0, (0, 7), ((),)),))
    with pytest.raises(PlanInvalid, match="there is no host 7"):
        verify(topology, [Request("q", 0, 1, ((),))], plan, Residual.full(topology))


def test_chunks_that_wait_with_other_sources() -> None:
    """What waits still has to be read from where it lies."""
    topology = racks([2, 2], 1)
    request = Request("q", 0, 2, (), TransferKind.READ, ((1,), (2,)))
    verify(topology, [request], TransferPlan((), (request,)), Residual.full(topology))
    with pytest.raises(PlanInvalid, match="chunk 1 of 'q' waits with other sources"):
        verify(
            topology, [request], TransferPlan((), (replace(request, sources=((1,), (3,))),)), Residual.full(topology)
        )


def test_a_replica_on_the_writer_itself() -> None:
    """`same-host:0` needs no link and no sender, only the disk; the writer may not hold the chunk a second time."""
    topology = racks([2, 2], 1)
    request = Request("q", 0, 1, parse_placement(["same-host:0", "same-rack:0"]))
    before = Residual.full(topology)
    before.receive[0] = 0
    verify(topology, [request], TransferPlan((HostChain("q", 0, (0, 0, 1), ((), ())),)), before)
    with pytest.raises(PlanInvalid, match=r"^distinct hosts: chain 'r1h1' → 'r1h1' → 'r1h1', chunk 0 of 'q'"):
        verify(topology, [request], TransferPlan((HostChain("q", 0, (0, 0, 0), ((), ())),)), before)


def test_names_of_requests_are_unique() -> None:
    """Two requests of one name cannot be told apart in a plan."""
    topology = racks([2, 2], 1)
    request = Request("q", 0, 1, ((),))
    with pytest.raises(RequestError, match="'q' appears twice"):
        verify(topology, [request, request], TransferPlan((), (request,)), Residual.full(topology))
