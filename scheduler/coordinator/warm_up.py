"""JIT warm-up: runs every compiled loop of a planner on a tiny network before the first writer waits.

The compilation takes about half a minute, once for each installation; without the warm-up the first burst would wait
for it.

Invariants: the warm-up uses planners of its own and changes no state; a cancellation takes effect at the next pass of
the compiler. The caller waits for the end of the thread: a process must not end while the compiler works.
"""

import threading
from collections.abc import Callable
from random import Random
from typing import Any, Final

import trio
from numba.core import event

from logstore.base.events import Report
from scheduler.coordinator.log_events import WARMING
from scheduler.peace.placement import default_placement
from scheduler.peace.plan import Planner, Request, Residual
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.topology import Server, Topology, both_ways

Compiled = TreePlanner | RepairedPlanner
"""Planners with compiled code."""
_HOSTS: Final = 4
"""In each of two racks."""
_CHUNKS: Final = 3
_LOADS: Final = ((2,), (3,), (1, 2, 3))
"""The replicas of a plan's requests, in turn: equal numbers, which are planned jointly, and a mixture."""


async def warm_up_planner(planner: Planner, report: Report) -> None:
    """Have all compiled code of planners like this one, on a thread; others run meanwhile."""
    if isinstance(planner, Compiled):
        report(WARMING, planner=planner.name)
        await trio.to_thread.run_sync(warm_up, type(planner), trio.from_thread.check_cancelled)


def warm_up(kind: Callable[[Topology], Compiled], check: Callable[[], None] = lambda: None) -> None:
    """Run the compiled code of planners of this class on a network where not all chunks fit.

    `check` is called between plans and between passes of the compiler; an error that it raises ends the warm-up.
    """
    topology = _network()
    with event.install_listener("numba:run_pass", _Passes(check)):
        planner = kind(topology)
        for replicas in _LOADS:
            check()
            requests = [
                Request(server.name, number, _CHUNKS, default_placement(replicas[number % len(replicas)]))
                for number, server in enumerate(topology.servers)
            ]
            planner.plan(requests, Residual.full(topology), Random(0))  # noqa: S311 - it decides nothing
            planner.chain(requests[0], 0, Residual.full(topology), Random(0))  # noqa: S311
            if isinstance(planner, RepairedPlanner) and (demand := planner.demand(requests)) is not None:
                planner.begins(demand, Residual.full(topology))


class _Passes(event.Listener):
    """Calls `check` at the beginning of each pass of the compiler on this thread."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._thread = threading.get_ident()

    def on_start(self, event: Any) -> None:
        """Note that a pass began, on this thread or another."""
        if threading.get_ident() == self._thread:
            self._check()

    def on_end(self, event: Any) -> None:
        """Ignore the end of a pass."""


def _network() -> Topology:
    """Two racks with a link of less capacity than their hosts."""
    servers = [Server(f"r{rack}h{host}", f"r{rack}", 2, 1) for rack in range(2) for host in range(_HOSTS)]
    return Topology(servers, both_ways("r0", "r1", 2))
