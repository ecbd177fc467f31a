"""Every compiled loop of a planner, run once on next to nothing: its code is loaded, or made, before a writer waits.

Making it takes about half a minute, once for each installation; a burst that met it half loaded would wait as long.

Invariants: nothing is decided here, and the planners are made for it and thrown away; who gives it up waits for one
pass of the compiler at most. It is waited for to its end, as a process must not end beneath a compiler at work.
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
"""Replicas of the requests of a plan, by turns: those that can be planned jointly, and a mixture."""


async def warm_up_planner(planner: Planner, report: Report) -> None:
    """Have all compiled code of planners like this one, on a thread; others run meanwhile."""
    if isinstance(planner, Compiled):
        report(WARMING, planner=planner.name)
        await trio.to_thread.run_sync(warm_up, type(planner), trio.from_thread.check_cancelled)


def warm_up(kind: Callable[[Topology], Compiled], check: Callable[[], None] = lambda: None) -> None:
    """Run what planners of this kind run, on a network where not everything fits.

    `check` is called now and then, between two passes of the compiler too; what it raises ends this.
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
    """Checks at the beginning of each of the compiler's passes on this thread."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._thread = threading.get_ident()

    def on_start(self, event: Any) -> None:
        """A pass begins on some thread."""
        if threading.get_ident() == self._thread:
            self._check()

    def on_end(self, event: Any) -> None:
        """It has ended."""


def _network() -> Topology:
    """Two racks, with less room between them than hosts could use."""
    servers = [Server(f"r{rack}h{host}", f"r{rack}", 2, 1) for rack in range(2) for host in range(_HOSTS)]
    return Topology(servers, both_ways("r0", "r1", 2))
