"""The rights that every other request needs: each allowed and refused, in every version, through the wire format."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from logstore.access.acls import Acl, Operation, PatternType, ResourceType
from logstore.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    NotAuthorized,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from logstore.format.epoch_api import (
    AbortRequest,
    DescribeRequest,
    EpochCommitRequest,
    Part,
    ScanRequest,
    StageRequest,
    TaskOutput,
)
from logstore.format.operator_api import DescribeQueriesRequest, DescribeSidecarRequest
from logstore.format.reader_api import (
    AcknowledgeRequest,
    DescribeReadersRequest,
    ReaderOffset,
    RegisterReaderRequest,
    RemoveReaderRequest,
)
from logstore.kafka.api_types import Api, Caller
from logstore.kafka.rights import table
from logstore.kafka.versions import served_versions
from logstore.kafka.wire import build
from tests.access.world import ALICE, BOB, ROOT_USER, Client, allow, cluster, group, query, records, world

NONE = ErrorCode.none
TOPIC, GROUP, CLUSTER = (
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
)


async def test_every_served_request_has_a_row(tmp_path: Path) -> None:
    """The table of rights has a rule for each API key that a sidecar serves, its own requests included; a request
    without a row is refused to everybody.
    """
    async with world(tmp_path, has_users=True) as here:
        keys = {key for key, _, _ in served_versions(here.handlers)} | set(here.handlers.private)
        assert not keys - set(table.RULES)

        async def leak(request: Any, caller: Caller) -> Any:
            raise AssertionError("nobody may get here")

        request = build(load_request_schema(18, 0), {})
        with pytest.raises(NotAuthorized, match="no rule"):
            await table.answer(here.broker, Api(9_999, 0, 0, leak), request, Caller("c", "h", "h", 1, ROOT_USER))


def codes_in(answer: Any) -> set[ErrorCode]:
    """Every error code anywhere in an answer."""
    if isinstance(answer, ErrorCode):
        return {answer}
    if isinstance(answer, tuple):
        return {code for part in answer for code in codes_in(part)}
    if hasattr(answer, "__dataclass_fields__"):
        names = [name for name in answer.__dataclass_fields__ if name != "topic_config_error_code"]
        return {code for name in names for code in codes_in(getattr(answer, name))}
    return set()


def on(name: str, index: str = "partition_index", **part: Any) -> Mapping[str, Any]:
    """A topic with one partition, as many requests have it."""
    return {"topics": [{"name": name, "topic": name, "partitions": [{index: 0, "partition": 0, **part}]}]}


def resource(kind: int, name: str) -> Mapping[str, Any]:
    """A resource of the requests about configurations."""
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": [], "configuration_keys": None}]}


T, G = "t", "g"
OFFSETS = {"topics": [{"name": T, "partition_indexes": [0]}]}
FETCHES = [group(ALICE, Operation.DESCRIBE, G), allow(ALICE, Operation.DESCRIBE, T)]
WHOLE: list[tuple[int, Mapping[str, Any], list[Acl], ErrorCode]] = [
    (2, on(T, timestamp=-1), [allow(ALICE, Operation.DESCRIBE, T)], TOPIC),
    (23, on(T, leader_epoch=0), [allow(ALICE, Operation.DESCRIBE, T)], TOPIC),
    (21, on(T, offset=0), [allow(ALICE, Operation.DELETE, T)], TOPIC),
    (37, {"topics": [{"name": T, "count": 3, "assignments": None}]}, [allow(ALICE, Operation.ALTER, T)], TOPIC),
    (75, {"topics": [{"name": T}], "response_partition_limit": 9}, [allow(ALICE, Operation.DESCRIBE, T)], TOPIC),
    (32, resource(2, T), [allow(ALICE, Operation.DESCRIBE_CONFIGS, T)], TOPIC),
    (32, resource(4, "0"), [cluster(ALICE, Operation.DESCRIBE_CONFIGS)], CLUSTER),
    (33, resource(2, T), [allow(ALICE, Operation.ALTER_CONFIGS, T)], TOPIC),
    (44, resource(2, T), [allow(ALICE, Operation.ALTER_CONFIGS, T)], TOPIC),
    (35, {"topics": None}, [cluster(ALICE, Operation.DESCRIBE)], CLUSTER),
    (
        34,
        {"dirs": [{"path": "elsewhere", "topics": [{"name": T, "partitions": [0]}]}]},
        [cluster(ALICE, Operation.ALTER)],
        CLUSTER,
    ),
    (45, {"topics": []}, [cluster(ALICE, Operation.ALTER)], CLUSTER),
    (46, {"topics": None}, [cluster(ALICE, Operation.DESCRIBE)], CLUSTER),
    (48, {"components": []}, [cluster(ALICE, Operation.DESCRIBE_CONFIGS)], CLUSTER),
    (
        49,
        {"entries": [{"entity": [{"entity_type": "user", "entity_name": "x"}], "ops": []}]},
        [cluster(ALICE, Operation.ALTER_CONFIGS)],
        CLUSTER,
    ),
    (22, {"transactional_id": None}, [cluster(ALICE, Operation.IDEMPOTENT_WRITE)], CLUSTER),
    (22, {"transactional_id": None}, [allow(ALICE, Operation.WRITE, "any")], CLUSTER),
    (10, {"key": G, "coordinator_keys": [G], "key_type": 0}, [group(ALICE, Operation.READ, G)], GROUP),
    (9, {"group_id": G, **OFFSETS, "groups": [{"group_id": G, **OFFSETS}]}, FETCHES, GROUP),
    (15, {"groups": [G]}, [group(ALICE, Operation.DESCRIBE, G)], GROUP),
    (42, {"groups_names": [G]}, [group(ALICE, Operation.DELETE, G)], GROUP),
    (47, {"group_id": G, "topics": []}, [group(ALICE, Operation.DELETE, G)], GROUP),
    (12, {"group_id": G, "generation_id": 1, "member_id": "m"}, [group(ALICE, Operation.READ, G)], GROUP),
    (13, {"group_id": G, "member_id": "m", "members": []}, [group(ALICE, Operation.READ, G)], GROUP),
    (
        14,
        {"group_id": G, "member_id": "m", "assignments": [], "protocol_type": "p", "protocol_name": "n"},
        [group(ALICE, Operation.READ, G)],
        GROUP,
    ),
    (
        11,
        {"group_id": G, "member_id": "m", "protocol_type": "p", "protocols": [{"name": "n", "metadata": b""}]},
        [group(ALICE, Operation.READ, G)],
        GROUP,
    ),
]
CODELESS = {(35, 1), (35, 2), (48, 9)}
"""Versions whose refusal is an empty answer."""


@pytest.mark.parametrize("number", range(len(WHOLE)), ids=[f"{key}-{index}" for index, (key, *_) in enumerate(WHOLE)])
async def test_refused_without_the_right_and_served_with_it(tmp_path: Path, number: int) -> None:
    """In every version: the refusal has Kafka's code and nothing else, also with every other right of the kind denied;
    with the right, the code is not there.
    """
    key, values, acls, error = WHOLE[number]
    async with world(tmp_path) as here, here.client(ALICE) as client:
        await here.create_topic(T)
        low, high = here.handlers.kafka[key].min_version, here.handlers.kafka[key].max_version
        await here.allow(allow(BOB, Operation.ALL, "*"), group(BOB, Operation.ALL, "*"), cluster(BOB, Operation.ALL))
        for version in range(low, high + 1):
            refused = codes_in(await client.kafka(key, version, **values)) - {NONE}
            assert refused == (set() if (key, version) in CODELESS else {error}), version
        await here.allow(*acls)
        for version in range(low, high + 1):
            if key != 42 and key != 47:
                assert error not in codes_in(await client.kafka(key, version, **values)), version
        assert here.broker.engine.store.stream(T, 0).log_start_offset == 0


async def test_topics_are_created_and_deleted_one_by_one(tmp_path: Path) -> None:
    """CREATE on topic, prefix or cluster creates; DESCRIBE_CONFIGS shows the settings; DELETE deletes."""

    def topic(name: str) -> Mapping[str, Any]:
        return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}

    async with world(tmp_path) as here, here.client(ALICE) as client, here.client(BOB) as bob:
        await here.allow(
            allow(ALICE, Operation.CREATE, "a-", pattern=PatternType.PREFIXED),
            allow(ALICE, Operation.DESCRIBE_CONFIGS, "a-2"),
            cluster(BOB, Operation.CREATE),
        )
        for version in range(2, 8):
            answer = await client.kafka(19, version, topics=[topic(name) for name in ("a-1", "a-2", "b")])
            codes = {created.name: created.error_code for created in answer.topics}
            assert codes == {"a-1": NONE, "a-2": NONE, "b": TOPIC}
            if version >= 5:
                shown = {created.name: created.configs for created in answer.topics}
                assert (shown["a-1"], shown["b"]) == (None, None)
                assert shown["a-2"]
            assert (await bob.kafka(19, version, topics=[topic("b")])).topics[0].error_code is NONE
            for name in ("a-1", "a-2", "b"):
                await here.broker.engine.wait(here.broker.engine.store.delete_topic(name))
        ids = {name: await here.create_topic(name) for name in ("mine", "seen", "hidden")}
        await here.allow(allow(ALICE, Operation.DELETE, "mine"), allow(ALICE, Operation.READ, "seen"))
        named = [*ids, "missing"]
        for version in range(1, 7):
            values = {"topic_names": named[1:], "topics": [{"name": name, "topic_id": None} for name in named[1:]]}
            answer = await client.kafka(20, version, **values)
            assert {gone.name: gone.error_code for gone in answer.responses} == dict.fromkeys(named[1:], TOPIC)
        by_id = [{"name": None, "topic_id": topic_id} for topic_id in (*ids.values(), uuid.UUID(int=7))]
        gone = (await client.kafka(20, 6, topics=by_id)).responses
        assert sorted((str(one.name), one.error_code.name) for one in gone) == [
            ("None", "topic_authorization_failed"),
            ("None", "unknown_topic_id"),
            ("mine", "none"),
            ("seen", "topic_authorization_failed"),
        ]
        assert set(here.broker.engine.store.topics) == {"seen", "hidden"}


async def commit(client: Client, version: int, group_id: str, *topics: str) -> Any:
    """OffsetCommit of offset 5 in partition 0 of topics, from outside of the group."""
    part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    values = {"topics": [{"name": name, "partitions": [part]} for name in topics]}
    outside = {"generation_id_or_member_epoch": -1, "member_id": ""}
    answer = await client.kafka(8, version, group_id=group_id, **outside, **values)
    return {topic.name: topic.partitions[0].error_code for topic in answer.topics}


async def test_offsets_of_groups(tmp_path: Path) -> None:
    """READ on group and topic commits; DESCRIBE on both fetches, and of all topics the others are left out."""
    async with world(tmp_path) as here, here.client(ALICE) as client, here.client(ROOT_USER) as root:
        for name in ("mine", "other"):
            await here.create_topic(name)
        await here.allow(group(ALICE, Operation.READ, G), allow(ALICE, Operation.READ, "mine"))
        for version in range(2, 10):
            assert await commit(client, version, G, "mine", "other", "missing") == {
                "mine": NONE,
                "other": TOPIC,
                "missing": TOPIC,
            }
            assert await commit(client, version, "not-mine", "mine") == {"mine": GROUP}
        await commit(root, 9, G, "mine", "other")
        await commit(root, 9, "not-mine", "mine")
        for version in range(1, 10):
            names = ("mine", "other", "missing")
            asked = [{"name": name, "partition_indexes": [0]} for name in names]
            answer = await fetched(client, version, G, asked)
            assert {topic.name: topic.partitions[0].error_code for topic in answer.topics} == {
                "mine": NONE,
                "other": TOPIC,
                "missing": TOPIC,
            }
            assert {topic.partitions[0].committed_offset for topic in answer.topics} == {5, -1}
            if version >= 2:
                everything = await fetched(client, version, G, None)
                assert [topic.name for topic in everything.topics] == ["mine"]
                assert (await fetched(client, version, "not-mine", None)).error_code is GROUP
        both = [{"group_id": name, "topics": None} for name in ("not-mine", G, G)]
        groups = (await client.kafka(9, 9, groups=both)).groups
        assert {found.group_id: found.error_code for found in groups} == {G: NONE, "not-mine": GROUP}
        assert len(groups) == 2


async def test_offsets_of_topics_that_are_named_by_ids(tmp_path: Path) -> None:
    """OffsetCommit and OffsetFetch 10: the right on the topic that has the id; an id of no topic is refused as such."""
    async with world(tmp_path) as here, here.client(ALICE) as client, here.client(ROOT_USER) as root:
        for name in ("mine", "other"):
            await here.create_topic(name)
        await here.allow(group(ALICE, Operation.READ, G), allow(ALICE, Operation.READ, "mine"))
        await commit(root, 9, G, "mine", "other")
        store, nobody = here.broker.engine.store, uuid.uuid4()
        mine, other = store.topic("mine").topic_id, store.topic("other").topic_id
        expected = {mine: NONE, other: TOPIC, nobody: ErrorCode.unknown_topic_id}
        part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        values = {"generation_id_or_member_epoch": -1, "member_id": ""}
        values |= {"topics": [{"topic_id": key, "partitions": [part]} for key in expected]}
        committed = await client.kafka(8, 10, group_id=G, **values)
        assert {topic.topic_id: topic.partitions[0].error_code for topic in committed.topics} == expected
        refused = await client.kafka(8, 10, group_id="not-mine", **values)
        assert {part.error_code for topic in refused.topics for part in topic.partitions} == {GROUP}
        asked = [{"topic_id": key, "partition_indexes": [0]} for key in expected]
        found = await fetched(client, 10, G, asked)
        assert {topic.topic_id: topic.partitions[0].error_code for topic in found.topics} == expected
        assert {topic.topic_id: topic.partitions[0].committed_offset for topic in found.topics}[mine] == 7
        assert [topic.topic_id for topic in (await fetched(client, 10, G, None)).topics] == [mine]
        of_root = {topic.topic_id: topic.partitions[0] for topic in (await fetched(root, 10, G, None)).topics}
        assert of_root[other].committed_offset == 5, "what was refused is not committed"


async def fetched(client: Client, version: int, group_id: str, topics: Any) -> Any:
    """OffsetFetch of one group."""
    values = {"group_id": group_id, "topics": topics, "groups": [{"group_id": group_id, "topics": topics}]}
    answer = await client.kafka(9, version, **values)
    return answer.groups[0] if version >= 8 else answer


async def test_groups_of_others_are_not_listed(tmp_path: Path) -> None:
    """ListGroups shows the groups that the caller may describe, and all to who may describe the cluster."""
    async with world(tmp_path) as here, here.client(ROOT_USER) as root, here.client(ALICE) as client:
        await here.create_topic("t")
        await here.allow(group(ALICE, Operation.READ, "a"), cluster(BOB, Operation.DESCRIBE))
        for name in ("a", "secret"):
            await commit(root, 9, name, "t")
        async with here.client(BOB) as bob:
            for version in range(6):
                assert [found.group_id for found in (await client.kafka(16, version)).groups] == ["a"]
                assert len((await bob.kafka(16, version)).groups) == 2


async def test_authorized_operations_are_the_callers_own(tmp_path: Path) -> None:
    """Where a client asks, the bits say what it may do itself: of topics, groups and the cluster."""
    describe, read = 1 << Operation.DESCRIBE, 1 << Operation.READ
    async with world(tmp_path) as here, here.client(ALICE) as client:
        await here.create_topic("t")
        await here.allow(allow(ALICE, Operation.READ, "t"), group(ALICE, Operation.READ, G))
        for version in (8, 10, 13):
            asked = {"topics": [{"name": "t", "topic_id": None}], "include_topic_authorized_operations": True}
            answer = await client.kafka(3, version, **asked, include_cluster_authorized_operations=True)
            assert answer.topics[0].topic_authorized_operations == describe | read
            if version <= 10:
                assert answer.cluster_authorized_operations == 0
        (described,) = (await client.kafka(15, 5, groups=[G], include_authorized_operations=True)).groups
        assert described.authorized_operations == describe | read
        (shown,) = (await client.kafka(75, 0, topics=[], response_partition_limit=9)).topics
        assert (shown.name, shown.topic_authorized_operations) == ("t", describe | read)
        assert (
            await client.kafka(60, 0, include_cluster_authorized_operations=True)
        ).cluster_authorized_operations == 0
        await here.allow(cluster(ALICE, Operation.DESCRIBE), cluster(ALICE, Operation.CREATE))
        found = (await client.kafka(60, 0, include_cluster_authorized_operations=True)).cluster_authorized_operations
        assert found == describe | 1 << Operation.CREATE


# ---- Cairn's own requests


def stage(query_name: str, *topics: str, incarnation: str = "run") -> StageRequest:
    """A segment with a batch for each topic."""
    data = records(b"1")
    parts = tuple(Part(topic, 0, len(data), 1, 1) for topic in topics)
    return StageRequest(query_name, incarnation, 0, 0, "attempt", 0, parts, data * len(topics))


def committing(query_name: str) -> EpochCommitRequest:
    """The commit of what `stage` staged."""
    return EpochCommitRequest(query_name, "run", 0, "error", (TaskOutput(0, "attempt", 1),), "", False)


async def test_epochs_need_the_query_and_each_output_topic(tmp_path: Path) -> None:
    """WRITE on the query's name and on each output topic stages and commits, with CREATE also into a new topic; whose
    right is taken back in between does not commit.
    """
    async with world(tmp_path) as here, here.client(ALICE) as client:
        await here.create_topic("out")
        out = allow(ALICE, Operation.WRITE, "out")
        await here.allow(query(ALICE, Operation.WRITE, "q"), out, allow(ALICE, Operation.WRITE, "new"))
        with pytest.raises(TransactionalIdAuthorizationFailed):
            await client.own(stage("of-bob", "out"))
        for topics in (("other",), ("out", "other")):
            with pytest.raises(TopicAuthorizationFailed):
                await client.own(stage("q", *topics))
        with pytest.raises(TopicAuthorizationFailed, match="CREATE"):
            await client.own(stage("q", "new"))
        assert "new" not in here.broker.engine.store.topics
        assert (await client.own(DescribeRequest("q"))).incarnation is None  # nothing was staged, nobody fenced
        await here.allow(allow(ALICE, Operation.CREATE, "new"))
        assert (await client.own(stage("q", "out", "new"))).position == 1
        await here.forbid(out)
        with pytest.raises(TopicAuthorizationFailed) as caught:
            await client.own(committing("q"))
        assert "'out'" not in str(caught.value)
        await here.allow(out)
        assert (await client.own(committing("q"))).outcome == "committed"
        assert here.broker.engine.store.stream("out", 0).high_watermark == 3


async def test_operators_see_what_they_may_describe(tmp_path: Path) -> None:
    """The sidecar is described with DESCRIBE on the cluster; of the queries, those with DESCRIBE on their names,
    and of their topics those with DESCRIBE.
    """
    async with world(tmp_path) as here, here.client(ALICE) as client, here.client(ROOT_USER) as root:
        await here.create_topic("out")
        for name in ("a", "secret"):
            await root.own(stage(name, "out"))
        await here.allow(query(ALICE, Operation.DESCRIBE, "a"))
        assert [found.query for found in (await client.operator(DescribeQueriesRequest())).queries] == ["a"]
        assert [found.query for found in (await root.operator(DescribeQueriesRequest())).queries] == ["a", "secret"]
        await root.own(committing("a"))
        assert [found.topics for found in (await root.operator(DescribeQueriesRequest())).queries] == [("out",), ()]
        assert [found.topics for found in (await client.operator(DescribeQueriesRequest())).queries] == [()]
        await here.allow(allow(ALICE, Operation.DESCRIBE, "out"))
        assert [found.topics for found in (await client.operator(DescribeQueriesRequest())).queries] == [("out",)]
        with pytest.raises(ClusterAuthorizationFailed):
            await client.operator(DescribeSidecarRequest())
        await here.allow(cluster(ALICE, Operation.DESCRIBE))
        assert (await client.operator(DescribeSidecarRequest())).queries == 2


async def test_nobody_takes_over_the_query_of_somebody_else(tmp_path: Path) -> None:
    """A newer incarnation, an abort or a look at a query needs a right on its name, whatever topics one may write."""
    async with world(tmp_path) as here, here.client(ALICE) as alice, here.client(BOB) as bob:
        await here.create_topic("out")
        await here.allow(query(ALICE, Operation.WRITE, "q"), allow("User:*", Operation.WRITE, "out"))
        await alice.own(stage("q", "out"))
        for attack in (
            stage("q", "out", incarnation="newer"),
            EpochCommitRequest("q", "newer", 1, "skip", (), "", True),
            AbortRequest("q", "run", 0),
            DescribeRequest("q"),
        ):
            with pytest.raises(TransactionalIdAuthorizationFailed):
                await bob.own(attack)
        assert (await alice.own(committing("q"))).outcome == "committed"


async def test_scans_need_read(tmp_path: Path) -> None:
    """READ on the topic reads its control batches; a missing topic is refused alike."""
    async with world(tmp_path) as here, here.client(ALICE) as client:
        await here.create_topic("t")
        await here.allow(allow(ALICE, Operation.READ, "t"))
        assert (await client.own(ScanRequest("t", 0, -1, (), 1_000))).high_watermark == 0
        for name in ("other", "missing"):
            with pytest.raises(TopicAuthorizationFailed):
                await client.own(ScanRequest(name, 0, -1, (), 1_000))


async def test_readers_need_their_group_and_topics(tmp_path: Path) -> None:
    """READ on the group of the reader's name, and on each topic, registers and acknowledges; others are not shown."""
    async with world(tmp_path) as here, here.client(ALICE) as client, here.client(ROOT_USER) as root:
        for name in ("t", "other"):
            await here.create_topic(name)
        await here.allow(group(ALICE, Operation.READ, "r"), allow(ALICE, Operation.READ, "t"))
        mine = (ReaderOffset("t", 0, 0),)
        await client.reader(RegisterReaderRequest("r", "", mine))
        await client.reader(AcknowledgeRequest("r", mine))
        await root.reader(RegisterReaderRequest("r", "", (*mine, ReaderOffset("other", 0, 0))))
        await root.reader(RegisterReaderRequest("secret", "", mine))
        others = (ReaderOffset("other", 0, 0),)
        for attack in (RegisterReaderRequest("r", "", others), AcknowledgeRequest("r", others)):
            with pytest.raises(TopicAuthorizationFailed):
                await client.reader(attack)
        for refused in (
            RegisterReaderRequest("secret", "", mine),
            RegisterReaderRequest("r", "secret", mine),
            AcknowledgeRequest("secret", mine),
            RemoveReaderRequest("secret"),
            DescribeReadersRequest("secret", ""),
        ):
            with pytest.raises(GroupAuthorizationFailed):
                await client.reader(refused)
        assert (await client.reader(DescribeReadersRequest("", ""))).names == ("r",)
        held = (await client.reader(DescribeReadersRequest("r", ""))).streams
        assert {entry.topic for entry in held} == {"t"}
        await client.reader(RemoveReaderRequest("r"))
        assert list(here.store.readers.names()) == ["secret"]


# ---- names that only look alike


@pytest.mark.parametrize(
    ("acl", "principal", "host", "name", "may"),
    [
        (allow("User:al*", Operation.READ, "t"), ALICE, None, "t", False),
        (allow(ALICE, Operation.READ, "t*"), ALICE, None, "tt", False),
        (allow(ALICE, Operation.READ, "t.", pattern=PatternType.PREFIXED), ALICE, None, "tx", False),
        (allow(ALICE, Operation.READ, "t", pattern=PatternType.PREFIXED), ALICE, None, "tx", True),
        (allow(ALICE, Operation.READ, "*", pattern=PatternType.PREFIXED), ALICE, None, "tx", False),
        (allow(ALICE, Operation.READ, "tx"), ALICE, None, "t", False),
        (allow(ALICE, Operation.READ, "t", host="10.0.0.1"), ALICE, "10.0.0.2", "t", False),
        (allow(ALICE, Operation.READ, "t", host="10.0.0.1"), ALICE, "10.0.0.10", "t", False),
        (allow(ALICE, Operation.READ, "t", host="10.0.0.1"), ALICE, "10.0.0.1", "t", True),
        (allow(ALICE, Operation.READ, "t"), "User:Alice", None, "t", False),
        (allow(ALICE, Operation.READ, "t"), "User:alice2", None, "t", False),
        (allow(ALICE, Operation.READ, "t", kind=ResourceType.GROUP), ALICE, None, "t", False),
        (allow("User:*", Operation.READ, "t"), "User:ANONYMOUS", None, "t", True),
    ],
)
async def test_only_what_is_meant(
    tmp_path: Path, acl: Acl, principal: str, host: str | None, name: str, may: bool
) -> None:
    """Wildcards count as a whole only, prefixes from the start only, hosts and principals exactly."""
    async with world(tmp_path) as here, here.client(principal, host) as client:
        await here.create_topic(name)
        await here.allow(acl)
        described = await client.kafka(3, 9, topics=None)
        assert [topic.name for topic in described.topics] == ([name] if may else [])


async def test_a_right_taken_back_counts_at_once(tmp_path: Path) -> None:
    """A connection that stays open loses what is denied from the next request on."""
    async with world(tmp_path) as here, here.client(ALICE) as client:
        await here.create_topic("t")
        mine = allow(ALICE, Operation.WRITE, "t")
        await here.allow(mine, allow(BOB, Operation.READ, "t"))
        assert (await client.produce(records(b"1"), topic="t")).error_code is NONE
        await here.forbid(mine)
        assert (await client.produce(records(b"1"), topic="t")).error_code is TOPIC
