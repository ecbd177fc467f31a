"""Plans many waiting chunks jointly: first the chunks that must start now, then as many as fit.

A chunk's chain takes slots that other chunks need, so chains that are chosen one after the other leave a part of the
network idle. A planner that sees all waiting chunks (`repaired`) avoids that. It also sees which chunks would be left
over at the end (`scheduler.peace.urgency`): those go first, and all others in the order of the queue.

Invariants:
* Planned chains are taken from the residual; no unit gets more chains than it has chunks waiting.
* Urgent chunks are counted again when a good part of the waiting chunks has started; until then the count only falls.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from scheduler.peace.online.jobs import ChunkUnit, TransferJob
from scheduler.peace.plan import HostChain, JointPlanning, Planner, Request, Residual, TransferKind
from scheduler.peace.urgency import Urgency
from scheduler.topology import Topology

_SHARE_ANEW = 64
"""Urgent chunks are counted again after this part of the waiting chunks has started."""


class JointPlanner:
    """Plans for units with a planner that plans jointly. `whole`: the network with nothing in flight."""

    def __init__(self, topology: Topology, planner: JointPlanning, random: Random, whole: Residual) -> None:
        self._planner = planner
        self._random = random
        self._whole = whole
        self._urgency = Urgency(topology, planner)
        self._urgent: dict[TransferJob, int] = {}
        self._valid_for = 0
        """The number of chunks that may start before urgent chunks are counted again."""

    @classmethod
    def of(cls, topology: Topology, planner: Planner, random: Random, whole: Residual) -> "JointPlanner | None":
        """A planner of many chunks at once; None if `planner` plans one chunk after the other."""
        return cls(topology, planner, random, whole) if isinstance(planner, JointPlanning) else None

    def invalidate(self) -> None:
        """Note that requests or the network changed, so that urgent chunks are counted again."""
        self._valid_for = 0

    def plan(
        self,
        candidates: Sequence[tuple[ChunkUnit, int]],
        queue: Iterable[TransferJob],
        left: Residual,
        first: ChunkUnit | None = None,
    ) -> list[tuple[ChunkUnit, HostChain]]:
        """Chains for these units, for at most the given number of chunks of each, taken from `left`; in service order.

        `queue`: all waiting jobs, in order. `first`: without a chain for this unit nothing is planned or taken.
        """
        if self._valid_for <= 0:
            self._count(queue)
        if first is None:
            return self._plan(candidates, left, None)
        urgent, good_for, trial = dict(self._urgent), self._valid_for, left.copy()
        planned = self._plan(candidates, trial, first)
        if not any(unit is first for unit, _ in planned):
            self._urgent, self._valid_for = urgent, good_for
            return []
        left.become(trial)
        return planned

    def _plan(
        self, candidates: Sequence[tuple[ChunkUnit, int]], left: Residual, first: ChunkUnit | None
    ) -> list[tuple[ChunkUnit, HostChain]]:
        """Plan the urgent chunks and one chunk of `first`, then the others."""
        must = [min(limit, max(self._urgent.get(unit.job, 0), int(unit is first))) for unit, limit in candidates]
        planned = self._planned([(unit, count) for (unit, _), count in zip(candidates, must, strict=True)], left)
        had = dict.fromkeys((unit for unit, _ in candidates), 0)
        for unit, _ in planned:
            had[unit] += 1
            self._urgent[unit.job] = max(0, self._urgent.get(unit.job, 0) - 1)
        planned += self._planned([(unit, limit - had[unit]) for unit, limit in candidates], left)
        self._valid_for -= len(planned)
        return planned

    def _planned(
        self, candidates: Sequence[tuple[ChunkUnit, int]], left: Residual
    ) -> list[tuple[ChunkUnit, HostChain]]:
        requests, units = list[Request](), dict[str, ChunkUnit]()
        for unit, count in candidates:
            if count > 0:
                name = str(len(requests))
                units[name] = unit
                sources = unit.request.sources * count
                requests.append(replace(unit.request, name=name, chunks=count, sources=sources, numbers=()))
        if not requests:
            return []
        plan = self._planner.plan(requests, left, self._random)
        return [(units[chain.request], chain._replace(request=units[chain.request].job.name)) for chain in plan.chains]

    def _count(self, queue: Iterable[TransferJob]) -> None:
        """Count the urgent chunks of all waiting jobs."""
        jobs = [job for job in queue if job.kind is TransferKind.WRITE and job.waiting and not job.avoid]
        requests = [Request(job.name, job.writer, job.waiting, job.placement) for job in jobs]
        counts = self._urgency.urgent(requests, self._whole) if requests else []
        self._urgent = {job: count for job, count in zip(jobs, counts, strict=True) if count}
        self._valid_for = max(1, sum(job.waiting for job in jobs) // _SHARE_ANEW)
