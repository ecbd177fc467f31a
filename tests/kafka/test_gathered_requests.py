"""Requests that are there together share a write, in however many pieces they are received."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from pathlib import Path

import pytest
import trio

from logstore.base.connected_socket import ConnectedSocket
from logstore.kafka.api_types import Caller
from logstore.kafka.connection import ClientConnection
from logstore.kafka.frames import SMALL_BYTES
from tests.kafka.front_driver import Peer, Server, batch, produce_frame, serving, wait_until
from tests.kafka.turns import counted_turns
from tests.support.limits import PATIENCE_S

REQUESTS = 24
"""Of 5 KB: a connection receives them in several pieces, and a part of the journal may have as much."""


async def answers(client: trio.SocketStream, count: int) -> list[int]:
    """The correlation ids of the next answers."""
    peer = Peer(client)
    return [(await peer.answer())[0] for _ in range(count)]


async def serve(server: Server, client: ConnectedSocket) -> None:
    """Serve one connection."""
    kafka = server.kafka
    caller = Caller("", "127.0.0.1", "127.0.0.1", 9092)
    shared = (kafka._broker, kafka._handlers, caller, kafka._arrivals, kafka._answers)
    await ClientConnection(client, *shared, lambda give_way: None).run()


async def test_what_a_client_has_sent_by_then_is_one_write(tmp_path: Path) -> None:
    """A client with many requests in flight, which do not fit into one piece: all are in one block of the journal."""
    frames = [produce_frame([batch(1, 5_000)], correlation_id=number) for number in range(REQUESTS)]
    async with serving(tmp_path) as server:
        async with await server.connect() as peer:
            await peer.produce(batch())  # a stream's first batch makes its chunk, without the journal
        ours, theirs = socket.socketpair()
        theirs.sendall(b"".join(frames))
        journal = server.engine.store.journal
        assert 3 * SMALL_BYTES < sum(map(len, frames)) < journal.limits.max_part_bytes
        before = journal.blocks
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, server, ConnectedSocket(ours))
                client = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
                assert await answers(client, REQUESTS) == list(range(REQUESTS))
                await client.aclose()
        assert journal.blocks == before + 1
        assert server.stream.high_watermark == 1 + REQUESTS


async def test_short_requests_do_not_keep_the_others_waiting(tmp_path: Path) -> None:
    """A client with many short requests in flight: the others have a turn after every piece, not after eight."""
    frames = [produce_frame([batch()], correlation_id=number) for number in range(1000)]
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    client = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    async with serving(tmp_path) as server, counted_turns() as turns, trio.open_nursery() as nursery:
        pieces: Counter[int] = Counter()

        class Watched(ConnectedSocket):
            """Counts the pieces of each turn."""

            def receive_nowait(self, target: memoryview) -> int | None:
                received = super().receive_nowait(target)
                pieces[turns.count] += bool(received)
                return received

        nursery.start_soon(client.send_all, b"".join(frames))
        nursery.start_soon(serve, server, Watched(ours))
        with trio.fail_after(PATIENCE_S):
            assert await answers(client, len(frames)) == list(range(len(frames)))
        await client.aclose()
        # In a round of the event loop the others' turn may be the first, and in the next one the last.
        assert max(pieces.values()) <= 2
        assert pieces.total() >= 4


async def test_what_is_begun_when_a_connection_breaks_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket fails behind the first requests: they are written at once, though nobody waits for them."""
    frames = [produce_frame([batch()], correlation_id=number) for number in range(3)]
    ours, theirs = socket.socketpair()

    class Breaking(ConnectedSocket):
        """Fails behind the first piece."""

        calls = 0

        def receive_nowait(self, target: memoryview) -> int | None:
            self.calls += 1
            if self.calls > 1:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            return super().receive_nowait(target)

    async with serving(tmp_path) as server:
        client, kick, kicks = Breaking(ours), server.engine.kick, list[int]()

        def noted_kick() -> None:
            kicks.append(client.calls)
            kick()

        monkeypatch.setattr(server.engine, "kick", noted_kick)
        with theirs:
            theirs.sendall(b"".join(frames))
            await serve(server, client)
            assert 2 in kicks
            await wait_until(lambda: server.stream.high_watermark == len(frames))


async def test_a_frame_in_two_pieces_does_not_hold_up_those_before_it(tmp_path: Path) -> None:
    """Whole requests are answered while the client has sent only a part of the next one."""
    frames = [produce_frame([batch(1, 5_000)], correlation_id=number) for number in range(REQUESTS)]
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.send(*frames[:-1], frames[-1][:100])
        for number in range(REQUESTS - 1):
            assert (await peer.answer())[0] == number
        await peer.send(frames[-1][100:])
        assert (await peer.answer())[0] == REQUESTS - 1


async def test_the_end_of_what_a_client_sends_is_found_behind_its_requests(tmp_path: Path) -> None:
    """Requests and the end arrive together: all requests are answered before the connection ends."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.send(*(produce_frame([batch()], correlation_id=number) for number in range(REQUESTS)))
        await peer.stream.send_eof()
        assert [(await peer.answer())[0] for _ in range(REQUESTS)] == list(range(REQUESTS))
        assert await peer.ended()
