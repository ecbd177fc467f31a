"""All writers submit at once, in continuous mode: how long it takes beside what no schedule can beat.

Time is virtual, and a chunk takes its time whatever else is under way: what is measured is the plan alone.

Invariants:
* The bound holds for chunks that all take equally long; where they do not, it is that of their mean.
* Scheduler, planner and gathering are those of the coordinator's defaults, unless a caller says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

from scheduler.peace.online import EventOutcome, OnlineScheduler, Settings, Submission
from scheduler.peace.plan import Planner, Request, Residual
from scheduler.peace.repaired import RepairedPlanner
from scheduler.topology import Topology

CHUNK_MS = 1000
SUBMITTED_MS = 5
"""Submissions of uneven bursts are spread over so much."""


def burst(
    topology: Topology,
    requests: Sequence[Request],
    planner: Planner,
    gather_ms: int = 0,
    spread: float = 0.0,
    seed: int = 1,
) -> float:
    """How many times a chunk's mean duration it takes until all are done.

    `spread`: each chunk takes 1 ± spread of CHUNK_MS, at random, and submissions come over SUBMITTED_MS; 0: all chunks
    take equally long, and all submit in one moment.
    """
    scheduler = OnlineScheduler(topology, planner, Settings(gather_ms=gather_ms), Random(seed))
    random = Random(seed)
    under_way: list[tuple[float, int, tuple[str, int, int]]] = []
    started = 0

    def start(outcome: EventOutcome, now: float) -> None:
        nonlocal started
        for go in outcome.go:
            started += 1
            took = CHUNK_MS * (1 + random.uniform(-spread, spread))
            heappush(under_way, (now + took, started, (go.request, go.chunk, go.attempt)))

    waiting = list(requests)
    if spread:
        random.shuffle(waiting)
    times = [(SUBMITTED_MS * number / len(waiting) if spread else 0.0) for number in range(len(waiting))]
    for now, request in zip(times, waiting, strict=True):
        while (at_ms := scheduler.plan_at_ms) is not None and at_ms < now:
            start(scheduler.plan(at_ms), at_ms)
        name = topology.servers[request.writer].name
        submission = Submission(request.name, name, request.chunks, len(request.placement))
        start(scheduler.submit(submission, int(now)), now)
    now = times[-1]
    while True:
        at_ms = scheduler.plan_at_ms
        if at_ms is not None and (not under_way or at_ms < under_way[0][0]):
            now = float(at_ms)
            start(scheduler.plan(at_ms), now)
        elif under_way:
            now, _, attempt = heappop(under_way)
            start(scheduler.done(*attempt, int(now)), now)
        else:
            return now / CHUNK_MS


def fewest(topology: Topology, requests: Sequence[Request]) -> int:
    """No schedule of equally long chunks takes fewer times a chunk's duration."""
    planner = RepairedPlanner(topology)
    demand = planner.demand(list(requests))
    assert demand is not None, "the planner has a closed form for these requests"
    chunks, steps = sum(request.chunks for request in requests), 1
    while planner.max_chunks(demand, Residual.full(topology), steps) < chunks:
        steps += 1
    return steps
