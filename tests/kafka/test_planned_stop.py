"""A planned stop: who has just connected has an answer before the end of its connection, or no end but a reset.

Time stands still but where a test moves it, so that a client is as late as the test wants.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from logstore.interfaces import Buffer
from logstore.kafka.api_types import BrokerSettings, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.server import BACKLOG, FIRST_ANSWER_S, LOOK_S
from tests.kafka.front_driver import (
    API_VERSIONS,
    Peer,
    Server,
    batch,
    decode_answer,
    fetch_frame,
    produce_frame,
    request_frame,
    serving,
    wait_until,
)

CLIENTS = 100
VERSIONS = request_frame(API_VERSIONS, 0, b"")
HALF = produce_frame([batch()])[:50]
RAW_KEY = 31_000
END, RESET = "end", "reset"
SILENT = {
    "nothing": b"",
    "half of its first frame": VERSIONS[:7],
    "its versions, and half a frame": VERSIONS + HALF,
    "its versions, and a fetch that waits": VERSIONS + fetch_frame(max_wait_ms=60_000),
}


async def end_of(peer: Peer) -> str:
    """How the server ends the connection, behind what it has answered."""
    try:
        while await peer.stream.receive_some():
            pass
    except trio.BrokenResourceError:
        return RESET
    return END


@asynccontextmanager
async def stopping(server: Server, patience_s: float = 1000.0) -> AsyncIterator[trio.Event]:
    """Drain the server within the block; the event is set when that is over."""
    over = trio.Event()

    async def drain() -> None:
        await server.kafka.drain(patience_s)
        over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain)
        await server.kafka._refusing.wait()
        yield over
        await over.wait()


async def accepted(server: Server, sent: bytes = b"") -> Peer:
    """A client that is connected and has sent this, which the server has taken in."""
    before = server.kafka.accepted
    peer = await server.connect()
    await wait_until_still(lambda: server.kafka.accepted > before)
    await peer.send(sent)
    if sent.startswith(VERSIONS):
        await peer.answer()
    await trio.testing.wait_all_tasks_blocked(0.01)
    return peer


async def wait_until_still(condition: object) -> None:
    """As `wait_until`, where time stands still."""
    assert callable(condition)
    while not condition():
        await trio.testing.wait_all_tasks_blocked()


def waiting_peer(server: Server) -> Peer:
    """A client that the system has connected; the server had no moment to accept it."""
    sock = socket.create_connection(("127.0.0.1", server.port))
    return Peer(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))


async def is_served(peer: Peer) -> bool:
    """Whether a client is told the versions, and its first record is taken."""
    versions = decode_answer(API_VERSIONS, 0, await peer.ask(VERSIONS))
    return versions.error_code is ErrorCode.none and (await peer.produce(batch())).error_code is ErrorCode.none


async def test_who_has_just_connected_is_answered(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """Clients that are accepted, and others that wait in the backlog, when the stop begins: all are told the versions,
    and have their first record taken, before their connections end. Nobody is accepted after them.
    """
    assert CLIENTS < BACKLOG
    async with serving(tmp_path) as server:
        peers = [await accepted(server) for _ in range(CLIENTS)]
        peers += [waiting_peer(server) for _ in range(CLIENTS)]
        async with stopping(server):
            with pytest.raises(OSError, match=r"refused|reset"):
                await server.connect()
            assert server.kafka.accepted == 2 * CLIENTS
            assert [await is_served(peer) for peer in peers] == [True] * (2 * CLIENTS)
            mock_clock.jump(LOOK_S)
            assert {await end_of(peer) for peer in peers} == {END}
            for peer in peers:
                await peer.stream.aclose()


@pytest.mark.parametrize("sent", SILENT)
async def test_who_sends_too_little_holds_up_a_stop_for_a_moment(
    tmp_path: Path, mock_clock: trio.testing.MockClock, sent: str
) -> None:
    """A client that has just connected, and sends nothing more, is waited for as long as FIRST_ANSWER_S; then its
    connection is reset.
    """
    async with serving(tmp_path) as server:
        peer = await accepted(server, SILENT[sent])
        async with stopping(server) as over:
            mock_clock.jump(FIRST_ANSWER_S - LOOK_S)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert server.kafka.connections == 1
            mock_clock.jump(2 * LOOK_S)
            assert await end_of(peer) == RESET
            await over.wait()
        await peer.stream.aclose()


@pytest.mark.parametrize("sent", SILENT)
async def test_who_was_silent_before_holds_up_no_stop(
    tmp_path: Path, mock_clock: trio.testing.MockClock, sent: str
) -> None:
    """A client that has connected longer ago and has no answer to come: its connection is reset, at once."""
    async with serving(tmp_path) as server:
        peer = await accepted(server, SILENT[sent])
        mock_clock.jump(FIRST_ANSWER_S)
        async with stopping(server) as over:
            assert await end_of(peer) == RESET
            await over.wait()
        await peer.stream.aclose()


async def test_who_was_served_holds_up_no_stop(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """A client that has an answer, and half a request on its way, sees the end of its connection, at once."""
    async with serving(tmp_path) as server:
        peer = await accepted(server)
        assert await is_served(peer)
        await peer.send(HALF)
        async with stopping(server):
            assert await end_of(peer) == END
            await peer.stream.aclose()
        assert mock_clock.current_time() == 0


async def test_a_first_request_under_way_is_answered(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """A client that has connected longer ago, whose first request is worked on when the stop begins, is answered; one
    whose request takes longer than FIRST_ANSWER_S is reset.
    """
    quick, slow = trio.Event(), trio.Event()

    async def answer(body: memoryview, _answers: AnswerBudget, _caller: Caller) -> tuple[list[Buffer], int]:
        await (quick if bytes(body) == b"quick" else slow).wait()
        return [b"done"], 0

    async with serving(tmp_path, private=[PrivateApi(RAW_KEY, answer)]) as server:
        first = await accepted(server, request_frame(RAW_KEY, 0, b"quick"))
        second = await accepted(server, request_frame(RAW_KEY, 0, b"slow"))
        mock_clock.jump(FIRST_ANSWER_S)
        async with stopping(server):
            quick.set()
            assert (await first.answer())[1] == b"done"
            mock_clock.jump(FIRST_ANSWER_S)
            assert [await end_of(peer) for peer in (first, second)] == [END, RESET]
            for peer in (first, second):
                await peer.stream.aclose()


async def test_a_stop_that_is_cut_short_resets_who_has_no_answer(tmp_path: Path) -> None:
    """Without a drain, as where a host ends before it has joined its cluster: who has no answer yet sees no end."""
    async with serving(tmp_path) as server:
        silent, served = await server.connect(), await server.connect()
        assert await is_served(served)
        await wait_until(lambda: server.kafka.connections == 2)
    assert [await end_of(peer) for peer in (silent, served)] == [RESET, END]
    for peer in (silent, served):
        await peer.stream.aclose()


async def test_versions_that_are_asked_for_behind_a_record_destroy_no_answer(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """A client whose first record is being stored when it asks for the versions, and when the sidecar stops: the answer
    to the record is sent, and followed by an end; a reset could destroy it on its way.
    """
    async with serving(tmp_path) as server:
        peer = await accepted(server)
        server.files.gate = threading.Event()
        await peer.send(produce_frame([batch()]), VERSIONS)
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with stopping(server):
            mock_clock.jump(FIRST_ANSWER_S)
            await trio.testing.wait_all_tasks_blocked(0.01)
            server.files.gate.set()
            await peer.answer()
            assert await end_of(peer) == END
            await peer.stream.aclose()


async def test_who_loses_its_first_frame_is_reset(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """A client whose first frame is given up, because memory for requests is short, sees no end of its connection."""
    async with serving(tmp_path) as server, await accepted(server, VERSIONS + HALF) as peer:
        (connection,) = server.kafka._connections
        connection._give_up_frame()
        assert await end_of(peer) == RESET


@pytest.mark.parametrize("sent", [words for words in SILENT if "fetch" not in words])
async def test_who_is_silent_for_too_long_is_reset(
    tmp_path: Path, mock_clock: trio.testing.MockClock, sent: str
) -> None:
    """A client that has only greeted, and sends its first request in the moment in which the sidecar ends its idle
    connection, would take an end for a listener with TLS. One that has been served takes it for a lost connection.
    """
    settings = BrokerSettings()
    async with serving(tmp_path, settings) as server:
        silent, served = await accepted(server, SILENT[sent]), await accepted(server)
        assert await is_served(served)
        mock_clock.jump(settings.idle_s + 1)
        assert [await end_of(peer) for peer in (silent, served)] == [RESET, END]
        for peer in (silent, served):
            await peer.stream.aclose()
