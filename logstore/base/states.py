"""Steps of state machines, looked up in their tables of transitions.

Invariant: a step that a table does not list is a bug, and raises before anything has changed.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def following(table: Mapping[tuple[State, Event], State], state: State, event: Event, owner: str) -> State:
    """The state that follows an event. Raises AssertionError, which names the owner, for a step outside the table."""
    after = table.get((state, event))
    if after is None:
        raise AssertionError(f"{owner}: {event.value} in state {state.value}")
    return after
