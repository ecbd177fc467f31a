"""A host that may show readers less than was acknowledged tells nobody where that ends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from logstore.cluster.engine import ClusterEngine
from logstore.errors import EndNotKnown, OffsetOutOfRange
from logstore.format.epoch_api import decode_error, error_fields
from logstore.kafka.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    OffsetHandlers,
)
from logstore.log.topics import TopicConfig
from logstore.replica.registrations import TieredCopy
from tests.cluster.support import MEMBERS, Front
from tests.cluster.test_replicated_stream import led
from tests.kafka.node import Node

LIST_OFFSETS = 2


async def early(*, kept: int) -> Front:
    """A host without members enough. One batch is acknowledged, and `kept` more are in the log, perhaps seen."""
    front, owner = await led()
    front.append(b"0")
    owner.ack()
    front.append(b"1")
    second = Front(owner)
    owner.own_for_readers(second.stream, kept=kept)
    await second.tasks.run_a_while()
    assert second.stream.high_watermark == 1
    return second


async def found(front: Front, version: int, timestamp: int) -> tuple[ErrorCode, int]:
    """What a client hears of the offset."""

    async def nothing(*_: object) -> None:
        return None

    async def unknown(*_: object) -> int:
        return -1

    store = SimpleNamespace(stream=lambda *_: front.stream)
    engine = SimpleNamespace(store=store, find_timestamp=nothing, max_timestamp=nothing, leader_epoch_at=unknown)
    node = Node.__new__(Node)
    node.apis = {api.key: api for api in OffsetHandlers(cast(Any, SimpleNamespace(engine=engine))).apis()}
    partition = {"partition_index": 0, "timestamp": timestamp}
    answer = await node.ask(LIST_OFFSETS, version, topics=[{"name": "t", "partitions": [partition]}])
    ((told,),) = (topic.partitions for topic in answer.topics)
    return told.error_code, told.offset


@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP, 1 << 50])
async def test_who_asks_for_the_end_asks_again(timestamp: int) -> None:
    """Spark, and whoever has seen more, would take an earlier end for a loss (KIP-207)."""
    front = await early(kept=1)
    assert await found(front, 7, timestamp) == (ErrorCode.offset_not_available, -1)
    assert (await found(front, 4, LATEST))[0] is ErrorCode.leader_not_available
    assert await found(front, 7, EARLIEST) == (ErrorCode.none, 0)


async def test_what_is_in_the_tier_is_known_while_members_are_wanting() -> None:
    """Also what only it has, and how large all is: the registration says so, and an owner that waits has it."""
    front, owner = await led()
    for value in (b"0", b"1", b"2"):
        front.append(value)
        owner.ack()
        owner.roll()
    second = Front(owner, config=TopicConfig(remote_storage="true"))
    for chunk, members in zip(owner.chunks[:2], ((), MEMBERS), strict=True):
        in_tier = replace(chunk.registration, tiered=TieredCopy("0" * 16, 0, (0, 0), None), members=members)
        chunk.registration = in_tier
    owner.own_for_readers(second.stream)
    await second.tasks.run()
    assert not second.stream.is_leader
    assert await found(second, 9, EARLIEST_LOCAL) == (ErrorCode.none, 1)
    assert await found(second, 9, LATEST_TIERED) == (ErrorCode.none, 1)
    assert await found(second, 11, EARLIEST_PENDING_UPLOAD) == (ErrorCode.none, 2)
    size_bytes = sum(chunk.end.length_bytes for chunk in second.stream.registration.chunks if chunk.end)
    assert (second.stream.size_bytes, second.stream.chunk_count) == (size_bytes, 3)


async def test_an_end_that_is_known_is_told() -> None:
    """Nothing is hidden: all that is in the log is acknowledged."""
    front = await early(kept=0)
    assert await found(front, 7, LATEST) == (ErrorCode.none, 1)


async def test_a_query_does_not_take_an_earlier_epoch_for_its_last() -> None:
    """It looks for its epochs from the end backwards: it asks again, also from where another host showed more."""
    front = await early(kept=1)
    engine = ClusterEngine(cast(Any, None), cast(Any, None), cast(Any, None))
    for before in (-1, 2):
        with pytest.raises(EndNotKnown) as refused:
            await engine.scan_controls(front.stream, before, (), 1)
        assert type(decode_error(error_fields(refused.value))).__name__ == "TryAgain"
    whole = await early(kept=0)
    with pytest.raises(OffsetOutOfRange):
        await engine.scan_controls(whole.stream, 2, (), 1)
