"""What operators' commands ask of a sidecar beyond Kafka's requests: the sidecar itself, and its queries.

Invariants: nothing is changed; a caller is told only of the queries that they may describe; an answer is bounded by
`QUERIES_PER_REPLY`; what asks the operating system runs on a
thread.

Source: docs/format.md, "Private requests".
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from typing import Final, NamedTuple, cast

import trio

from logstore.access.acls import CLUSTER_NAME
from logstore.base.metadata.errors import MetadataError
from logstore.epochs.epochs import Epochs
from logstore.errors import CairnError, NoCluster
from logstore.format.host_summaries import ClusterGlance
from logstore.format.operator_api import (
    CLUSTER_API_KEYS,
    DESCRIBE_QUERIES,
    DESCRIBE_SIDECAR,
    DESCRIBE_TIER,
    OPERATOR_API_KEYS,
    QUERIES_PER_REPLY,
    DescribeQueriesRequest,
    DescribeTierRequest,
    OperatorReply,
    QueriesReply,
    SidecarReply,
    decode_request,
    encode_reply_body,
)
from logstore.format.tier_summaries import TIERED_PER_REPLY, TieredPartition, TierReply
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.pace import Walkers
from logstore.kafka.rights import table
from logstore.log.readers import Readers
from logstore.log.store import Store

ASK_METADATA_S: Final = 1.0
"""For what the metadata store knows, and an answer does not wait for."""


class HostFacts(NamedTuple):
    """What only the process knows: its version, and the size and free bytes of the data directory's file system."""

    version: str
    disk_total_bytes: int
    disk_free_bytes: int


def operator_apis(broker: Broker, store: Store, epochs: Epochs, facts: Callable[[], HostFacts]) -> list[PrivateApi]:
    """The handlers of operators' requests. `facts` may block; it runs on a thread."""
    requests = _OperatorRequests(broker, store, epochs, facts)
    return [PrivateApi(key, partial(requests.handle, key)) for key in sorted(OPERATOR_API_KEYS)]


def summary_api(
    broker: Broker,
    own: Store,
    epochs: Callable[[], Epochs | None],
    readers: Callable[[], Readers | None],
    facts: Callable[[], HostFacts],
    waiting: Callable[[], Awaitable[tuple[str, ...]]],
    glance: Callable[[], Awaitable[ClusterGlance]],
) -> PrivateApi:
    """The handler that describes a host of a cluster. `own` is the host's store; `epochs` and `readers` are those
    that it has now; `waiting` names streams of the cluster whose takeovers wait; `glance` says how the cluster is.
    """
    summary = _SidecarSummary(broker, own, facts)

    async def handle(body: memoryview, _: AnswerBudget, caller: Caller) -> tuple[list[Buffer], int]:
        try:
            decode_request(DESCRIBE_SIDECAR, body)
            described = replace(await summary.reply(epochs(), readers(), caller), cluster=await glance())
            with suppress(MetadataError), trio.move_on_after(ASK_METADATA_S):  # while it is away nobody knows
                described = replace(described, waiting=await waiting())
            reply: OperatorReply | CairnError = described
        except CairnError as error:
            reply = error
        return encode_reply_body(reply), 0

    return PrivateApi(DESCRIBE_SIDECAR, handle)


def tier_api(broker: Broker) -> PrivateApi:
    """The handler that says what of a topic is in the tier, for a host of a cluster."""

    async def handle(body: memoryview, _: AnswerBudget, caller: Caller) -> tuple[list[Buffer], int]:
        await trio.lowlevel.checkpoint()
        try:
            request = decode_request(DESCRIBE_TIER, body)
            reply: OperatorReply | CairnError = _tier(broker, cast(DescribeTierRequest, request), caller)
        except CairnError as error:
            reply = error
        return encode_reply_body(reply), 0

    return PrivateApi(DESCRIBE_TIER, handle)


def queries_reply(broker: Broker, epochs: Epochs, after: str, caller: Caller) -> QueriesReply:
    """The queries behind a name that a caller may describe, each with those of its topics that the caller may."""
    wanted = (name for name in epochs.names() if name > after)
    if not broker.authorizer.is_active:
        return QueriesReply(epochs.summaries(nsmallest(QUERIES_PER_REPLY, wanted)))
    wanted = (name for name in wanted if table.allows(broker, DESCRIBE_QUERIES, caller, name))
    found = epochs.summaries(nsmallest(QUERIES_PER_REPLY, wanted))
    may_show = partial(table.allows, broker, DESCRIBE_QUERIES, caller, right=1)
    return QueriesReply(tuple(replace(each, topics=tuple(filter(may_show, each.topics))) for each in found))


class _OperatorRequests:
    """Decodes requests and encodes replies."""

    def __init__(self, broker: Broker, store: Store, epochs: Epochs, facts: Callable[[], HostFacts]) -> None:
        self._broker = broker
        self._store, self._epochs, self._readers = store, epochs, store.readers
        self._summary = _SidecarSummary(broker, store, facts)

    async def handle(self, api_key: int, body: memoryview, _: AnswerBudget, caller: Caller) -> tuple[list[Buffer], int]:
        """Answer one request."""
        try:
            request = decode_request(api_key, body)
            if api_key in CLUSTER_API_KEYS:
                raise NoCluster("this sidecar is alone: ask a host of a cluster (`cairn serve --cluster URL`)")
            if isinstance(request, DescribeQueriesRequest):
                reply: OperatorReply | CairnError = queries_reply(self._broker, self._epochs, request.after, caller)
            elif isinstance(request, DescribeTierRequest):
                reply = _tier(self._broker, request, caller)
            else:
                reply = await self._summary.reply(self._epochs, self._readers, caller)
        except CairnError as error:
            reply = error
        return encode_reply_body(reply), 0


def _tier(broker: Broker, request: DescribeTierRequest, caller: Caller) -> TierReply:
    """What of a topic's partitions is in the tier; of a cluster's, of those that this host owns. Raises NotAuthorized,
    UnknownTopicOrPartition.
    """
    table.require(broker, DESCRIBE_TIER, caller, request.topic)
    streams = broker.engine.store.topic(request.topic).partitions[request.first : request.first + TIERED_PER_REPLY]
    return TierReply(
        tuple(
            TieredPartition(
                stream.partition,
                stream.local_start_offset,
                stream.tiered_end_offset,
                stream.tiered_chunk_count,
                stream.tiered_bytes,
            )
            for stream in streams
        )
    )


class _SidecarSummary:
    """Describes the sidecar; knows when it started. `own` is the host's store, with copies of a cluster's chunks."""

    def __init__(self, broker: Broker, own: Store, facts: Callable[[], HostFacts]) -> None:
        self._broker = broker
        self._own = own
        self._facts = facts
        self._started_s = broker.clock.monotonic_s()

    async def reply(self, epochs: Epochs | None, readers: Readers | None, caller: Caller) -> SidecarReply:
        """The description; of queries and readers, what this host has of them. Raises NotAuthorized."""
        table.require(self._broker, DESCRIBE_SIDECAR, caller, CLUSTER_NAME)
        facts = await Walkers.run(self._facts)
        served, own = self._broker.engine.store, self._own
        return SidecarReply(
            version=facts.version,
            uptime_ms=int((self._broker.clock.monotonic_s() - self._started_s) * 1000),
            topics=len(served.topics),
            streams=sum(stream.is_leader for stream in served.streams()),
            log_bytes=sum(stream.size_bytes for stream in own.streams()) + own.replicas.size_bytes,
            queries=0 if epochs is None else len(epochs.names()),
            readers=0 if readers is None else len(readers.names()),
            staged_bytes=0 if epochs is None else epochs.staged_bytes,
            disk_total_bytes=facts.disk_total_bytes,
            disk_free_bytes=facts.disk_free_bytes,
            disk_needed_bytes=own.space.needed_bytes,
            refused_since_ms=own.space.low_since_ms,
        )
