"""Each request, allowed and refused, through sockets and the wire format."""

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from logstore.access.acls import Operation
from tests.access.world import ALICE, BOB, ROOT_USER, WORLDS, Worlds, allow, records
from tests.kafka.front_driver import decode_answer, fetch_frame, produce_frame

wherever_kept = pytest.mark.parametrize("world", WORLDS, ids=["alone", "cluster"])

TOPIC_DENIED = ErrorCode.topic_authorization_failed


@wherever_kept
async def test_without_users_and_acls_everything_is_allowed(tmp_path: Path, world: Worlds) -> None:
    """A sidecar that knows neither users nor ACLs serves anybody; the first ACL ends that, for all principals."""
    async with world(tmp_path) as here, here.client(ALICE) as client:
        await here.create_topic("t")
        assert (await client.produce(records(b"1"), topic="t")).error_code is ErrorCode.none
        await here.allow(allow(BOB, Operation.WRITE, "t"))
        assert (await client.produce(records(b"2"), topic="t")).error_code is TOPIC_DENIED
        async with here.client(BOB) as other:
            assert (await other.produce(records(b"2"), topic="t")).error_code is ErrorCode.none


@wherever_kept
async def test_with_a_user_nothing_is_allowed_without_an_acl(tmp_path: Path, world: Worlds) -> None:
    """Once there is a user, what no ACL allows is refused, but to super users."""
    async with world(tmp_path, has_users=True) as here:
        await here.create_topic("t")
        async with here.client(ALICE) as client:
            assert (await client.produce(records(b"1"), topic="t")).error_code is TOPIC_DENIED
        async with here.client(ROOT_USER) as client:
            assert (await client.produce(records(b"1"), topic="t")).error_code is ErrorCode.none


@wherever_kept
async def test_produce_and_fetch_topic_by_topic(tmp_path: Path, world: Worlds) -> None:
    """WRITE and READ are asked for each topic: what is refused stays unwritten and unread, the rest is served."""
    async with world(tmp_path) as here:
        for name in ("mine", "other"):
            await here.create_topic(name)
        await here.allow(allow(ALICE, Operation.WRITE, "mine"), allow(BOB, Operation.READ, "mine"))
        async with here.client(ALICE) as client, here.client(BOB) as reader:
            for name, error in (("mine", ErrorCode.none), ("other", TOPIC_DENIED), ("missing", TOPIC_DENIED)):
                for version in (3, 8, 11):
                    assert (await client.produce(records(b"1"), topic=name, version=version)).error_code is error
                answer = await reader.ask(fetch_frame(topic=name))
                part = decode_answer(1, 11, answer).responses[0].partitions[0]
                assert part.error_code is error
                assert bool(part.records) is (error is ErrorCode.none)
            (refused,) = (await client.fetch(topic="mine")).responses
            assert refused.partitions[0].error_code is TOPIC_DENIED
            assert here.broker.engine.store.stream("other", 0).high_watermark == 0
            assert decode_answer(0, 8, await client.ask(produce_frame([records(b"1")], topic="mine"))).responses


@wherever_kept
async def test_metadata_shows_what_may_be_described(tmp_path: Path, world: Worlds) -> None:
    """Of all topics, only those to describe are named; named ones are refused alike, there or not; none is created."""
    async with world(tmp_path) as here:
        ids = {name: await here.create_topic(name) for name in ("mine", "other")}
        await here.allow(allow(ALICE, Operation.READ, "mine"))
        async with here.client(ALICE) as client:
            for version in range(14):
                everything = await client.kafka(3, version, topics=None if version else [])
                assert [topic.name for topic in everything.topics] == ["mine"], version
                wanted = [{"name": name, "topic_id": None} for name in ("mine", "other", "missing")]
                named = await client.kafka(3, version, topics=wanted, allow_auto_topic_creation=True)
                assert {topic.name: topic.error_code for topic in named.topics} == {
                    "mine": ErrorCode.none,
                    "other": TOPIC_DENIED,
                    "missing": TOPIC_DENIED,
                }
                assert [broker.port for broker in named.brokers] == [here.port]
                refused = await client.kafka(3, version, topics=wanted[1:])
                assert [topic.error_code for topic in refused.topics] == [TOPIC_DENIED] * 2
                assert [broker.port for broker in refused.brokers] == [here.port]
            by_id = [{"name": None, "topic_id": topic_id} for topic_id in ids.values()]
            shown = {topic.topic_id: topic for topic in (await client.kafka(3, 12, topics=by_id)).topics}
            assert shown[ids["mine"]].name == "mine"
            assert (shown[ids["other"]].name, shown[ids["other"]].error_code) == (None, TOPIC_DENIED)
        assert set(here.broker.engine.store.topics) == {"mine", "other"}
