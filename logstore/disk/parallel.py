"""Applies work to many items on several threads, in their order.

Invariants: results come in the order of the items; the first error of any item is raised, and items that have not begun
by then are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS: Final = 8
"""For work that waits for syncs: as many as a sidecar has writers."""
PIECE: Final = 16
"""Items that a thread takes at a time."""


def map_on_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Like `map`."""
    pieces = [items[at : at + PIECE] for at in range(0, len(items), PIECE)]
    if len(pieces) <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(THREADS, thread_name_prefix="cairn-recovery") as threads:
        running = [threads.submit(_all_of, work, piece) for piece in pieces]
        try:
            for future in running:
                yield from future.result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)


def _all_of(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [work(item) for item in items]
