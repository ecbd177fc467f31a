"""Every compiled loop of a planner, run once on next to nothing: its code is loaded, or made, before a writer waits.

Making it takes some ten seconds, once for each installation; a burst that met it half loaded would wait as long.

Invariant: nothing is decided here. The planners are made for it and thrown away.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from scheduler.peace.placement import default_placement
from scheduler.peace.plan import Planner, Request, Residual
from scheduler.peace.repaired import RepairedPlanner
from scheduler.topology import Server, Topology, both_ways

_HOSTS: Final = 4
"""In each of two racks."""
_CHUNKS: Final = 3
_LOADS: Final = ((2,), (3,), (1, 2, 3))
"""Replicas of the requests of a plan, by turns: those that can be planned jointly, and a mixture."""


def warm(kind: Callable[[Topology], Planner]) -> None:
    """Run what planners of this kind run, on a network where not everything fits."""
    topology = _network()
    planner = kind(topology)
    for replicas in _LOADS:
        requests = [
            Request(server.name, number, _CHUNKS, default_placement(replicas[number % len(replicas)]))
            for number, server in enumerate(topology.servers)
        ]
        planner.plan(requests, Residual.full(topology), Random(0))  # noqa: S311 - it decides nothing
        planner.chain(requests[0], 0, Residual.full(topology), Random(0))  # noqa: S311
        if isinstance(planner, RepairedPlanner) and (demand := planner.demand(requests)) is not None:
            planner.begins(demand, Residual.full(topology))


def _network() -> Topology:
    """Two racks, with less room between them than hosts could use."""
    servers = [Server(f"r{rack}h{host}", f"r{rack}", 2, 1) for rack in range(2) for host in range(_HOSTS)]
    return Topology(servers, both_ways("r0", "r1", 2))
