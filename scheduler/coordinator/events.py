"""The events of a request for its writer: numbered, in order, and readable more than once.

Invariants:
* Numbers start at 1 and have no gaps; an event never changes.
* Only durable events are shown; a writer that repeats a poll after a lost answer misses no event.
* The end of a request (finished, cancelled, failed) is its last event.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from scheduler.coordinator.metadata.interface import SetValue
from scheduler.peace.online.states import RequestState

MAX_IN_ANSWER = 1000
"""The events in one answer at most; the others come with the next poll."""
ENDS = frozenset(state.value for state in RequestState if state.ended)
Event = dict[str, Any]
"""As in the interface: number, event, chunk, attempt, hosts; addresses are added in the answer."""


@dataclass(slots=True)
class RequestEvents:
    """The events of one request."""

    prefix: str
    """The prefix of the events' keys in the metadata."""
    events: list[Event] = field(default_factory=list)
    durable: int = 0
    _published: trio.Event = field(default_factory=trio.Event)
    _newest: dict[int, Event] = field(default_factory=dict)
    """The newest durable event of each chunk."""

    def add(self, event: str, chunk: int | None, attempt: int | None, hosts: Sequence[str]) -> SetValue:
        """Append an event that is not durable yet; returns the change to store."""
        number = len(self.events) + 1
        value = {"number": number, "event": event, "chunk": chunk, "attempt": attempt, "hosts": list(hosts)}
        self.events.append(value)
        return SetValue(f"{self.prefix}{number:08d}", json.dumps(value, ensure_ascii=False))

    def restore(self, values: Sequence[Event]) -> None:
        """Restore the stored events, which come in the order of their keys."""
        self.events = list(values)
        self.durable = 0
        self._newest = {}
        self._note(len(self.events))

    def publish(self, number: int) -> None:
        """Note that the events up to this number are durable, and wake the waiters."""
        if number > self.durable:
            self._note(number)
            self.wake()

    def _note(self, number: int) -> None:
        for event in self.events[self.durable : number]:
            if event["chunk"] is not None:
                self._newest[event["chunk"]] = event
        self.durable = number

    def wake(self) -> None:
        """Wake all waiters, so that they check for events again."""
        self._published.set()
        self._published = trio.Event()

    @property
    def ended(self) -> bool:
        """Whether the last event, durable or not, ends the request."""
        return bool(self.events) and self.events[-1]["event"] in ENDS

    @property
    def published_state(self) -> str:
        """The state of the request according to its durable events."""
        if not self.durable:
            return "waiting"
        last = str(self.events[self.durable - 1]["event"])
        return last if last in ENDS else "running"

    def after(self, number: int) -> list[Event]:
        """The durable events after this number."""
        return self.events[number : min(self.durable, number + MAX_IN_ANSWER)]

    async def wait_after(self, number: int) -> None:
        """Wait until there may be an event after this number."""
        if self.durable <= number and self.published_state not in ENDS:
            await self._published.wait()

    def current(self) -> list[Event]:
        """The durable gos that no later event of their chunk replaced."""
        return [event for event in self._newest.values() if event["event"] == "go"]


def with_addresses(event: Event, address: Callable[[str], str | None]) -> dict[str, Any]:
    """An event for a writer, with the present addresses of its hosts."""
    return {**event, "addresses": [address(host) for host in event["hosts"]]}
