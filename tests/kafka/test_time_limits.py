"""The time limit of a Produce request: an answer, and nothing that is lost or doubled."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from logstore.kafka.budgets import RequestBudget
from logstore.kafka.produce import FIRST_WITH_IDS, MIN_VERSION
from logstore.log.stream_state import AnsweredEarly, AppendResult, AppendTicket
from tests.kafka.front_driver import PRODUCE, Peer, Server, batch, decode_answer, produce_frame, serving, wait_until

IN_TIME_MS, OVER_MS = 600_000, 1


async def answer(peer: Peer, version: int = 8) -> list[Any]:
    """The partitions of the next answer."""
    _, data = await peer.answer()
    return list(decode_answer(PRODUCE, version, data).responses[0].partition_responses)


def counted(server: Server) -> tuple[int, int]:
    """Bytes of requests that are not answered, and of those that are while their batches wait."""
    requests = server.kafka._requests
    return requests.used_bytes, requests.kept_bytes


@pytest.mark.parametrize("version", [MIN_VERSION, FIRST_WITH_IDS - 1])
async def test_a_batch_that_waits_longer_than_its_request_allows_is_answered(version: int, tmp_path: Path) -> None:
    """REQUEST_TIMED_OUT, for one batch and for several, while a disk hangs; then requests behind them are answered.
    What was answered so keeps its place: sent again with its number, each batch is in the log once. Its bytes count
    until the log has it durably.
    """
    async with serving(tmp_path) as server, await server.connect() as peer, await server.connect() as other:
        server.files.gate = threading.Event()
        numbered = [batch(producer_id=5, producer_epoch=0, base_sequence=number) for number in range(2)]
        frames = [produce_frame([numbered[0]], version, limit_ms=OVER_MS)]
        frames.append(produce_frame([numbered[1], batch()], version, limit_ms=OVER_MS))
        await peer.send(*frames)
        codes = [[each.error_code for each in await answer(peer, version)] for _ in frames]
        assert codes == [[ErrorCode.request_timed_out], [ErrorCode.request_timed_out] * 2]
        unanswered, kept = counted(server)
        assert unanswered == 0
        assert kept > sum(map(len, frames))
        await peer.send(*frames)  # once more in vain: numbered ones are counted already
        assert [len(await answer(peer, version)) for _ in frames] == [1, 2]
        unanswered, kept_again = counted(server)
        assert unanswered == 0
        assert kept < kept_again < 2 * kept
        await other.send(produce_frame([numbered[0]], version, limit_ms=IN_TIME_MS))
        await other.send(produce_frame([numbered[1]], version, limit_ms=IN_TIME_MS))
        server.files.gate.set()
        found = [(await answer(other, version))[0] for _ in numbered]
        assert [(each.error_code, each.base_offset) for each in found] == [(ErrorCode.none, 0), (ErrorCode.none, 1)]
        assert server.stream.high_watermark == 2
        await wait_until(lambda: counted(server) == (0, 0))


async def test_a_client_that_wants_no_answer_is_not_held_up_by_a_batch_that_waits(tmp_path: Path) -> None:
    """Its requests have no answer, late or not; what comes behind them is answered."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        server.files.gate = threading.Event()
        await peer.send(produce_frame([batch()], acks=0, limit_ms=OVER_MS))
        await peer.send(produce_frame([batch(), batch()], acks=0, limit_ms=OVER_MS))
        await peer.send(produce_frame([batch()], limit_ms=OVER_MS, correlation_id=8))
        correlation_id, _ = await peer.answer()
        assert correlation_id == 8
        server.files.gate.set()
        assert (await peer.produce(batch())).base_offset == 3


async def test_a_batch_within_its_time_limit_waits(tmp_path: Path) -> None:
    """Neither form of a request is answered before its limit, however often the server looks; 0 or less is no limit."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        server.files.gate = threading.Event()
        await peer.send(produce_frame([batch()], limit_ms=IN_TIME_MS), produce_frame([batch(), batch()]))
        await peer.send(produce_frame([batch()], limit_ms=0), produce_frame([batch(), batch()], limit_ms=-1))
        await wait_until(lambda: server.stream.end_offset == 4)
        now_s = server.kafka._broker.clock.monotonic_s()
        for connection in server.kafka._connections:
            connection.expire(now_s + 29)
        assert counted(server)[1] == 0
        server.files.gate.set()
        assert [[each.base_offset for each in await answer(peer)] for _ in range(4)] == [[0], [1, 0], [2], [3, 1]]


def test_bytes_of_answered_requests_are_counted_apart_up_to_the_limit() -> None:
    """So what waits for members leaves room for other requests, and is bounded: what is beyond counts as unanswered.
    A batch counts once, however often it is answered, and until it has settled for good.
    """
    budget = RequestBudget(100)
    first, second, third = AppendTicket(), AppendTicket(), AppendTicket()
    for ticket, size in ((first, 60), (second, 30), (third, 20), (first, 60)):
        budget.take(size)
        budget.keep(size, [ticket])
    assert (budget.used_bytes, budget.kept_bytes) == (20, 90)
    for ticket in (third, first):
        ticket.succeed(AppendResult(0, 0, duplicate=False))
    assert (budget.used_bytes, budget.kept_bytes) == (0, 30)
    budget.take(10)
    budget.keep(10, [first])  # it is acknowledged already
    fourth = AppendTicket()
    budget.take(40)
    budget.keep(40, [second, fourth, AppendTicket.succeeded(AppendResult(0, 0, duplicate=False))])
    assert (budget.used_bytes, budget.kept_bytes) == (0, 70)
    second.fail(OSError("disk"))
    assert budget.kept_bytes == 40
    fifth = AppendTicket()
    fourth.fail(AnsweredEarly("too few members", fifth))
    assert budget.kept_bytes == 40
    fifth.fail(OSError("disk"))
    assert (budget.used_bytes, budget.kept_bytes) == (0, 0)


def test_a_batch_that_was_answered_early_before_it_is_kept_counts() -> None:
    """Its ticket has settled already, and it stays in its stream with another: that one counts, and once."""
    budget = RequestBudget(100)
    first, second, third = AppendTicket(), AppendTicket(), AppendTicket()
    first.fail(AnsweredEarly("too few members", second))
    second.fail(AnsweredEarly("too few members", third))
    for _ in range(2):
        budget.take(60)
        budget.keep(60, [first, second])
    assert (budget.used_bytes, budget.kept_bytes) == (0, 60)
    third.succeed(AppendResult(0, 0, duplicate=False))
    assert (budget.used_bytes, budget.kept_bytes) == (0, 0)
