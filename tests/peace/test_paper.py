"""Planner `paper`: valid plans on any network, the paper's own example, and the distribution that its module states."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.yardstick.verify import verify
from scheduler.errors import RequestError
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.placement import default_placement, parse_placement
from scheduler.peace.plan import HostChain, Request, Residual, TransferKind, TransferPlan
from scheduler.topology import Link, Server, Topology, both_ways, racks
from tests.peace.reference import chances_of_chain, check_samples
from tests.peace.strategies import deep_trees, graphs, rack_trees, requests_for, residuals, seeds


def same(a: Residual, b: Residual) -> bool:
    """Whether the same is left."""
    return all(
        left.tolist() == right.tolist()
        for left, right in ((a.send, b.send), (a.receive, b.receive), (a.disk, b.disk), (a.link, b.link))
    )


@given(data=st.data(), seed=seeds)
def test_every_plan_keeps_every_promise(data: st.DataObject, seed: int) -> None:
    """On any network, for any requests: the verifier finds nothing, and the residual lost what the plan uses."""
    topology = data.draw(st.one_of(rack_trees(), deep_trees(), graphs()))
    requests = data.draw(requests_for(topology))
    residual = data.draw(residuals(topology))
    before = residual.copy()
    plan = PaperPlanner(topology).plan(requests, residual, Random(seed))
    verify(topology, requests, plan, before)
    for chain in plan.chains:
        before.take(chain)
    assert same(residual, before)


@given(data=st.data(), seed=seeds)
@settings(max_examples=settings().max_examples // 4)
def test_chains_are_chosen_as_the_algorithm_says(data: st.DataObject, seed: int) -> None:
    """Against the literal reading on networkx: the same chains are possible, and each comes as often as it should.

    A chunk waits exactly when the literal reading finds no chain, as often as it finds none, and then takes nothing.
    """
    topology = data.draw(st.one_of(rack_trees(), deep_trees(), graphs()))
    request = data.draw(requests_for(topology, max_requests=1))[0]
    residual = data.draw(residuals(topology))
    chances = chances_of_chain(topology, request, 0, residual)
    planner, random, seen = PaperPlanner(topology), Random(seed), Counter[HostChain | None]()
    before = residual.copy()
    for _ in range(300):
        chain = planner.chain(request, 0, residual, random)
        seen[chain] += 1
        if chain is not None:
            residual.give(chain)
    assert same(residual, before)
    check_samples(seen, chances)


@pytest.mark.slow
@given(data=st.data(), seed=seeds)
@settings(max_examples=settings().max_examples // 10)
def test_chains_are_chosen_as_the_algorithm_says_at_length(data: st.DataObject, seed: int) -> None:
    """The same with ten times as many samples, on larger networks."""
    topology = data.draw(st.one_of(rack_trees(max_racks=5), deep_trees(max_switches=9), graphs(max_switches=6)))
    request = data.draw(requests_for(topology, max_requests=1))[0]
    chances = chances_of_chain(topology, request, 0, Residual.full(topology))
    planner, random, seen = PaperPlanner(topology), Random(seed), Counter[HostChain | None]()
    for _ in range(3000):
        seen[planner.chain(request, 0, Residual.full(topology), random)] += 1
    check_samples(seen, chances)


def three_tiers() -> Topology:
    """Two aggregation switches with 2 and 3 racks of 2, 3, 1, 2, 4 hosts."""
    sizes = {"a1": (2, 3), "a2": (1, 2, 4)}
    servers: list[Server] = []
    links: list[Link] = []
    names = ["core"]
    for above, hosts in sizes.items():
        names.append(above)
        links += both_ways(above, "core", 2)
        for number, count in enumerate(hosts):
            rack = f"{above}r{number}"
            names.append(rack)
            links += both_ways(rack, above, 2)
            servers += [Server(f"{rack}h{host}", rack) for host in range(count)]
    return Topology(servers, links, switches=names)


def tied() -> Topology:
    """Free links form a ring of racks: hosts here and links onward tie, and a walk could run in circles."""
    names = ["a", "b", "c", "d"]
    servers = [
        Server(f"{name}{host}", name) for name, hosts in zip(names, (1, 2, 0, 3), strict=True) for host in range(hosts)
    ]
    links = [Link(a, b, 2, 0) for a in names for b in names if a != b and {a, b} != {"a", "c"}]
    return Topology(servers, links, switches=names)


@pytest.mark.parametrize("build", [three_tiers, tied, lambda: racks([3, 2, 4], 2)], ids=["tiers", "tied", "racks"])
@pytest.mark.parametrize("texts", [["same-rack:0", "other-rack:0", "same-rack:2"], ["", "other-rack:1"], ["", "", ""]])
def test_distribution_on_networks_worth_a_look(build: object, texts: list[str]) -> None:
    """Several tiers, ties over free links, uneven racks: 4,000 chains come as often as the literal reading says."""
    assert callable(build)
    topology: Topology = build()
    request = Request("q", 1, 1, parse_placement(texts))
    chances = chances_of_chain(topology, request, 0, Residual.full(topology))
    planner, random = PaperPlanner(topology), Random(20090830)
    samples = Counter(planner.chain(request, 0, Residual.full(topology), random) for _ in range(4000))
    check_samples(samples, chances)


def test_a_rack_is_not_weighted_by_its_hosts() -> None:
    """From the core a link to each rack counts once: a rack of one host is chosen as often as one of nine."""
    topology = racks([1, 1, 9], 5)
    request = Request("q", 0, 1, parse_placement(["other-rack:0"]))
    chances = chances_of_chain(topology, request, 0, Residual.full(topology))
    by_rack: Counter[int] = Counter()
    for chain, chance in chances.items():
        assert chain is not None
        by_rack[topology.rack_of[chain.hosts[1]]] += chance  # type: ignore[assignment]
    assert set(by_rack.values()) == {Fraction(1, 2)}


@given(data=st.data(), seed=seeds)
@settings(max_examples=settings().max_examples // 4)
def test_the_same_seed_gives_the_same_plan(data: st.DataObject, seed: int) -> None:
    """A plan depends on requests, residual and seed alone: not on what a planner has planned before."""
    topology = data.draw(st.one_of(rack_trees(), deep_trees(), graphs()))
    requests = data.draw(requests_for(topology))
    used = PaperPlanner(topology)
    used.plan(requests, Residual.full(topology), Random(seed + 1))
    plans = [
        planner.plan(requests, Residual.full(topology), Random(seed)) for planner in (used, PaperPlanner(topology))
    ]
    assert plans[0] == plans[1]


# ---- the paper's worked example


def figure_5() -> Topology:
    """Two switches, connected, with two servers each; every capacity is 1."""
    servers = [Server(f"SVR{rack}.{host}", f"sw{rack}", 1, 1) for rack in (1, 2) for host in (1, 2)]
    return Topology(servers, both_ways("sw1", "sw2", 1), switches=["sw1", "sw2"], name="figure 5")


def example(seed: int, planner: PaperPlanner, topology: Topology) -> TransferPlan:
    """SVR1.1 and SVR2.1 each write one chunk, r = 2: the first replica in the rack, the second in another."""
    requests = [Request(name, topology.index[name], 1, default_placement(2)) for name in ("SVR1.1", "SVR2.1")]
    residual = Residual.full(topology)
    plan = planner.plan(requests, residual, Random(seed))
    verify(topology, requests, plan, Residual.full(topology))
    return plan


def test_the_papers_example() -> None:
    """Section 5, figure 5: all that can happen, over 400 seeds.

    The first replica of SVR1.1 can only go to SVR1.2; the second to SVR2.1 or SVR2.2, each half of the time. If it went
    to SVR2.2, as in the paper's text, SVR2.1 finds no receiver in its rack and waits. If it went to SVR2.1 itself, that
    still writes to SVR2.2, and from there over the link to SVR1.1 (SVR1.2 has received all it can): both are planned.
    """
    topology = figure_5()
    planner, seen = PaperPlanner(topology), Counter[str]()
    for seed in range(400):
        plan = example(seed, planner, topology)
        names = [[topology.servers[host].name for host in chain.hosts] for chain in plan.chains]
        assert names[0][:2] == ["SVR1.1", "SVR1.2"]
        assert plan.chains[0].routes == ((), (0,))
        seen[names[0][2]] += 1
        if names[0][2] == "SVR2.2":
            assert len(names) == 1
            assert [(rest.name, rest.chunks) for rest in plan.waiting] == [("SVR2.1", 1)]
        else:
            assert names[0] == ["SVR1.1", "SVR1.2", "SVR2.1"]
            assert names[1] == ["SVR2.1", "SVR2.2", "SVR1.1"]
            assert plan.chains[1].routes == ((), (1,))
            assert not plan.waiting
    check_samples(seen, {"SVR2.1": Fraction(1, 2), "SVR2.2": Fraction(1, 2)})


def test_what_waits_can_be_planned_in_the_next_timestep() -> None:
    """The paper's example goes on: at t + 1 the network is empty again, and SVR2.1 writes."""
    topology = figure_5()
    planner = PaperPlanner(topology)
    for seed in range(20):
        plan = example(seed, planner, topology)
        if plan.waiting:
            after = planner.plan(plan.waiting, Residual.full(topology), Random(seed))
            assert [chain.request for chain in after.chains] == ["SVR2.1"]
            assert not after.waiting


# ---- requests


def test_a_request_without_a_path_waits_and_the_next_goes_on() -> None:
    """Line 22: the rest of a request waits with its own chunk numbers, later requests are still served."""
    topology = racks([3, 3], 1)
    requests = [
        Request("a", 0, 3, default_placement(3), numbers=(5, 6, 7)),
        Request("b", 0, 1, default_placement(1)),
        Request("c", 1, 1, parse_placement([""])),
    ]
    plan = PaperPlanner(topology).plan(requests, Residual.full(topology), Random(1))
    verify(topology, requests, plan, Residual.full(topology))
    assert [(chain.request, chain.chunk) for chain in plan.chains] == [("a", 5), ("b", 0), ("c", 0)]
    assert [(rest.name, rest.chunks, rest.numbers) for rest in plan.waiting] == [("a", 2, (6, 7))]


def test_sixteen_replicas() -> None:
    """As many replicas as a placement may have, all on hosts of their own; with a host too few nothing is planned."""
    request = Request("q", 0, 1, default_placement(16))
    for hosts, planned in (((9, 9), True), ((8, 8), False)):
        topology = racks(hosts, 16)
        plan = PaperPlanner(topology).plan([request], Residual.full(topology), Random(7))
        verify(topology, [request], plan, Residual.full(topology))
        assert bool(plan.chains) is planned


def test_far_racks_are_found() -> None:
    """A long line of switches with racks at its ends: further than hops are tried, the search finds the way."""
    names = [f"s{n}" for n in range(30)]
    links = [link for a, b in pairwise(names) for link in both_ways(a, b, 1)]
    topology = Topology([Server("x", "s0"), Server("y", "s29")], links, switches=names)
    chain = PaperPlanner(topology).chain(Request("q", 0, 1, ((),)), 0, Residual.full(topology), Random(0))
    assert chain is not None
    assert [topology.links[link].target for link in chain.routes[0]] == names[1:]


def test_a_reader_with_the_chunk_reads_its_own_disk() -> None:
    """Recovery: the cheapest source is the reader itself; without it the sources at hand are equally likely."""
    topology = racks([2, 2], 1)
    own = Request("q", 0, 1, (), TransferKind.READ, ((0, 1),))
    chain = PaperPlanner(topology).chain(own, 0, Residual.full(topology), Random(0))
    assert chain == HostChain("q", 0, (0, 0), ((),), TransferKind.READ)
    far = Request("q", 0, 1, (), TransferKind.READ, ((2, 3),))
    planner, random = PaperPlanner(topology), Random(3)
    chains = Counter(planner.chain(far, 0, Residual.full(topology), random) for _ in range(500))
    check_samples(chains, chances_of_chain(topology, far, 0, Residual.full(topology)))
    assert {chain.hosts[0] for chain in chains if chain} == {2, 3}


def test_the_nearest_source_is_read() -> None:
    """Of hosts that have the chunk the one with the cheapest path is taken, whatever the random numbers."""
    topology = racks([2, 2], 1)
    planner = PaperPlanner(topology)
    for seed in range(20):
        read = Request("q", 0, 1, (), TransferKind.READ, ((1, 2, 3),))
        chain = planner.chain(read, 0, Residual.full(topology), Random(seed))
        assert chain == HostChain("q", 0, (1, 0), ((),), TransferKind.READ)
        copy = Request(
            "q", -1, 1, parse_placement(["other-rack:0"]), TransferKind.COPY, ((0, 3),), avoid=frozenset({2})
        )
        chain = planner.chain(copy, 0, Residual.full(topology), Random(seed))
        assert chain is not None
        assert chain.hosts == (3, 1)  # not from host 0: all hosts of the other rack have it or are to be avoided


def test_rules_that_contradict_each_other() -> None:
    """In two racks at once, in a rack and not in it, on the writer and on another host: nothing is planned."""
    topology = racks([3, 3], 3)
    for texts in (
        ["other-rack:0", "same-rack:0 & same-rack:1"],
        ["same-rack:0 & other-rack:0"],
        ["same-host:0 & other-host:0"],
        ["same-host:0 & other-rack:0"],
    ):
        residual = Residual.full(topology)
        request = Request("q", 0, 1, parse_placement(texts))
        assert PaperPlanner(topology).chain(request, 0, residual, Random(0)) is None
        assert same(residual, Residual.full(topology))
        assert chances_of_chain(topology, request, 0, residual) == {None: 1}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request("q", 9, 1, ((),)), "writer"),
        (Request("q", -1, 1, ((),)), "writer"),
        (Request("q", 0, -1, ((),)), "chunks"),
        (Request("q", 0, 1, ()), "placement"),
        (Request("q", 0, 1, parse_placement([""]), TransferKind.READ, ((1,),)), "placement"),
        (Request("q", 0, 1, (), TransferKind.READ), "sources"),
        (Request("q", 0, 1, (), TransferKind.READ, ((),)), "sources"),
        (Request("q", 0, 1, (), TransferKind.READ, ((7,),)), "sources"),
        (Request("q", 0, 1, ((),), sources=((1,),)), "sources"),
        (Request("q", -1, 1, (), TransferKind.COPY, ((1,),)), "placement"),
        (Request("q", -1, 1, parse_placement(["same-host:0"]), TransferKind.COPY, ((1,),)), "placement"),
        (Request("q", 0, 2, ((),), numbers=(3, 3)), "numbers"),
        (Request("q", 0, 1, ((),), avoid=frozenset({4})), "avoid"),
    ],
)
def test_requests_that_cannot_be(request_: Request, field: str) -> None:
    """What is not there or contradicts itself is refused with the field to change, before anything is taken."""
    topology = racks([2, 2], 1)
    residual = Residual.full(topology)
    with pytest.raises(RequestError) as refused:
        PaperPlanner(topology).plan([request_], residual, Random(0))
    assert refused.value.field == field
    assert same(residual, Residual.full(topology))
