"""Replica sets of log chunks: exact on small networks, and far apart. `tests/cluster/test_set_choice.py` has many."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import PlacementError
from scheduler.peace.replica_sets import Domain, Place, ReplicaSets

RATES = st.integers(1, 5).map(lambda number: 50.0 * number)
SCALE = 1 << 20
"""Costs of a flow in networkx are whole numbers."""


@st.composite
def networks(draw: st.DrawFn) -> tuple[dict[str, Place], dict[Domain, float], dict[str, float]]:
    """Up to seven hosts in zones and racks, some without, links of some domains, and what hosts carry already."""
    hosts = [f"h{number}" for number in range(draw(st.integers(1, 7)))]
    domains = st.lists(st.sampled_from("xyz"), max_size=2).map(tuple)
    places = {host: (draw(domains), draw(RATES)) for host in hosts}
    known = sorted({place[0][:depth] for place in places.values() for depth in (1, 2) if place[0][depth - 1 :]})
    links = {domain: draw(RATES) for domain in known if draw(st.booleans())}
    return places, links, {host: draw(st.integers(0, 20)) * 10.0 for host in hosts}


def parts(places: dict[str, Place], domain: Domain, hosts: list[str]) -> dict[Domain | str, list[str]]:
    """The hosts of a domain by the domain below it, or alone."""
    found: dict[Domain | str, list[str]] = {}
    for host in hosts:
        way = places[host][0]
        if way[: len(domain)] == domain:
            found.setdefault(host if len(way) == len(domain) else way[: len(domain) + 1], []).append(host)
    return found


def limits(places: dict[str, Place], domain: Domain, hosts: list[str], many: int) -> dict[Domain | str, int]:
    """How many members may lie in each domain: the smallest share with which all of them have enough."""
    below = parts(places, domain, hosts)
    many = min(many, sum(map(len, below.values())))
    share = next(share for share in range(9) if sum(min(share, len(each)) for each in below.values()) >= many)
    found: dict[Domain | str, int] = dict.fromkeys(below, share)
    for each in below:
        if isinstance(each, tuple):
            found |= limits(places, each, hosts, share)
    return found


def cost_of(
    chosen: tuple[str, ...], places: dict[str, Place], links: dict[Domain, float], loads: dict[str, float], rate: float
) -> float:
    """What a set adds to half of the sum of load² ÷ capacity, divided by the rate."""
    total = sum((loads[host] + rate / 2) / places[host][1] for host in chosen)
    for domain, capacity in links.items():
        if any(places[host][0][: len(domain)] == domain for host in chosen):
            total += (entering_of(places, loads, domain) + rate / 2) / capacity
    return total


def entering_of(places: dict[str, Place], loads: dict[str, float], domain: Domain) -> float:
    """What passes the link into a domain: in these networks what its hosts carry."""
    return sum(loads[host] for host in places if places[host][0][: len(domain)] == domain)


def flow_cost(
    places: dict[str, Place], links: dict[Domain, float], loads: dict[str, float], rate: float, many: int
) -> float:
    """The cost of networkx's min-cost flow over the same network."""
    room = limits(places, (), list(places), many)
    graph = nx.MultiDiGraph()
    graph.add_node((), demand=-many)
    graph.add_node("sink", demand=many)
    domains = sorted({key for key in room if isinstance(key, tuple)})
    for domain in domains:
        inside = [host for host in places if places[host][0][: len(domain)] == domain]
        for unit in range(min(room[domain], many)):
            through = sum(loads[host] for host in inside) + (unit + 0.5) * rate
            weight = round(SCALE * through / links[domain]) if domain in links else 0
            graph.add_edge(domain[:-1], domain, capacity=1, weight=weight)
    for host, place in places.items():
        weight = round(SCALE * (loads[host] + rate / 2) / place[1])
        graph.add_edge(place[0], host, capacity=1, weight=weight)
        graph.add_edge(host, "sink", capacity=1, weight=0)
    cost, _ = nx.network_simplex(graph)
    return float(cost) / SCALE


@given(networks(), st.integers(1, 5), st.integers(0, 9).map(lambda number: 10.0 * number))
def test_a_set_is_the_cheapest_that_lies_as_far_apart(
    network: tuple[dict[str, Place], dict[Domain, float], dict[str, float]], many: int, rate: float
) -> None:
    """It costs what the best of all sets that fit costs, and what a min-cost flow does: with links of domains that get
    one member each.
    """
    places, links, loads = network
    many = min(many, len(places))
    room = limits(places, (), list(places), many)
    links = {domain: bytes_s for domain, bytes_s in links.items() if room[domain] == 1}
    entering = {domain: entering_of(places, loads, domain) for domain in links}
    chosen = ReplicaSets(places, links).choose(list(places), (), many, rate, loads, entering)

    def fits(hosts: tuple[str, ...]) -> bool:
        inside = Counter(way if way else host for host in hosts for way in ways(host))
        return all(count <= room[key] for key, count in inside.items())

    def ways(host: str) -> list[Domain | str]:
        way = places[host][0]
        return [way[: depth + 1] for depth in range(len(way))] or [host]

    assert len(set(chosen)) == many
    assert fits(chosen)
    best = min(cost_of(each, places, links, loads, rate) for each in combinations(places, many) if fits(each))
    assert cost_of(chosen, places, links, loads, rate) == pytest.approx(best)
    assert flow_cost(places, links, loads, rate, many) == pytest.approx(best, abs=1e-4)


@given(networks(), st.data())
def test_members_that_are_held_count(
    network: tuple[dict[str, Place], dict[Domain, float], dict[str, float]], data: st.DataObject
) -> None:
    """With any held members, as many join as there are; the first one shares no rack with a held one if it need not."""
    places, links, loads = network
    held = data.draw(st.lists(st.sampled_from(sorted(places)), unique=True, max_size=3))
    others = [host for host in places if host not in held]
    joined = ReplicaSets(places, links).choose(others, held, 1, 10.0, loads, {})
    assert len(joined) == min(1, len(others))
    used = {places[host][0] for host in held if places[host][0]}
    if joined and places[joined[0]][0] in used:
        zones = {places[host][0][:1] for host in places}
        # Only where zones of unequal size decide: with zones alike, another rack would have been taken.
        assert len(zones) > 1 or all(places[host][0] in used for host in others)


def test_what_cannot_be_is_refused() -> None:
    """Rates of nothing are named."""
    with pytest.raises(PlacementError, match="host 'a': a disk of 0 bytes"):
        ReplicaSets({"a": ((), 0)})
    with pytest.raises(PlacementError, match="domain 'z/r': -1 bytes"):
        ReplicaSets({}, {("z", "r"): -1})
    with pytest.raises(PlacementError, match="a chunk of -1 bytes"):
        ReplicaSets({"a": ((), 1)}).choose(["a"], (), 1, -1, {}, {})
    assert ReplicaSets({"a": ((), 1)}).choose(["a", "stranger"], ("gone",), 3, 1, {}, {}) == ("a",)


def test_a_link_is_charged_where_the_chain_enters() -> None:
    """What lies in the owner's rack costs its link nothing, nor does a second member of a rack: the hosts of a rack
    with a slow link are taken as others are. The chain enters each rack once.
    """
    places: dict[str, Place] = {f"{rack}{number}": ((rack,), 100.0) for rack in "xy" for number in range(3)}
    links: dict[Domain, float] = {("x",): 1.0, ("y",): 1.0}
    sets = ReplicaSets(places, links)
    loads = {"x1": 50.0, "y1": 50.0}
    chosen = sets.choose([*places][1:], ["x0"], 3, 10.0, loads, {("x",): 1e6, ("y",): 0.0})
    assert chosen == ("x2", "y0", "y2")
    alone = sets.choose(["x1", "y1"], ["x0"], 1, 10.0, {}, {("x",): 0.0, ("y",): 0.0})
    assert alone == ("y1",), "far apart comes before cheap"


@given(networks(), st.integers(2, 5), st.data())
def test_no_domain_is_entered_twice(
    network: tuple[dict[str, Place], dict[Domain, float], dict[str, float]], many: int, data: st.DataObject
) -> None:
    """The members of a domain are next to each other, those of the first one's domains first."""
    places, links, loads = network
    first = data.draw(st.sampled_from(sorted(places)))
    others = [host for host in places if host != first]
    chain = (first, *ReplicaSets(places, links).choose(others, [first], many - 1, 1.0, loads, {}))
    for domain in {places[host][0][:depth] for host in chain for depth in (1, 2) if places[host][0][depth - 1 :]}:
        inside = [place for place, host in enumerate(chain) if places[host][0][: len(domain)] == domain]
        assert inside[-1] - inside[0] == len(inside) - 1


@given(networks(), st.integers(1, 4))
def test_a_set_that_is_chosen_is_not_crowded(
    network: tuple[dict[str, Place], dict[Domain, float], dict[str, float]], many: int
) -> None:
    """Sets are crowded by their members beyond the shares of domains. From any set, members that are replaced by others
    with which it is less crowded, one at a time, lead to one that is not crowded: there is always such a member.
    """
    places, links, loads = network
    many = min(many, len(places))
    sets = ReplicaSets(places, links)
    crowding = sets.crowding(places, many)
    assert crowding(sets.choose(list(places), (), many, 1.0, loads, {})) == 0
    shares = limits(places, (), list(places), many)
    for chosen in combinations(places, many):
        taken = Counter(places[host][0][:depth] for host in chosen for depth in range(1, len(places[host][0]) + 1))
        crowded = sum(max(0, count - shares[domain]) for domain, count in taken.items())
        assert crowding(chosen) == crowded
        if crowded:
            others = [host for host in places if host not in chosen]
            replaced = ({*chosen, other} - {host} for other in others for host in chosen)
            assert any(crowding(each) < crowded for each in replaced)
