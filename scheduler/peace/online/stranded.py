"""Requests that have no path at all while some hosts are lost: they leave the head of the queue to the next.

Invariants:
* A stranded unit keeps its rank. All are tried again when a host is back. Since a planner may miss a path by chance,
  some are looked at again at every event, in turn: those that have a path even so come back.
* No unit is kept here that has left the queue.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from random import Random

from scheduler.peace.online.jobs import Job, Unit
from scheduler.peace.online.line import Line
from scheduler.peace.plan import Chain, Planner, Request, Residual

Launch = Callable[[Unit, Chain], None]
"""Start the next chunk of this unit on this chain (whose own chunk number does not count)."""

TRIES = 32
"""A planner may run into a dead end by chance; after so many in an empty network, there is no path."""
_AT_ONCE, _TRIES_IDLE = 4, 8
"""So many are looked at, with so many tries, at an event after which nothing is in flight; at others one, with one."""


class Stranded:
    """Units that are out of the line, that which was looked at longest ago first. `whole`: the network as it is."""

    def __init__(self, line: Line, planner: Planner, random: Random, whole: Residual) -> None:
        self._line = line
        self._planner = planner
        self._random = random
        self._whole = whole
        self._units: dict[Unit, None] = {}

    def add(self, unit: Unit) -> None:
        """The unit has no path: it does not count for the line."""
        unit.stranded = True
        self._units[unit] = None
        self._line.put(unit.job, unit.job.counted)

    def jobs(self) -> set[Job]:
        """The jobs of all units that are here."""
        return {unit.job for unit in self._units}

    def leave(self, units: Iterable[Unit]) -> None:
        """None of these waits any more."""
        for unit in units:
            self._units.pop(unit, None)

    def again(self) -> None:
        """A host is back: all are worth a try."""
        for unit in list(self._units):
            self._back(unit)

    def some_again(self, *, idle: bool) -> list[Unit]:
        """Those of a few that do have a path are worth a try; which these are. `idle`: nothing is in flight."""
        found = []
        most, tries = (_AT_ONCE, _TRIES_IDLE) if idle else (1, 1)
        for unit in list(islice(self._units, most)):
            del self._units[unit]
            if unit.waiting:
                chain = find(self._planner, unit, self._whole, self._random, tries)
                if chain is None:
                    self._units[unit] = None
                    continue
                self._whole.give(chain)
            self._back(unit)
            found.append(unit)
        return found

    def _back(self, unit: Unit) -> None:
        self._units.pop(unit, None)
        unit.stranded = False
        self._line.put(unit.job, unit.job.counted)


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
