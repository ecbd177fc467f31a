"""The rights that each request needs, in one table, as Kafka asks for them.

Invariants: every request that a sidecar serves has a row; a request without a row is refused once anything can be
refused. What a row declares is what its guard asks for, by the number of the right in the row.

A query's name is a transactional id: who stages, commits or aborts its epochs needs WRITE on it, so that nobody takes
over the query of somebody else by beginning a newer incarnation of it. A registered reader is a group of its name.
"""

from collections.abc import Mapping
from typing import Any, Final

from kio.static.protocol import ResponsePayload

from logstore.access.acls import Operation, ResourceType
from logstore.errors import ClusterAuthorizationFailed
from logstore.format.epoch_api import ABORT, DESCRIBE, EPOCH_COMMIT, SCAN, STAGE
from logstore.format.operator_api import (
    CHANGE_HOST,
    DESCRIBE_HOSTS,
    DESCRIBE_PLACES,
    DESCRIBE_QUERIES,
    DESCRIBE_SIDECAR,
    DESCRIBE_TIER,
    FORGET_PRODUCERS,
)
from logstore.format.reader_api import ACKNOWLEDGE, DESCRIBE_READERS, REGISTER_READER, REMOVE_READER
from logstore.kafka import fetch, produce
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.rights import cluster, groups, topics
from logstore.kafka.rights.rule import Asked, Right, Rule, serve


def _topic(operation: Operation) -> Right:
    return Right(operation, ResourceType.TOPIC)


def _group(operation: Operation) -> Right:
    return Right(operation, ResourceType.GROUP)


def _cluster(operation: Operation) -> Right:
    return Right(operation, ResourceType.CLUSTER)


def _query(operation: Operation) -> Right:
    return Right(operation, ResourceType.TRANSACTIONAL_ID)


_READ, _WRITE, _CREATE, _DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE = Operation.ALTER, Operation.DESCRIBE
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
_EVERYBODY: Final = Rule((), serve)

RULES: Final[Mapping[int, Rule]] = {
    # Produce, Fetch: `data`
    produce.KEY: Rule((_topic(_WRITE),), None),
    fetch.KEY: Rule((_topic(_READ),), None),
    # ListOffsets, Metadata
    2: Rule((_topic(_DESCRIBE),), topics.by_partition()),
    3: Rule((_topic(_DESCRIBE), _cluster(_DESCRIBE)), topics.metadata),
    # OffsetCommit, OffsetFetch, FindCoordinator
    8: Rule((_group(_READ), _topic(_READ)), groups.commit_offsets),
    9: Rule((_group(_DESCRIBE), _topic(_DESCRIBE)), groups.fetch_offsets),
    10: Rule((_group(_DESCRIBE),), groups.find_coordinator),
    # JoinGroup, Heartbeat, LeaveGroup, SyncGroup
    11: Rule((_group(_READ),), groups.member),
    12: Rule((_group(_READ),), groups.member),
    13: Rule((_group(_READ),), groups.member),
    14: Rule((_group(_READ),), groups.member),
    # DescribeGroups, ListGroups
    15: Rule((_group(_DESCRIBE),), groups.describe),
    16: Rule((_cluster(_DESCRIBE), _group(_DESCRIBE)), groups.list_all),
    # SaslHandshake, ApiVersions
    17: _EVERYBODY,
    18: _EVERYBODY,
    # CreateTopics, DeleteTopics, DeleteRecords
    19: Rule((_cluster(_CREATE), _topic(_CREATE), _topic(_DESCRIBE_CONFIGS)), topics.create),
    20: Rule((_topic(_DELETE), _topic(_DESCRIBE)), topics.delete),
    21: Rule((_topic(_DELETE),), topics.by_partition(low_watermark=-1)),
    # InitProducerId, OffsetForLeaderEpoch
    22: Rule((_cluster(Operation.IDEMPOTENT_WRITE), _topic(_WRITE)), cluster.producer_id),
    23: Rule((_topic(_DESCRIBE),), topics.by_partition(name="topic", index="partition")),
    # DescribeAcls, CreateAcls, DeleteAcls
    29: Rule((_cluster(_DESCRIBE),), cluster.whole),
    30: Rule((_cluster(_ALTER),), cluster.create_acls),
    31: Rule((_cluster(_ALTER),), cluster.delete_acls),
    # DescribeConfigs, AlterConfigs, AlterReplicaLogDirs, DescribeLogDirs
    32: Rule((_topic(_DESCRIBE_CONFIGS), _cluster(_DESCRIBE_CONFIGS)), cluster.configs),
    33: Rule((_topic(_ALTER_CONFIGS), _cluster(_ALTER_CONFIGS)), cluster.configs),
    34: Rule((_cluster(_ALTER),), cluster.alter_log_directories),
    35: Rule((_cluster(_DESCRIBE),), cluster.whole),
    # SaslAuthenticate
    36: _EVERYBODY,
    # CreatePartitions, DeleteGroups, ElectLeaders, IncrementalAlterConfigs
    37: Rule((_topic(_ALTER),), topics.by_name("results")),
    42: Rule((_group(_DELETE),), groups.delete),
    43: Rule((_cluster(_ALTER),), cluster.whole),
    44: Rule((_topic(_ALTER_CONFIGS), _cluster(_ALTER_CONFIGS)), cluster.configs),
    # AlterPartitionReassignments, ListPartitionReassignments, OffsetDelete
    45: Rule((_cluster(_ALTER),), cluster.whole),
    46: Rule((_cluster(_DESCRIBE),), cluster.whole),
    47: Rule((_group(_DELETE), _topic(_READ)), groups.commit_offsets),
    # DescribeClientQuotas, AlterClientQuotas
    48: Rule((_cluster(_DESCRIBE_CONFIGS),), cluster.whole),
    49: Rule((_cluster(_ALTER_CONFIGS),), cluster.alter_quotas),
    # DescribeUserScramCredentials, AlterUserScramCredentials
    50: Rule((_cluster(_DESCRIBE),), cluster.whole),
    51: Rule((_cluster(_ALTER),), cluster.alter_users),
    # DescribeQuorum, DescribeCluster, ListConfigResources, DescribeTopicPartitions
    55: Rule((_cluster(_DESCRIBE),), cluster.whole),
    60: Rule((_cluster(_DESCRIBE),), cluster.described_cluster),
    74: Rule((_cluster(_DESCRIBE_CONFIGS),), cluster.whole),
    75: Rule((_topic(_DESCRIBE),), topics.describe_partitions),
    # Cairn's own: their handlers ask
    STAGE: Rule((_query(_WRITE), _topic(_WRITE)), None),
    EPOCH_COMMIT: Rule((_query(_WRITE), _topic(_WRITE)), None),
    ABORT: Rule((_query(_WRITE),), None),
    DESCRIBE: Rule((_query(_DESCRIBE),), None),
    SCAN: Rule((_topic(_READ),), None),
    REGISTER_READER: Rule((_group(_READ), _topic(_READ)), None),
    ACKNOWLEDGE: Rule((_group(_READ), _topic(_READ)), None),
    REMOVE_READER: Rule((_group(_READ),), None),
    DESCRIBE_READERS: Rule((_group(_DESCRIBE), _topic(_DESCRIBE)), None),
    DESCRIBE_QUERIES: Rule((_query(_DESCRIBE), _topic(_DESCRIBE)), None),
    DESCRIBE_SIDECAR: Rule((_cluster(_DESCRIBE),), None),
    DESCRIBE_HOSTS: Rule((_cluster(_DESCRIBE),), None),
    DESCRIBE_PLACES: Rule((_topic(_DESCRIBE),), None),
    CHANGE_HOST: Rule((_cluster(_ALTER),), None),
    FORGET_PRODUCERS: Rule((_cluster(_ALTER),), None),
    DESCRIBE_TIER: Rule((_topic(_DESCRIBE),), None),
}


async def answer(broker: Broker, api: Api, request: Any, caller: Caller) -> ResponsePayload | EncodedAnswer:
    """Handle a decoded request of Kafka's, as far as the caller may. Raises ClusterAuthorizationFailed for a request
    without a rule, and what its handler raises.
    """
    if not broker.authorizer.is_active:
        return await api.handle(request, caller)
    rule = RULES.get(api.key)
    if rule is None or rule.guard is None:
        raise ClusterAuthorizationFailed(f"no rule says who may send request {api.key}, so nobody may")
    response: ResponsePayload = await rule.guard(Asked(broker, caller, request, rule.rights, api.handle))
    return response


def require(broker: Broker, key: int, caller: Caller, name: str, right: int = 0) -> None:
    """Raise the error of a missing right of one of Cairn's own requests: `right` is its number in the table."""
    needed = RULES[key].rights[right]
    broker.authorizer.require(caller, needed.operation, needed.resource_type, name)


def allows(broker: Broker, key: int, caller: Caller, name: str, right: int = 0) -> bool:
    """Whether the caller has a right that a request needs."""
    needed = RULES[key].rights[right]
    return broker.authorizer.allows(caller, needed.operation, needed.resource_type, name)
