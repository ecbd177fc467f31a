"""The states of a request and of a chunk of a request, and the events that change them.

Invariants:
* REQUEST_TRANSITIONS and CHUNK_TRANSITIONS list every allowed step; any other step is a defect and raises at once.
* FINISHED, CANCELLED and FAILED have no steps: a request that ended stays as it ended.
* The values of the states are stored (`RequestRecord.state`, `ChunkRecord.state`) and never change.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class RequestState(StrEnum):
    """The state of a request; the last three are final."""

    WAITING = "waiting"  # no chunk of the request was ever started
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self not in (RequestState.WAITING, RequestState.RUNNING)


class RequestEvent(StrEnum):
    """An event that concerns a request as a whole."""

    RESUBMIT = "resubmit"  # its writer changes the number of chunks
    START = "chunk starts"
    FINISH = "last chunk is done"
    CANCEL = "cancel"
    LOSE_WRITER = "writer is lost"
    LOSE_SOURCES = "a chunk has no source left"
    EXHAUST = "last attempt fails"


REQUEST_TRANSITIONS: Final[Mapping[tuple[RequestState, RequestEvent], RequestState]] = {
    (RequestState.WAITING, RequestEvent.RESUBMIT): RequestState.WAITING,
    (RequestState.WAITING, RequestEvent.START): RequestState.RUNNING,
    (RequestState.WAITING, RequestEvent.CANCEL): RequestState.CANCELLED,
    (RequestState.WAITING, RequestEvent.LOSE_WRITER): RequestState.CANCELLED,
    (RequestState.WAITING, RequestEvent.LOSE_SOURCES): RequestState.FAILED,
    (RequestState.RUNNING, RequestEvent.START): RequestState.RUNNING,
    (RequestState.RUNNING, RequestEvent.FINISH): RequestState.FINISHED,
    (RequestState.RUNNING, RequestEvent.CANCEL): RequestState.CANCELLED,
    (RequestState.RUNNING, RequestEvent.LOSE_WRITER): RequestState.CANCELLED,
    (RequestState.RUNNING, RequestEvent.LOSE_SOURCES): RequestState.FAILED,
    (RequestState.RUNNING, RequestEvent.EXHAUST): RequestState.FAILED,
}


class ChunkState(StrEnum):
    """The state of a chunk. A chunk without a record is waiting and was never started."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


class ChunkEvent(StrEnum):
    """An event that concerns one attempt to move a chunk."""

    START = "start"
    DONE = "done"
    FAIL = "fail"
    REVOKE = "revoke"


CHUNK_TRANSITIONS: Final[Mapping[tuple[ChunkState, ChunkEvent], ChunkState]] = {
    (ChunkState.WAITING, ChunkEvent.START): ChunkState.RUNNING,
    (ChunkState.RUNNING, ChunkEvent.DONE): ChunkState.DONE,
    (ChunkState.RUNNING, ChunkEvent.FAIL): ChunkState.WAITING,
    (ChunkState.RUNNING, ChunkEvent.REVOKE): ChunkState.WAITING,
}


def allows(state: RequestState, event: RequestEvent) -> bool:
    """Whether a request in this state takes this event."""
    return (state, event) in REQUEST_TRANSITIONS
