"""Serial changes: changes of one object run one after the other; each sees the durable result of the previous one.

Invariants: at most one change per name is in progress; the others start in the order of the calls, each when the
previous change has succeeded or failed. Changes of different names do not wait for each other.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from logstore.log.coroutines import start
from logstore.log.ticket import Ticket

T = TypeVar("T")
Change = Callable[[], Coroutine[Any, Any, T]]


class SerialQueue:
    """Queues of changes, one for each name."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Change[Any], Ticket[Any]]]] = {}

    def run(self, name: str, change: Change[T]) -> Ticket[T]:
        """Run `change` after the changes of that name that are waiting or in progress.

        The ticket settles with the result of the change, or fails with the CairnError it raises.
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
