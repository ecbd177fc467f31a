"""The ranked queue against a sorted list."""

from random import Random

import pytest

from scheduler.peace.online.jobs import Rank, TransferJob
from scheduler.peace.online.ranked_queue import RankedQueue
from scheduler.peace.plan import TransferKind


@pytest.mark.parametrize("seed", range(3))
def test_line_counts_what_is_ahead(seed: int) -> None:
    """Through insertions, changes and removals: the first, the order, and what is ahead of every rank."""
    random, queue = Random(seed), RankedQueue()
    jobs: dict[Rank, tuple[TransferJob, int]] = {}
    for number in range(1500):
        if jobs and random.random() < 0.4:
            rank = random.choice(sorted(jobs))
            job = jobs[rank][0]
            chunks = random.choice([0, 0, 3])
        else:
            job = TransferJob(f"q{number}", TransferKind.WRITE, 0, ((),), 1)
            job.rank = rank = (random.randrange(100), number)
            chunks = random.randrange(3)
        queue.put(job, chunks)
        jobs.pop(rank, None)
        if chunks:
            jobs[rank] = (job, chunks)
        if number % 50 == 0:
            order = sorted(jobs)
            assert [each.rank for each in queue] == order
            assert len(queue) == len(order)
            assert (queue.first.rank if queue.first else None) == (order[0] if order else None)
            probe = (random.randrange(100), random.randrange(1500))
            assert queue.ahead(probe) == (
                sum(rank < probe for rank in order),
                sum(jobs[rank][1] for rank in order if rank < probe),
            )
