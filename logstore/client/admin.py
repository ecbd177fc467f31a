"""The requests of operators' commands: groups, settings, sizes, queries, ACLs. Blocks; uses the connections of a
`Client`.

Invariants:
* A Kafka error code raises SidecarRefused, which names the code and the object of the request.
* Every request here may be sent twice without harm, so the client sends a request again after a lost connection.
* In a cluster, the coordinator of groups answers about groups, and every host answers about sizes.
* Reading groups does not create the topic of groups. If no topic of groups exists, no coordinator is looked up, because
  the lookup would create the topic. Several hosts must confirm that the topic does not exist, or the only host twice: a
  host hears of a new topic with a delay.
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
"""Below the maximum number of elements that a sidecar accepts in a request."""
DELETION_MS: Final = 30_000
INVALID_CONFIG: Final = 40
GROUP_ID_NOT_FOUND: Final = 69
MOST_LACKING: Final = 3
"""The number of hosts that must confirm that a topic does not exist; a smaller cluster needs all of its hosts."""
_NO_SUCH_TOPIC: Final = frozenset((UNKNOWN_TOPIC_OR_PARTITION, 17))
"""Includes INVALID_TOPIC_EXCEPTION: an internal topic of the cluster, which no client may create."""


class Admin:
    """The requests of operators' commands. All methods raise Unavailable, SidecarRefused and MalformedReply."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hosts: list[Address] | None = None
        self._coordinator: Address | None = None
        self._lacking: list[Address | None] = []
        """The hosts that have recently answered that no topic of groups exists."""
        self._questions = 0
        self._is_moved = False
        """Whether a server has answered that it is not the coordinator; a cluster of one host does so until its topic
        exists."""

    def cluster(self) -> ClusterInfo:
        """The cluster id, and the addresses that the sidecar advertises to clients."""
        return self._client.call(wire.METADATA, wire.metadata_request((), create=False), admin_wire.cluster_reply)

    # ---- the sidecar's own

    def sidecar(self) -> SidecarReply:
        """The figures of the sidecar: version, uptime, counts, disk."""
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
        """For each partition of a topic, its part in the tier. A host of a cluster knows its own partitions only."""
        found: dict[int, TieredPartition] = {}
        while True:
            some = self._client.call_operator(DescribeTierRequest(topic, len(found)), TierReply).partitions
            found |= {at.partition: at for at in some}
            if len(some) < TIERED_PER_REPLY:
                return found

    # ---- a cluster's own

    def hosts(self) -> HostsReply:
        """The hosts of the cluster. Raises NoCluster at a single sidecar."""
        return self._client.call_operator(DescribeHostsRequest(), HostsReply)

    def change_host(self, host: str, action: str) -> HostChanged:
        """Drain a host, cancel its drain, or remove the host. Raises UnknownHost, HostStays, NoCluster."""
        return self._client.call_operator(ChangeHostRequest(host, action), HostChanged)

    def forget_producers(
        self, stream: TopicPartition, chunk: int, *, even_if_away: bool, repeat_epochs: bool
    ) -> ProducersForgotten:
        """Let a takeover or epochs that wait for a lost chunk of a stream continue without it. Raises NothingLost,
        NoCluster.
        """
        request = ForgetProducersRequest(stream.topic, stream.partition, chunk, even_if_away, repeat_epochs)
        return self._client.call_operator(request, ProducersForgotten)

    def places(self, topic: str) -> PlacesReply | None:
        """The places of all partitions of a topic; None at a single sidecar."""
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
        """The groups with these names, in this order. A group that does not exist is `Dead`, as in Kafka."""
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
        """Offsets at EARLIEST or LATEST according to the connected server; an error of a stream is the answer for that
        stream, and no other host is asked.
        """
        request = wire.list_offsets_request(dict.fromkeys(streams, moment))
        return self._client.call(wire.LIST_OFFSETS, request, wire.list_offsets_reply)

    def sizes(self, *, is_here: bool = False, ask_hosts: AskHosts | None = None) -> Sizes | None:
        """The bytes of each stream's chunks; None without Describe on the cluster. `is_here`: only the answer of the
        connected server, and of no other host of the cluster. `ask_hosts` puts a question to several hosts of a
        cluster at the same time; None: one after another.
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
        """The ACLs that match a filter."""
        request = acl_wire.describe_acls_request(wanted)
        return list(self._acl_outcome(wire.DESCRIBE_ACLS, request, acl_wire.describe_acls_reply).entries)

    def create_acls(self, entries: Sequence[AclEntry]) -> None:
        """Add ACLs; existing ACLs stay. If an ACL is refused, other ACLs of the call may have been added. Raises
        SidecarRefused (INVALID_REQUEST: an invalid ACL, or too many).
        """
        self._acl_outcomes(wire.CREATE_ACLS, acl_wire.create_acls_request(entries), acl_wire.create_acls_reply, entries)

    def delete_acls(self, filters: Sequence[AclEntryFilter]) -> list[AclEntry]:
        """Delete the ACLs that match any of these filters; returns the deleted ACLs. After a lost connection the client
        sends the request again; the answer then lacks the ACLs that the first request deleted.
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
        """The outcome for each element of the request. Raises the error of the first refused element."""
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
        """The hosts of a cluster; empty if there is only one server."""
        if self._hosts is None:
            request = wire.metadata_request((), create=False)
            hosts, _ = self._client.call(wire.METADATA, request, wire.leaders_reply)
            self._hosts = hosts if len(hosts) > 1 else []
        return self._hosts

    def _lacks_groups(self) -> bool:
        """Whether the cluster never had a group, and therefore has no topic of groups. Raises TryAgain until enough
        hosts have confirmed this.
        """
        hosts = self._asked_hosts()
        asked = hosts[self._questions % len(hosts)] if hosts else None
        self._questions += 1  # a host that is gone is asked once
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
        """The answer of the coordinator of groups; `errors` are the error codes in an answer. `nothing` is the answer
        if no groups exist; None: look up a coordinator in this case, too.
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
