"""The queue's line against a sorted list."""

from random import Random

import pytest

from scheduler.peace.online.jobs import Job, Rank
from scheduler.peace.online.line import Line
from scheduler.peace.plan import Kind


@pytest.mark.parametrize("seed", range(3))
def test_line_counts_what_is_ahead(seed: int) -> None:
    """Through insertions, changes and removals: the first, the order, and what is ahead of every rank."""
    random, line = Random(seed), Line()
    jobs: dict[Rank, tuple[Job, int]] = {}
    for number in range(1500):
        if jobs and random.random() < 0.4:
            rank = random.choice(sorted(jobs))
            job = jobs[rank][0]
            chunks = random.choice([0, 0, 3])
        else:
            job = Job(f"q{number}", Kind.WRITE, 0, ((),), 1)
            job.rank = rank = (random.randrange(100), number)
            chunks = random.randrange(3)
        line.put(job, chunks)
        jobs.pop(rank, None)
        if chunks:
            jobs[rank] = (job, chunks)
        if number % 50 == 0:
            order = sorted(jobs)
            assert [each.rank for each in line] == order
            assert len(line) == len(order)
            assert (line.first.rank if line.first else None) == (order[0] if order else None)
            probe = (random.randrange(100), random.randrange(1500))
            assert line.ahead(probe) == (
                sum(rank < probe for rank in order),
                sum(jobs[rank][1] for rank in order if rank < probe),
            )
