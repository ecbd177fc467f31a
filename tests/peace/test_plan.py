"""Requests, chains and what they leave: nothing is taken that is not there, all that was taken is given back."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import PlanInvalid
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.placement import default_placement
from scheduler.peace.plan import HostChain, Request, Residual, Resource, TransferKind, demands
from scheduler.topology import Server, Topology, both_ways, racks
from tests.peace.strategies import deep_trees, graphs, rack_trees, requests_for, seeds


def everything(residual: Residual) -> list[list[int]]:
    """All counts."""
    return [residual.counts(resource).tolist() for resource in Resource]


def small() -> Topology:
    """Two racks of two hosts, one connection."""
    servers = [Server(f"h{n}", f"s{n // 2}", 1, 1, 1) for n in range(4)]
    return Topology(servers, both_ways("s0", "s1", 1), switches=["s0", "s1"])


@pytest.mark.parametrize(
    ("chain", "units"),
    [
        (
            HostChain("q", 0, (0, 1, 2), ((), (0,))),
            ["send 0", "receive 1", "disk 1", "send 1", "link 0", "receive 2", "disk 2"],
        ),
        (HostChain("q", 0, (0, 0, 2), ((), (0,))), ["disk 0", "send 0", "link 0", "receive 2", "disk 2"]),
        (HostChain("q", 0, (3, 0), ((1,),), TransferKind.READ), ["disk 3", "send 3", "link 1", "receive 0"]),
        (HostChain("q", 0, (0, 0), ((),), TransferKind.READ), ["disk 0"]),
        (HostChain("q", 0, (3, 0), ((1,),), TransferKind.COPY), ["disk 3", "send 3", "link 1", "receive 0", "disk 0"]),
    ],
    ids=["write", "on the writer", "read", "own disk", "copy"],
)
def test_what_a_chain_takes(chain: HostChain, units: list[str]) -> None:
    """Each kind: which sends, receives, disks and links; a host sends nothing to itself."""
    assert sorted(f"{resource} {number}" for resource, number in demands(chain)) == sorted(units)
    residual = Residual.full(small())
    before = everything(residual)
    residual.take(chain)
    assert sum(map(sum, before)) - sum(map(sum, everything(residual))) == len(units)
    residual.give(chain)
    assert everything(residual) == before


@given(data=st.data(), seed=seeds)
@settings(max_examples=settings().max_examples // 3)
def test_nothing_is_taken_that_is_not_there(data: st.DataObject, seed: int) -> None:
    """With one unit missing a chain is refused, with the resource named, and the residual is as it was."""
    topology = data.draw(st.one_of(rack_trees(), deep_trees(), graphs()))
    residual = Residual.full(topology)
    plan = PaperPlanner(topology).plan(data.draw(requests_for(topology)), residual, Random(seed))
    for chain in plan.chains:
        residual.give(chain)
        resource, number = data.draw(st.sampled_from(sorted(demands(chain))))
        kept = int(residual.counts(resource)[number])
        residual.counts(resource)[number] = sum(unit == (resource, number) for unit in demands(chain)) - 1
        before = everything(residual)
        with pytest.raises(PlanInvalid, match=f"of '{chain.request}': no {resource} left at {number}"):
            residual.take(chain)
        assert everything(residual) == before
        residual.counts(resource)[number] = kept
    assert everything(residual) == everything(Residual.full(topology))


def test_a_copy_is_independent() -> None:
    """What is taken from a copy is still in the original."""
    residual = Residual.full(small())
    residual.copy().take(HostChain("q", 0, (0, 1), ((),)))
    assert everything(residual) == everything(Residual.full(small()))


def test_a_lost_host() -> None:
    """Nothing is sent from it or to it, nothing read from its disk."""
    topology = racks([2, 2], 5)
    residual = Residual.full(topology)
    residual.without(1)
    planner = PaperPlanner(topology)
    assert planner.chain(Request("q", 0, 1, default_placement(1)), 0, residual, Random(0)) is None
    assert planner.chain(Request("q", 1, 1, default_placement(2)), 0, residual, Random(0)) is None
    assert planner.chain(Request("q", 0, 1, (), TransferKind.READ, ((1,),)), 0, residual, Random(0)) is None
    assert planner.chain(Request("q", 1, 1, (), TransferKind.READ, ((1,),)), 0, residual, Random(0)) is None


@given(data=st.data(), done=st.integers(0, 3))
@settings(max_examples=settings().max_examples // 2)
def test_the_rest_of_a_request(data: st.DataObject, done: int) -> None:
    """What is left keeps its numbers and its sources, also when it is cut again."""
    request = data.draw(requests_for(small(), max_requests=1))[0]
    done = min(done, request.chunks)
    rest = request.rest(done)
    assert rest.chunks == request.chunks - done
    assert [rest.number(n) for n in range(rest.chunks)] == [request.number(done + n) for n in range(rest.chunks)]
    assert rest.sources == request.sources[done:]
    assert rest.rest(0) == rest
    if rest.chunks > 1:
        assert rest.rest(1) == request.rest(done + 1)
