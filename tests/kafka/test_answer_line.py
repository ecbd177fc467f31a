"""Every step of the table of who sends a connection's answers is taken, and answers keep the order of requests."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from logstore.base.connected_socket import ConnectedSocket
from logstore.format.records import Record, encode_batch
from logstore.kafka import answers
from logstore.kafka.answers import TRANSITIONS, AnswerLine, AnswerSlot, SendEvent, Sending
from logstore.kafka.budgets import AnswerBudget, RequestBudget
from tests.kafka.front_driver import Server, serving
from tests.support.limits import PATIENCE_S
from tests.support.steps import RecordedSteps

SMALL = b"answer"
LARGE = bytes(8 << 20)
"""More than the buffers of two sockets hold."""
HEADER_BYTES = 8
"""Size and correlation id in front of an answer's body."""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> RecordedSteps[Sending, SendEvent]:
    """The table that the code runs in this test."""
    recording = RecordedSteps(TRANSITIONS)
    monkeypatch.setattr(answers, "TRANSITIONS", recording)
    return recording


class Client:
    """The other end of a line: a socket, and how many bytes it was told to expect."""

    def __init__(self, line: AnswerLine, sock: trio.socket.SocketType, server: Server) -> None:
        self.line = line
        self._socket = sock
        self._server = server

    def ask(self) -> AnswerSlot:
        """A request comes."""
        place = AnswerSlot(1, 100)
        self.line.push(place)
        return place

    def answer(self, place: AnswerSlot, body: bytes) -> None:
        """A request is done at once."""
        place.body = [body]
        self.line.mark_ready(place)

    async def answer_synced(self, place: AnswerSlot, body: bytes) -> None:
        """A request is done when a write is synced, with all else that this sync settles."""
        place.body = [body]
        ticket = self._server.stream.append(encode_batch([Record(0, 0, None, b"value")]), now_ms=0)
        ticket.add_callback(lambda _: self.line.mark_ready(place))
        await self._server.engine.wait(ticket)

    async def expect(self, body: bytes) -> None:
        """The whole answer arrives."""
        left = HEADER_BYTES + len(body)
        with trio.fail_after(PATIENCE_S):
            while left:
                received = await self._socket.recv(left)
                assert received
                left -= len(received)


@asynccontextmanager
async def a_client(server: Server) -> AsyncIterator[Client]:
    """A line with its sender at work; at the end no more requests come and all answers are sent."""
    ours, theirs = socket.socketpair()
    link = ConnectedSocket(ours)
    budget = AnswerBudget(64 << 20)
    line = AnswerLine(link, server.engine, RequestBudget(1 << 20), budget, PATIENCE_S, lambda: None)
    with trio.socket.from_stdlib_socket(theirs) as sock:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.send_answers)
                await trio.testing.wait_all_tasks_blocked()
                yield Client(line, sock, server)
        assert line.request_bytes == 0
    link.close()


async def test_every_step_of_the_table_is_taken(table: RecordedSteps[Sending, SendEvent], tmp_path: Path) -> None:
    """By two connections together: answers at once and behind a sync, small and large, and the end in three places."""
    async with serving(tmp_path) as server:
        async with a_client(server) as client:
            client.answer(client.ask(), SMALL)
            await client.expect(SMALL)
            await client.answer_synced(client.ask(), SMALL)
            await client.expect(SMALL)
            client.answer(client.ask(), LARGE)
            await client.expect(LARGE)
            await trio.testing.wait_all_tasks_blocked()
            await client.answer_synced(client.ask(), LARGE)
            await client.expect(LARGE)
            await trio.testing.wait_all_tasks_blocked()
            last = client.ask()
            client.line.end()
            await trio.testing.wait_all_tasks_blocked()
            await client.answer_synced(last, SMALL)
            await client.expect(SMALL)
        async with a_client(server) as client:
            client.answer(client.ask(), LARGE)
            client.line.end()
            await client.expect(LARGE)
    assert table.taken == set(TRANSITIONS)


async def test_answers_leave_in_the_order_of_requests(tmp_path: Path) -> None:
    """What is done first waits for what came first."""
    async with serving(tmp_path) as server, a_client(server) as client:
        first, second = client.ask(), client.ask()
        client.answer(second, b"second")
        assert client.line.request_bytes == 200
        client.answer(first, b"first")
        await client.expect(b"first")
        await client.expect(b"second")
        client.line.end()
