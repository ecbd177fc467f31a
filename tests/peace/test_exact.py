"""Planner `exact` against exhaustive search: as many chunks, in plans that keep every promise."""

from collections import Counter
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.yardstick.brute import max_chunks
from benchmarks.yardstick.compact import MANY_HOSTS
from benchmarks.yardstick.decompose import FlowWays, deal
from benchmarks.yardstick.exact import ExactPlanner
from benchmarks.yardstick.verify import verify
from scheduler.errors import PlanInvalid, RequestError
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.placement import Placement, default_placement, parse_placement
from scheduler.peace.plan import Request, Residual, TransferKind
from scheduler.topology import Link, Server, Topology, both_ways, racks
from tests.peace.strategies import deep_trees, graphs, rack_trees, requests_for, residuals


def check_against_brute_force(
    topology: Topology, requests: list[Request], residual: Residual, many_hosts: int = MANY_HOSTS
) -> None:
    """Plan, verify, and compare the number of chunks with the exhaustive search's."""
    before = residual.copy()
    try:
        most = max_chunks(topology, requests, residual)
    except RequestError:
        assume(False)  # too much to try
    plan = ExactPlanner(topology, many_hosts=many_hosts).plan(requests, residual, Random(0))
    verify(topology, requests, plan, before)
    assert plan.chunks == most
    assert plan.proven
    assert plan.bound == most
    for chain in plan.chains:
        before.take(chain)
    assert residual.link.tolist() == before.link.tolist()
    assert residual.disk.tolist() == before.disk.tolist()


@st.composite
def default_writes(draw: st.DrawFn, topology: Topology) -> list[Request]:
    """Writes with the default placement for one number of replicas."""
    placement: Placement = default_placement(draw(st.integers(1, 3)))
    requests = draw(requests_for(topology, placement=st.just(placement), kinds=(TransferKind.WRITE,), max_chunks=2))
    return [Request(request.name, request.writer, request.chunks, placement) for request in requests]


@given(data=st.data())
@settings(max_examples=settings().max_examples // 2)
def test_default_placement_on_racks(data: st.DataObject) -> None:
    """The compact program on trees of racks: as good as exhaustive search."""
    topology = data.draw(rack_trees(max_hosts=3))
    residual = Residual.full(topology)
    residual.link += 1
    check_against_brute_force(topology, data.draw(default_writes(topology)), residual)


@given(data=st.data())
@settings(max_examples=settings().max_examples // 2)
def test_default_placement_on_any_network(data: st.DataObject) -> None:
    """The compact program on deep trees and on networks with several paths: as good as exhaustive search."""
    topology = data.draw(st.one_of(deep_trees(), graphs()))
    check_against_brute_force(topology, data.draw(default_writes(topology)), data.draw(residuals(topology)))


@given(data=st.data())
@settings(max_examples=settings().max_examples // 2)
def test_any_requests_on_any_network(data: st.DataObject) -> None:
    """The program of patterns: any placement, reads, copies, hosts to avoid; as good as exhaustive search."""
    topology = data.draw(st.one_of(rack_trees(max_hosts=3), deep_trees(max_switches=4), graphs(max_switches=4)))
    requests = data.draw(requests_for(topology, max_requests=3, max_chunks=2))
    check_against_brute_force(topology, requests, data.draw(residuals(topology)))


@given(replicas=st.integers(1, 3), hosts=st.integers(2, 4), chunks=st.integers(1, 3))
@settings(max_examples=settings().max_examples // 4)
def test_a_single_rack_without_rules(replicas: int, hosts: int, chunks: int) -> None:
    """All in one rack, anywhere: the near part is the whole chain."""
    topology = racks([hosts], 1)
    requests = [Request(f"q{host}", host, chunks, default_placement(replicas, 1)) for host in range(hosts)]
    check_against_brute_force(topology, requests, Residual.full(topology))


@given(
    data=st.data(),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    uplink=st.integers(1, 3),
    send=st.integers(1, 3),
    receive=st.integers(1, 3),
)
@settings(max_examples=settings().max_examples // 2)
def test_hosts_counted_together(data: st.DataObject, sizes: list[int], uplink: int, send: int, receive: int) -> None:
    """Hosts that are alike, counted together and dealt out again: as good as exhaustive search, every promise kept."""
    topology = racks(sizes, uplink, send=send, receive=receive)
    requests = data.draw(default_writes(topology))
    if data.draw(st.booleans()):  # all hosts write alike
        requests = [Request(f"q{n}", n, 1, requests[0].placement) for n in range(len(topology.servers))]
    check_against_brute_force(topology, requests, data.draw(residuals(topology)), many_hosts=0)


@given(data=st.data(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=settings().max_examples // 4)
def test_counting_together_loses_nothing(data: st.DataObject, sizes: list[int]) -> None:
    """On networks too large for exhaustive search: the same number of chunks as with each host counted apart."""
    topology = racks(sizes, data.draw(st.integers(1, 9)), send=data.draw(st.integers(1, 4)), receive=2)
    placement = default_placement(data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2])))
    if len(sizes) > 1 and not placement[0]:
        placement = default_placement(len(placement))
    chunks = data.draw(st.lists(st.integers(0, 3), min_size=len(topology.servers), max_size=len(topology.servers)))
    requests = [Request(f"q{n}", n, count, placement) for n, count in enumerate(chunks)]
    before = data.draw(residuals(topology))
    plans = []
    for many_hosts in (0, 1000):
        planner = ExactPlanner(topology, many_hosts=many_hosts, ties_s=0.2)
        plans.append(planner.plan(requests, before.copy(), Random(0)))
        verify(topology, requests, plans[-1], before)
    assert plans[0].proven
    assert plans[1].proven
    assert plans[0].chunks == plans[1].chunks


def test_a_timestep_of_many_hosts() -> None:
    """2,000 hosts: proven, and the number is what the racks' capacities allow.

    A rack of 40 hosts with two units each way has A near and B far parts with 2A + B ≤ 80 and A + 2B ≤ 80, so 53 at
    most, and each chunk is a near part of one rack and a far part of another.
    """
    topology = racks([40] * 50, 40)
    requests = [Request(f"q{host}", host, 2, default_placement(3)) for host in range(2000)]
    plan = ExactPlanner(topology, ties_s=0).plan(requests, Residual.full(topology), Random(0))
    verify(topology, requests, plan, Residual.full(topology))
    assert (plan.chunks, plan.proven) == (50 * 53 // 2, True)


def mesh() -> Topology:
    """Four racks in a ring: two ways from each to each."""
    names = ["a", "b", "c", "d"]
    servers = [Server(f"{name}{host}", name) for name in names for host in range(4)]
    links = [link for n in range(4) for link in both_ways(names[n], names[(n + 1) % 4], 2)]
    return Topology(servers, links, switches=names)


def aggregated() -> Topology:
    """Six racks in pairs below three switches below one, the upper links narrow."""
    servers, links, names = list[Server](), list[Link](), ["core"]
    for above in ("x", "y", "z"):
        names.append(above)
        links += both_ways(above, "core", 2)
        for number in range(2):
            rack = f"{above}{number}"
            names.append(rack)
            links += both_ways(rack, above, 3)
            servers += [Server(f"{rack}h{host}", rack) for host in range(3)]
    return Topology(servers, links, switches=names)


@pytest.mark.parametrize("topology", [racks([8, 9], 9), racks([1] * 8, 1), mesh(), aggregated()], ids=lambda t: t.name)
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_never_worse_than_the_paper(topology: Topology, replicas: int) -> None:
    """On networks too large for exhaustive search: a valid plan, proven, with no fewer chunks than the greedy one."""
    requests = [Request(f"q{host}", host, 4, default_placement(replicas)) for host in range(len(topology.servers))]
    plan = ExactPlanner(topology, ties_s=0.1).plan(requests, Residual.full(topology), Random(0))
    verify(topology, requests, plan, Residual.full(topology))
    assert plan.proven
    for seed in range(5):
        greedy = PaperPlanner(topology).plan(requests, Residual.full(topology), Random(seed))
        assert len(greedy.chains) <= plan.chunks


def test_the_papers_cluster() -> None:
    """17 hosts in racks of 8 and 9, send and receive 2, a link of 9 each way: 10 chunks a timestep at most.

    8 + 9 hosts receive 34 replicas, 3 a chunk, so 11 at the very most; the smaller rack's 16 allow A + 2B ≤ 16 and, by
    what it sends, 2A + B ≤ 16 (A, B: chunks written and taken there), so A + B ≤ 10 — and each chunk is in both racks.
    """
    topology = racks([8, 9], 9)
    requests = [Request(f"q{host}", host, 8, default_placement(3)) for host in range(16)]
    plan = ExactPlanner(topology).plan(requests, Residual.full(topology), Random(0))
    assert (plan.chunks, plan.bound, plan.proven) == (10, 10, True)


def test_earlier_requests_are_preferred() -> None:
    """Where not all fit and as many fit either way, the first requests get their chunks."""
    topology = racks([4, 4], 2)
    requests = [Request(f"q{number}", number % 4, 1, default_placement(2)) for number in range(8)]
    plan = ExactPlanner(topology).plan(requests, Residual.full(topology), Random(0))
    assert [chain.request for chain in plan.chains] == ["q0", "q1"]
    assert [rest.name for rest in plan.waiting] == [f"q{number}" for number in range(2, 8)]


def test_without_time_the_plan_is_no_worse_than_the_papers() -> None:
    """With no time to solve anything the plan is greedy, not empty, and claims no more than is known."""
    topology = racks([40] * 25, 40)
    requests = [Request(f"q{host}", host, 2, default_placement(3)) for host in range(1000)]
    plan = ExactPlanner(topology, time_limit_s=0.0).plan(requests, Residual.full(topology), Random(5))
    verify(topology, requests, plan, Residual.full(topology))
    greedy = PaperPlanner(topology).plan(requests, Residual.full(topology), Random(5))
    assert plan.bound >= plan.chunks >= len(greedy.chains)
    assert plan.proven == (plan.bound == plan.chunks)


def test_narrow_disks_count() -> None:
    """A disk may take less than the link to its host brings: one replica each, so every third host's chunk fits."""
    servers = [Server(f"h{n}", f"s{n // 3}", 9, 9, 1) for n in range(6)]
    topology = Topology(servers, both_ways("s0", "s1", 9), switches=["s0", "s1"])
    requests = [Request(f"q{host}", host, 2, default_placement(3)) for host in range(6)]
    check_against_brute_force(topology, requests, Residual.full(topology))


def test_rings_are_left_out_of_routes() -> None:
    """A flow from a to d may run to b and back besides; the route that is taken from it does not."""
    topology = mesh()
    links = {(link.source, link.target): number for number, link in enumerate(topology.links)}
    flow = {links["a", "b"]: 1, links["b", "a"]: 1, links["a", "d"]: 1}
    start, end = topology.switch_index["a"], topology.switch_index["d"]
    ways = FlowWays(topology, {start: flow}, {start: {end: 1}})
    assert ways.take(start) == (end, (links["a", "d"],))
    assert not any(flow.values())  # the ring was walked, and left out
    with pytest.raises(PlanInvalid, match="where nothing is due"):
        ways.take(start)


def test_what_is_too_large_is_refused() -> None:
    """Five replicas anywhere on many racks: an error that says what would be possible instead."""
    topology = racks([2] * 20, 2)
    residual = Residual.full(topology)
    with pytest.raises(RequestError, match="placement: the exact optimum would take a program of") as refused:
        ExactPlanner(topology).plan([Request("q", 0, 1, parse_placement([""] * 5))], residual, Random(0))
    assert refused.value.field == "placement"
    with pytest.raises(RequestError, match="tiny networks"):
        max_chunks(topology, [Request("q", 0, 1, parse_placement([""] * 5))])


def test_chain_and_nothing_to_plan() -> None:
    """One chunk is chosen as planner `paper` chooses it; no requests, or none with chunks, are an empty proven plan."""
    topology = racks([2, 2], 1)
    request = Request("q", 0, 1, default_placement(3))
    chosen = ExactPlanner(topology).chain(request, 0, Residual.full(topology), Random(4))
    assert chosen == PaperPlanner(topology).chain(request, 0, Residual.full(topology), Random(4))
    for nothing in ([], [Request("q", 0, 0, default_placement(3))]):
        plan = ExactPlanner(topology).plan(nothing, Residual.full(topology), Random(0))
        assert (plan.chains, plan.waiting, plan.proven, plan.bound) == ((), (), True, 0)


def test_requests_wait_with_their_own_sources() -> None:
    """Of a read whose second chunk cannot be read now, the second waits, with its number and its sources."""
    topology = racks([2, 2], 1)
    residual = Residual.full(topology)
    residual.disk[1] = 0
    request = Request("q", 0, 3, (), TransferKind.READ, ((2,), (1,), (3,)), (4, 5, 6))
    residual.link += 1
    plan = ExactPlanner(topology).plan([request], residual, Random(0))
    assert sorted(chain.chunk for chain in plan.chains) == [4, 6]
    assert [(rest.numbers, rest.sources) for rest in plan.waiting] == [((5,), ((1,),))]


# ---- dealing out


@given(data=st.data(), places=st.integers(1, 4), tuples=st.integers(0, 6))
def test_what_was_counted_is_dealt_out(data: st.DataObject, places: int, tuples: int) -> None:
    """Any counts that come from tuples without repetition can be dealt out into such tuples again."""
    original = [data.draw(st.permutations(range(6)))[:places] for _ in range(tuples)]
    counts = [Counter(row[place] for row in original) for place in range(places)]
    dealt = deal(counts)
    assert [Counter(row[place] for row in dealt) for place in range(places)] == counts
    assert all(len(set(row)) == places for row in dealt)


@pytest.mark.parametrize(
    "counts", [[{"a": 1}, {"a": 1}], [{"a": 2}, {"b": 1}], [{"a": 1, "b": 1}, {"a": 2}]], ids=["same", "sums", "often"]
)
def test_what_cannot_be_dealt_out(counts: list[dict[str, int]]) -> None:
    """Counts that no tuples have are refused."""
    with pytest.raises(PlanInvalid):
        deal(counts)
