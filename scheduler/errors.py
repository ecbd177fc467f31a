"""Every error the scheduler raises on purpose, under one root. Messages name the offending value and what to do."""

from logstore.base.errors import CairnError


class SchedulerError(CairnError):
    """Root of all errors of the scheduler."""


class TopologyError(SchedulerError):
    """A description of a network that contradicts itself; the message names the entry."""


class PlacementError(SchedulerError):
    """A placement that no network can satisfy, or a text that is none."""


class RequestError(SchedulerError):
    """A request that names what is not there, or asks for what cannot be; `field` is the one to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class PlanInvalid(SchedulerError):
    """A plan that breaks a promise (capacities, distinct hosts, placement, chains): a bug of a planner."""
