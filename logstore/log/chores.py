"""Disk work that belongs to nobody in particular: directories to make, trees to remove.

Invariants: chores run one after the other, in the order they came; each settles its own ticket.
"""

from collections import deque
from collections.abc import Callable, Sequence

from logstore.errors import StorageFailed
from logstore.log.jobs import Job, JobSource, Operation
from logstore.log.ticket import Ticket


class Chores:
    """A queue of operations to run."""

    def __init__(self, notify: Callable[[JobSource], None]) -> None:
        self._notify = notify
        self._waiting: deque[tuple[Sequence[Operation], Ticket[None]]] = deque()
        self._in_flight = False

    def run(self, operations: Sequence[Operation]) -> Ticket[None]:
        """Run these in order; fails with StorageFailed at the first that does."""
        ticket: Ticket[None] = Ticket()
        self._waiting.append((operations, ticket))
        self._notify(self)
        return ticket

    def take_job(self) -> Job | None:
        """The next chore, or None."""
        if self._in_flight or not self._waiting:
            return None
        self._in_flight = True
        operations, ticket = self._waiting.popleft()

        def done() -> None:
            self._next()
            ticket.succeed(None)

        def failed(operation: Operation, error: OSError) -> None:
            self._next()
            ticket.fail(StorageFailed(f"{type(operation).__name__}: {error.strerror or error}"))

        return Job(operations, done, failed)

    def _next(self) -> None:
        self._in_flight = False
        if self._waiting:
            self._notify(self)
