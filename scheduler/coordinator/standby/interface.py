"""What a host that stands by is given, and what it loads by name when it leads.

Invariant: nothing that plans is loaded for these types.
"""

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.base.clock import Clock
from logstore.base.events import Report
from scheduler.topology import Topology

if TYPE_CHECKING:
    from scheduler.coordinator.service import CoordinatorSettings

MAX_REMEMBERED: Final = 1_000
"""Requests that are over: a takeover reads them too, some 8 MB with 20 chunks each."""


class StandbyEnvironment(NamedTuple):
    """A host's dependencies: the network, a clock, a random generator, a receiver of reports."""

    topology: Topology
    clock: Clock
    random: Random
    report: Report


class StandbyPlanning(NamedTuple):
    """How a host plans that leads. `planner`: see `planner_name`. `settings`: None for the usual ones."""

    planner: str | None = None
    settings: "CoordinatorSettings | None" = None
