"""What a replicated stream keeps of batches and trims that are under way."""

from dataclasses import dataclass
from typing import NamedTuple

from logstore.format.batch import BatchHeader
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import Ticket


@dataclass(slots=True)
class WaitingBatch:
    """A checked batch, or a group, without an offset. `header`: None for a group."""

    buffer: memoryview | bytearray
    record_count: int
    header: BatchHeader | None
    ticket: AppendTicket


class SubmittedBatch(NamedTuple):
    """A batch or a group that was given to the owner."""

    base_offset: int
    next_offset: int
    size_bytes: int
    header: BatchHeader | None
    ticket: AppendTicket
    append_ms: int


class WantedTrim(NamedTuple):
    """A trim that is not registered yet."""

    offset: int
    why: str
    ticket: Ticket[int]
