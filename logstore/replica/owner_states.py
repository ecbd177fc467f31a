"""The life of a stream's owner as a table: what moves it from one state to another.

Invariant: a step that is not in the table is a defect and raises at once (`logstore.base.states`). DEPOSED is final.
"""

from enum import Enum
from typing import Final


class OwnerState(Enum):
    """The life of an owner."""

    IDLE = "idle"
    READING = "reading"
    CLAIMING = "claiming"
    FENCING = "fencing"
    SEALING = "sealing"
    RESTORING = "restoring"
    OPENING = "opening"
    APPENDING = "appending"
    ROLLING = "rolling"
    DEPOSED = "deposed"


class OwnerEvent(Enum):
    """What moves an owner to another state."""

    START = "start"
    READ = "registration read"
    CLAIMED = "claimed, a chunk is open"
    CLAIMED_CLOSED = "claimed, no chunk is open"
    FENCED = "members fenced"
    SEALED = "chunk sealed"
    OPEN = "enough copies"
    OPENED = "chunk opened"
    ROLL = "member failed, or chunk full"
    ROLLED = "next chunk opened"
    OVERTAKEN = "newer owner"


TRANSITIONS: Final = {
    (OwnerState.IDLE, OwnerEvent.START): OwnerState.READING,
    (OwnerState.READING, OwnerEvent.READ): OwnerState.CLAIMING,
    (OwnerState.CLAIMING, OwnerEvent.CLAIMED): OwnerState.FENCING,
    (OwnerState.CLAIMING, OwnerEvent.CLAIMED_CLOSED): OwnerState.RESTORING,
    (OwnerState.FENCING, OwnerEvent.FENCED): OwnerState.SEALING,
    (OwnerState.SEALING, OwnerEvent.SEALED): OwnerState.RESTORING,
    (OwnerState.RESTORING, OwnerEvent.OPEN): OwnerState.OPENING,
    (OwnerState.OPENING, OwnerEvent.OPENED): OwnerState.APPENDING,
    (OwnerState.APPENDING, OwnerEvent.ROLL): OwnerState.ROLLING,
    (OwnerState.ROLLING, OwnerEvent.ROLLED): OwnerState.APPENDING,
    (OwnerState.CLAIMING, OwnerEvent.OVERTAKEN): OwnerState.DEPOSED,
    (OwnerState.FENCING, OwnerEvent.OVERTAKEN): OwnerState.DEPOSED,
    (OwnerState.SEALING, OwnerEvent.OVERTAKEN): OwnerState.DEPOSED,
    (OwnerState.RESTORING, OwnerEvent.OVERTAKEN): OwnerState.DEPOSED,
    (OwnerState.OPENING, OwnerEvent.OVERTAKEN): OwnerState.DEPOSED,
    (OwnerState.APPENDING, OwnerEvent.OVERTAKEN): OwnerState.DEPOSED,
    (OwnerState.ROLLING, OwnerEvent.OVERTAKEN): OwnerState.DEPOSED,
}

TAKING: Final = (OwnerState.APPENDING, OwnerState.ROLLING)
"""States in which batches are taken."""
