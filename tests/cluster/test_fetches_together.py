"""One Fetch of partitions whose chunks other hosts have: these hosts are asked at the same time. In virtual time."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from logstore.kafka import reads_together
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.fetch import FetchPartition
from logstore.kafka.reads_together import NOTHING, TOGETHER, ReadsTogether, WantedRead
from logstore.log.read_patience import ReadPatience
from tests.cluster.test_wide_fetches import wide

SLOWEST_S = 0.14
"""Less than that which makes a host count as silent."""
ANSWER_BYTES = 64 << 20


async def test_a_fetch_takes_the_time_of_its_slowest_host(autojump_clock: Any) -> None:
    """Each partition is on another host, and all of these hosts are slow; the answer has all of them, in order."""
    async with wide(TOGETHER) as at:
        for number in range(TOGETHER):
            at.put(number, f"h{number}")
            at.delay_s[f"h{number}"] = SLOWEST_S * (number + 1) / TOGETHER
        errors, found, took_s = await at.fetch()
        assert (set(errors), found) == ({0}, list(range(TOGETHER)))
        assert took_s == pytest.approx(SLOWEST_S)


async def test_a_fetch_asks_few_hosts_at_a_time(autojump_clock: Any) -> None:
    """Of very many partitions, TOGETHER are asked for at a time, and that all the time."""
    async with wide(10 * TOGETHER) as at:
        at.delay_s = dict.fromkeys(at.delay_s, 0.01)
        errors, found, took_s = await at.fetch()
        assert (set(errors), found) == ({0}, list(range(10 * TOGETHER)))
        assert at.most_owing == TOGETHER
        assert took_s == pytest.approx(10 * 0.01)


async def test_a_fetch_waits_no_longer_than_its_client_for_many_slow_hosts(autojump_clock: Any) -> None:
    """Reads that wait at the same time use up what the client waits once, and no more of them are begun then."""
    async with wide(10 * TOGETHER) as at:
        at.delay_s = dict.fromkeys(at.delay_s, SLOWEST_S)
        errors, found, took_s = await at.fetch(max_wait_s=0.3)
        assert set(errors) == {0}
        assert found == list(range(2 * TOGETHER))
        assert took_s <= 0.3 + 0.001


@pytest.mark.parametrize("seed", range(20))
async def test_an_answer_is_the_one_of_reads_in_turn(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Byte for byte, with batches and limits of any size: also where the first batch is larger than all limits, where
    an offset is not there, and where the answer is full before its last partition.
    """
    random = Random(seed)
    sizes = [[random.choice((10, 300, 2_000)) for _ in range(random.randrange(5))] for _ in range(12)]
    async with wide(12, lambda number: [bytes(size) for size in sizes[number]]) as at:
        partitions = [
            FetchPartition(number, -1, random.randrange(6), random.choice((0, 1, 400, 3_000, 1 << 20)))
            for number in range(12)
        ]
        max_bytes = random.choice((0, 500, 5_000, 16 << 20))
        budget_bytes = random.choice((1 << 18, ANSWER_BYTES))
        bodies: list[bytes] = []
        for together in (0, TOGETHER):
            monkeypatch.setattr(reads_together, "TOGETHER", together)
            answers = AnswerBudget(budget_bytes)
            bodies.append(await at.ask(partitions, answers, max_bytes=max_bytes))
        assert bodies[0] == bodies[1]


async def test_a_fetch_that_is_cancelled_leaves_nothing_behind(autojump_clock: Any) -> None:
    """No question, no place among the reads, and no byte of the budget."""
    async with wide(3 * TOGETHER) as at:
        at.delay_s = dict.fromkeys(at.delay_s, 0.1)
        answers = AnswerBudget(ANSWER_BYTES)
        with trio.move_on_after(0.15) as scope:
            await at.ask([FetchPartition(number, -1, 0, 1 << 20) for number in range(3 * TOGETHER)], answers)
        assert scope.cancelled_caught
        assert at.asked == 2 * TOGETHER
        assert (answers.free_bytes, at.reads._questions, at.reads._limiter.borrowed_tokens) == (ANSWER_BYTES, {}, 0)


async def test_reads_begin_only_within_the_bytes_that_are_left(autojump_clock: Any) -> None:
    """A read behind places that may need all that is left waits for its turn, wherever these places are read."""
    begun: list[int] = []

    async def read(number: int) -> int:
        begun.append(number)
        await trio.sleep(1)
        return number

    wanted = [WantedRead(40, True), WantedRead(40, False), NOTHING, WantedRead(40, True), WantedRead(10, True)]
    async with trio.open_nursery() as nursery:
        together = ReadsTogether(nursery, wanted, read)
        assert (await together.take(0, 100), sorted(begun)) == (0, [0])
        assert await together.take(1, 90) is None
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(begun) == [0, 3, 4]
        assert [await together.take(number, 50) for number in (2, 3, 4)] == [None, 3, 4]


def test_time_in_which_several_reads_wait_counts_once() -> None:
    """Whatever the order in which they begin and end; nothing counts while none waits."""
    patience = ReadPatience(10.0)
    for at_s, step in ((1, "begin"), (2, "begin"), (3, "begin"), (4, "end"), (6, "end"), (9, "end")):
        getattr(patience, step)(100.0 + at_s)
        assert patience.left_at(100.0 + at_s) == pytest.approx(10.0 - (at_s - 1))
    assert patience.left_at(200.0) == patience.left_s == pytest.approx(2.0)
    patience.begin(300.0)
    assert patience.left_at(301.0) == pytest.approx(1.0)
    patience.end(400.0)
    assert patience.left_s == 0.0
