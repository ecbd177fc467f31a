"""Planner `tree`: the same plans as Algorithm 1 read literally, with the same chances, and the same as `paper`'s."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.yardstick.verify import verify
from scheduler.errors import RequestError, TopologyError
from scheduler.peace import tree as tree_module
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.placement import Placement, PlacementRule, Relation, default_placement, parse_placement
from scheduler.peace.plan import Counts, HostChain, Request, Residual, TransferKind, TransferPlan
from scheduler.peace.tree import TreePlanner
from scheduler.peace.tree_kernels import MEMBERS, RECEIVE
from scheduler.topology import Link, Server, Topology, both_ways, racks
from tests.peace import strategies as peace
from tests.peace.reference import chances_of_chain, check_samples

SAMPLES = 2500
ANY = st.one_of(peace.rack_trees(), peace.deep_trees())


def free_links_tree() -> Topology:
    """Three levels, servers on every level, some links that cost nothing, different ways up and down."""
    servers = [Server(f"{rack}h{n}", rack) for rack, count in (("top", 1), ("a", 2), ("b", 3), ("a1", 2), ("b1", 1))
               for n in range(count)]  # fmt: skip
    links = [
        *(Link("top", "a", 2, 1), Link("a", "top", 2, 0), Link("top", "b", 2, 0), Link("b", "top", 1, 2)),
        *(Link("a", "a1", 1, 0), Link("a1", "a", 2, 0), Link("b", "b1", 2, 1), Link("b1", "b", 2, 1)),
    ]
    return Topology(servers, links, switches=["top", "a", "b", "a1", "b1"])


def pods() -> Topology:
    """Three levels: two pods of two and three racks of unequal sizes."""
    sizes = {"p1": (1, 3), "p2": (2, 1, 2)}
    names = {pod: [f"{pod}r{n}" for n in range(len(counts))] for pod, counts in sizes.items()}
    servers = [
        Server(f"{rack}h{n}", rack)
        for pod, counts in sizes.items()
        for rack, count in zip(names[pod], counts, strict=True)
        for n in range(count)
    ]
    links = [link for pod in sizes for link in both_ways(pod, "core", 4)]
    links += [link for pod, below in names.items() for rack in below for link in both_ways(rack, pod, 3)]
    return Topology(servers, links, switches=["core", *sizes, *(rack for below in names.values() for rack in below)])


NETWORKS: dict[str, Callable[[], Topology]] = {
    "one rack": lambda: racks([5], 2),
    "three racks": lambda: racks([2, 3, 4], 3),
    "pods": pods,
    "links that cost nothing": free_links_tree,
}
PLACEMENTS = {
    "default": default_placement(3),
    "anywhere": parse_placement(["", ""]),
    "on the writer, then two other racks": parse_placement(
        ["same-host:0", "other-rack:0", "other-rack:0&other-rack:1"]
    ),
}


def samples(planner: TreePlanner, request: Request, before: Residual, seed: int) -> Counter[HostChain | None]:
    """What becomes of one chunk, many times over."""
    random = Random(seed)
    return Counter(planner.chain(request, 0, before.copy(), random) for _ in range(SAMPLES))


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_chains_have_the_chances_of_algorithm_1(network: Callable[[], Topology], placement: Placement) -> None:
    """On trees of depth 0 to 2, each chain comes up as often as a literal reading of the paper says."""
    topology = network()
    before = Residual.full(topology)
    before.receive[0] = 0
    request = Request("q", 1, 1, placement, avoid=frozenset({2}))
    seen = samples(TreePlanner(topology), request, before, 7)
    check_samples(seen, chances_of_chain(topology, request, 0, before))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("rule", ["", "same-rack:0", "other-rack:0"])
def test_reads_and_copies_too(network: Callable[[], Topology], rule: str) -> None:
    """Sources are picked uniformly among the nearest, and the new host from the source picked."""
    topology = network()
    before, last = Residual.full(topology), len(topology.servers) - 1
    copy = Request("c", -1, 1, parse_placement([rule]), TransferKind.COPY, sources=((0, 1, last),))
    read = Request("r", 2, 1, (), TransferKind.READ, sources=((0, 1, last),))
    for request in (copy, read):
        seen = samples(TreePlanner(topology), request, before, 11)
        check_samples(seen, chances_of_chain(topology, request, 0, before))


def outcome(plan: TransferPlan) -> tuple[object, ...]:
    """What a plan decided."""
    return tuple((chain.request, chain.chunk, chain.hosts) for chain in plan.chains)


def compare_plans(topology: Topology, placement: Placement, other: TreePlanner) -> None:
    """Whole plans of both planners, by how often each comes up: chi-squared on two samples. Raises AssertionError."""
    requests = [Request("a", 0, 1, placement), Request("b", 1, 2, placement), Request("c", 2, 1, placement)]
    full = Residual.full(topology)
    counts = []
    for planner, seed in ((PaperPlanner(topology), 3), (other, 4)):
        random = Random(seed)
        counts.append(Counter(outcome(planner.plan(requests, full.copy(), random)) for _ in range(SAMPLES)))
    ours, theirs = counts[1], counts[0]
    cells = [(ours[key], theirs[key]) for key in {*ours, *theirs} if ours[key] + theirs[key] >= 12]
    cells.append(tuple(SAMPLES - sum(column) for column in zip(*cells, strict=True)))
    statistic = sum((a - b) ** 2 / (a + b) for a, b in cells if a + b)
    freedom = max(len(cells) - 1, 1)
    limit = freedom + 5 * (2 * freedom) ** 0.5 + 12
    assert statistic <= limit, f"{statistic:.1f} over {freedom}: plans differ from paper's"


SMALL: dict[str, tuple[Topology, Placement]] = {
    "one rack": (racks([4], 1, send=1), default_placement(2, 1)),
    "two racks": (racks([3, 3], 2, send=2), default_placement(2)),
    "three racks": (racks([2, 2, 2], 2, send=2), default_placement(3)),
    "pods": (pods(), parse_placement(["other-rack:0"])),
}


@pytest.mark.parametrize(("topology", "placement"), SMALL.values(), ids=SMALL)
def test_whole_plans_are_distributed_as_those_of_paper(topology: Topology, placement: Placement) -> None:
    """Requests that compete for capacity: the same plans, as often, chunks that wait included."""
    compare_plans(topology, placement, TreePlanner(topology))


def test_a_biased_pick_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a planner that prefers some hosts: here, one whose hosts are listed twice."""
    topology, placement = SMALL["two racks"]
    planner = TreePlanner(topology)
    planner.pool[MEMBERS, 1] = 0  # host 0 in place of host 1: twice as likely, host 1 by count only
    with pytest.raises(AssertionError, match="plans differ"):
        compare_plans(topology, placement, planner)


@given(st.data())
def test_every_plan_keeps_its_promises(data: st.DataObject) -> None:
    """Any tree, any placement, writes, reads and copies, capacity in use: the verifier finds nothing."""
    topology = data.draw(ANY)
    requests = data.draw(peace.requests_for(topology))
    residual = data.draw(peace.residuals(topology))
    before = residual.copy()
    plan = TreePlanner(topology).plan(requests, residual, Random(data.draw(peace.seeds)))
    verify(topology, requests, plan, before)
    for chain in plan.chains:
        before.take(chain)
    for ours, counted in zip(arrays(residual), arrays(before), strict=True):
        assert (ours == counted).all()


def arrays(residual: Residual) -> tuple[Counts, ...]:
    """All its numbers."""
    return residual.send, residual.receive, residual.disk, residual.link


@given(st.data())
@settings(max_examples=40)
def test_what_fails_fails_in_paper_too(data: st.DataObject) -> None:
    """Where not a single chain is possible for the literal reading, there is none, and nothing is taken."""
    topology = data.draw(ANY)
    (request,) = data.draw(peace.requests_for(topology, max_requests=1, max_chunks=1))
    before = data.draw(peace.residuals(topology))
    chances = chances_of_chain(topology, request, 0, before)
    planner, random = TreePlanner(topology), Random(data.draw(peace.seeds))
    for _ in range(8):
        residual = before.copy()
        chain = planner.chain(request, 0, residual, random)
        assert chances.get(chain), f"{chain} is not among {list(chances)}"
        if chain is None:
            assert all((a == b).all() for a, b in zip(arrays(residual), arrays(before), strict=True))


@given(st.data())
@settings(max_examples=40)
def test_what_is_kept_between_calls_never_shows(data: st.DataObject) -> None:
    """A planner with a past plans as a new one, whatever was taken, given back or set behind its back."""
    topology = data.draw(ANY)
    requests = data.draw(peace.requests_for(topology))
    residual = data.draw(peace.residuals(topology))
    old = TreePlanner(topology)
    for seed in range(4):
        if data.draw(st.booleans()):
            residual.without(data.draw(st.integers(0, len(topology.servers) - 1)))
        if data.draw(st.booleans()) and len(topology.links):
            residual.link[data.draw(st.integers(0, len(topology.links) - 1))] = data.draw(peace.capacities)
        twin = residual.copy()
        plan = old.plan(requests, residual, Random(seed))
        assert plan == TreePlanner(topology).plan(requests, twin, Random(seed))
        for planned in plan.chains[::2]:
            residual.give(planned)
        single = residual.copy()
        chain = old.chain(requests[0], 0, residual, Random(seed))
        assert chain == TreePlanner(topology).chain(requests[0], 0, single, Random(seed))


def test_more_chunks_than_one_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's rows are bounded; a plan is not."""
    topology = racks([3, 3], 100, send=100)
    requests = [Request(name, 0, 20, default_placement(3), avoid=frozenset({1})) for name in ("a", "b")]
    before = Residual.full(topology)
    monkeypatch.setattr(tree_module, "ROWS_AT_A_TIME", 7)
    plan = TreePlanner(topology).plan(requests, before.copy(), Random(1))
    verify(topology, requests, plan, before)
    assert [chain.chunk for chain in plan.chains] == [*range(20), *range(20)]


def test_a_ring_is_no_tree() -> None:
    """The error names the network and the planner that can."""
    links = [link for a, b in ("xy", "yz", "zx") for link in both_ways(a, b, 1)]
    topology = Topology([Server("s", "x")], links, switches=["x", "y", "z"], name="ring")
    with pytest.raises(TopologyError, match=r"'ring' is not a tree.*`paper`"):
        TreePlanner(topology)


def test_bad_requests_never_reach_the_kernel() -> None:
    """A host that is not there is an error with the field's name, not memory overwritten."""
    planner = TreePlanner(racks([3, 3], 2))
    full = Residual.full(planner.topology)
    good = Request("good", 0, 1, default_placement(2))
    for bad in (
        Request("q", 6, 1, default_placement(2)),
        Request("q", 0, 1, default_placement(2), avoid=frozenset({6})),
        Request("q", 0, 1, (), TransferKind.READ, sources=((9,),)),
        Request("q", 0, 1, ()),
        Request("q", 0, 2, default_placement(2), numbers=(1,)),
        Request("q", 0, 1, ((PlacementRule(Relation.SAME_RACK, 7),),)),
    ):
        with pytest.raises(RequestError):
            planner.plan([good, bad], full, Random(1))
        with pytest.raises(RequestError):
            planner.chain(bad, 0, full, Random(1))
    with pytest.raises(TopologyError, match="capacity of '3 racks', planner of '2 racks'"):
        planner.plan([good], Residual.full(racks([3, 3, 3], 2)), Random(1))
    assert (planner.pool[RECEIVE] == 0).all()


def test_no_requests_no_plan() -> None:
    """An empty timestep."""
    topology = racks([2, 2], 1)
    assert TreePlanner(topology).plan([], Residual.full(topology), Random(1)) == TransferPlan()
