"""What operators' commands ask of a sidecar: groups, settings, sizes, queries. Blocks, over a `Client`'s connections.

Invariants: a Kafka error code raises Refused with the name of the code and of what was asked; every request here may be
sent twice without harm, so the client sends it again after a lost connection. Of a cluster, groups are asked for at
their coordinator, and sizes at every host. Who only looks at groups asks for no coordinator where there is no topic of
groups: it would be made for that. That there is none is believed when several hosts have said so, or the only one
again: a host hears of a topic a moment after it was made.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from logstore.base.addresses import Address
from logstore.client import acl_wire, admin_wire, wire
from logstore.client.acl_wire import AclEntry, AclEntryFilter, AclOutcome
from logstore.client.admin_wire import ClusterInfo, GroupInfo
from logstore.client.blocking import Client
from logstore.client.errors import NOT_COORDINATING, UNKNOWN_TOPIC_OR_PARTITION, MalformedReply, SidecarRefused
from logstore.client.wire import OffsetInfo
from logstore.errors import InvalidConfig, NoCluster, TryAgain
from logstore.format import internal_topics
from logstore.format.host_summaries import PLACES_PER_REPLY, HostChanged, HostsReply, PlacesReply, PlaceSummary
from logstore.format.operator_api import (
    QUERIES_PER_REPLY,
    ChangeHostRequest,
    DescribeHostsRequest,
    DescribePlacesRequest,
    DescribeQueriesRequest,
    DescribeSidecarRequest,
    DescribeTierRequest,
    ForgetProducersRequest,
    ProducersForgotten,
    QueriesReply,
    QuerySummary,
    SidecarReply,
)
from logstore.format.tier_summaries import TIERED_PER_REPLY, TieredPartition, TierReply
from logstore.format.topic_partition import TopicPartition
from logstore.interfaces import Buffer

T = TypeVar("T")
Sizes = dict[TopicPartition, int]
AskHosts = Callable[[Sequence[Address], Callable[[Client], Sizes | None]], list[Sizes | None]]
"""Puts a question to each of several hosts, each by a client of its own; the answers, in their order. Raises what the
question raises, OSError among it.
"""
GROUPS_PER_REQUEST: Final = 1_000
STREAMS_PER_REQUEST: Final = 10_000
"""Below the number of elements that a sidecar takes in one request."""
DELETION_MS: Final = 30_000
INVALID_CONFIG: Final = 40
GROUP_ID_NOT_FOUND: Final = 69
MOST_LACKING: Final = 3
"""So many hosts say that a topic is not there; fewer where there are fewer."""
_NO_SUCH_TOPIC: Final = frozenset((UNKNOWN_TOPIC_OR_PARTITION, 17))
"""INVALID_TOPIC_EXCEPTION as well: a topic of the cluster's own, which no client may make."""


class Admin:
    """Requests of operators' commands. All raise Unavailable, Refused and MalformedReply."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hosts: list[Address] | None = None
        self._coordinator: Address | None = None
        self._lacking: list[Address | None] = []
        """The hosts that have said lately that there is no topic of groups."""
        self._questions = 0
        self._is_moved = False
        """A server has said that it does not coordinate: also of a cluster of one host, before its topic is made."""

    def cluster(self) -> ClusterInfo:
        """The cluster id, and the addresses that the sidecar tells its clients."""
        return self._client.call(wire.METADATA, wire.metadata_request((), create=False), admin_wire.cluster_reply)

    # ---- the sidecar's own

    def sidecar(self) -> SidecarReply:
        """The sidecar itself: version, uptime, counts, disk."""
        return self._client.call_operator(DescribeSidecarRequest(), SidecarReply)

    def queries(self) -> list[QuerySummary]:
        """All queries that the sidecar knows, by name."""
        found: list[QuerySummary] = []
        while True:
            after = found[-1].query if found else ""
            some = self._client.call_operator(DescribeQueriesRequest(after), QueriesReply).queries
            found += some
            if len(some) < QUERIES_PER_REPLY:
                return found

    def tiered(self, topic: str) -> dict[int, TieredPartition]:
        """What of each partition of a topic is in the tier; a host of a cluster knows it of those that it owns."""
        found: dict[int, TieredPartition] = {}
        while True:
            some = self._client.call_operator(DescribeTierRequest(topic, len(found)), TierReply).partitions
            found |= {at.partition: at for at in some}
            if len(some) < TIERED_PER_REPLY:
                return found

    # ---- a cluster's own

    def hosts(self) -> HostsReply:
        """The hosts of the cluster. Raises NoCluster at a sidecar that is alone."""
        return self._client.call_operator(DescribeHostsRequest(), HostsReply)

    def change_host(self, host: str, action: str) -> HostChanged:
        """Have a host drained, kept or removed. Raises UnknownHost, HostStays, NoCluster."""
        return self._client.call_operator(ChangeHostRequest(host, action), HostChanged)

    def forget_producers(
        self, stream: TopicPartition, chunk: int, *, even_if_away: bool, repeat_epochs: bool
    ) -> ProducersForgotten:
        """Let what waits in a stream for a chunk go on without it. Raises NothingLost, NoCluster."""
        request = ForgetProducersRequest(stream.topic, stream.partition, chunk, even_if_away, repeat_epochs)
        return self._client.call_operator(request, ProducersForgotten)

    def places(self, topic: str) -> PlacesReply | None:
        """Where all partitions of a topic are; None at a sidecar that is alone."""
        found: list[PlaceSummary] = []
        is_complete = True
        while True:
            try:
                reply = self._client.call_operator(DescribePlacesRequest(topic, len(found)), PlacesReply)
            except NoCluster:
                return None
            found += reply.places
            is_complete = is_complete and reply.is_complete
            if len(reply.places) < PLACES_PER_REPLY:
                return PlacesReply(tuple(found), is_complete)

    # ---- groups

    def group_names(self) -> list[str]:
        """The names of all groups, sorted."""
        nothing: tuple[int, list[str]] = 0, []
        error, names = self._of_groups(
            wire.LIST_GROUPS, b"", admin_wire.list_groups_reply, lambda found: found[:1], nothing
        )
        self._check(error, "groups", "Describe on the group")
        return names

    def groups(self, names: Sequence[str]) -> dict[str, GroupInfo]:
        """Groups by name, in the order asked for. A group that does not exist is `Dead`, as in Kafka."""
        found: dict[str, GroupInfo] = {}
        for at in range(0, len(names), GROUPS_PER_REQUEST):
            some = names[at : at + GROUPS_PER_REQUEST]
            request = admin_wire.describe_groups_request(some)
            described = self._of_groups(
                wire.DESCRIBE_GROUPS,
                request,
                admin_wire.describe_groups_reply,
                _group_errors,
                dict.fromkeys(some, admin_wire.NO_GROUP),
            )
            found |= described
        for name, group in found.items():
            if group.error != GROUP_ID_NOT_FOUND:
                self._check(group.error, f"group {name!r}", "Describe on the group")
        return found

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that a group has committed, by stream."""
        nothing: tuple[int, dict[TopicPartition, int]] = 0, {}
        request = admin_wire.offset_fetch_request(group)
        error, offsets = self._of_groups(
            wire.OFFSET_FETCH, request, admin_wire.offset_fetch_reply, lambda found: found[:1], nothing
        )
        self._check(error, f"offsets of group {group!r}", "Describe on the group")
        return offsets

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets of a group without members. Raises SidecarRefused (UNKNOWN_MEMBER_ID: the group has members)."""
        streams = list(offsets)
        for at in range(0, len(streams), STREAMS_PER_REQUEST):
            some = {stream: offsets[stream] for stream in streams[at : at + STREAMS_PER_REQUEST]}
            request = admin_wire.offset_commit_request(group, some)
            answers = self._of_groups(
                wire.OFFSET_COMMIT, request, admin_wire.offset_commit_reply, lambda found: found.values()
            )
            for stream, error in answers.items():
                self._check(error, f"offset of {stream} for group {group!r}", "Read on the group and on the topic")

    def delete_group(self, group: str) -> None:
        """Delete a group and its offsets. Raises SidecarRefused (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND)."""
        request = admin_wire.delete_groups_request([group])
        answers = self._of_groups(
            wire.DELETE_GROUPS, request, admin_wire.delete_groups_reply, lambda found: found.values()
        )
        self._check(self._only(answers, group), f"group {group!r}", "Delete on the group")

    # ---- topics

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its records. Raises SidecarRefused (UNKNOWN_TOPIC_OR_PARTITION)."""
        request = admin_wire.delete_topics_request([topic], timeout_ms=DELETION_MS)
        answers = self._client.call(wire.DELETE_TOPICS, request, admin_wire.delete_topics_reply)
        self._check(self._only(answers, topic), f"topic {topic!r}", "Delete on the topic")

    def alter_topic(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change settings of a topic; None resets a setting to its default. Raises InvalidConfig, SidecarRefused."""
        request = admin_wire.alter_topic_request(topic, changes)
        error, message = self._client.call(wire.INCREMENTAL_ALTER_CONFIGS, request, admin_wire.alter_topic_reply)
        if error == INVALID_CONFIG:
            raise InvalidConfig(message or f"settings of topic {topic!r}")
        self._check(error, message or f"topic {topic!r}", "AlterConfigs on the topic", is_bare=not message)

    def offsets_here(self, streams: Iterable[TopicPartition], moment: int) -> dict[TopicPartition, OffsetInfo]:
        """Offsets at EARLIEST or LATEST as the server says that is asked; an error of a stream is that stream's answer,
        and nobody else is asked for it.
        """
        request = wire.list_offsets_request(dict.fromkeys(streams, moment))
        return self._client.call(wire.LIST_OFFSETS, request, wire.list_offsets_reply)

    def sizes(self, *, is_here: bool = False, ask_hosts: AskHosts | None = None) -> Sizes | None:
        """The bytes of each stream's chunks; None without Describe on the cluster. `is_here`: as the server that is
        asked says, and no other host of the cluster. `ask_hosts` puts a question to several hosts of a cluster at the
        same time; None: they are asked one by one.
        """
        request = admin_wire.log_dirs_request()

        def ask_at(client: Client, host: Address | None = None) -> Sizes | None:
            return client.call_once(wire.DESCRIBE_LOG_DIRS, request, admin_wire.log_dirs_reply, host)

        def ask() -> Sizes | None:
            hosts: Sequence[Address] = () if is_here else self._asked_hosts()
            if not hosts:
                return ask_at(self._client)
            found: Sizes = {}
            for sizes in ask_hosts(hosts, ask_at) if ask_hosts else [ask_at(self._client, host) for host in hosts]:
                if sizes is None:
                    return None
                found |= {stream: max(size, found.get(stream, 0)) for stream, size in sizes.items()}
            return found

        return self._retry(ask)

    # ---- access control lists

    def acls(self, wanted: AclEntryFilter) -> list[AclEntry]:
        """The access control list entries that a filter means."""
        request = acl_wire.describe_acls_request(wanted)
        return list(self._acl_outcome(wire.DESCRIBE_ACLS, request, acl_wire.describe_acls_reply).entries)

    def create_acls(self, entries: Sequence[AclEntry]) -> None:
        """Add entries; those that are there stay. Of some the others may have been made when one is refused. Raises
        SidecarRefused (INVALID_REQUEST: an entry that cannot be, or too many).
        """
        self._acl_outcomes(wire.CREATE_ACLS, acl_wire.create_acls_request(entries), acl_wire.create_acls_reply, entries)

    def delete_acls(self, filters: Sequence[AclEntryFilter]) -> list[AclEntry]:
        """Delete what any of these filters means; the entries that are gone by this call. After a lost connection the
        request is sent again, and what the first one has deleted is in no answer.
        """
        outcomes = self._acl_outcomes(
            wire.DELETE_ACLS, acl_wire.delete_acls_request(filters), acl_wire.delete_acls_reply, filters
        )
        return [entry for outcome in outcomes for entry in outcome.entries]

    def _acl_outcome(self, api_key: int, request: bytes, decode: Callable[[Buffer], AclOutcome]) -> AclOutcome:
        return self._acl_outcomes(api_key, request, lambda body: [decode(body)], (None,))[0]

    def _acl_outcomes(
        self, api_key: int, request: bytes, decode: Callable[[Buffer], list[AclOutcome]], asked: Sequence[object]
    ) -> list[AclOutcome]:
        """What became of each element that was asked for; the first that was refused is raised."""
        right = "Describe on the cluster" if api_key == wire.DESCRIBE_ACLS else "Alter on the cluster"

        def checked(body: Buffer) -> list[AclOutcome]:
            outcomes = decode(body)
            if len(outcomes) != len(asked):
                raise MalformedReply(f"{self._client.where} answered {len(outcomes)} of {len(asked)} elements")
            for outcome in outcomes:
                self._check(
                    outcome.error, outcome.message or "access control lists", right, is_bare=not outcome.message
                )
            return outcomes

        return self._client.call(api_key, request, checked)

    # ---- whom to ask in a cluster

    def _asked_hosts(self) -> list[Address]:
        """The hosts of a cluster; none, if there is one server only."""
        if self._hosts is None:
            request = wire.metadata_request((), create=False)
            hosts, _ = self._client.call(wire.METADATA, request, wire.leaders_reply)
            self._hosts = hosts if len(hosts) > 1 else []
        return self._hosts

    def _lacks_groups(self) -> bool:
        """Whether no group was ever in the cluster: it has no topic of groups. Raises TryAgain if another host is to be
        asked about that, or the only one once more.
        """
        hosts = self._asked_hosts()
        asked = hosts[self._questions % len(hosts)] if hosts else None
        self._questions += 1  # one that is gone is asked once
        request = wire.metadata_request((internal_topics.GROUPS,), create=False)
        topic = self._client.call_once(wire.METADATA, request, wire.metadata_reply, asked).get(internal_topics.GROUPS)
        if topic is None or topic.error not in _NO_SUCH_TOPIC:
            self._lacking.clear()
            return False
        self._lacking.append(asked)
        if len(self._lacking) < 2 or len(set(self._lacking)) < min(len(hosts), MOST_LACKING):
            raise TryAgain(f"{asked or self._client.where} knows no groups; another host may know of some")
        self._lacking.clear()
        return True

    def _of_groups(
        self,
        api_key: int,
        request: bytes,
        decode: Callable[[Buffer], T],
        errors: Callable[[T], Iterable[int]],
        nothing: T | None = None,
    ) -> T:
        """The answer of the coordinator of groups; `errors` are the error codes in an answer. `nothing`: the answer
        where there are no groups; None: a coordinator is found for the request even then.
        """

        def ask() -> T:
            if self._coordinator is None and (self._is_moved or self._asked_hosts()):
                if nothing is not None and self._lacks_groups():
                    return nothing
                self._coordinator = self._find_coordinator()
            found = self._client.call_once(api_key, request, decode, self._coordinator)
            moved = next((error for error in errors(found) if error in NOT_COORDINATING), 0)
            if moved:
                self._coordinator, self._is_moved = None, True
                raise SidecarRefused(f"groups at {self._client.where}", code=moved)
            return found

        return self._retry(ask)

    def _find_coordinator(self) -> Address:
        request = admin_wire.find_coordinator_request("cairn")
        error, address = self._client.call_once(wire.FIND_COORDINATOR, request, admin_wire.find_coordinator_reply, None)
        self._check(error, "the coordinator of groups", "Describe on a group")
        return address

    def _retry(self, ask: Callable[[], T]) -> T:
        def once() -> T:
            try:
                return ask()
            except OSError:
                self._hosts = self._coordinator = None  # a host may be gone: look again
                raise

        return self._client.retry_until(once, self._client.deadline_s())

    # ---- checks

    def _check(self, error: int, what: str, right: str, *, is_bare: bool = True) -> None:
        if error:
            raise SidecarRefused(f"{what} at {self._client.where}", code=error, right=right, is_bare=is_bare)

    def _only(self, answers: Mapping[str, int], name: str) -> int:
        if name not in answers:
            raise MalformedReply(f"{self._client.where} left {name!r} out of its answer")
        return answers[name]


def _group_errors(found: Mapping[str, GroupInfo]) -> list[int]:
    return [group.error for group in found.values()]
