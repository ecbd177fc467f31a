"""Chunks planned together: few more timesteps than there must be in a burst, and no capacity used twice."""

from collections import deque
from collections.abc import Callable
from random import Random

import pytest

from benchmarks.scale.cases import irregular
from scheduler.peace.online import GATHER_MS, Go, Mode, OnlineScheduler, Settings, Submission
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.placement import default_placement
from scheduler.peace.plan import Planner, Request, Residual
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.peace.urgency import Urgency
from scheduler.topology import Server, Topology, racks
from tests.online.world import World

CHUNK_MS = 1000
MANY = 3
"""Each request has so many times the chunks of the network's own, so that there are a dozen timesteps and more."""


def burst(topology: Topology, requests: list[Request], planner: Planner, gather_ms: int = 0) -> float:
    """How many times a chunk's duration it takes if all submit at once and all chunks take equally long."""
    scheduler = OnlineScheduler(topology, planner, Settings(gather_ms=gather_ms), Random(1))
    under_way: deque[tuple[int, Go]] = deque()
    now = 0

    def due() -> int | None:
        """The time of the plan that comes before whatever else happens."""
        at_ms = scheduler.plan_at_ms
        return at_ms if at_ms is not None and (not under_way or at_ms < under_way[0][0]) else None

    for request in requests:
        name = topology.servers[request.writer].name
        outcome = scheduler.submit(Submission(request.name, name, request.chunks, len(request.placement)), now)
        under_way += ((now + CHUNK_MS, go) for go in outcome.go)
    while under_way or due() is not None:
        if (at_ms := due()) is not None:
            now = at_ms
            outcome = scheduler.plan(now)
        else:
            now, go = under_way.popleft()
            outcome = scheduler.done(go.request, go.chunk, go.attempt, now)
        under_way += ((now + CHUNK_MS, go) for go in outcome.go)
    return now / CHUNK_MS


def fewest(topology: Topology, requests: list[Request]) -> int:
    """No schedule takes fewer timesteps."""
    planner = RepairedPlanner(topology)
    demand = planner.demand(requests)
    assert demand is not None
    chunks, steps = sum(request.chunks for request in requests), 1
    while planner.most(demand, Residual.full(topology), steps) < chunks:
        steps += 1
    return steps


@pytest.mark.parametrize("levels", [2, 3])
def test_a_burst_takes_little_longer_than_it_must(levels: int) -> None:
    """All submit at once, all chunks take equally long: over several networks 10 % above a bound that no plan beats.

    Chain by chain it takes longer than that.
    """
    totals = dict.fromkeys(("least", "together", "one by one"), 0.0)
    for seed in range(6):
        topology, own = irregular(seed, levels)
        requests = [Request(one.name, one.writer, one.chunks * MANY, one.placement) for one in own]
        totals["least"] += fewest(topology, requests)
        totals["together"] += burst(topology, requests, RepairedPlanner(topology))
        totals["one by one"] += burst(topology, requests, TreePlanner(topology))
    assert totals["together"] <= 1.1 * totals["least"], totals
    assert totals["one by one"] > 1.1 * totals["least"], totals


@pytest.mark.parametrize("levels", [2, 3])
def test_a_burst_that_is_gathered_takes_hardly_longer_than_it_must(levels: int) -> None:
    """With events gathered as the coordinator does, twelve networks take 5 % above the bound; at each event, more."""
    totals = dict.fromkeys(("least", "gathered", "each"), 0.0)
    for seed in range(12):
        topology, own = irregular(seed, levels)
        requests = [Request(one.name, one.writer, one.chunks * MANY, one.placement) for one in own]
        totals["least"] += fewest(topology, requests)
        totals["gathered"] += burst(topology, requests, RepairedPlanner(topology), GATHER_MS)
        totals["each"] += burst(topology, requests, RepairedPlanner(topology))
    assert totals["gathered"] <= 1.05 * totals["least"], totals
    assert totals["each"] > 1.05 * totals["least"], totals


def test_what_the_head_holds_is_planned_with_everything_else() -> None:
    """The head waits for a chain; when another one starts it too, what it held is no longer in the others' way."""
    topology, own = irregular(3, 2)
    requests = [Request(one.name, one.writer, one.chunks * MANY, one.placement) for one in own]
    least = fewest(topology, requests)
    assert burst(topology, requests, RepairedPlanner(topology), GATHER_MS) <= 1.03 * least


def test_who_would_be_late_goes_first() -> None:
    """A writer with as many chunks as the whole burst takes timesteps starts one in each, though it came last."""
    topology = racks([4, 4], 8, send=1, receive=4)
    planner = RepairedPlanner(topology)
    urgency = Urgency(topology, planner)
    placement = default_placement(2)
    requests = [Request("few", 0, 1, placement), Request("many", 1, 9, placement)]
    assert urgency.urgent(requests, Residual.full(topology)) == [0, 1]
    assert urgency.urgent(requests[:1], Residual.full(topology)) == [1]


@pytest.mark.parametrize("planner", [PaperPlanner, RepairedPlanner])
def test_timesteps_use_no_capacity_twice(planner: Callable[[Topology], Planner]) -> None:
    """By default a timestep is planned around the last one's stragglers: all in flight fit into the network."""
    servers = [Server(f"h{number}", "rack", 1, 2) for number in range(6)]
    world = World(Topology(servers), planner, Settings(mode=Mode.TIMESTEPS, finish_fraction=0.5))
    for number in range(6):
        world.submit(Submission(f"q{number}", f"h{number}", 4, placement=("anywhere",)))
    while world.in_flight:
        world.finish(max(world.in_flight))  # the first of each timestep lag behind
        world.check_use(list(world.in_flight.values()))
