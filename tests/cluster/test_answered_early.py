"""What it costs to answer the batches of a stream that has too few members."""

from __future__ import annotations

import sys
from collections import deque
from types import FrameType
from typing import Any

from logstore.cluster.streams.stream_batches import SubmittedBatch, answer_early
from logstore.errors import NotEnoughReplicasAfterAppend
from logstore.format.batch import parse_header
from logstore.format.records import Record, encode_batch
from logstore.log.producers import Duplicate, ProducerTable
from logstore.log.stream_state import AppendTicket


def answered(count: int) -> int:
    """So many batches of one producer are answered, and sent again; returns the steps of the interpreter."""
    table, in_flight, steps = ProducerTable[AppendTicket](), deque[SubmittedBatch](), 0
    for number in range(count):
        batch = encode_batch([Record(0, 0, None, b"x")], producer_id=1, producer_epoch=0, base_sequence=number)
        header, ticket = parse_header(batch), AppendTicket()
        assert table.admit(header, ticket) is None
        in_flight.append(SubmittedBatch(number, number + 1, len(batch), header, ticket, -1))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before, first = sys.gettrace(), list(in_flight)
    sys.settrace(trace)
    try:
        answer_early(in_flight, (), table, "too few")
    finally:
        sys.settrace(before)
    for old, new in zip(first, in_flight, strict=True):
        assert isinstance(old.ticket.error, NotEnoughReplicasAfterAppend)
        assert not new.ticket.done
        assert new.header is not None
        assert table.admit(new.header, AppendTicket()) == Duplicate(-1, new.ticket)
    return steps


def test_many_batches_of_a_producer_are_answered_in_one_walk() -> None:
    """A client may have sent thousands in a request: the host does nothing else meanwhile."""
    assert 0 < answered(400) < 5 * answered(100)
