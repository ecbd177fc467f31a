"""A fetch whose answer was read ahead is read and answered as the general way does it, while its task sleeps."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from logstore.base.histogram import Histogram
from logstore.errors import MalformedRequest
from logstore.format.batch import iterate_batches
from logstore.kafka import codec, fetch, ready_fetch
from logstore.kafka.answers import AnswerLine
from logstore.kafka.api_types import BrokerSettings
from logstore.kafka.framing import Reader, frame
from logstore.kafka.ready_fetch import WantedBatches
from logstore.log.journal import JournalLimits
from logstore.log.reading import KEPT_TIMES
from logstore.log.store import StoreSettings
from tests.kafka.front_driver import (
    FETCH,
    NO_ID,
    NOW_MS,
    Peer,
    Server,
    batch,
    decode_answer,
    fetch_frame,
    serving,
    wait_until,
)
from tests.kafka.test_served_at_once import counted_steps

VERSIONS: Final = range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1)
ON_DISK: Final = StoreSettings(tail_bytes=1, journal=JournalLimits(file_bytes=0))
"""Every read is one of a file."""
LARGE: Final = batch(1, 100_000)
BATCHES: Final = 40
PART_BYTES: Final = 250_000
"""Two batches."""


def asked(version: int, **values: Any) -> memoryview:
    """A whole request without its length."""
    return memoryview(fetch_frame(version, **values))[4:]


def decoded(request: memoryview) -> fetch.FetchRequest:
    """What the general way reads. Raises MalformedRequest."""
    header = codec.decode_header(request)
    reader = Reader(request, header.body_at, flexible=header.version >= fetch.FIRST_FLEXIBLE)
    reader.tags()
    return fetch.decode(request, reader.at, header.version)


def agree(wanted: WantedBatches, general: fetch.FetchRequest) -> None:
    """Both have read the same."""
    ((key, (part,)),) = general.topics
    assert (wanted.version, wanted.max_bytes, wanted.key) == (general.version, general.max_bytes, key)
    assert (wanted.partition, wanted.leader_epoch, wanted.offset, wanted.partition_max_bytes) == part[:4]
    assert part.last_epoch < 0
    assert general.min_bytes <= 1
    assert not general.session_id
    assert general.session_epoch <= 0


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= fetch.FIRST_FLEXIBLE])
def test_a_client_that_names_the_epoch_that_it_has_read_is_served_the_general_way(version: int) -> None:
    """Its log may part from the stream's, which is looked up."""
    part = {"partition": 0, "fetch_offset": 5, "partition_max_bytes": 9, "current_leader_epoch": -1}
    for last_epoch, is_ready in ((-1, True), (0, False)):
        topics = [{"topic": "t", "topic_id": NO_ID, "partitions": [part | {"last_fetched_epoch": last_epoch}]}]
        assert (ready_fetch.decode(asked(version, topics=topics)) is not None) == is_ready


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read_as_the_general_way_reads_it(version: int) -> None:
    """One partition of one topic, by name or by id."""
    request = asked(version, offsets=(12345678901,), leader_epoch=4, max_bytes=77, partition_max_bytes=55)
    wanted = ready_fetch.decode(request)
    assert wanted is not None
    assert wanted.correlation_id == 7
    agree(wanted, decoded(request))


@pytest.mark.parametrize("version", VERSIONS)
def test_other_forms_are_left_to_the_general_way(version: int) -> None:
    """Several partitions, none, more than one byte as the least, another request."""
    others = [asked(version, offsets=(0, 0)), asked(version, offsets=()), asked(version, min_bytes=2)]
    if version >= 7:
        others += [asked(version, session_epoch=1), asked(version, session_id=3, session_epoch=0)]
    other_key = bytearray(asked(version))
    struct.pack_into(">h", other_key, 0, 1000)
    for request in (*others, memoryview(other_key)):
        assert ready_fetch.decode(request) is None


@given(st.sampled_from(VERSIONS), st.data())
def test_damaged_requests_are_never_read_otherwise(version: int, data: st.DataObject) -> None:
    """Cut or overwritten anywhere: not taken, or read as the general way reads it."""
    damaged = bytearray(asked(version))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    request = memoryview(damaged)[: data.draw(st.integers(codec.FIXED_HEADER_BYTES, len(damaged)))]
    wanted = ready_fetch.decode(request)
    if wanted is None:
        return
    try:
        general = decoded(request)
    except MalformedRequest as error:  # its end is missing, or its client id is none
        pytest.fail(f"{bytes(request)!r} is malformed ({error}) and was read as {wanted}")
    agree(wanted, general)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [100, 200, 20_000, 3_000_000])
async def test_answers_are_those_of_the_general_way(version: int, size: int) -> None:
    """Byte for byte, whatever their length."""
    request = asked(version, offsets=(5,))
    wanted = ready_fetch.decode(request)
    assert wanted is not None
    found: list[Any] = [memoryview(b"a" * (size - 10)), b"b" * 10]
    body = await fetch._encode(version, 0, [(wanted.key, [fetch._PartitionAnswer(0, 0, 99, 3, found, size)])])
    general = frame(7, body, flexible_header=version >= fetch.FIRST_FLEXIBLE)
    assert b"".join(ready_fetch.encode(wanted, 99, 3, found, size)) == b"".join(general)


@asynccontextmanager
async def with_history(root: Path, **values: Any) -> AsyncIterator[Server]:
    """A front whose stream has BATCHES batches on the disk, and is written no more."""
    async with serving(root, store_settings=ON_DISK, **values) as server:
        for _ in range(BATCHES):
            ticket = server.stream.append(bytearray(LARGE), now_ms=NOW_MS)
        await server.engine.wait(ticket)
        await wait_until(lambda: not server.engine._beside.is_beside_writes)
        yield server


async def read_on(peer: Peer, offset: int, *, version: int = 11, topic_id: Any = NO_ID) -> int:
    """Fetch two batches, and check them; returns the offset behind them."""
    answer = await peer.fetch(version, offsets=(offset,), partition_max_bytes=PART_BYTES, topic_id=topic_id)
    (part,) = answer.responses[0].partitions
    data = bytes(part.records)
    offsets = [header.base_offset for _, header in iterate_batches(data)]
    assert part.error_code is ErrorCode.none
    assert offsets == [offset, offset + 1]
    return offset + 2


@pytest.mark.parametrize("version", [4, 11, 12, 18])
async def test_who_catches_up_wakes_no_task_of_its_connection(tmp_path: Path, version: int) -> None:
    """From the third fetch on: each answer was read ahead, and nothing of the budget for answers is left taken."""
    async with with_history(tmp_path) as server, await server.connect() as peer:
        offset = 0
        for _ in range(3):
            offset = await read_on(peer, offset, version=version, topic_id=server.topic_id)
        if not server.files.tells_what_is_cached:
            pytest.skip("this file system does not tell what is in memory")
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with counted_steps() as steps:
            while offset < BATCHES:
                offset = await read_on(peer, offset, version=version, topic_id=server.topic_id)
        assert steps.count == 0
        assert server.kafka._answers.free_bytes == BrokerSettings().total_answer_bytes
        assert server.stream.fetched_bytes == BATCHES * len(LARGE)


async def test_an_answer_that_waits_for_its_client_keeps_no_more_memory_than_it_counts(tmp_path: Path) -> None:
    """What the socket takes at once is a part of the piece that was read ahead; what it leaves is not."""
    async with with_history(tmp_path) as server, await server.connect(receive_buffer_bytes=4096) as peer:
        await wait_until(lambda: server.kafka.connections)
        (connection,) = server.kafka._connections
        for fetched in range(2, BATCHES + 1, 2):
            await peer.send(fetch_frame(offsets=(fetched - 2,), partition_max_bytes=PART_BYTES))
            while server.stream.fetched_bytes < fetched * len(LARGE):  # the server's own state, seen from outside
                await trio.lowlevel.checkpoint()
            if connection._line._left is not None:
                break
        left = connection._line._left
        assert left is not None
        owners = [memoryview(part).obj for part in left.parts]
        kept_bytes = sum({id(owner): memoryview(owner).nbytes for owner in owners}.values())
        assert kept_bytes <= KEPT_TIMES * left.reserved_bytes


async def test_requests_behind_such_a_fetch_keep_their_order(tmp_path: Path) -> None:
    """Fetches that were sent without a wait are answered one after the other."""
    async with with_history(tmp_path) as server, await server.connect() as peer:
        offset = 0
        for _ in range(3):
            offset = await read_on(peer, offset)
        offsets = list(range(offset, offset + 10, 2))
        frames = [fetch_frame(offsets=(at,), partition_max_bytes=PART_BYTES, correlation_id=at) for at in offsets]
        await peer.send(*frames)
        for at in offsets:
            number, data = await peer.answer()
            assert number == at
            (part,) = decode_answer(FETCH, 11, data).responses[0].partitions
            assert next(iterate_batches(bytes(part.records)))[1].base_offset == at


async def test_others_run_between_fetches_that_were_sent_without_a_wait(tmp_path: Path) -> None:
    """However many MiB a client asks for in one piece, and although they need no wait."""
    async with with_history(tmp_path) as server, await server.connect() as peer:
        offset = 0
        for _ in range(3):
            offset = await read_on(peer, offset)
        steps_bytes: list[int] = []

        async def watch() -> None:
            while True:
                before = server.stream.fetched_bytes
                await trio.lowlevel.checkpoint()
                steps_bytes.append(server.stream.fetched_bytes - before)

        offsets = range(offset, BATCHES, 2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await peer.send(*(fetch_frame(offsets=(at,), partition_max_bytes=PART_BYTES) for at in offsets))
            for _ in offsets:
                await peer.answer()
            nursery.cancel_scope.cancel()
        assert sum(steps_bytes) == len(offsets) * 2 * len(LARGE)
        # Where threads read, several of them may end in one turn of the event loop; not all, as if served in one go.
        most_bytes = 2 * 2 * len(LARGE) if server.files.tells_what_is_cached else sum(steps_bytes) // 2
        assert max(steps_bytes) <= most_bytes


async def test_what_is_refused_or_not_there_is_left_to_the_general_way(tmp_path: Path) -> None:
    """An unknown topic, another leader epoch, a place where nothing was read ahead, and what was deleted."""
    async with with_history(tmp_path) as server, await server.connect() as peer:
        offset = 0
        for _ in range(3):
            offset = await read_on(peer, offset)
        broker, answers = server.kafka._broker, server.kafka._answers
        line, meter = a_line(server), Histogram((1.0,))

        def is_taken(**values: Any) -> bool:
            request = asked(11, partition_max_bytes=PART_BYTES, **{"offsets": (offset,), **values})
            return ready_fetch.start(broker, line, meter, request, answers)

        assert not is_taken(topic="none")
        assert not is_taken(leader_epoch=server.stream.leader_epoch + 1)
        assert not is_taken(offsets=(offset + 1,))
        await server.engine.wait(server.stream.delete_records(offset + 4))
        await wait_until(lambda: not server.engine._beside.is_beside_writes)
        assert not is_taken()
        assert answers.free_bytes == BrokerSettings().total_answer_bytes
        assert (meter.count, line.waiting) == (0, 0)


def a_line(server: Server) -> AnswerLine:
    """A line of answers of a connection without requests."""
    (connection,) = server.kafka._connections
    return connection._line
