"""Runs jobs concurrently; expected errors are raised as they are, not in exception groups.

Invariant: when these functions return or raise, none of their jobs is left running.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import trio

from logstore.base.errors import CairnError

T = TypeVar("T")
EXPECTED: Final = (CairnError, OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


async def together(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """All jobs at once; their results in order. The first expected error cancels the others and is raised."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    async with trio.open_nursery() as nursery:

        async def run(number: int, job: Callable[[], Awaitable[T]]) -> None:
            try:
                results[number] = await job()
            except EXPECTED as error:
                errors.append(error)
                nursery.cancel_scope.cancel()

        for number, job in enumerate(jobs):
            nursery.start_soon(run, number, job)
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(jobs))]


async def first_of(*jobs: Callable[[], Awaitable[T]]) -> T:
    """The result, or the expected error, of the job that ends first; the others are cancelled."""
    results: list[T] = []
    errors: list[BaseException] = []
    async with trio.open_nursery() as nursery:

        async def run(job: Callable[[], Awaitable[T]]) -> None:
            try:
                result = await job()
            except EXPECTED as error:
                errors.append(error)
            else:
                results.append(result)
            nursery.cancel_scope.cancel()

        for job in jobs:
            nursery.start_soon(run, job)
    if results:
        return results[0]
    raise errors[0]
