"""Clients that want much and send little: frames announced and not sent, frames half sent, sockets held, fetches that
wait. Whatever they do, a client beside them is served, and memory stays within its bounds.

The promise is stated by counts and bytes, not by the clock: healthy requests are answered while the others wait.
"""

import struct
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.base.addresses import address_group
from logstore.events import CONNECTION_CLOSED
from logstore.kafka import codec, fetch
from logstore.kafka.api_types import Api, BrokerSettings, Caller
from logstore.kafka.arrivals import PIECE_BYTES, SLOW_PIECE_S, Arrival, ArrivalBudget
from logstore.kafka.frames import CONTROL_FRAME_BYTES, SMALL_BYTES
from logstore.kafka.pace import STEPS
from logstore.kafka.places import Places
from logstore.kafka.wire import respond
from logstore.log.store import StoreSettings
from logstore.log.topics import TopicConfig
from tests.kafka.front_driver import (
    FETCH,
    METADATA,
    PRODUCE,
    TOPIC,
    Peer,
    Server,
    batch,
    fetch_frame,
    kio_frame,
    produce_frame,
    serving,
    wait_until,
)

MIB = 1 << 20


def announced(size: int, sent: int, key: int = PRODUCE) -> bytes:
    """The head of a frame of `size` bytes, and the first `sent` of them."""
    head = struct.pack(">hhih", key, 8, 7, 4) + b"test"
    return struct.pack(">i", size) + head + bytes(sent - len(head))


async def connect_many(server: Server, stack: AsyncExitStack, count: int, data: bytes) -> list[Peer]:
    """Clients that each send the same, and then wait."""
    peers = [await stack.enter_async_context(await server.connect()) for _ in range(count)]
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(peer.send, data)
    return peers


async def assert_served(server: Server, requests: int = 20) -> None:
    """A healthy client's small and largest default batches are answered, one after the other."""
    async with await server.connect() as peer:
        for number in range(requests):
            answer = await peer.produce(batch(1, 1_000_000 if number % 2 else 100))
            assert answer.error_code is ErrorCode.none


@pytest.mark.parametrize("sent", [20, 5_000])
async def test_frames_that_are_announced_hold_what_has_come_of_them(tmp_path: Path, sent: int) -> None:
    """A hundred clients that announce 16 MiB each, fifty times what all requests may hold, take the memory of what they
    have sent and hold nobody up.
    """
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        peers = await connect_many(server, stack, 100, announced(16 * MIB, sent))
        await assert_served(server)
        await wait_until(lambda: server.kafka._arrivals.long.used_bytes == len(peers) * sent)
        await wait_until(lambda: server.kafka._requests.used_bytes == 0)
        assert len(server.kafka._connections) >= len(peers)


@pytest.mark.parametrize("size", [MIB, 16 * MIB])
async def test_frames_half_sent_give_way(tmp_path: Path, size: int) -> None:
    """Clients that send almost a MiB of a frame and stop fill their budget, and no more: a healthy client's frames are
    received all the same, because the slowest are given up.
    """
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        arrivals = server.kafka._arrivals.ordinary if size == MIB else server.kafka._arrivals.long
        limit = server.kafka._broker.settings.total_in_flight_bytes // 2
        await connect_many(server, stack, 24, announced(size, MIB - 1000))
        await wait_until(lambda: arrivals.given_up > 0)
        assert arrivals.used_bytes <= limit + size
        await assert_served(server)
        assert "came slower than others" in str(server.reported(CONNECTION_CLOSED)[0]["why"])


async def test_slow_honest_producers_of_large_frames_get_through(tmp_path: Path) -> None:
    """Producers whose frames together are larger than the budget, and come in small pieces, are all answered; a client
    with small frames is answered in between.
    """
    topics = TopicConfig(max_message_bytes=4 * MIB)
    settings = BrokerSettings(total_in_flight_bytes=8 * MIB, topic_defaults=topics)
    store = StoreSettings(topic_defaults=topics)
    frame = produce_frame([batch(1, 3 * MIB)])
    answered = 0

    async def produce_slowly(peer: Peer) -> None:
        nonlocal answered
        for start in range(0, len(frame), PIECE_BYTES):
            await peer.send(frame[start : start + PIECE_BYTES])
            await trio.lowlevel.checkpoint()
        await peer.answer()
        answered += 1

    async with serving(tmp_path, settings, store_settings=store) as server, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(await server.connect()) for _ in range(6)]
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(try_until_answered, server, stack, peer, produce_slowly)
            await assert_served(server, 6)
        assert answered == len(peers)
        assert server.kafka._arrivals.long.used_bytes == 0


async def try_until_answered(server: Server, stack: AsyncExitStack, peer: Peer, produce: Callable[..., object]) -> None:
    """As a Kafka client: who was given up connects and sends again."""
    while True:
        try:
            await produce(peer)  # type: ignore[misc]
        except (EOFError, trio.BrokenResourceError):
            peer = await stack.enter_async_context(await server.connect())
        else:
            return


async def test_the_oldest_frame_always_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """Frames that together exceed the budget at full speed all get whole, none is given up, and what they hold stays
    within the limit and one frame: the oldest goes on while the others wait.
    """
    size, limit = 40 * PIECE_BYTES, 64 * PIECE_BYTES
    budget = ArrivalBudget(limit)
    most = 0
    whole: list[Arrival] = []

    async def come() -> None:
        nonlocal most
        arrival = budget.begin(lambda: pytest.fail("given up"))
        for _ in range(size // PIECE_BYTES):
            if not budget.take_nowait(arrival, PIECE_BYTES):
                await budget.take(arrival, PIECE_BYTES)
            arrival.advance(PIECE_BYTES)
            most = max(most, budget.used_bytes)
            await trio.lowlevel.checkpoint()
        budget.end(arrival)
        whole.append(arrival)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(come)
    assert len(whole) == 20
    assert most <= limit + size
    assert budget.used_bytes == 0


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """One more."""
        self.count += 1


async def test_few_of_those_who_wait_wake_up(autojump_clock: trio.testing.MockClock) -> None:
    """While a thousand frames wait for room, time that passes and pieces that are freed wake a few of them, not all;
    when there is room for them, all go on, none left behind.
    """
    waiting, rounds = 1_000, 20
    limit = 64 * PIECE_BYTES
    budget = ArrivalBudget(limit)
    oldest = budget.begin(lambda: pytest.fail("given up"))
    assert budget.take_nowait(oldest, limit)
    oldest.is_waiting = True
    served: list[int] = []

    async def come(number: int, size: int) -> None:
        arrival = budget.begin(lambda: pytest.fail("given up"))
        await budget.take(arrival, size)
        served.append(number)
        budget.end(arrival)

    steps = Steps()
    async with trio.open_nursery() as nursery:
        for number in range(waiting):
            nursery.start_soon(come, number, 4 * PIECE_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        for _ in range(rounds):
            await trio.sleep(SLOW_PIECE_S)
            budget.give_back(oldest, PIECE_BYTES // rounds)
        trio.lowlevel.remove_instrument(steps)
        assert not served
        assert steps.count < waiting
        budget.end(oldest)
    assert sorted(served) == list(range(waiting))
    assert budget.used_bytes == 0


async def test_who_fits_goes_on_in_front_of_who_does_not(autojump_clock: trio.testing.MockClock) -> None:
    """A piece that is freed goes to the first of those who wait that it is enough for; who waits for more keeps its
    place, and an oldest frame that waits goes on when no whole one does.
    """
    budget = ArrivalBudget(8 * PIECE_BYTES)
    whole, oldest, *others = [budget.begin(lambda: pytest.fail("given up")) for _ in range(4)]
    assert budget.take_nowait(whole, 8 * PIECE_BYTES)
    budget.hold_whole(whole)
    order: list[int] = []

    async def take(number: int, arrival: Arrival, pieces: int) -> None:
        await budget.take(arrival, pieces * PIECE_BYTES)
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number, (arrival, pieces) in enumerate(zip((*others, oldest), (4, 1, 9), strict=True)):
            nursery.start_soon(take, number, arrival, pieces)
            await trio.testing.wait_all_tasks_blocked()
        budget.give_back(whole, PIECE_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        assert order == [1]
        budget.give_back(whole, 4 * PIECE_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        assert order == [1, 0]
        budget.end(whole)
        await trio.testing.wait_all_tasks_blocked()
        assert order == [1, 0, 2]
    for arrival in (oldest, *others):
        budget.end(arrival)
    assert budget.used_bytes == 0


async def test_while_a_whole_frame_waits_none_exceeds_the_limit(autojump_clock: trio.testing.MockClock) -> None:
    """With the disk held, whole frames fill the budget: frames behind them wait for room, the oldest of them too, and
    go on when there is some.
    """
    limit = 8 * PIECE_BYTES
    budget = ArrivalBudget(limit)
    whole = budget.begin(lambda: pytest.fail("given up"))
    assert budget.take_nowait(whole, limit)
    budget.hold_whole(whole)

    async def come() -> None:
        arrival = budget.begin(lambda: pytest.fail("given up"))
        for _ in range(4):
            await budget.take(arrival, PIECE_BYTES)
        budget.hold_whole(arrival)
        await disk.wait()
        budget.end(arrival)

    disk = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(come)
        await trio.sleep(10 * SLOW_PIECE_S)
        assert budget.used_bytes == limit
        budget.end(whole)
        await trio.sleep(10 * SLOW_PIECE_S)
        assert budget.used_bytes == limit
        disk.set()
    assert budget.used_bytes == 0


async def test_waiting_for_memory_does_not_make_a_first_frame_late(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """A new client's first frame is long, and memory for it is short until `handshake-s` is over: it may go on then."""
    mock_clock.rate = 1
    async with serving(tmp_path, BrokerSettings(handshake_s=10)) as server, await server.connect() as peer:
        budget = server.kafka._arrivals.ordinary
        older = budget.begin(lambda: pytest.fail("given up"))
        assert budget.take_nowait(older, server.kafka._broker.settings.total_in_flight_bytes // 2)
        older.is_waiting = True
        frame = produce_frame([batch(1, 500_000)])
        await peer.send(frame[:100_000])
        await wait_until(lambda: any(arrival.is_waiting for arrival in budget._arrivals if arrival is not older))
        mock_clock.jump(15)
        budget.end(older)
        await wait_until(lambda: budget.used_bytes > 99_000)
        await peer.send(frame[100_000:])
        await peer.answer()


async def test_the_slowest_gives_way_first(autojump_clock: trio.testing.MockClock) -> None:
    """When a byte does not fit, the frame whose latest piece began first goes, and only as many as must; one that
    waits for us is not slow.
    """
    budget = ArrivalBudget(8 * PIECE_BYTES)
    gone: list[str] = []
    slow = []
    for name in ("slowest", "slow", "waiting", "fresh"):
        arrival = budget.begin(lambda name=name: gone.append(name))  # type: ignore[misc]
        assert budget.take_nowait(arrival, 2 * PIECE_BYTES)
        slow.append(arrival)
        await trio.sleep(SLOW_PIECE_S)
    budget.hold_whole(slow[2])
    slow[3].advance(PIECE_BYTES)
    newcomer = budget.begin(lambda: gone.append("newcomer"))
    assert not budget.take_nowait(newcomer, PIECE_BYTES)
    await budget.take(newcomer, PIECE_BYTES)
    assert gone == ["slowest"]
    await budget.take(newcomer, 2 * PIECE_BYTES)
    assert gone == ["slowest", "slow"]
    for arrival in (*slow, newcomer):
        budget.end(arrival)
    assert budget.used_bytes == 0


@pytest.mark.parametrize("key", [FETCH, METADATA, 10, 30_001])
async def test_only_what_carries_data_may_be_large(tmp_path: Path, key: int) -> None:
    """A frame of anything but Produce and staged output is refused by its head when it is longer than 1 MiB
    (the commit of an epoch: than 4 MiB).
    """
    limit = 4 * MIB if key == 30_001 else CONTROL_FRAME_BYTES
    async with serving(tmp_path) as server, await server.connect() as peer, await server.connect() as within:
        await peer.send(announced(limit + 1, 20, key))
        assert await peer.ended()
        assert f"allowed are {limit} for request {key}" in str(server.reported(CONNECTION_CLOSED)[0]["why"])
        await within.send(announced(limit, SMALL_BYTES, key))
        await assert_served(server, 2)
        assert len(server.reported(CONNECTION_CLOSED)) == 1


async def test_fetches_that_wait_hold_up_nobody(tmp_path: Path) -> None:
    """Requests that wait for records weigh on their own connections: more of them than the budget of all requests
    leave room for producers.
    """
    settings = BrokerSettings(total_in_flight_bytes=64 * 1024)
    async with serving(tmp_path, settings) as server, AsyncExitStack() as stack:
        waiting = fetch_frame(offsets=(0, 0), max_wait_ms=60_000, min_bytes=MIB)
        await connect_many(server, stack, 60, waiting)
        await wait_until(lambda: len(server.stream._waiters) == 60)
        await assert_served(server, 2)


async def test_fetches_of_long_names_do_not_wait_beside_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that waits keeps its frame, also if it names topics without a partition: beyond a bound one is answered
    at once.
    """
    first = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    names = [{"topic": f"{number}-{'n' * 200}", "partitions": []} for number in range(100)]
    frame = fetch_frame(topics=[{"topic": TOPIC, "partitions": [first]}, *names], max_wait_ms=60_000)
    monkeypatch.setattr(fetch, "MAX_WAITING_PARTITIONS", 3 * len(frame) // fetch.WAITING_PART_BYTES)
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        await connect_many(server, stack, 3, frame)
        await wait_until(lambda: len(server.stream._waiters) == 3)
        async with await server.connect() as one_more:
            await one_more.ask(frame)
        assert len(server.stream._waiters) == 3


async def test_requests_that_wait_for_a_group_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What JoinGroup and SyncGroup keep while they wait is counted over all connections: who comes beyond the bound is
    closed; when some are answered, there is room again.
    """
    gate, joined = trio.Event(), 0

    async def join(request: Any, _: Caller) -> ResponsePayload:
        nonlocal joined
        joined += 1
        await gate.wait()
        return await respond(request, {"error_code": ErrorCode.none, "generation_id": 1, "members": []})

    values = {
        "group_id": "g",
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=60),
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(100_000)}],
    }
    frame = kio_frame(11, 2, values)
    monkeypatch.setattr("logstore.kafka.server.MAX_WAITING_BYTES", MIB)
    most = MIB // len(frame) + 1
    async with serving(tmp_path, apis=[Api(11, 2, 2, join)]) as server, AsyncExitStack() as stack:
        peers = await connect_many(server, stack, most, frame)
        await wait_until(lambda: joined == most)
        async with await server.connect() as one_more:
            await one_more.send(frame)
            assert await one_more.ended()
        assert "wait for their groups" in str(server.reported(CONNECTION_CLOSED)[0]["why"])
        gate.set()
        for peer in peers:
            await peer.answer()
        async with await server.connect() as next_one:
            await next_one.ask(frame)
        assert server.kafka._arrivals.waiting.used_bytes == 0


# ---- places


class Ended:
    """A connection that notes that it was ended."""

    def __init__(self, name: str, gone: list[str]) -> None:
        self.name, self.gone = name, gone

    def __call__(self) -> None:
        """End it."""
        self.gone.append(self.name)


def test_many_addresses_keep_their_places_beside_a_greedy_one() -> None:
    """An address that holds nearly all places gives way to newcomers from others, its silent connections first; who
    has few connections is not displaced, and who wants more of the greedy address displaces itself.
    """
    gone: list[str] = []
    places = Places(100, 90)
    few = [Ended(f"few-{number}", gone) for number in range(10)]
    greedy = [Ended(f"greedy-{number}", gone) for number in range(90)]
    for number, end in enumerate(few):
        places.enter(f"10.0.0.{number}", end)
    for end in greedy:
        places.enter("10.9.9.9", end)
        places.touch(end)
    places.touch(greedy[0])
    for number in range(10):
        places.enter(f"10.1.0.{number}", Ended(f"new-{number}", gone))
        places.enter("10.9.9.9", Ended(f"more-{number}", gone))
        assert len(places) == 100
    assert gone[:3] == ["greedy-1", "greedy-2", "more-0"]
    assert not [name for name in gone if name.startswith(("few", "new"))]
    for end in few:
        places.leave(end)
    assert len(places) == 90
    assert places._largest == max(places._by_size)


def test_loopback_and_networks_are_one_address() -> None:
    """Addresses that one client can have thousands of count as one."""
    assert {address_group(host) for host in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1")} == {"loopback"}
    assert address_group("2001:db8::1") == address_group("2001:db8::ffff:2%eth0") != address_group("2001:db8:0:1::1")
    assert address_group("::ffff:10.0.0.1") == address_group("10.0.0.1") != address_group("10.0.0.2")


async def test_thousands_of_idle_connections_lock_nobody_out(tmp_path: Path) -> None:
    """With every place taken by idle connections, each newcomer is served at once."""
    async with serving(tmp_path, BrokerSettings(max_connections=200)) as server, AsyncExitStack() as stack:
        for _ in range(300):
            await stack.enter_async_context(await server.connect())
        for _ in range(5):
            await assert_served(server, 2)
        assert len(server.kafka._connections) <= 200


async def evicted_amid(server: Server, frame: bytes, is_under_way: Callable[[], bool]) -> None:
    """A request whose connection loses its place while it is worked on."""
    async with await server.connect() as peer:
        await peer.send(frame)
        await wait_until(is_under_way)
        (connection,) = server.kafka._connections
        connection.give_way()
        await wait_until(lambda: not server.kafka._connections)


async def test_a_produce_request_that_is_broken_off_gives_its_bytes_back(tmp_path: Path) -> None:
    """A large one gives others turns, and its connection may end in one of them: what it took of the requests of all is
    given back, what it had appended stays.
    """
    partitions = 20 * STEPS
    async with serving(tmp_path, partitions=partitions) as server:
        requests = server.kafka._requests
        await evicted_amid(server, produce_frame([batch()] * partitions), lambda: requests.used_bytes > 0)
        assert requests.used_bytes == 0
        async with await server.connect() as peer:
            assert (await peer.produce(batch())).base_offset == 1


async def test_a_fetch_that_is_broken_off_gives_its_bytes_back(tmp_path: Path) -> None:
    """Wherever it is then, while it begins to listen, reads, or its answer is encoded: what it took of the answers of
    all is given back, and no stream will wake it.
    """
    partitions = 10 * STEPS
    async with serving(tmp_path, partitions=partitions) as server:
        async with await server.connect() as peer:
            await peer.send(produce_frame([batch()] * partitions))
            await peer.answer()
        frame = memoryview(fetch_frame(11, offsets=(0,) * partitions))[4:]
        request = fetch.decode(frame, codec.decode_header(frame).body_at, 11)
        answers = server.kafka._answers
        free_bytes, broken_off = answers.free_bytes, 0
        for turns in range(100):
            size = await fetched(server, request, turns)
            answers.give(size or 0)
            assert answers.free_bytes == free_bytes, f"broken off after {turns} turns"
            streams = server.engine.store.topics[TOPIC].partitions
            assert not any(stream._waiters for stream in streams), f"broken off after {turns} turns"
            if size is not None:
                break
            broken_off += 1
        assert broken_off > partitions // STEPS


async def fetched(server: Server, request: fetch.FetchRequest, turns: int) -> int | None:
    """Serve a fetch, which is broken off after so many turns of another task; the bytes that its answer holds, None if
    there is no answer.
    """
    size = None
    async with trio.open_nursery() as nursery:

        async def break_off() -> None:
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

        nursery.start_soon(break_off)
        _, size = await fetch.handle(server.kafka._broker, request, server.kafka._answers)
        nursery.cancel_scope.cancel()
    return size


async def test_the_tail_gives_way_to_large_requests(tmp_path: Path) -> None:
    """While they wait for the disk, the tail and they have one bound; behind them the tail has all of it, and holds as
    many batches as are in it.
    """
    async with serving(tmp_path, store_settings=StoreSettings(tail_bytes=4 * MIB)) as server:
        tail = server.engine.store.tail
        server.kafka.share_memory(tail)
        async with await server.connect() as peer:
            for _ in range(6):
                await peer.produce(batch(1, 900_000))
            assert tail.used_bytes > 3 * MIB, "four batches are within the bound"
            server.files.gate = threading.Event()
            try:
                await peer.send(*(produce_frame([batch(1, 900_000)]) for _ in range(2)))
                await wait_until(lambda: server.kafka.request_bytes > 1_800_000)
                assert tail.used_bytes <= 4 * MIB - server.kafka.request_bytes
            finally:
                server.files.gate.set()
            for _ in range(2):
                await peer.answer()
            for _ in range(3):
                await peer.produce(batch(1, 900_000))
        assert tail.used_bytes > 3 * MIB
