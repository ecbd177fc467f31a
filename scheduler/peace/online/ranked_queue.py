"""The queue: requests with waiting chunks, ordered by rank, with the number of chunks ahead of each.

Invariants:
* Entries are sorted by rank; ranks are unique.
* Each block's count is the sum of its entries' chunks; no block is empty or longer than BLOCK_ENTRIES.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from scheduler.peace.online.jobs import Rank, TransferJob

BLOCK_ENTRIES = 128
"""The entries of a block at most: the work of an insertion, and of a count within a block."""


class RankedQueue:
    """A sorted list in blocks: to add, remove or count costs the square root of its length."""

    def __init__(self) -> None:
        self._blocks: list[list[Rank]] = []
        self._counts: list[int] = []
        self._jobs: dict[Rank, tuple[TransferJob, int]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, rank: Rank) -> bool:
        return rank in self._jobs

    def __iter__(self) -> Iterator[TransferJob]:
        for block in self._blocks:
            for rank in block:
                yield self._jobs[rank][0]

    @property
    def first(self) -> TransferJob | None:
        """The job at the head."""
        return self._jobs[self._blocks[0][0]][0] if self._blocks else None

    def put(self, job: TransferJob, chunks: int) -> None:
        """Set the number of chunks that wait of a job; a job without any leaves the queue."""
        rank = job.rank
        if rank in self._jobs:
            where = self._block_of(rank)
            self._counts[where] += chunks - self._jobs[rank][1]
            if chunks:
                self._jobs[rank] = (job, chunks)
            else:
                self._remove(where, rank)
        elif chunks:
            self._insert(rank, job, chunks)

    def ahead(self, rank: Rank) -> tuple[int, int]:
        """The number of requests, and of their chunks, that go before this rank."""
        if not self._blocks:
            return 0, 0
        where = self._block_of(rank)
        block = self._blocks[where]
        place = bisect_left(block, rank)
        requests = sum(map(len, self._blocks[:where])) + place
        return requests, sum(self._counts[:where]) + sum(self._jobs[other][1] for other in block[:place])

    def _block_of(self, rank: Rank) -> int:
        low, high = 0, len(self._blocks) - 1
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle][-1] < rank:
                low = middle + 1
            else:
                high = middle
        return low

    def _insert(self, rank: Rank, job: TransferJob, chunks: int) -> None:
        self._jobs[rank] = (job, chunks)
        if not self._blocks:
            self._blocks.append([rank])
            self._counts.append(chunks)
            return
        where = self._block_of(rank)
        block = self._blocks[where]
        insort(block, rank)
        self._counts[where] += chunks
        if len(block) > BLOCK_ENTRIES:
            half = len(block) // 2
            self._blocks[where : where + 1] = [block[:half], block[half:]]
            behind = sum(self._jobs[other][1] for other in block[half:])
            self._counts[where : where + 1] = [self._counts[where] - behind, behind]

    def _remove(self, where: int, rank: Rank) -> None:
        del self._jobs[rank]
        block = self._blocks[where]
        del block[bisect_left(block, rank)]
        if not block:
            del self._blocks[where], self._counts[where]
