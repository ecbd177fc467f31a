"""What it costs to answer the batches of a stream that has too few members."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from logstore.cluster.streams.stream_batches import SubmittedBatch, answer_early
from logstore.errors import NotEnoughReplicasAfterAppend
from logstore.format.batch import parse_header
from logstore.format.records import Record, encode_batch
from logstore.kafka.answers import AnswerSlot
from logstore.kafka.produce import ProduceAnswer, _Outcome
from logstore.kafka.single_batch import SingleBatch
from logstore.log.producers import Duplicate, ProducerTable
from logstore.log.stream_state import AppendTicket
from tests.cluster.test_replicated_stream import led
from tests.kafka.front_driver import PRODUCE, TOPIC, decode_answer, serving
from tests.kafka.test_single_batch import Client, a_client, request


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


def waiting_slot(client: Client, ticket: AppendTicket, *, is_single: bool) -> AnswerSlot:
    """The place of a request whose batch waits, of either form."""
    if is_single:
        slot = SingleBatch.decode(request(8))
        assert slot is not None
        slot._line, slot._ticket, slot._error, slot._message, slot._leaders = client.line, ticket, 0, None, None
        slot._meter, slot._since_s, slot._clock = client.meter, 0.0, client._server.kafka._broker.clock
        client.line.push(slot)
        ticket.add_callback(slot._note_settled)
        return slot
    answer, outcome = ProduceAnswer(8, -1), _Outcome(0)
    answer.topics.append((TOPIC, [outcome]))
    place = AnswerSlot(77, 500, answer=answer)
    client.line.push(place)
    answer.wait_for(outcome, ticket)
    answer.when_ready(lambda: client.line.mark_early(place, answer.early))
    return place


@pytest.mark.parametrize("is_single", [True, False])
async def test_bytes_of_batches_that_are_answered_early_are_counted(*, is_single: bool, tmp_path: Path) -> None:
    """Until they are acknowledged: the stream has them still."""
    front, owner = await led()
    async with serving(tmp_path) as server, a_client(server) as client:
        requests = client.line._requests
        slot = waiting_slot(client, front.append(b"0"), is_single=is_single)
        assert (requests.used_bytes, requests.kept_bytes) == (slot.size_bytes, 0)
        front.stream.short(3)
        body = (await client.answer())[8:]
        (found,) = decode_answer(PRODUCE, 8, body).responses[0].partition_responses
        assert found.error_code is ErrorCode.not_enough_replicas_after_append
        assert (requests.used_bytes, requests.kept_bytes) == (0, slot.size_bytes)
        front.stream.enough()
        owner.ack()
        assert requests.kept_bytes == 0
