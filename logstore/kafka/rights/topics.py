"""Guards of requests about topics."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kio.schema.describe_topic_partitions.v0.request import TopicRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from logstore.access.acls import ResourceType
from logstore.kafka.rights.cluster import with_cluster_operations
from logstore.kafka.rights.rule import NOT_ASKED, Asked, Guard

DENIED = "Topic authorization failed."
_NIL = uuid.UUID(int=0)
_UNKNOWN = -1


def by_partition(*, name: str = "name", index: str = "partition_index", **values: Any) -> Guard:
    """A guard of a request with topics and partitions: a refused topic gets the error, and `values`, at each of its
    partitions. `name` and `index` are the fields that name a topic and a partition.
    """

    async def guard(asked: Asked) -> Any:
        return await asked.answer_split(
            "topics",
            lambda topic: asked.may(getattr(topic, name)),
            "topics",
            lambda topic: refused_partitions(topic, asked.code(), name=name, index=index, **values),
        )

    return guard


def refused_partitions(
    topic: Any, code: ErrorCode, *, name: str = "name", index: str = "partition_index", **values: Any
) -> Mapping[str, Any]:
    """A topic of an answer with an error at each partition that the request names."""
    partitions = [{index: getattr(part, index), "error_code": code, **values} for part in topic.partitions]
    return {name: getattr(topic, name), "partitions": partitions}


def by_name(answers: str) -> Guard:
    """A guard of a request with an array of named topics, which is answered in the array `answers`."""

    async def guard(asked: Asked) -> Any:
        return await asked.answer_split(
            "topics",
            lambda topic: asked.may(topic.name),
            answers,
            lambda topic: {"name": topic.name, "error_code": asked.code(), "error_message": asked.why(topic.name)},
        )

    return guard


async def create(asked: Asked) -> Any:
    """CreateTopics: CREATE on the cluster (0) or on the topic (1); the settings are shown with DESCRIBE_CONFIGS (2)."""

    def refusal(topic: Any) -> Mapping[str, Any]:
        return {
            "name": topic.name,
            "error_code": asked.code(1),
            "error_message": asked.why(topic.name, 1),
            "configs": None,
        }

    response = await asked.answer_split(
        "topics", lambda topic: asked.may() or asked.may(topic.name, 1), "topics", refusal
    )
    if asked.version < 5:
        return response
    hidden = {"topic_config_error_code": asked.code(2), "num_partitions": _UNKNOWN, "replication_factor": _UNKNOWN}
    topics = tuple(
        topic
        if topic.error_code is not ErrorCode.none or asked.may(topic.name, 2)
        else replace(topic, configs=None, **hidden)
        for topic in response.topics
    )
    return replace(response, topics=topics)


async def delete(asked: Asked) -> Any:
    """DeleteTopics, by name or id: DELETE (0). A topic that was named by its id is named in the refusal only to a
    caller who may describe it (1).
    """
    if asked.version < 6:
        return await asked.answer_split(
            "topic_names",
            asked.may,
            "responses",
            lambda name: {"name": name, "error_code": asked.code(), "error_message": asked.why(name)},
        )

    def name_of(topic: Any) -> str | None:
        if topic.name is not None:
            return str(topic.name)
        return _name_of_id(asked, topic.topic_id)

    def is_allowed(topic: Any) -> bool:
        name = name_of(topic)
        return name is None or asked.may(name)  # an unknown id is the handler's to refuse

    def refusal(topic: Any) -> Mapping[str, Any]:
        name = name_of(topic)
        shown = name if topic.name is not None or (name is not None and asked.may(name, 1)) else None
        why = DENIED if shown is None else asked.why(shown)
        return {"name": shown, "topic_id": topic.topic_id, "error_code": asked.code(), "error_message": why}

    return await asked.answer_split("topics", is_allowed, "responses", refusal)


def _name_of_id(asked: Asked, topic_id: uuid.UUID | None) -> str | None:
    found = None if topic_id is None else asked.broker.engine.store.topic_by_id(topic_id)
    return None if found is None else found.name


# ---- metadata


async def metadata(asked: Asked) -> Any:
    """Metadata: DESCRIBE on the topic (0). Of all topics, those that the caller may describe; a missing topic is
    created for a caller with CREATE on it or on the cluster.
    """
    request = asked.request
    if request.topics is None or (asked.version == 0 and not request.topics):
        response = await asked.served()
        allowed, _ = await asked.split(response.topics, lambda topic: asked.may(topic.name))
        response = replace(response, topics=allowed)
    else:
        response = await asked.answer_split(
            "topics", lambda topic: _may_describe(asked, topic), "topics", lambda topic: _hidden(asked, topic)
        )
        if not response.brokers:  # all topics are refused, and nobody has been asked
            shown = await _without_topics(asked)
            response = replace(shown, topics=response.topics)
    return with_cluster_operations(asked, _with_operations(asked, response), right=1)


async def _without_topics(asked: Asked) -> Any:
    """The handler's answer about the node alone."""
    # In version 0, no topics means all of them.
    return replace(await asked.served(topics=()), topics=())


def _may_describe(asked: Asked, topic: Any) -> bool:
    topic_id = getattr(topic, "topic_id", None)
    if topic_id is not None and topic_id != _NIL:
        name = _name_of_id(asked, topic_id)
        return name is None or asked.may(name)
    name = topic.name or ""
    if not asked.may(name):
        return False
    settings, store = asked.broker.settings, asked.broker.engine.store
    creates = settings.auto_create_topics and getattr(asked.request, "allow_auto_topic_creation", True)
    return not creates or name in store.topics or asked.broker.authorizer.allows_creation(asked.caller, name)


def _hidden(asked: Asked, topic: Any) -> Mapping[str, Any]:
    topic_id = getattr(topic, "topic_id", None)
    by_id = topic_id is not None and topic_id != _NIL
    named = {"name": None if by_id else topic.name, "topic_id": topic_id if by_id else None}
    return {"error_code": asked.code(), **named, "partitions": []}


def _with_operations(asked: Asked, response: Any) -> Any:
    """The answer with what the caller may do with each topic that it describes."""
    if not any(getattr(topic, "topic_authorized_operations", NOT_ASKED) != NOT_ASKED for topic in response.topics):
        return response
    operations = asked.broker.authorizer.operations
    topics = tuple(
        topic
        if topic.topic_authorized_operations == NOT_ASKED or topic.error_code is not ErrorCode.none
        else replace(topic, topic_authorized_operations=operations(asked.caller, ResourceType.TOPIC, topic.name))
        for topic in response.topics
    )
    return replace(response, topics=topics)


async def describe_partitions(asked: Asked) -> Any:
    """DescribeTopicPartitions: DESCRIBE on the topic. A cursor names only topics that the caller may describe."""
    request = asked.request
    if not request.topics:
        names, _ = await asked.split(sorted(asked.broker.engine.store.topics), asked.may)
        wanted = tuple(TopicRequest(name=TopicName(name)) for name in names)
        response = await asked.served(topics=wanted) if wanted else await asked.refused(topics=[], next_cursor=None)
    else:
        response = await asked.answer_split(
            "topics",
            lambda topic: asked.may(topic.name),
            "topics",
            lambda topic: {"error_code": asked.code(), "name": topic.name, "topic_id": None, "partitions": []},
        )
    return _with_operations(asked, response)
