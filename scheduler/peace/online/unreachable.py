"""Units without a path while some hosts are lost: the head of the queue is the first unit that is not among them.

Invariants:
* An unreachable unit keeps its rank. All are tried again when a host is back. As a planner may miss a path by chance,
  some are tried again at every event, in turn; a unit for which a path is found returns to the queue.
* A unit that has left the queue is not kept here.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from random import Random

from scheduler.peace.online.jobs import ChunkUnit, TransferJob
from scheduler.peace.online.ranked_queue import RankedQueue
from scheduler.peace.plan import HostChain, Planner, Request, Residual

Launch = Callable[[ChunkUnit, HostChain], None]
"""Start the next chunk of this unit on this chain (whose own chunk number does not count)."""

TRIES = 32
"""A planner may fail by chance; after this many tries in an idle network, the unit counts as unreachable."""
_AT_ONCE, _TRIES_IDLE = 4, 8
"""Units tried again at an event that leaves nothing in flight, and tries for each; at other events one unit, once."""


class UnreachableUnits:
    """The unreachable units, in the order of their last try. `whole`: the idle network without lost hosts."""

    def __init__(self, queue: RankedQueue, planner: Planner, random: Random, whole: Residual) -> None:
        self._queue = queue
        self._planner = planner
        self._random = random
        self._whole = whole
        self._units: dict[ChunkUnit, None] = {}

    def add(self, unit: ChunkUnit) -> None:
        """The unit has no path: its chunks no longer count in the queue."""
        unit.unreachable = True
        self._units[unit] = None
        self._queue.put(unit.job, unit.job.counted)

    def jobs(self) -> set[TransferJob]:
        """The jobs of the unreachable units."""
        return {unit.job for unit in self._units}

    def leave(self, units: Iterable[ChunkUnit]) -> None:
        """Forget units that no longer wait."""
        for unit in units:
            self._units.pop(unit, None)

    def retry_all(self) -> None:
        """Return all units to the queue: a host is back."""
        for unit in list(self._units):
            self._back(unit)

    def retry_some(self, *, idle: bool) -> list[ChunkUnit]:
        """Try a few units again, more if the network is `idle`; returns those that are back in the queue."""
        returned = []
        max_units, tries = (_AT_ONCE, _TRIES_IDLE) if idle else (1, 1)
        for unit in list(islice(self._units, max_units)):
            del self._units[unit]
            if unit.waiting:
                chain = find(self._planner, unit, self._whole, self._random, tries)
                if chain is None:
                    self._units[unit] = None
                    continue
                self._whole.give(chain)
            self._back(unit)
            returned.append(unit)
        return returned

    def _back(self, unit: ChunkUnit) -> None:
        self._units.pop(unit, None)
        unit.unreachable = False
        self._queue.put(unit.job, unit.job.counted)


def find(planner: Planner, unit: ChunkUnit, residual: Residual, random: Random, tries: int) -> HostChain | None:
    """A chain for the unit's next chunk, taken from `residual`; through suspects if there is no other."""
    for way in ways(unit):
        chain = search(planner, way, residual, random, tries)
        if chain is not None:
            return chain
    return None


def ways(unit: ChunkUnit) -> tuple[Request, ...]:
    """The requests to the planner: first without suspects, then with them."""
    return (unit.request,) if unit.last_resort is unit.request else (unit.request, unit.last_resort)


def search(planner: Planner, request: Request, residual: Residual, random: Random, tries: int) -> HostChain | None:
    """A chain for the request's first chunk, taken from `residual`."""
    for _ in range(tries):
        chain = planner.chain(request, 0, residual, random)
        if chain is not None:
            return chain
    return None
