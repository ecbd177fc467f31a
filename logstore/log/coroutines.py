"""Straight-line code over tickets: coroutines that await tickets and nothing else, run without an event loop.

Invariants:
* A coroutine resumes as soon as the ticket it awaits settles, inside the call that settles it, and before callbacks
  that were added later. A ticket that has already settled does not suspend it.
* A coroutine ends with a result or with a CairnError; any other exception is a defect and propagates to the call that
  resumed it.
* Coroutines are never cancelled. When a sidecar has ended, its suspended coroutines are garbage-collected, which runs
  their `finally` blocks: coroutines here have none, so that code of a former life cannot act in the next.

This module imports no event loop: writer threads, a simulated disk and tests drive the same code.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from logstore.errors import CairnError
from logstore.log.ticket import Ticket

Item = TypeVar("Item")
T = TypeVar("T")


def start(coroutine: Coroutine[Any, Any, T]) -> Ticket[T]:
    """Run a coroutine up to the first unsettled ticket; the returned ticket settles when the coroutine ends."""
    outcome: Ticket[T] = Ticket()

    def resume(_settled: "Ticket[Any] | None") -> None:  # quoted, or it is made anew in each call
        failure: CairnError | None = None
        try:
            awaited: Ticket[Any] = coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
        except CairnError as error:
            failure = error
        else:
            awaited.add_callback(resume)
            return
        # Outside the handlers: an exception from a callback of `outcome` is not the coroutine's.
        if failure is None:
            outcome.succeed(result)
        else:
            outcome.fail(failure)

    resume(None)
    return outcome


async def all_settled(tickets: Iterable[Ticket[Any]]) -> None:
    """Wait until every ticket has settled, whether with a result or with an error."""
    for ticket in tickets:
        await ticket.settled()


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, max_in_flight: int) -> None:
    """Run `work` on each item, `max_in_flight` at a time, in the order of the items.

    After a CairnError no further item is started; the first such error is raised once all work in flight has ended.
    """
    waiting = iter(items)
    errors: list[CairnError] = []

    async def take_items() -> None:
        for item in waiting:
            try:
                await work(item)
            except CairnError as error:
                errors.append(error)
            if errors:
                return

    await all_settled([start(take_items()) for _ in range(max_in_flight)])
    if errors:
        raise errors[0]
