"""Changes of one thing, one after the other: each sees what the change before it has made durable.

Invariants: at most one change per name is under way; the others start in the order they came, each when the one before
has settled, whether well or not. Names do not wait for each other.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from logstore.log.coroutines import start
from logstore.log.ticket import Ticket

T = TypeVar("T")
Change = Callable[[], Coroutine[Any, Any, T]]


class SerialQueue:
    """Changes by the name of what they change."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Change[Any], Ticket[Any]]]] = {}

    def run(self, name: str, change: Change[T]) -> Ticket[T]:
        """Run `change` behind the changes of that name that are waiting or under way.

        The ticket settles with its result, or fails with the CairnError it raises.
        """
        ticket: Ticket[T] = Ticket()
        waiting = self._waiting.get(name)
        if waiting is not None:
            waiting.append((change, ticket))
        else:
            self._waiting[name] = deque([(change, ticket)])
            start(self._work(name))
        return ticket

    async def _work(self, name: str) -> None:
        waiting = self._waiting[name]
        while waiting:
            change, ticket = waiting.popleft()
            made = start(change())
            await made.settled()
            if made.error is not None:
                ticket.fail(made.error)
            else:
                ticket.succeed(made.result())
        del self._waiting[name]
