"""What a replicated stream keeps of batches and trims that are under way, and how clients are answered early."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from logstore.format.batch import BatchHeader
from logstore.log.producers import ProducerTable
from logstore.log.stream_state import AnsweredEarly, AppendTicket
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


def answer_early(
    in_flight: deque[SubmittedBatch],
    waiting: Iterable[WaitingBatch],
    producers: ProducerTable[AppendTicket],
    reason: str,
) -> None:
    """Answer the clients of all batches that are not acknowledged with AnsweredEarly. The batches stay, and settle
    tickets that nobody waits for yet: whoever sends a batch with a producer id again gets that of the batch. Groups are
    not answered: they are not clients', and each is appended once.
    """
    fresh: dict[AppendTicket, AppendTicket] = {}
    for place, sent in enumerate(in_flight):
        if sent.header is not None:
            fresh[sent.ticket] = ticket = AppendTicket()
            in_flight[place] = sent._replace(ticket=ticket)
    for batch in waiting:
        if batch.header is not None:
            fresh[batch.ticket] = batch.ticket = AppendTicket()
    producers.replace_tickets(fresh)
    for ticket, following in fresh.items():
        ticket.fail(AnsweredEarly(reason, following))


class WantedTrim(NamedTuple):
    """A trim that is not registered yet."""

    offset: int
    why: str
    ticket: Ticket[int]
