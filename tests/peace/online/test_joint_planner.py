"""Chunks planned together: few more timesteps than there must be in a burst, and no capacity used twice."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from benchmarks.scale.bursts import burst, fewest
from benchmarks.scale.cases import irregular
from scheduler.peace.online import GATHER_MS, Mode, Settings, Submission
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.placement import default_placement
from scheduler.peace.plan import HostChain, Planner, Request, Residual, TransferKind, TransferPlan
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.peace.urgency import Urgency
from scheduler.topology import Server, Topology, racks
from tests.peace.online.world import World

MANY = 3
"""Each request has so many times the chunks of the network's own, so that there are a dozen timesteps and more."""


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
        world.check_use(world.in_flight)


class Unlucky(RepairedPlanner):
    """A planner that plans jointly, and plans nothing until it was asked for a single chain and found one."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self.has_luck = False

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> HostChain | None:
        """See Planner."""
        found = super().chain(request, chunk, residual, random)
        self.has_luck |= found is not None
        return found

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> TransferPlan:
        """See Planner."""
        return super().plan(requests, residual, random) if self.has_luck else TransferPlan(())


def test_a_chunk_planned_alone_is_not_planned_again_behind_a_stranded_one() -> None:
    """The head's first chunk has lost its path and its second is passed over by the plan: this one goes first, alone,
    and the plan for the rest of the timestep leaves out just it.
    """
    topology = racks([3, 2], 4, send=4, receive=4)
    planner = Unlucky(topology)
    world = World(topology, lambda _: planner, Settings(mode=Mode.TIMESTEPS, gather_ms=100))
    sources = (("r2h1",), ("r1h1",))
    world.submit(Submission("copy", None, 2, placement=("same-rack:0",), kind=TransferKind.COPY, sources=sources))
    world.submit(Submission("write", "r1h2", 1, placement=("anywhere",)))
    world.lose("r2h2")
    planner.has_luck = False
    assert [(go.request, go.chunk) for go in world.plan().go] == [("copy", 1), ("write", 0)]
    assert world.scheduler.unreachable() == {"copy"}
