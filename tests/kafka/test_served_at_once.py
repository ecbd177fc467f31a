"""Requests of the common form are served while their connection's task sleeps; whatever else comes wakes the task."""

from __future__ import annotations

import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from logstore.access.quotas import PRODUCER, Entity
from logstore.events import CONNECTION_CLOSED
from logstore.kafka.api_types import BrokerSettings
from logstore.kafka.frames import SMALL_BYTES
from tests.kafka.front_driver import (
    API_VERSIONS,
    PRODUCE,
    Peer,
    batch,
    decode_answer,
    fetch_frame,
    kio_frame,
    produce_frame,
    serving,
    wait_until,
)

CLIENTS = 16
ROUNDS = 20
LARGE = batch(1, 2 * SMALL_BYTES)
MINE = Entity(None, "test")
TASK = "logstore.kafka.server.KafkaServer._serve"


class Steps(trio.abc.Instrument):
    """Counts the steps of the tasks that serve connections."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        self.count += task.name == TASK


@asynccontextmanager
async def counted_steps() -> AsyncIterator[Steps]:
    """Of all connections' tasks, as long as the block runs."""
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)


async def asleep(peer: Peer) -> None:
    """The connection has served a request, and its task waits for the next one."""
    assert (await peer.produce(batch())).error_code is ErrorCode.none
    await trio.testing.wait_all_tasks_blocked(0.01)


async def test_common_requests_wake_no_task_of_a_connection(tmp_path: Path) -> None:
    """Many clients with one request in flight each: all are answered, and no connection's task takes a step."""
    async with serving(tmp_path) as server, trio.open_nursery() as nursery:
        peers = [await server.connect() for _ in range(CLIENTS)]
        for peer in peers:
            await asleep(peer)

        async def client(peer: Peer) -> None:
            for _ in range(ROUNDS):
                assert (await peer.produce(batch())).error_code is ErrorCode.none

        async with counted_steps() as steps:
            async with trio.open_nursery() as clients:
                for peer in peers:
                    clients.start_soon(client, peer)
            assert steps.count == 0
        assert server.stream.high_watermark == CLIENTS * (ROUNDS + 1)
        for peer in peers:
            await peer.stream.aclose()
        nursery.cancel_scope.cancel()


async def test_other_requests_need_one_turn(tmp_path: Path) -> None:
    """Fetches and long requests are received by their connection's own task; only the first one wakes another too."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await asleep(peer)
        watching = server.kafka._arrivals.readiness
        for frame in (fetch_frame(), produce_frame([LARGE])):
            before = watching.rounds
            for _ in range(ROUNDS):
                await peer.ask(frame)
            assert watching.rounds <= before + 1


async def test_answers_keep_their_order_whatever_needs_the_task(tmp_path: Path) -> None:
    """In one piece: requests that are begun at once, before and behind requests of other forms and lengths."""
    frames = [
        produce_frame([batch()], correlation_id=1),
        fetch_frame(correlation_id=2),
        produce_frame([batch()], correlation_id=3),
        produce_frame([batch(), batch()], correlation_id=4),
        produce_frame([LARGE], correlation_id=5),
        kio_frame(API_VERSIONS, 0, {}, correlation_id=6),
        produce_frame([batch()], correlation_id=7),
    ]
    async with serving(tmp_path) as server, await server.connect() as peer:
        await asleep(peer)
        await peer.send(*frames)
        assert [(await peer.answer())[0] for _ in frames] == list(range(1, len(frames) + 1))
        assert server.stream.high_watermark == 6


async def test_a_frame_in_pieces_is_served_when_it_is_whole(tmp_path: Path) -> None:
    """Byte by byte, and cut inside its length; a long one, which gets memory of its own, as well."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await asleep(peer)
        short, long = produce_frame([batch()]), produce_frame([LARGE])
        for at in range(len(short)):
            await peer.send(short[at : at + 1])
            await trio.testing.wait_all_tasks_blocked()
        assert decode_answer(PRODUCE, 8, (await peer.answer())[1]).responses
        for frame in (long[:2], long[2:5], long[5:7], long[7:100], long[100:]):
            await peer.send(frame)
            await trio.testing.wait_all_tasks_blocked()
        assert decode_answer(PRODUCE, 8, (await peer.answer())[1]).responses
        assert server.stream.high_watermark == 3


@pytest.mark.parametrize("rest", [b"", produce_frame([batch()])[:30]], ids=["between frames", "inside a frame"])
async def test_the_end_of_a_client_wakes_the_task(tmp_path: Path, rest: bytes) -> None:
    """Behind requests that came with it: they are appended and answered before the connection ends."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await asleep(peer)
        await peer.send(produce_frame([batch()], correlation_id=1), rest)
        await peer.stream.send_eof()
        assert (await peer.answer())[0] == 1
        assert await peer.ended()
        await wait_until(lambda: not server.kafka.connections)
        assert server.kafka.request_bytes == 0


async def test_a_frame_that_is_refused_ends_its_connection_and_no_other(tmp_path: Path) -> None:
    """Its earlier requests are answered, and the operator is told why."""
    async with serving(tmp_path) as server, await server.connect() as peer, await server.connect() as other:
        await asleep(other)
        await asleep(peer)
        await peer.send(produce_frame([batch()], correlation_id=1), struct.pack(">i", -1))
        assert (await peer.answer())[0] == 1
        await wait_until(lambda: server.reported(CONNECTION_CLOSED))
        assert "-1 bytes" in str(server.reported(CONNECTION_CLOSED)[0]["why"])
        assert (await other.produce(batch())).error_code is ErrorCode.none


async def test_a_client_that_breaks_off_is_forgotten(tmp_path: Path) -> None:
    """Its connection is reset while the task sleeps: what it had sent stays, its place is free, others are served."""
    async with serving(tmp_path) as server, await server.connect() as other:
        await asleep(other)
        peer = await server.connect()
        await asleep(peer)
        peer.stream.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: a reset in place of an end
        await peer.stream.aclose()
        await wait_until(lambda: server.kafka.connections == 1)
        assert (await other.produce(batch())).error_code is ErrorCode.none
        assert server.stream.high_watermark == 3


async def test_a_sleeping_connection_takes_no_more_than_it_may_hold(tmp_path: Path) -> None:
    """While nothing is synced, a client sends far more than its limit: it is not received, and served when it can."""
    frames = [produce_frame([batch(1, 10_000)], correlation_id=number) for number in range(100)]
    settings = BrokerSettings(connection_in_flight_bytes=50_000)
    async with serving(tmp_path, settings) as server, await server.connect() as peer:
        await asleep(peer)
        server.files.gate = gate = threading.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.send, *frames)
                await wait_until(lambda: server.kafka.request_bytes > 50_000)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert server.kafka.request_bytes < 150_000
                gate.set()
                assert [(await peer.answer())[0] for _ in frames] == list(range(len(frames)))
        finally:
            gate.set()
        assert server.kafka.request_bytes == 0


async def test_a_quota_that_is_set_meanwhile_counts(tmp_path: Path) -> None:
    """The connection slept when nobody had a quota: its next request is counted."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await asleep(peer)
        quotas = server.kafka._broker.quotas
        quotas.set(MINE, {PRODUCER: 1.0})
        try:
            answer = decode_answer(PRODUCE, 8, await peer.ask(produce_frame([batch(1, 100)])))
        finally:
            quotas.set(MINE, {})
        assert answer.throttle_time.total_seconds() > 0


async def test_sleeping_connections_begin_nothing_while_others_have_taken_all_the_room(tmp_path: Path) -> None:
    """Requests of all connections are at their limit, and nothing is synced: what else comes is served when it can."""
    frame = produce_frame([batch(1, 10_000)])
    async with (
        serving(tmp_path, BrokerSettings(total_in_flight_bytes=20_000)) as server,
        await server.connect() as first,
        await server.connect() as other,
    ):
        await asleep(first)
        await asleep(other)
        server.files.gate = gate = threading.Event()
        try:
            await first.send(frame, frame)
            await wait_until(lambda: server.kafka.request_bytes > 20_000)
            taken = server.kafka.request_bytes
            await other.send(frame)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert server.kafka.request_bytes == taken
            gate.set()
            for peer in (first, first, other):
                await peer.answer()
        finally:
            gate.set()
        assert server.stream.high_watermark == 5
        assert server.kafka.request_bytes == 0
