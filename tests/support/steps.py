"""A table of transitions that notes the steps which the code takes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class RecordedSteps(dict[tuple[State, Event], State]):
    """A copy of a table; `taken` are the steps that were looked up, allowed or not."""

    def __init__(self, table: Mapping[tuple[State, Event], State]) -> None:
        super().__init__(table)
        self.taken: set[tuple[State, Event]] = set()

    def get(self, step: tuple[State, Event], default: State | None = None) -> State | None:  # type: ignore[override]
        """The state that follows."""
        self.taken.add(step)
        return super().get(step, default)
