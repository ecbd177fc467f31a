"""Max-min fair rates: properties on random networks, and against a naive reference."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.simulation.fairness import max_min

Network = tuple[list[list[tuple[int, float]]], list[float], list[float]]
"""For each flow what it uses (resource, cost); its cap; for each resource its capacity."""


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Up to 8 flows over up to 6 resources, some capped, some passing a resource twice."""
    capacities = draw(st.lists(st.floats(0.5, 100.0), min_size=1, max_size=6))
    use = st.tuples(st.integers(0, len(capacities) - 1), st.sampled_from([0.25, 1.0, 3.0]))
    flows = draw(st.lists(st.lists(use, min_size=1, max_size=5), max_size=8))
    caps = [draw(st.one_of(st.just(float("inf")), st.floats(0.1, 50.0))) for _ in flows]
    return flows, caps, capacities


def fair_rates(network: Network) -> tuple[list[float], list[float]]:
    """The kernel's rates, and what it says remains of each resource."""
    flows, caps, capacities = network
    uses = np.full((max(1, len(flows)), 6), -1, np.int64)
    costs = np.zeros(uses.shape)
    for number, flow in enumerate(flows):
        for place, (resource, cost) in enumerate(flow):
            uses[number, place], costs[number, place] = resource, cost
    rates, left = np.zeros(len(uses)), np.zeros(len(capacities))
    padded = np.array(caps or [0.0])
    max_min(np.arange(len(flows)), uses, costs, padded, np.array(capacities), rates, left)
    return [float(rate) for rate in rates[: len(flows)]], [float(rest) for rest in left]


def used(network: Network, rates: list[float]) -> list[float]:
    """What the flows take of each resource."""
    flows, _, capacities = network
    taken = [0.0] * len(capacities)
    for flow, rate in zip(flows, rates, strict=True):
        for resource, cost in flow:
            taken[resource] += rate * cost
    return taken


@settings(max_examples=60)
@given(networks())
def test_capacities_and_caps_are_kept(network: Network) -> None:
    """No resource carries more than it can, no flow is faster than its cap, and what is left is told."""
    rates, left = fair_rates(network)
    _, caps, capacities = network
    for taken, capacity, rest in zip(used(network, rates), capacities, left, strict=True):
        assert taken <= capacity * (1 + 1e-6)
        assert abs(capacity - taken - rest) <= capacity * 1e-6
    assert all(rate <= cap * (1 + 1e-6) for rate, cap in zip(rates, caps, strict=True))


@settings(max_examples=60)
@given(networks())
def test_no_flow_can_be_raised_without_lowering_one_that_is_no_faster(network: Network) -> None:
    """Every flow is at its cap, or passes a full resource on which no other flow is faster."""
    flows, caps, capacities = network
    rates, _ = fair_rates(network)
    taken = used(network, rates)
    for flow, rate, cap in zip(flows, rates, caps, strict=True):
        fastest = {resource: 0.0 for resource, _ in flow}
        for other, other_rate in zip(flows, rates, strict=True):
            for resource, _ in other:
                if resource in fastest:
                    fastest[resource] = max(fastest[resource], other_rate)
        bound = any(
            taken[resource] >= capacities[resource] * (1 - 1e-6) and fastest[resource] <= rate * (1 + 1e-6)
            for resource, _ in flow
        )
        assert rate >= cap * (1 - 1e-6) or bound


@settings(max_examples=60)
@given(networks(), st.permutations(range(8)))
def test_the_order_of_flows_does_not_matter(network: Network, order: list[int]) -> None:
    """Rates belong to flows, not to their places."""
    flows, caps, capacities = network
    places = [place for place in order if place < len(flows)]
    shuffled = ([flows[place] for place in places], [caps[place] for place in places], capacities)
    rates, again = fair_rates(network)[0], fair_rates(shuffled)[0]
    np.testing.assert_allclose([rates[place] for place in places], again, rtol=1e-6)


@settings(max_examples=60)
@given(networks())
def test_more_capacity_never_lowers_the_slowest(network: Network) -> None:
    """Twice the capacity everywhere: the slowest flow is not slower."""
    flows, caps, capacities = network
    if flows:
        more = (flows, caps, [2 * capacity for capacity in capacities])
        assert min(fair_rates(more)[0]) >= min(fair_rates(network)[0]) * (1 - 1e-6)


def test_a_case_by_hand() -> None:
    """Links of 10 and 4: the flow over both gets half of 4, its neighbour there the same, the third the rest of 10."""
    rates, left = fair_rates(([[(0, 1.0), (1, 1.0)], [(0, 1.0)], [(1, 1.0)]], [float("inf")] * 3, [10.0, 4.0]))
    np.testing.assert_allclose(rates, [2.0, 8.0, 2.0])
    np.testing.assert_allclose(left, [0.0, 0.0], atol=1e-9)


def test_a_cap_leaves_its_rest_to_others_and_twice_is_twice() -> None:
    """A link of 12: one flow capped at 3, one passes it twice: 3 + 2 × 4.5."""
    rates, _ = fair_rates(([[(0, 1.0)], [(0, 1.0), (0, 1.0)]], [3.0, float("inf")], [12.0]))
    np.testing.assert_allclose(rates, [3.0, 4.5])
