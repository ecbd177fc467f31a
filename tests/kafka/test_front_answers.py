"""Clients that ask for much and take little: short questions with long answers, which nobody reads. Memory stays
within its bounds, and a client beside them is served.
"""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.events import CONNECTION_CLOSED
from logstore.kafka.api_types import Api, BrokerSettings, Caller
from logstore.kafka.budgets import UnsentBudget
from logstore.kafka.pace import STEPS, WALK_PARTS, Pace, collecting
from logstore.kafka.wire import respond
from tests.kafka.front_driver import METADATA, Peer, batch, kio_frame, serving
from tests.kafka.turns import counted_turns
from tests.support.limits import PATIENCE_S

MIB = 1 << 20
HOST_BYTES = 30_000
HOSTS = 600
ANSWER_BYTES = HOSTS * HOST_BYTES
"""More than a socket takes."""
FEWEST_GIVEN_UP = 8
"""Of twelve clients, where memory is for two and sockets take a part."""
SLOW_ANSWER_S = 6.0
"""The reader of this test shares the event loop; a machine with much other work does not keep it waiting so long."""


async def large_metadata(request: Any, _: Caller) -> ResponsePayload:
    """An answer of many nodes with very long names."""
    node = {"node_id": 0, "host": "h" * HOST_BYTES, "port": 1}
    return await respond(request, {"brokers": [node] * HOSTS, "topics": []})


async def test_answers_that_nobody_reads_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve clients ask for 18 MB each and read nothing: those that have taken nothing for a while lose their
    connections as soon as memory for answers is short. A client that reads, however little at a time, gets all of it.
    """
    monkeypatch.setattr(UnsentBudget, "SLOW_ANSWER_S", SLOW_ANSWER_S)
    settings = BrokerSettings(total_answer_bytes=2 * ANSWER_BYTES)
    question = kio_frame(METADATA, 1, {"topics": None})
    async with (
        serving(tmp_path, settings, apis=[Api(METADATA, 1, 1, large_metadata)]) as server,
        AsyncExitStack() as stack,
    ):
        unsent = server.kafka._answers.unsent
        reader = await stack.enter_async_context(await server.connect(receive_buffer_bytes=64 * 1024))
        await reader.send(question)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slowly_read, reader)
            for _ in range(12):
                peer = await stack.enter_async_context(await server.connect(receive_buffer_bytes=4096))
                await peer.send(question)
            async with await server.connect() as other:
                assert (await other.produce(batch())).error_code is ErrorCode.none
            with trio.fail_after(PATIENCE_S):
                while len(server.reported(CONNECTION_CLOSED)) < FEWEST_GIVEN_UP:  # noqa: ASYNC110
                    await trio.sleep(0.01)
        why = {str(fields["why"]) for fields in server.reported(CONNECTION_CLOSED)}
        assert len(why) == 1
        assert "did not read its answers" in why.pop()
        assert unsent.used_bytes <= settings.total_answer_bytes
    assert unsent.used_bytes == 0


async def slowly_read(reader: Peer) -> None:
    """Take a whole answer in small pieces."""
    left = ANSWER_BYTES
    while left > 0:
        data = await reader.stream.receive_some(256 * 1024)
        assert data, "the connection of a client that reads was closed"
        left -= len(data)
        await trio.sleep(0.02)


async def test_the_answer_that_waits_longest_is_given_up_first(autojump_clock: trio.testing.MockClock) -> None:
    """Only as many as must, and nobody whose client took something within a second."""
    async with trio.open_nursery() as nursery:
        budget = UnsentBudget(8 * MIB)
        nursery.start_soon(budget.run)
        await check_order(budget)
        nursery.cancel_scope.cancel()


async def check_order(budget: UnsentBudget) -> None:
    """Four answers of 2 MiB fill the budget; a newcomer takes more and more."""
    settle = trio.testing.wait_all_tasks_blocked
    gone: list[str] = []
    held = {}
    for name in ("longest", "long", "reads", "fresh"):
        held[name] = budget.begin(lambda name=name: gone.append(name))  # type: ignore[misc]
        budget.hold(held[name], 2 * MIB)
        await trio.sleep(UnsentBudget.SLOW_ANSWER_S / 2)
    budget.hold(held["reads"], 2 * MIB - 1)
    newcomer = budget.begin(lambda: gone.append("newcomer"))
    budget.hold(newcomer, 1)
    await settle()
    assert gone == []
    budget.hold(newcomer, MIB)
    await settle()
    assert gone == ["longest"]
    budget.hold(held["longest"], MIB)  # it is over, whatever is left of it
    budget.hold(newcomer, 3 * MIB)
    await settle()
    assert gone == ["longest", "long"]
    budget.hold(newcomer, 30 * MIB)
    await settle()
    assert gone == ["longest", "long"]
    for unsent in (*held.values(), newcomer):
        budget.end(unsent)
    assert budget.used_bytes == 0


async def test_a_loop_that_stood_still_makes_no_client_slow(autojump_clock: trio.testing.MockClock) -> None:
    """The clock jumps while no task runs: a client that took bytes meanwhile is noted before any is given up."""
    gone: list[str] = []
    async with trio.open_nursery() as nursery:
        budget = UnsentBudget(8 * MIB)
        nursery.start_soon(budget.run)
        took = trio.Event()

        async def send() -> None:
            await took.wait()
            budget.hold(reader, 3 * MIB)

        reader = budget.begin(lambda: gone.append("reader"))
        silent = budget.begin(lambda: gone.append("silent"))
        budget.hold(reader, 4 * MIB)
        budget.hold(silent, 4 * MIB)
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(5 * UnsentBudget.SLOW_ANSWER_S)
        took.set()  # its socket has room: its sender runs in the next round
        newcomer = budget.begin(lambda: gone.append("newcomer"))
        budget.hold(newcomer, 4 * MIB)
        await trio.testing.wait_all_tasks_blocked()
        assert gone == ["silent"]
        nursery.cancel_scope.cancel()


async def test_few_long_answers_are_collected_at_a_time() -> None:
    """Of a hundred walks, two at most hold more than WALK_PARTS parts until their answers are encoded; short ones do
    not wait for long ones.
    """
    holding = most = 0
    ended: list[str] = []

    async def walk(name: str, parts: int) -> None:
        nonlocal holding, most
        async with collecting():
            pace = Pace()
            is_long = False
            for number in range(parts):
                await pace.step()
                if number == WALK_PARTS:
                    is_long = True
                    holding += 1
                    most = max(most, holding)
            await trio.lowlevel.checkpoint()
            holding -= is_long
        ended.append(name)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(walk, "long", 3 * WALK_PARTS)
            nursery.start_soon(walk, "short", STEPS)
    assert most == 2
    assert "short" in ended[:3]


@pytest.mark.parametrize("walks", [1, 50])
async def test_one_of_many_walks_goes_on_in_each_turn(walks: int) -> None:
    """However many clients ask for much at a time, another one waits for some steps of one of them."""
    steps = 10 * STEPS

    async def walk() -> None:
        pace = Pace()
        for _ in range(steps):
            await pace.step()

    async with counted_turns() as turns, trio.open_nursery() as nursery:
        for _ in range(walks):
            nursery.start_soon(walk)
    assert turns.count >= walks * steps // STEPS - 1
