"""Fetch over a real connection: limits, waiting, sessions, epochs, and what is not shipped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v17.request import ReplicaState
from kio.schema.types import BrokerId
from kio.static.primitive import i64

from logstore.format.batch import iterate_batches
from logstore.format.control import Begin, End, encode_control
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.kafka import codec, fetch
from logstore.log.journal import JournalLimits
from logstore.log.reading import KEPT_TIMES
from logstore.log.store import StoreSettings
from logstore.log.ticket import Ticket
from tests.kafka.front_driver import (
    NOW_MS,
    TOPIC,
    Peer,
    Server,
    batch,
    fetch_frame,
    produce_frame,
    request_frame,
    serving,
)
from tests.kafka.turns import counted_turns
from tests.support.limits import PATIENCE_S

VERSIONS = range(4, 19)
LONG_MS = int(PATIENCE_S * 1000)


def first(answer: Any) -> Any:
    """The first partition of an answer."""
    return answer.responses[0].partitions[0]


def values_of(records: bytes | None) -> list[bytes | None]:
    """The values in what a fetch returned; empty batches have none."""
    found: list[bytes | None] = []
    data = bytes(records or b"")
    for at, header in iterate_batches(data):
        if header.record_count:
            found += [record.value for record in decode_batch(data[at : at + header.size_bytes])]
    return found


async def wait_for_waiter(server: Server, count: int = 1) -> None:
    """Until that many fetches wait for the stream."""
    with trio.fail_after(PATIENCE_S):
        while len(server.stream._waiters) < count:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_is_answered_in_its_own_layout(tmp_path: Path, version: int) -> None:
    """Batches as they were produced, high watermark and log start in every version of Fetch that ApiVersions offers."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch(3))
        answer = await peer.fetch(version, offsets=(0, 0), topic_id=server.topic_id)
        named = answer.responses[0].topic_id if version >= 13 else answer.responses[0].topic
        assert named == (server.topic_id if version >= 13 else TOPIC)
        one, two = answer.responses[0].partitions
        assert (one.error_code, one.high_watermark, one.last_stable_offset) == (ErrorCode.none, 3, 3)
        assert bytes(one.records) == batch(3)
        assert (two.error_code, two.high_watermark, bytes(two.records)) == (ErrorCode.none, 0, b"")
        if version >= 5:
            assert one.log_start_offset == 0


async def test_a_client_that_calls_itself_a_replica_is_a_consumer(tmp_path: Path) -> None:
    """A Fetch with a replica's id gets what a consumer's gets: no record beyond the high watermark."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch(3))
        state = ReplicaState(replica_id=BrokerId(1), replica_epoch=i64(1))
        asked: dict[int, dict[str, Any]] = {11: {"replica_id": 1}, 17: {"replica_state": state}}
        for version, claim in asked.items():
            as_replica = await peer.fetch(version, topic_id=server.topic_id, **claim)
            as_consumer = await peer.fetch(version, topic_id=server.topic_id)
            assert first(as_replica) == first(as_consumer)


@pytest.mark.parametrize("key", [4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 61, 62, 63, 64, 67, 80, 81, 82])
async def test_requests_between_brokers_close_the_connection(tmp_path: Path, key: int) -> None:
    """Leadership, votes, snapshots, registrations of brokers and the like are not answered to anybody."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.send(request_frame(key, 0, b""))
        with trio.fail_after(PATIENCE_S):
            assert await peer.ended()


async def test_a_waiting_fetch_is_woken_by_an_append(tmp_path: Path) -> None:
    """A long poll on an empty stream is answered as soon as a batch is there, by whichever client."""
    async with serving(tmp_path) as server, await server.connect() as reader, await server.connect() as writer:
        await reader.send(fetch_frame(max_wait_ms=LONG_MS))
        await wait_for_waiter(server)
        await writer.produce(batch(2))
        with trio.fail_after(PATIENCE_S / 2):
            _, data = await reader.answer()
        assert batch(2) in data
        assert not server.stream._waiters


async def test_min_bytes_waits_for_more(tmp_path: Path) -> None:
    """A fetch with min_bytes is not answered by the first small batch, but when there is enough."""
    async with serving(tmp_path) as server, await server.connect() as reader, await server.connect() as writer:
        await reader.send(fetch_frame(max_wait_ms=LONG_MS, min_bytes=2 * len(batch())))
        await wait_for_waiter(server)
        await writer.produce(batch())
        with trio.move_on_after(0.1) as waited:
            await reader.answer()
        assert waited.cancelled_caught
        await writer.produce(batch())
        assert (await reader.answer())[1].count(b"x" * 10) == 2


async def test_max_wait_ends_in_vain(tmp_path: Path) -> None:
    """With nothing new a fetch is answered empty after max_wait_ms, not before; with 0 at once."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        started = trio.current_time()
        assert values_of(first(await peer.fetch(max_wait_ms=0)).records) == []
        assert trio.current_time() - started < PATIENCE_S / 2
        started = trio.current_time()
        assert values_of(first(await peer.fetch(max_wait_ms=120)).records) == []
        assert trio.current_time() - started >= 0.12


@pytest.mark.parametrize("from_disk", [False, True])
async def test_limits_hold(tmp_path: Path, from_disk: bool) -> None:
    """max_bytes bounds the answer and partition_max_bytes each partition, in whole batches; from memory and from
    disk.
    """
    size = 50_000
    settings = StoreSettings(tail_bytes=1, journal=JournalLimits(file_bytes=0)) if from_disk else StoreSettings()
    async with serving(tmp_path, store_settings=settings) as server, await server.connect() as peer:
        for _ in range(6):
            await peer.ask(produce_frame([batch(1, size), batch(1, size)]))
        whole = len(batch(1, size))
        for limit, batches in ((whole, 1), (3 * whole, 3), (3 * whole - 1, 2)):
            answer = await peer.fetch(offsets=(0, 0), partition_max_bytes=limit)
            assert [len(part.records) for part in answer.responses[0].partitions] == [batches * whole] * 2
        answer = await peer.fetch(offsets=(0, 0), max_bytes=7 * whole)
        assert [len(part.records) for part in answer.responses[0].partitions] == [6 * whole, whole]


async def test_an_answer_keeps_no_more_memory_than_it_reserves(tmp_path: Path) -> None:
    """One batch of each of many partitions, whose files are read in large pieces: a client that takes such answers
    slowly, or never, costs what is counted for it.
    """
    settings = StoreSettings(tail_bytes=1, journal=JournalLimits(file_bytes=0))
    one, partitions = batch(1, 1000), 20
    async with serving(tmp_path, store_settings=settings, partitions=partitions) as server:
        for number in range(partitions):
            stream = server.engine.store.stream(TOPIC, number)
            for _ in range(300):
                ticket = stream.append(bytearray(one), now_ms=NOW_MS)
            await server.engine.wait(ticket)
        for offset in range(3):  # from the second one on, more is read at a time
            frame = memoryview(fetch_frame(offsets=(offset,) * partitions, partition_max_bytes=len(one)))[4:]
            request = fetch.decode(frame, codec.decode_header(frame).body_at, 11)
            body, reserved = await fetch.handle(server.kafka._broker, request, server.kafka._answers)
            owners = [memoryview(part).obj for part in body]
            kept = sum({id(owner): memoryview(owner).nbytes for owner in owners}.values())
            server.kafka._answers.give(reserved)
            assert reserved == partitions * len(one)
            assert kept <= (KEPT_TIMES + 1) * reserved


async def test_a_first_batch_above_all_limits_is_served(tmp_path: Path) -> None:
    """A reader whose limits are smaller than the next batch gets that batch, alone, so that it advances (KIP-74)."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.ask(produce_frame([batch(1, 100_000), batch(1, 100_000)]))
        answer = await peer.fetch(offsets=(0, 0), max_bytes=10, partition_max_bytes=10)
        sizes = [len(part.records) for part in answer.responses[0].partitions]
        assert sizes == [len(batch(1, 100_000)), 0]


async def test_the_batch_that_holds_the_offset_is_whole(tmp_path: Path) -> None:
    """A fetch from the middle of a batch gets all of that batch; clients skip what they did not ask for."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch(10))
        assert bytes(first(await peer.fetch(offsets=(7,))).records) == batch(10)


async def test_offsets_outside_are_refused(tmp_path: Path) -> None:
    """Above the high watermark and below the log start is OFFSET_OUT_OF_RANGE, at once, with both ends named."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch(5))
        await server.engine.wait(server.stream.delete_records(3))
        for offset in (2, 6, -1, 1 << 60):
            answer = first(await peer.fetch(offsets=(offset,), max_wait_ms=LONG_MS))
            assert answer.error_code is ErrorCode.offset_out_of_range
            assert (answer.log_start_offset, answer.high_watermark) == (3, 5)


async def test_sessions_are_declined(tmp_path: Path) -> None:
    """A request for a session is answered in full with session id 0; a session that cannot be is refused by name."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch())
        answer = await peer.fetch(session_id=0, session_epoch=0)
        assert (answer.error_code, answer.session_id, len(answer.responses)) == (ErrorCode.none, 0, 1)
        answer = await peer.fetch(session_id=5, session_epoch=3)
        assert (answer.error_code, answer.responses) == (ErrorCode.fetch_session_id_not_found, ())
        answer = await peer.fetch(session_id=0, session_epoch=3)
        assert answer.error_code is ErrorCode.invalid_fetch_session_epoch


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, ErrorCode.none), (0, ErrorCode.none), (1, ErrorCode.unknown_leader_epoch)],
)
async def test_leader_epochs_are_checked(tmp_path: Path, epoch: int, error: ErrorCode) -> None:
    """A client that knows a newer leader epoch than we do is told so; one that knows none is served."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        assert first(await peer.fetch(leader_epoch=epoch)).error_code is error


async def test_unknown_topics_are_answered_alone_and_at_once(tmp_path: Path) -> None:
    """A partition that is not there is an error in its place, and no reason to wait."""
    async with serving(tmp_path, partitions=1) as server, await server.connect() as peer:
        answer = await peer.fetch(offsets=(0, 0), max_wait_ms=LONG_MS)
        errors = [part.error_code for part in answer.responses[0].partitions]
        assert errors == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


async def test_a_deleted_topic_wakes_its_readers(tmp_path: Path) -> None:
    """A fetch that waits for a topic learns that it is gone."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.send(fetch_frame(max_wait_ms=LONG_MS))
        await wait_for_waiter(server)
        await server.engine.wait(server.engine.store.delete_topic("orders"))
        with trio.fail_after(PATIENCE_S / 2):
            await peer.answer()


class OneGroup:
    """An append group of two data batches."""

    def __init__(self) -> None:
        self._pieces: Iterator[bytearray] = iter(
            [encode_batch([Record(0, NOW_MS, None, b"one")] * 2), encode_batch([Record(0, NOW_MS, None, b"two")])]
        )
        self.byte_count = 1000

    def begin(self, now_ms: int) -> bytearray:
        """BEGIN."""
        return encode_control(Begin("query", 1, 1, ("attempt",), self.byte_count, 2), timestamp_ms=now_ms)

    def next_batches(self) -> Ticket[bytearray | None]:
        """The next batch."""
        return Ticket.succeeded(next(self._pieces, None))

    def end(self, now_ms: int) -> bytearray:
        """END."""
        return encode_control(End("query", 1, 1, b"positions"), timestamp_ms=now_ms)


@pytest.mark.parametrize("from_disk", [False, True])
async def test_control_batches_are_not_shipped(tmp_path: Path, from_disk: bool) -> None:
    """BEGIN and END of a group keep their offsets but reach no client: empty batches stand in their place."""
    settings = StoreSettings(tail_bytes=1, journal=JournalLimits(file_bytes=0)) if from_disk else StoreSettings()
    async with serving(tmp_path, store_settings=settings) as server, await server.connect() as peer:
        await peer.produce(batch())
        await server.engine.wait(server.stream.append_group(OneGroup()))
        await peer.produce(batch())
        seen = await read_all(peer)
        assert b"positions" not in seen
        assert values_of(seen) == [b"x" * 10, b"one", b"one", b"two", b"x" * 10]
        headers = [header for _, header in iterate_batches(seen)]
        assert not any(header.is_control for header in headers)
        assert [(header.base_offset, header.next_offset) for header in headers] == [
            (0, 1), (1, 2), (2, 4), (4, 5), (5, 6), (6, 7),
        ]  # fmt: skip


async def read_all(peer: Peer) -> bytes:
    """Everything in partition 0, as a consumer reads it."""
    seen, offset = b"", 0
    while True:
        part = first(await peer.fetch(offsets=(offset,)))
        records = bytes(part.records)
        if not records:
            return seen
        seen += records
        offset = max(header.next_offset for _, header in iterate_batches(records))


async def test_a_client_that_sends_many_fetches_at_once_gives_way(tmp_path: Path) -> None:
    """Fetches that are served from memory do not wait for anything; between two of them, other tasks run."""
    count = 200
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch(2))
        async with counted_turns() as turns:
            await peer.send(*(fetch_frame(correlation_id=number) for number in range(count)))
            for number in range(count):
                found, data = await peer.answer()
                assert (found, batch(2) in data) == (number, True)
            assert turns.count >= count // 2
