"""A result that is not available yet, without an event loop.

Invariants: a ticket settles exactly once. A callback runs at once if the ticket has settled; otherwise callbacks run in
the order they were added. Coroutines await tickets (`logstore.log.coroutines`), the trio side waits on them
(`logstore.engine`), tests drive them synchronously.
"""

import types
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Result = TypeVar("Result", covariant=True)


class TicketView(Protocol[Result]):
    """A ticket as it is for who waits: it cannot be settled, and one of a narrower result is one of a wider."""

    @property
    def done(self) -> bool:
        """Whether it has settled."""

    def add_callback(self, callback: "Callable[[TicketView[Result]], None]", /) -> None:
        """Call `callback(ticket)` once the ticket settles (now, if it has settled)."""

    def result(self) -> Result:
        """The result; raises the error the ticket settled with."""


class Ticket(Generic[T]):
    """The promise of one result of type T, or of an exception."""

    __slots__ = ("_callbacks", "_error", "_result", "done")

    def __init__(self) -> None:
        self.done = False
        self._result: Any = None  # a T, once it has settled with one
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Ticket[T]], None]] = []

    @classmethod
    def succeeded(cls, result: T) -> "Ticket[T]":
        """A ticket that has already settled with a result."""
        ticket = cls()
        ticket.succeed(result)
        return ticket

    @classmethod
    def failed(cls, error: Exception) -> "Ticket[T]":
        """A ticket that has already settled with an error."""
        ticket = cls()
        ticket.fail(error)
        return ticket

    def succeed(self, result: T) -> None:
        """Settle with a result."""
        self._result = result
        self._settle()

    def fail(self, error: Exception) -> None:
        """Settle with an error, which `result` will raise."""
        self._error = error
        self._settle()

    def _settle(self) -> None:
        if self.done:
            raise AssertionError("a ticket settles once")
        self.done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_callback(self, callback: "Callable[[Ticket[T]], None]") -> None:
        """Call `callback(ticket)` once the ticket settles (now, if it has settled)."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def remove_callback(self, callback: "Callable[[Ticket[T]], None]") -> None:
        """Do not call `callback`, which `add_callback` was given: who waited waits no more."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def __await__(self) -> Generator["Ticket[T]", None, T]:
        """The result, in a coroutine that `coroutines.start` runs; raises the error the ticket settled with."""
        if not self.done:
            yield self
        return self.result()

    @types.coroutine
    def settled(self) -> Generator["Ticket[T]", None, None]:
        """Wait until the ticket has settled, without raising its error."""
        if not self.done:
            yield self

    @property
    def error(self) -> Exception | None:
        """The error the ticket settled with, or None."""
        return self._error

    def result(self) -> T:
        """The result; raises the error the ticket settled with."""
        if not self.done:
            raise AssertionError("the ticket has not settled")
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result
