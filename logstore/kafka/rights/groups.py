"""Guards of requests about consumer groups."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from logstore.access.acls import ResourceType
from logstore.kafka.groups.offsets import NO_EPOCH, NO_OFFSET
from logstore.kafka.metadata import GROUP_COORDINATOR
from logstore.kafka.rights.rule import NOT_ASKED, Asked
from logstore.kafka.rights.topics import refused_partitions

_OFFSET_DELETE = 47


async def member(asked: Asked) -> Any:
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the right on the group."""
    if asked.may(asked.request.group_id):
        return await asked.served()
    return await asked.refused(error_code=asked.code(), assignment=b"")


async def commit_offsets(asked: Asked) -> Any:
    """OffsetCommit and OffsetDelete: the right on the group (0), and READ on each topic (1)."""
    if asked.may(asked.request.group_id):
        return await asked.answer_split(
            "topics",
            lambda topic: asked.may_topic(topic, 1),
            "topics",
            lambda topic: _refused_commits(topic, asked.code(1)),
        )
    if asked.request.__api_key__ == _OFFSET_DELETE:
        return await asked.refused(error_code=asked.code(), topics=[])
    return await asked.refused(topics=[_refused_commits(topic, asked.code()) for topic in asked.request.topics])


async def fetch_offsets(asked: Asked) -> Any:
    """OffsetFetch: DESCRIBE on the group (0) and on the topic (1); of all topics, those to describe."""
    if asked.version >= 8:
        groups = {group.group_id: group for group in asked.request.groups}.values()
        allowed, refused = await asked.split(groups, lambda group: asked.may(group.group_id))
        hidden = [_hidden_topics(asked, group.topics) for group in allowed]
        asking = tuple(_without_hidden(asked, group) for group in allowed)
        response = await asked.served(groups=asking)
        found = {group.group_id: group for group in response.groups}
        denied = [{"group_id": group.group_id, "topics": [], "error_code": asked.code()} for group in refused]
        more = [{"group_id": group.group_id, "topics": topics} for group, topics in zip(allowed, hidden, strict=True)]
        beside: Any = await asked.refused(groups=[*denied, *more])
        for group in beside.groups[len(denied) :]:
            shown = _shown(asked, found[group.group_id])
            found[group.group_id] = replace(shown, topics=shown.topics + group.topics)
        return replace(response, groups=(*found.values(), *beside.groups[: len(denied)]))
    request = asked.request
    if not asked.may(request.group_id):
        topics = [_refused_topic(topic, asked.code()) for topic in request.topics or ()]
        return await asked.refused(topics=topics if asked.version < 2 else [], error_code=asked.code())
    extra: Any = await asked.refused(topics=_hidden_topics(asked, request.topics))
    response = await asked.served(topics=_without_hidden(asked, request).topics)
    return replace(_shown(asked, response), topics=_shown(asked, response).topics + extra.topics)


def _without_hidden(asked: Asked, asking: Any) -> Any:
    """What is asked for, without the topics that the caller may not describe."""
    if asking.topics is None:
        return asking
    return replace(asking, topics=tuple(topic for topic in asking.topics if asked.may_topic(topic, 1)))


def _hidden_topics(asked: Asked, topics: Any) -> list[Mapping[str, Any]]:
    return [_refused_topic(topic, asked.code(1)) for topic in topics or () if not asked.may_topic(topic, 1)]


def _shown(asked: Asked, answer: Any) -> Any:
    """An answer without the topics that the caller may not describe."""
    return replace(answer, topics=tuple(topic for topic in answer.topics if asked.may_topic(topic, 1)))


def _refused_topic(topic: Any, code: ErrorCode) -> Mapping[str, Any]:
    partitions = [
        {
            "partition_index": index,
            "committed_offset": NO_OFFSET,
            "committed_leader_epoch": NO_EPOCH,
            "metadata": "",
            "error_code": code,
        }
        for index in topic.partition_indexes
    ]
    return {_key(topic): getattr(topic, _key(topic)), "partitions": partitions}


def _refused_commits(topic: Any, code: ErrorCode) -> Mapping[str, Any]:
    return refused_partitions(topic, code, name=_key(topic))


def _key(topic: Any) -> str:
    """The field by which a topic is named: from version 10 of these requests, its id."""
    return "name" if hasattr(topic, "name") else "topic_id"


async def find_coordinator(asked: Asked) -> Any:
    """FindCoordinator: DESCRIBE on the group; transactional ids are refused for everybody."""

    def nowhere(key: str) -> Mapping[str, Any]:
        return {"error_code": asked.code(), "error_message": asked.why(key), "node_id": -1, "host": "", "port": -1}

    is_group = getattr(asked.request, "key_type", GROUP_COORDINATOR) == GROUP_COORDINATOR
    if asked.version >= 4:
        return await asked.answer_split(
            "coordinator_keys",
            lambda key: not is_group or asked.may(key),
            "coordinators",
            lambda key: {"key": key, **nowhere(key)},
        )
    if not is_group or asked.may(asked.request.key):
        return await asked.served()
    return await asked.refused(**nowhere(asked.request.key))


async def describe(asked: Asked) -> Any:
    """DescribeGroups: DESCRIBE on the group."""
    response = await asked.answer_split(
        "groups",
        asked.may,
        "groups",
        lambda group_id: {"group_id": group_id, "error_code": asked.code(), "error_message": asked.why(group_id)},
    )
    operations = asked.broker.authorizer.operations
    groups = tuple(
        group
        if getattr(group, "authorized_operations", NOT_ASKED) == NOT_ASKED
        else replace(group, authorized_operations=operations(asked.caller, ResourceType.GROUP, group.group_id))
        for group in response.groups
    )
    return replace(response, groups=groups)


async def list_all(asked: Asked) -> Any:
    """ListGroups: all with DESCRIBE on the cluster (0), else those that the caller may describe (1)."""
    response = await asked.served()
    if asked.may():
        return response
    groups, _ = await asked.split(response.groups, lambda group: asked.may(group.group_id, 1))
    return replace(response, groups=groups)


async def delete(asked: Asked) -> Any:
    """DeleteGroups: DELETE on the group."""
    return await asked.answer_split(
        "groups_names",
        asked.may,
        "results",
        lambda group_id: {"group_id": group_id, "error_code": asked.code()},
    )
