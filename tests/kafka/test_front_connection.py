"""What a connection must withstand: nonsense, slowness, greed; and what the others must not notice of it."""

import struct
import threading
from pathlib import Path

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from logstore.errors import StorageFailed
from logstore.events import CONNECTION_CLOSED, REQUEST_CRASHED
from logstore.interfaces import Buffer
from logstore.kafka import fetch, produce
from logstore.kafka.answers import SLOT_BYTES
from logstore.kafka.api_types import BrokerSettings, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.log.store import StoreSettings
from tests.kafka.front_driver import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
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
from tests.support.limits import PATIENCE_S

RAW_KEY = 31_000


async def assert_well(server: Server) -> None:
    """Another client is served."""
    async with await server.connect() as peer:
        assert (await peer.produce(batch())).error_code is ErrorCode.none


# ---- nonsense


@pytest.mark.parametrize("size", [-1, 0, 7, (16 << 20) + 1, 2**31 - 1, -(2**31)])
async def test_impossible_frame_lengths_close_the_connection(tmp_path: Path, size: int) -> None:
    """A length below a header's or above max-frame-bytes ends the connection before anything is allocated."""
    async with serving(tmp_path) as server, await server.connect() as peer, await server.connect() as other:
        await peer.send(struct.pack(">i", size) + b"garbage")
        assert await peer.ended()
        assert "max-frame-bytes" in str(server.reported(CONNECTION_CLOSED)[0]["why"])
        assert (await other.produce(batch())).error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("key", "version"), [(9999, 0), (-1, 0), (PRODUCE, 2), (PRODUCE, 12), (FETCH, 3), (METADATA, 0)]
)
async def test_requests_nobody_serves_close_the_connection(tmp_path: Path, key: int, version: int) -> None:
    """An unknown key, or a version whose answer has no place for an error, closes the connection, as in a real
    Kafka.
    """
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.send(request_frame(key, version, b""))
        assert await peer.ended()
        await assert_well(server)


async def test_answers_in_front_of_a_bad_request_are_still_sent(tmp_path: Path) -> None:
    """What was appended before a request that ends the connection is answered first."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        frames = [produce_frame([batch()], correlation_id=number) for number in range(5)]
        await peer.send(*frames, request_frame(9999, 0, b""), b"more")
        assert [(await peer.answer())[0] for _ in range(5)] == list(range(5))
        assert await peer.ended()


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_are_what_is_served(tmp_path: Path, version: int) -> None:
    """Every version of ApiVersions lists what is served, with its versions, in that version's layout."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        body = b"" if version < 3 else b"\x05test\x021\x00"
        answer = decode_answer(
            API_VERSIONS, version, await peer.ask(request_frame(API_VERSIONS, version, body, flexible=version >= 3))
        )
        assert answer.error_code is ErrorCode.none
        offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert offered == {
            produce.KEY: (0, produce.MAX_VERSION),  # librdkafka compresses only if it sees version 0
            fetch.KEY: (fetch.MIN_VERSION, fetch.MAX_VERSION),
            API_VERSIONS: (0, 4),
        }


@pytest.mark.parametrize("version", [5, 99, -1, 32767])
async def test_an_unknown_api_versions_is_answered_in_the_oldest_layout(tmp_path: Path, version: int) -> None:
    """A client from the future gets UNSUPPORTED_VERSION in version 0's layout, and may go on with an older one."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        answer = decode_answer(API_VERSIONS, 0, await peer.ask(request_frame(API_VERSIONS, version, b"whatever")))
        assert answer.error_code is ErrorCode.unsupported_version
        assert API_VERSIONS in {api.api_key for api in answer.api_keys}
        assert decode_answer(API_VERSIONS, 0, await peer.ask(request_frame(API_VERSIONS, 0, b""))).api_keys


FRAMES = {
    "produce 8": produce_frame([batch()], 8),
    "produce 11": produce_frame([batch()], 11),
    "fetch 11": fetch_frame(11),
    "fetch 12": fetch_frame(12),
}


@pytest.mark.parametrize("name", FRAMES)
async def test_every_truncation_of_a_request_is_survived(tmp_path: Path, name: str) -> None:
    """A request cut anywhere is answered with an error or closes its connection; it never ends the server."""
    whole = FRAMES[name]
    async with serving(tmp_path) as server:
        for length in range(len(whole) - 4):
            async with await server.connect() as peer:
                await peer.send(struct.pack(">i", length) + whole[4 : 4 + length])
                await peer.stream.send_eof()
                await drain(peer)
        assert not server.reported(REQUEST_CRASHED)
        assert server.stream.end_offset == 0
        await assert_well(server)


@pytest.mark.parametrize("name", FRAMES)
async def test_every_flipped_byte_of_a_request_is_survived(tmp_path: Path, name: str) -> None:
    """A request with any byte turned around is answered or closes its connection; it never ends the server."""
    whole = FRAMES[name]
    async with serving(tmp_path) as server:
        for position in range(len(whole)):
            changed = bytearray(whole)
            changed[position] ^= 0xFF
            async with await server.connect() as peer:
                await peer.send(bytes(changed))
                await peer.stream.send_eof()
                await drain(peer)
        assert not server.reported(REQUEST_CRASHED)
        await assert_well(server)


async def drain(peer: Peer) -> None:
    """Read until the server ends the connection, or has nothing to say: a fetch may have been told to wait for long."""
    with trio.move_on_after(0.3):
        try:
            while await peer.stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


async def test_frames_may_arrive_in_any_pieces(tmp_path: Path) -> None:
    """One byte at a time, or many frames and a half at once: the answers are the same."""
    frames = [produce_frame([batch(1, 30)], correlation_id=number) for number in range(3)]
    async with serving(tmp_path) as server, await server.connect() as peer:
        for byte in b"".join(frames):
            await peer.send(bytes([byte]))
        assert [(await peer.answer())[0] for _ in frames] == [0, 1, 2]
        large = produce_frame([batch(1, 500_000)], correlation_id=9)
        data = b"".join(frames) + large + frames[0] + large + large
        for start in range(0, len(data), 70_001):
            await peer.send(data[start : start + 70_001])
        assert [(await peer.answer())[0] for _ in range(7)] == [0, 1, 2, 9, 0, 9, 9]
        assert server.stream.high_watermark == 10


async def _broken(_body: memoryview, _answers: AnswerBudget, _caller: Caller) -> tuple[list[Buffer], int]:
    raise KeyError("a fault of ours")


async def _failing(_body: memoryview, _answers: AnswerBudget, _caller: Caller) -> tuple[list[Buffer], int]:
    raise StorageFailed("the disk is away")


async def test_a_fault_of_ours_ends_one_connection_only(tmp_path: Path) -> None:
    """A handler that breaks is reported with its trace; the other clients do not notice."""
    async with serving(tmp_path, private=[PrivateApi(RAW_KEY, _broken)]) as server, await server.connect() as other:
        async with await server.connect() as peer:
            await peer.send(request_frame(RAW_KEY, 0, b""))
            assert await peer.ended()
        assert "a fault of ours" in str(server.reported(REQUEST_CRASHED)[0]["trace"])
        assert (await other.produce(batch())).error_code is ErrorCode.none


async def test_an_error_no_handler_answers_closes_the_connection(tmp_path: Path) -> None:
    """What a request fails with and its handler does not say is reported when the connection is closed."""
    async with serving(tmp_path, private=[PrivateApi(RAW_KEY, _failing)]) as server, await server.connect() as peer:
        await peer.send(request_frame(RAW_KEY, 0, b""))
        assert await peer.ended()
        assert "the disk is away" in str(server.reported(CONNECTION_CLOSED)[0]["why"])


# ---- slowness


async def test_a_silent_client_is_closed(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """A connection without a whole request within handshake-s is closed; one byte now and then does not help."""
    mock_clock.rate = 1
    async with serving(tmp_path, BrokerSettings(handshake_s=1000)) as server:  # noqa: SIM117
        async with await server.connect() as silent, await server.connect() as slow:
            await slow.send(produce_frame([batch()])[:1])
            await wait_until(lambda: len(server.kafka._connections) == 2)
            mock_clock.jump(600)
            await slow.send(produce_frame([batch()])[1:2])
            await trio.testing.wait_all_tasks_blocked(0.05)
            mock_clock.jump(600)
            assert await silent.ended()
            assert await slow.ended()


async def test_a_frame_must_be_whole_in_time(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """Behind the first request, one that trickles in is given up, small or large; an idle client is not."""
    mock_clock.rate = 1
    async with serving(tmp_path) as server:  # noqa: SIM117
        async with await server.connect() as small, await server.connect() as large, await server.connect() as idle:
            for peer in (small, large, idle):
                await peer.produce(batch())
            await small.send(produce_frame([batch()])[:50])
            await large.send(produce_frame([batch(1, 1_000_000)])[:300_000])
            await wait_until(lambda: server.kafka._arrivals.ordinary.used_bytes > 299_000)
            mock_clock.jump(60)
            assert await small.ended()
            assert await large.ended()
            assert server.kafka._arrivals.ordinary.used_bytes == 0
            assert (await idle.produce(batch())).error_code is ErrorCode.none


# ---- greed


async def test_a_newcomer_takes_the_place_of_the_longest_idle(tmp_path: Path) -> None:
    """One connection more than max-connections ends the one that was silent the longest: first who has sent no
    request, then whose last request is the longest ago. Nobody is locked out, on loopback neither.
    """
    async with serving(tmp_path, BrokerSettings(max_connections=3)) as server:
        first, second = await server.connect(), await server.connect()
        await first.produce(batch())
        await second.produce(batch())
        await first.produce(batch())
        silent = await server.connect()
        await wait_until(lambda: len(server.kafka._connections) == 3)
        third = await server.connect()
        assert await silent.ended()
        await third.produce(batch())
        fourth = await server.connect()
        assert await second.ended()
        for peer in (fourth, first, third):
            assert (await peer.produce(batch())).error_code is ErrorCode.none
        assert "max-connections" in str(server.reported(CONNECTION_CLOSED)[-1]["why"])
        for peer in (silent, second, first, third, fourth):
            await peer.stream.aclose()


async def test_one_connection_cannot_fill_the_memory(tmp_path: Path) -> None:
    """While the disk is held, a client's unanswered requests are read up to its bound, and not beyond."""
    size = 10_000
    limit = 20 * (size + SLOT_BYTES)
    async with serving(tmp_path, BrokerSettings(connection_in_flight_bytes=limit)) as server:  # noqa: SIM117
        async with await server.connect() as peer, trio.open_nursery() as nursery:
            server.files.gate = threading.Event()
            count = 300
            nursery.start_soon(peer.send, *(produce_frame([batch(1, size)], correlation_id=n) for n in range(count)))
            await wait_until(lambda: server.kafka._requests.used_bytes > limit)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert server.kafka._requests.used_bytes <= limit + 2 * (size + SLOT_BYTES)
            server.files.gate.set()
            assert [(await peer.answer())[0] for _ in range(count)] == list(range(count))
            assert server.kafka._requests.used_bytes == 0


async def test_all_connections_together_cannot_fill_the_memory(tmp_path: Path) -> None:
    """The bound over all connections holds while the disk is held; released, everybody is served."""
    size, clients, count = 10_000, 10, 20
    limit = 20 * (size + SLOT_BYTES)
    async with serving(tmp_path, BrokerSettings(total_in_flight_bytes=limit)) as server:
        peers = [await server.connect() for _ in range(clients)]
        async with trio.open_nursery() as nursery:
            server.files.gate = threading.Event()
            for peer in peers:
                nursery.start_soon(peer.send, *[produce_frame([batch(1, size)])] * count)
            await wait_until(lambda: server.kafka._requests.used_bytes > limit)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert server.kafka._requests.used_bytes <= limit + clients * 2 * (size + SLOT_BYTES)
            server.files.gate.set()
            for peer in peers:
                for _ in range(count):
                    await peer.answer()
        for peer in peers:
            await peer.stream.aclose()
        assert server.stream.high_watermark == clients * count


async def _large(_body: memoryview, _answers: AnswerBudget, _caller: Caller) -> tuple[list[Buffer], int]:
    return [bytes(16 << 20)], 0


async def test_clients_that_do_not_read_do_not_hold_up_others(tmp_path: Path) -> None:
    """Clients that only ever send fill their own bound and are stopped; what is written weighs on nobody else."""
    settings = BrokerSettings(connection_in_flight_bytes=100_000, total_in_flight_bytes=150_000)
    async with (
        serving(tmp_path, settings, private=[PrivateApi(RAW_KEY, _large)]) as server,
        trio.open_nursery() as nursery,
    ):
        deaf = [await server.connect(receive_buffer_bytes=2048) for _ in range(5)]
        data = request_frame(RAW_KEY, 0, b"") + produce_frame([batch(1, 10_000)]) * 1000
        for peer in deaf:
            nursery.start_soon(peer.stream.send_all, data)
        await wait_until(lambda: server.stream.high_watermark >= 5 * 5)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert server.stream.high_watermark < 5 * 20
        await assert_well(server)
        nursery.cancel_scope.cancel()
    for peer in deaf:
        await peer.stream.aclose()


async def test_unread_answers_are_bounded(tmp_path: Path) -> None:
    """Clients that fetch much and read nothing make later answers smaller; nobody is refused or blocked."""
    settings = BrokerSettings(total_answer_bytes=4 << 20)
    async with serving(tmp_path, settings, store_settings=StoreSettings(tail_bytes=1)) as server:
        async with await server.connect() as writer:
            for _ in range(12):
                await writer.produce(batch(1, 1_000_000))
        frame = fetch_frame(offsets=(0,), partition_max_bytes=50 << 20)
        deaf = [await server.connect(receive_buffer_bytes=2048) for _ in range(20)]
        for peer in deaf:
            await peer.send(frame, frame, frame)
        await wait_until(lambda: server.kafka._answers.free_bytes < 1 << 20)
        await trio.testing.wait_all_tasks_blocked(0.3)
        held = (4 << 20) - server.kafka._answers.free_bytes
        assert held <= (4 << 20) + len(deaf) * len(batch(1, 1_000_000))
        async with await server.connect() as reader:
            records = (await reader.fetch(partition_max_bytes=50 << 20)).responses[0].partitions[0].records
            assert len(batch(1, 1_000_000)) <= len(records) < 3 << 20
        for peer in deaf:
            await peer.stream.aclose()
        await wait_until(lambda: not server.kafka._connections)
        assert server.kafka._answers.free_bytes == 4 << 20


async def test_what_a_client_sent_before_it_went_is_appended(tmp_path: Path) -> None:
    """A client that sends and hangs up at once loses its answers, not its records; nothing stays counted."""
    async with serving(tmp_path) as server:
        server.files.gate = threading.Event()
        peer = await server.connect()
        await peer.send(*[produce_frame([batch()])] * 10)
        await wait_until(lambda: server.stream.end_offset)
        await peer.stream.aclose()
        server.files.gate.set()
        await wait_until(lambda: server.stream.high_watermark == 10)
        await wait_until(lambda: not server.kafka._connections)
        assert server.kafka._requests.used_bytes == 0


# ---- the end


async def test_a_drain_answers_what_was_appended(tmp_path: Path) -> None:
    """Draining stops the listeners, gives up waiting fetches, answers every appended request, and then closes."""
    async with serving(tmp_path) as server, await server.connect() as peer, await server.connect() as waiting:
        await waiting.send(fetch_frame(offsets=(0,), max_wait_ms=60_000))
        await wait_until(lambda: server.stream._waiters)
        server.files.gate = threading.Event()
        await peer.send(*(produce_frame([batch()], correlation_id=number) for number in range(20)))
        await wait_until(lambda: server.stream.end_offset + len(server.stream._pending) == 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.kafka.drain, PATIENCE_S)
            assert await waiting.ended()
            with pytest.raises(OSError, match=r"refused|reset"):
                await server.connect()
            server.files.gate.set()
            assert [(await peer.answer())[0] for _ in range(20)] == list(range(20))
            assert await peer.ended()


async def test_a_drain_does_not_wait_for_ever(tmp_path: Path) -> None:
    """With a disk that hangs, draining ends when its patience does."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        server.files.gate = threading.Event()
        await peer.send(produce_frame([batch()]))
        await wait_until(lambda: server.stream.end_offset)
        started = trio.current_time()
        await server.kafka.drain(0.1)
        assert trio.current_time() - started < PATIENCE_S / 2
        server.files.gate.set()
