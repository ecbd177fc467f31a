"""Requests that have no path at all while some hosts are lost: they leave the head of the queue to the next.

Invariants:
* A stranded unit keeps its rank. It is tried again when a host is back and, a few at an event, while nothing is in
  flight: a planner's random dead end must not strand it for ever.
"""

from collections.abc import Callable
from random import Random

from scheduler.peace.online.jobs import Unit
from scheduler.peace.online.line import Line
from scheduler.peace.plan import Chain, Planner, Request, Residual

Launch = Callable[[Unit, Chain], None]
"""Start the next chunk of this unit on this chain (whose own chunk number does not count)."""

TRIES = 32
"""A planner may run into a dead end by chance; after so many in an empty network, there is no path."""
_AT_ONCE = 4
_PURGE_AT = 1024
"""So many are kept before those that wait no more are looked for."""


class Stranded:
    """Units that are out of the line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._units: list[Unit] = []
        self._purge_at = _PURGE_AT

    def add(self, unit: Unit) -> None:
        """The unit has no path: it does not count for the line."""
        unit.stranded = True
        if len(self._units) >= self._purge_at:
            self._units = [each for each in self._units if each in each.job.units and each.waiting]
            self._purge_at = max(_PURGE_AT, 2 * len(self._units))
        self._units.append(unit)
        if unit.job.stranded:
            self._line.put(unit.job, 0)

    def again(self) -> None:
        """A host is back: all are worth a try."""
        self._back(len(self._units))

    def some_again(self) -> None:
        """Nothing is in flight: some are worth a try."""
        self._back(_AT_ONCE)

    def _back(self, most: int) -> None:
        again, self._units = self._units[:most], self._units[most:]
        for unit in again:
            unit.stranded = False
            if unit in unit.job.units:
                self._line.put(unit.job, unit.job.waiting)


def find(planner: Planner, unit: Unit, residual: Residual, random: Random, tries: int) -> Chain | None:
    """A chain for the unit's next chunk, taken from `residual`; through suspects if there is no other."""
    for way in ways(unit):
        chain = search(planner, way, residual, random, tries)
        if chain is not None:
            return chain
    return None


def ways(unit: Unit) -> tuple[Request, ...]:
    """What to ask a planner for: around suspects, and only then through them."""
    return (unit.request,) if unit.last_resort is unit.request else (unit.request, unit.last_resort)


def search(planner: Planner, request: Request, residual: Residual, random: Random, tries: int) -> Chain | None:
    """A chain for the request's first chunk, taken from `residual`."""
    for _ in range(tries):
        chain = planner.chain(request, 0, residual, random)
        if chain is not None:
            return chain
    return None
