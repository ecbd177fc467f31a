"""Topics named by id (KIP-516): an id means one topic for ever, whatever is called by its name later."""

import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
import trio
from kio.schema.errors import ErrorCode

from tests.kafka.front_driver import (
    FETCH,
    NO_ID,
    PRODUCE,
    TOPIC,
    Server,
    batch,
    decode_answer,
    fetch_frame,
    kio_frame,
    produce_frame,
    serving,
)
from tests.support.limits import PATIENCE_S

FETCH_VERSION, PRODUCE_VERSION = 18, 13
STRANGER = uuid.UUID(int=77)


async def made_again(server: Server) -> uuid.UUID:
    """Delete the topic and create it again under its name; the id that it had before."""
    before = server.topic_id
    await server.engine.wait(server.engine.store.delete_topic(TOPIC))
    await server.engine.wait(server.engine.store.create_topic(TOPIC, 1, {}))
    assert server.topic_id != before
    return before


@pytest.mark.parametrize("unknown", [NO_ID, STRANGER])
async def test_an_unknown_id_is_named_in_the_answer(tmp_path: Path, unknown: uuid.UUID) -> None:
    """A fetch and a produce by an id that no topic has get UNKNOWN_TOPIC_ID, at once, under that id."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        with trio.fail_after(PATIENCE_S):
            fetched = await peer.fetch(FETCH_VERSION, topic_id=unknown, max_wait_ms=int(PATIENCE_S * 2000))
        frame = produce_frame([batch()], PRODUCE_VERSION, topic_id=unknown)
        produced = decode_answer(PRODUCE, PRODUCE_VERSION, await peer.ask(frame))
        named = [answer.responses[0].topic_id or NO_ID for answer in (fetched, produced)]  # kio shows no id as None
        assert named == [unknown, unknown]
        assert fetched.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id
        refused = produced.responses[0].partition_responses[0]
        assert refused.error_code is ErrorCode.unknown_topic_id
        assert str(unknown) in refused.error_message
        assert server.stream.high_watermark == 0


async def test_a_partition_that_is_not_there_is_unknown_though_its_topic_is_known(tmp_path: Path) -> None:
    """By id too, a partition beyond the topic's is UNKNOWN_TOPIC_OR_PARTITION, and does not touch the others."""
    async with serving(tmp_path, partitions=1) as server, await server.connect() as peer:
        frame = produce_frame([batch(), batch()], PRODUCE_VERSION, topic_id=server.topic_id)
        produced = decode_answer(PRODUCE, PRODUCE_VERSION, await peer.ask(frame)).responses[0].partition_responses
        fetched = (await peer.fetch(FETCH_VERSION, offsets=(0, 0), topic_id=server.topic_id)).responses[0].partitions
        for parts in (produced, fetched):
            assert [part.error_code for part in parts] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


async def test_the_id_of_a_deleted_topic_never_means_the_next_of_that_name(tmp_path: Path) -> None:
    """Who still names the deleted topic's id neither reads the new topic's records nor writes among them."""
    async with serving(tmp_path, partitions=1) as server, await server.connect() as peer:
        await peer.produce(batch(), version=PRODUCE_VERSION, topic_id=server.topic_id)
        before = await made_again(server)
        await peer.produce(batch(2), version=PRODUCE_VERSION, topic_id=server.topic_id)
        refused = await peer.produce(batch(), version=PRODUCE_VERSION, topic_id=before)
        assert refused.error_code is ErrorCode.unknown_topic_id
        old = (await peer.fetch(FETCH_VERSION, topic_id=before)).responses[0].partitions[0]
        assert (old.error_code, bytes(old.records or b"")) == (ErrorCode.unknown_topic_id, b"")
        new = (await peer.fetch(FETCH_VERSION, topic_id=server.topic_id)).responses[0].partitions[0]
        assert (new.error_code, new.high_watermark) == (ErrorCode.none, 2)


async def test_a_fetch_that_waits_learns_that_its_topic_is_gone(tmp_path: Path) -> None:
    """A long poll by id ends with UNKNOWN_TOPIC_ID when its topic is deleted, not when its time runs out."""
    async with serving(tmp_path, partitions=1) as server, await server.connect() as peer:
        stream = server.stream
        await peer.send(fetch_frame(FETCH_VERSION, topic_id=server.topic_id, max_wait_ms=int(PATIENCE_S * 2000)))
        with trio.fail_after(PATIENCE_S):
            while not stream._waiters:
                await trio.lowlevel.checkpoint()
        await made_again(server)
        _, data = await peer.answer()
        (part,) = decode_answer(FETCH, FETCH_VERSION, data).responses[0].partitions
        assert part.error_code is ErrorCode.unknown_topic_id


async def test_one_partition_twice_by_id_is_refused(tmp_path: Path) -> None:
    """A fetch that names a partition twice by its topic's id is malformed, as by name: the connection ends."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topic = {"topic_id": server.topic_id, "partitions": [part]}
        await peer.send(kio_frame(FETCH, FETCH_VERSION, {"topics": [topic, topic], "session_epoch": -1}))
        assert await peer.ended()


@pytest.mark.parametrize("version", [13, 15, 17, 18])
async def test_tagged_fields_of_replicas_are_passed_over(tmp_path: Path, version: int) -> None:
    """What only replicas and newer clients tell (replica state, directory, high watermark, cluster) changes nothing."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch(2))
        part: dict[str, Any] = {
            "partition": 0,
            "fetch_offset": 0,
            "partition_max_bytes": 1 << 20,
            "replica_directory_id": STRANGER,
            "high_watermark": 1,
        }
        values = {
            "cluster_id": "somewhere",
            "replica_id": -1,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": [{"topic_id": server.topic_id, "partitions": [part]}],
            "forgotten_topics_data": [{"topic_id": STRANGER, "partitions": [1, 2]}],
            "rack_id": "r",
        }
        answer = decode_answer(FETCH, version, await peer.ask(kio_frame(FETCH, version, values)))
        assert bytes(answer.responses[0].partitions[0].records) == batch(2)


@pytest.mark.parametrize(("key", "version"), [(FETCH, FETCH_VERSION), (PRODUCE, PRODUCE_VERSION)])
async def test_a_request_cut_inside_an_id_is_malformed(tmp_path: Path, key: int, version: int) -> None:
    """A frame that ends anywhere inside an id closes its connection, and no other."""
    async with serving(tmp_path) as server:
        whole = (
            fetch_frame(version, topic_id=server.topic_id)
            if key == FETCH
            else produce_frame([batch()], version, topic_id=server.topic_id)
        )
        at = whole.index(server.topic_id.bytes)
        for end in (at + 1, at + 15):
            async with await server.connect() as peer:
                await peer.send(struct.pack(">i", end - 4) + whole[4:end])
                assert await peer.ended()
        async with await server.connect() as peer:
            assert (await peer.produce(batch())).error_code is ErrorCode.none
