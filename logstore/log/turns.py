"""Changes of one thing, one after the other: each sees what the one in front of it has made durable.

Invariants: at most one change per name is under way; the others start in the order they came, each when its
predecessor has settled, whether well or not. Names do not wait for each other.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from logstore.errors import CairnError
from logstore.log.ticket import Ticket

T = TypeVar("T")


class Turns:
    """Who changes what, and who waits for it."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], bool]]] = {}

    def run(self, name: str, change: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Call `change` when it is its turn: at once if nothing is under way.

        What it raises, it raises here if it ran at once; otherwise the ticket fails with it (CairnError only).
        """
        waiting = self._waiting.get(name)
        if waiting is not None:
            ticket: Ticket[T] = Ticket()
            waiting.append(partial(self._start, name, change, ticket))
            return ticket
        ticket = change()
        if not ticket.done:
            self._waiting[name] = deque()
            ticket.add_callback(lambda _: self._next(name))
        return ticket

    def _start(self, name: str, change: Callable[[], Ticket[T]], ticket: Ticket[T]) -> bool:
        """Whether the change is under way now; if not, it is over already."""
        try:
            made = change()
        except CairnError as error:
            ticket.fail(error)
            return False
        if made.done:
            _pass_on(ticket, made)
            return False
        made.add_callback(partial(_pass_on, ticket))
        made.add_callback(lambda _: self._next(name))
        return True

    def _next(self, name: str) -> None:
        waiting = self._waiting[name]
        while waiting:
            if waiting.popleft()():
                return
        del self._waiting[name]


def _pass_on(ticket: Ticket[T], made: Ticket[T]) -> None:
    if made.error is not None:
        ticket.fail(made.error)
    else:
        ticket.succeed(made.result())
