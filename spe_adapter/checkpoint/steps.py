"""The steps of one checkpoint, as a table.

Invariants:
* Pages are frozen in FROZEN and WRITING only: whoever waits for a plan holds no page.
* From COMPLETE on the checkpoint can be recovered, whatever becomes of the rest.

Source: SGuard, section 3 (the five steps), section 5 (told to wait: release the freeze, freeze anew at the go).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from logstore.base.states import following


class CheckpointState(Enum):
    """How far a checkpoint is."""

    NOTED = "noted"
    """The positions of the unit are to be noted with the next freeze."""
    FROZEN = "frozen"
    WAITING = "waiting"
    """Peace told to wait; nothing is frozen."""
    WRITING = "writing"
    COMPLETE = "complete"
    """The manifest is written."""
    REGISTERED = "registered"
    ACKNOWLEDGED = "acknowledged"
    """The owner knows, and may let go of what the checkpoint covers."""
    SKIPPED = "skipped"
    """There was no version to freeze."""
    FAILED = "failed"


class CheckpointEvent(Enum):
    """What happens to a checkpoint."""

    FREEZE = "freeze"
    NO_VERSION = "no version"
    TOLD_TO_WAIT = "told to wait"
    GO = "go"
    START = "start writing"
    SEAL = "manifest written"
    REGISTER = "registered"
    ACKNOWLEDGE = "acknowledged"
    FAIL = "fail"


_S, _E = CheckpointState, CheckpointEvent
TRANSITIONS: Final[Mapping[tuple[CheckpointState, CheckpointEvent], CheckpointState]] = {
    (_S.NOTED, _E.FREEZE): _S.FROZEN,
    (_S.NOTED, _E.NO_VERSION): _S.SKIPPED,
    (_S.FROZEN, _E.TOLD_TO_WAIT): _S.WAITING,
    (_S.WAITING, _E.GO): _S.NOTED,
    (_S.FROZEN, _E.START): _S.WRITING,
    (_S.WRITING, _E.SEAL): _S.COMPLETE,
    (_S.COMPLETE, _E.REGISTER): _S.REGISTERED,
    (_S.REGISTERED, _E.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.NOTED, _E.FAIL): _S.FAILED,
    (_S.FROZEN, _E.FAIL): _S.FAILED,
    (_S.WRITING, _E.FAIL): _S.FAILED,
}
IS_COMPLETE: Final = frozenset({_S.COMPLETE, _S.REGISTERED, _S.ACKNOWLEDGED})
"""The states of a checkpoint that can be recovered."""


class CheckpointSteps:
    """The state of one checkpoint."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.state = CheckpointState.NOTED

    def move(self, event: CheckpointEvent) -> None:
        """Take a step. Raises AssertionError for one that the table does not have."""
        self.state = following(TRANSITIONS, self.state, event, self._owner)
