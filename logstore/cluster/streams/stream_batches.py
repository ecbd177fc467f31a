"""What a replicated stream keeps of batches and trims that are under way, and how clients are answered early."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from logstore.errors import NotEnoughReplicasAfterAppend
from logstore.format.batch import BatchHeader
from logstore.log.producers import ProducerTable
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


def answer_early(
    in_flight: deque[SubmittedBatch],
    waiting: Iterable[WaitingBatch],
    producers: ProducerTable[AppendTicket],
    reason: str,
) -> None:
    """Answer the clients of all batches that are not acknowledged with NotEnoughReplicasAfterAppend. The batches stay,
    and settle tickets that nobody waits for yet: whoever sends a batch with a producer id again gets that of the batch.
    Groups are not answered: they are not clients', and each is appended once.
    """
    answered: list[AppendTicket] = []

    def fresh(batch: SubmittedBatch | WaitingBatch, header: BatchHeader) -> AppendTicket:
        ticket: AppendTicket = Ticket()
        if header.producer_id >= 0:
            producers.replace_ticket(header.producer_id, batch.ticket, ticket)
        answered.append(batch.ticket)
        return ticket

    for place, sent in enumerate(in_flight):
        if sent.header is not None:
            in_flight[place] = sent._replace(ticket=fresh(sent, sent.header))
    for batch in waiting:
        if batch.header is not None:
            batch.ticket = fresh(batch, batch.header)
    for ticket in answered:
        ticket.fail(NotEnoughReplicasAfterAppend(reason))


class WantedTrim(NamedTuple):
    """A trim that is not registered yet."""

    offset: int
    why: str
    ticket: Ticket[int]
