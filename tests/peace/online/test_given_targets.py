"""Copies to a given host, as slots for copies of log chunks are: it takes part in the plan as its writer."""

from functools import partial
from random import Random

import pytest

from scheduler.coordinator.planners import make_planner
from scheduler.errors import RequestError
from scheduler.peace.online import Settings, Submission
from scheduler.peace.plan import TransferKind
from scheduler.topology import Server, Topology, both_ways
from tests.peace.online.test_stories import two_racks, world_of
from tests.peace.online.world import World


@pytest.mark.parametrize("planner", ["paper", "tree", "repaired"])
def test_a_copy_to_a_given_host_goes_there_alone(planner: str) -> None:
    """A copy with a target takes tokens of both disks, and waits for these rather than go to another host."""
    servers = [Server(name, "left" if name in "ab" else "right", 2, 2, 1) for name in "abcd"]
    topology = Topology(servers, both_ways("left", "right", 2), switches=["left", "right"])
    world = World(topology, partial(make_planner, planner), Settings(gather_ms=0))

    def copy(name: str, source: str, target: str) -> list[tuple[str, ...]]:
        submission = Submission(name, None, 1, 1, None, 0, TransferKind.COPY, ((source,),))
        return [go.hosts for go in world.scheduler.submit(submission, 0, target).go]

    assert copy("first", "a", "c") == [("a", "c")]
    assert copy("waits for c", "b", "c") == []
    assert copy("waits for a", "d", "a") == []
    used = {(use.resource, use.name): use.used for use in world.scheduler.status().uses}
    assert used["disk", "a"] == used["disk", "c"] == 1
    outcome = world.scheduler.done("first", 0, 1, 1)
    assert {go.hosts for go in outcome.go} == {("b", "c"), ("d", "a")}
    moved = world.scheduler.on_network(topology, make_planner(planner, topology), Random(1), (), 2)
    assert {flight.go.hosts for flight in moved.status().in_flight} == {("b", "c"), ("d", "a")}


@pytest.mark.parametrize(("target", "said"), [("a", "has the chunk already"), ("nowhere", "is not a host")])
def test_a_copy_to_a_given_host_needs_that_host(target: str, said: str) -> None:
    """A target that has the chunk, or that the network has not, is refused by name."""
    world = world_of(two_racks())
    with pytest.raises(RequestError, match=said):
        world.scheduler.submit(Submission("x", None, 1, 1, None, 0, TransferKind.COPY, (("a",),)), 0, target)
