"""Which planners there are, and which plans on a network.

Invariant: a planner's module is loaded when a planner is made, and not before: numpy and the compiler take 80 MB.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from scheduler.coordinator.errors import StartError
from scheduler.topology import Topology

if TYPE_CHECKING:
    from scheduler.peace.plan import Planner

PLANNERS: Mapping[str, tuple[str, str]] = {
    "tree": ("scheduler.peace.tree", "TreePlanner"),
    "paper": ("scheduler.peace.paper", "PaperPlanner"),
    "repaired": ("scheduler.peace.repaired", "RepairedPlanner"),
}
"""The planners to choose from: module and class."""
COMPILED: Final = frozenset({"tree", "repaired"})
"""Those with compiled code."""


def planner_name(name: str | None, topology: Topology) -> str:
    """The planner of a network; `name` None: `repaired` on trees of switches, else `paper`. Raises StartError."""
    chosen = name or ("paper" if topology.tree is None else "repaired")
    if chosen not in PLANNERS:
        raise StartError(f"planner {chosen!r}: must be one of {', '.join(PLANNERS)}")
    return chosen


def make_planner(name: str | None, topology: Topology) -> "Planner":
    """A network's planner by name, as `planner_name` says. Raises StartError, TopologyError."""
    module, kind = PLANNERS[planner_name(name, topology)]
    make: Callable[[Topology], Planner] = getattr(import_module(module), kind)
    return make(topology)
