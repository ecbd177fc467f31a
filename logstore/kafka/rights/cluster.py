"""Guards of requests about the node itself: its configuration, its access control lists, its producer ids."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from logstore.access.acls import ResourceType
from logstore.kafka.pace import Pace
from logstore.kafka.rights.rule import NOT_ASKED, Asked

_NO_PRODUCER = -1
_DESCRIBE_CONFIGS = 32
_TOPIC = 2
"""The number of topics among the resources that have a configuration."""


async def whole(asked: Asked) -> Any:
    """The whole request, or CLUSTER_AUTHORIZATION_FAILED (in old versions without a code: an empty answer)."""
    if asked.may():
        return await asked.served()
    return await asked.refused(error_code=asked.code(), error_message=asked.why(), entries=None)


async def create_acls(asked: Asked) -> Any:
    """CreateAcls: each entry is refused."""
    return await _each_refused(asked, "creations", "results")


async def delete_acls(asked: Asked) -> Any:
    """DeleteAcls: each filter is refused."""
    return await _each_refused(asked, "filters", "filter_results")


async def _each_refused(asked: Asked, field: str, answers: str) -> Any:
    is_allowed = asked.may()
    refusal = {"error_code": asked.code(), "error_message": asked.why()}
    return await asked.answer_split(field, lambda _: is_allowed, answers, lambda _: refusal)


async def alter_quotas(asked: Asked) -> Any:
    """AlterClientQuotas: each entity is refused."""
    is_allowed = asked.may()

    def refusal(entry: Any) -> Mapping[str, Any]:
        entity = [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
        return {"error_code": asked.code(), "error_message": asked.why(), "entity": entity}

    return await asked.answer_split("entries", lambda _: is_allowed, "entries", refusal)


async def alter_users(asked: Asked) -> Any:
    """AlterUserScramCredentials: each user is refused."""
    if asked.may():
        return await asked.served()
    names = dict.fromkeys(part.name for part in (*asked.request.deletions, *asked.request.upsertions))
    refusals = [{"user": name, "error_code": asked.code(), "error_message": asked.why()} for name in names]
    return await asked.refused(results=refusals)


async def alter_log_directories(asked: Asked) -> Any:
    """AlterReplicaLogDirs: each partition is refused."""
    if asked.may():
        return await asked.served()
    refusals: dict[str, list[Mapping[str, Any]]] = {}
    pace = Pace()
    for directory in asked.request.dirs:
        for topic in directory.topics:
            await pace.step(1 + len(topic.partitions))
            partitions = [{"partition_index": index, "error_code": asked.code()} for index in topic.partitions]
            refusals.setdefault(topic.name, []).extend(partitions)
    return await asked.refused(
        results=[{"topic_name": name, "partitions": partitions} for name, partitions in refusals.items()]
    )


async def configs(asked: Asked) -> Any:
    """DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: the right on the topic (0), or on the cluster (1)."""

    def is_allowed(resource: Any) -> bool:
        if resource.resource_type == _TOPIC:
            return asked.may(resource.resource_name)
        return asked.may(right=1)

    def refusal(resource: Any) -> Mapping[str, Any]:
        return {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_code": asked.code(0 if resource.resource_type == _TOPIC else 1),
            "error_message": asked.why(resource.resource_name)
            if resource.resource_type == _TOPIC
            else asked.why(right=1),
            "configs": [],
        }

    answers = "results" if asked.request.__api_key__ == _DESCRIBE_CONFIGS else "responses"
    return await asked.answer_split("resources", is_allowed, answers, refusal)


async def producer_id(asked: Asked) -> Any:
    """InitProducerId: IDEMPOTENT_WRITE on the cluster (0), or WRITE on any topic (1)."""
    right = asked.rights[1]
    if (
        asked.request.transactional_id is not None  # refused by the handler, for everybody
        or asked.may()
        or asked.broker.authorizer.allows_any(asked.caller, right.operation, right.resource_type)
    ):
        return await asked.served()
    return await asked.refused(error_code=asked.code(), producer_id=_NO_PRODUCER, producer_epoch=_NO_PRODUCER)


async def described_cluster(asked: Asked) -> Any:
    """DescribeCluster: everybody may ask for the nodes; the authorized operations are the caller's own."""
    return with_cluster_operations(asked, await asked.served())


def with_cluster_operations(asked: Asked, response: Any, right: int = 0) -> Any:
    """The answer with what the caller may do with the cluster; nothing, if the caller may not describe it."""
    if getattr(response, "cluster_authorized_operations", NOT_ASKED) == NOT_ASKED:
        return response
    found = asked.broker.authorizer.operations(asked.caller, ResourceType.CLUSTER) if asked.may(right=right) else 0
    return replace(response, cluster_authorized_operations=found)
