"""Planner `exact` against exhaustive search: as many chunks, in plans that keep every promise."""

from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler.errors import RequestError
from scheduler.peace.brute import most_chunks
from scheduler.peace.exact import ExactPlanner
from scheduler.peace.placement import default_placement
from scheduler.peace.plan import Kind, Request, Residual
from scheduler.peace.verify import verify
from scheduler.topology import Topology
from tests.peace.strategies import deep_trees, graphs, rack_trees, requests_for, residuals


def check_against_brute_force(topology: Topology, requests: list[Request], residual: Residual) -> int:
    """Plan, verify, compare the number of chunks with the exhaustive search; the number."""
    before = residual.copy()
    try:
        most = most_chunks(topology, requests, residual)
    except RequestError:
        assume(False)  # too much to try
    plan = ExactPlanner(topology).plan(requests, residual, Random(0))
    verify(topology, requests, plan, before)
    assert plan.chunks == most
    assert plan.proven
    assert plan.bound == most
    for chain in plan.chains:
        before.take(chain)
    assert residual.link.tolist() == before.link.tolist()
    assert residual.disk.tolist() == before.disk.tolist()
    return most


@given(data=st.data(), replicas=st.integers(1, 3))
def test_default_placement_on_racks(data: st.DataObject, replicas: int) -> None:
    """The compact program on trees of racks: as good as exhaustive search."""
    topology = data.draw(rack_trees(most_hosts=3))
    placement = st.just(default_placement(replicas))
    requests = data.draw(requests_for(topology, placement=placement, kinds=(Kind.WRITE,), most_chunks=2))
    requests = [Request(request.name, request.writer, request.chunks, request.placement) for request in requests]
    check_against_brute_force(topology, requests, data.draw(residuals(topology)))


@given(data=st.data(), replicas=st.integers(1, 3))
def test_default_placement_on_any_network(data: st.DataObject, replicas: int) -> None:
    """The compact program on deep trees and on networks with several paths: as good as exhaustive search."""
    topology = data.draw(st.one_of(deep_trees(), graphs()))
    placement = st.just(default_placement(replicas))
    requests = data.draw(requests_for(topology, placement=placement, kinds=(Kind.WRITE,), most_chunks=2))
    requests = [Request(request.name, request.writer, request.chunks, request.placement) for request in requests]
    check_against_brute_force(topology, requests, data.draw(residuals(topology)))


@given(data=st.data())
def test_any_requests_on_any_network(data: st.DataObject) -> None:
    """The program of patterns: any placement, reads, copies, hosts to avoid; as good as exhaustive search."""
    topology = data.draw(st.one_of(rack_trees(most_hosts=3), deep_trees(most_switches=4), graphs(most_switches=4)))
    requests = data.draw(requests_for(topology, most_requests=3, most_chunks=2))
    check_against_brute_force(topology, requests, data.draw(residuals(topology)))
