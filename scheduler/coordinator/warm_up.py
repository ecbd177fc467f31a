"""JIT warm-up: runs every compiled loop of a planner on a tiny network before the first writer waits.

The compilation takes about half a minute, once for each installation; without the warm-up the first burst would wait
for it. `python -m scheduler.coordinator.warm_up PLANNER` does it for those who load what it keeps (`compiling`).

Invariants: the warm-up uses planners of its own and changes no state; a cancellation takes effect at the next pass of
the compiler. The caller waits for the end of the thread: a process must not end while the compiler works. Code that was
not kept on disk is compiled by a process of its own: a compiler that has worked holds 250 MB until its process ends.
What a compiler that has not worked was read from its file for is given back.
"""

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any, Final

import trio
from numba.core import event

from logstore.base.events import Report
from logstore.base.heap import give_back_code
from scheduler.coordinator.compiling import NOT_KEPT, compile_ahead
from scheduler.coordinator.log_events import WARMING
from scheduler.coordinator.planners import PLANNERS
from scheduler.peace import levels_kernels, repaired_kernels, tree_kernels
from scheduler.peace.placement import default_placement
from scheduler.peace.plan import Planner, Request, Residual
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.topology import Server, Topology, both_ways

Compiled = TreePlanner | RepairedPlanner
"""Planners with compiled code."""
COMPILER: Final = "libllvmlite"
"""The file of the compiler: 40 MB of its code are in memory when it has loaded what was kept, and are not run again."""
_HOSTS: Final = 4
"""In each of two racks."""
_CHUNKS: Final = 3
_LOADS: Final = ((2,), (3,), (1, 2, 3))
"""The replicas of a plan's requests, in turn: equal numbers, which are planned jointly, and a mixture."""


class _NotKept(Exception):
    """Something must be compiled."""


async def warm_up_planner(planner: Planner, report: Report) -> None:
    """Have all compiled code of planners like this one, on a thread; others run meanwhile."""
    if isinstance(planner, Compiled):
        report(WARMING, planner=planner.name)
        kind = type(planner)
        if not await trio.to_thread.run_sync(load_kept, kind, trio.from_thread.check_cancelled):
            await compile_ahead(planner.name)
            await trio.to_thread.run_sync(warm_up, kind, trio.from_thread.check_cancelled)
        await trio.to_thread.run_sync(give_back_code, COMPILER)


def load_kept(kind: Callable[[Topology], Compiled], check: Callable[[], None] = lambda: None) -> bool:
    """Load the compiled code of planners of this class from where it is kept; False: some is not kept there.

    `check` is called now and then, as in `warm_up`.
    """

    def refuse() -> None:
        raise _NotKept

    try:
        warm_up(kind, check, refuse)
    except _NotKept:
        return False
    return True


def warm_up(
    kind: Callable[[Topology], Compiled],
    check: Callable[[], None] = lambda: None,
    check_pass: Callable[[], None] | None = None,
) -> None:
    """Run the compiled code of planners of this class on a network where not all chunks fit.

    `check` is called between plans, and `check_pass` (without it, `check`) before each pass of the compiler; an error
    that they raise ends the warm-up.
    """
    topology = _network()
    with event.install_listener("numba:run_pass", _Passes(check_pass or check)):
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


def is_kept() -> bool:
    """Whether all code that this process has compiled is on disk, where other processes find it."""
    kernels = [
        kernel for module in (levels_kernels, repaired_kernels, tree_kernels) for kernel in vars(module).values()
    ]
    return all(kernel.stats.cache_path is not None for kernel in kernels if getattr(kernel, "signatures", ()))


def main(planner: str) -> int:
    """The program: compile; returns the exit status."""
    module, kind = PLANNERS[planner]
    warm_up(getattr(import_module(module), kind))
    return 0 if is_kept() else NOT_KEPT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
