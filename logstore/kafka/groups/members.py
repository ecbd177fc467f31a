"""Members of a group, with their requests and the results.

Invariants: a member has at most one waiting join and one waiting sync; a new request settles the waiting one first, so
that every ticket settles. A member that waits for either needs no heartbeat (its connection is busy with the request).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from logstore.log.ticket import Ticket

NO_GENERATION = -1
NO_MEMBER = ""
FORMER_IDS = 2
"""So many ids that a static member had before are known: a process that another has replaced hears of it within a
heartbeat's interval. An id that no client was told does not count."""
MEMBER_BYTES = 512
"""Approximate memory of a member without its opaque bytes: a member without metadata must count too."""


class Protocol(NamedTuple):
    """An assignment strategy a member offers, with its metadata (for consumers: its subscription)."""

    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """JoinGroup, any version. `require_member_id` is v4+, `may_skip_assignment` v9+."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    require_member_id: bool
    may_skip_assignment: bool


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to a join. `members` is filled for the leader alone."""

    error: ErrorCode
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(NamedTuple):
    """SyncGroup, any version; protocol type and name come with v5+."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


class SyncResult(NamedTuple):
    """The answer to a sync."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class Leaver(NamedTuple):
    """One member of a LeaveGroup batch; an empty member id with an instance id is an administrator's removal."""

    member_id: str
    instance_id: str | None


@dataclass(slots=True)
class GroupMember:
    """One member. `is_new` until its first join is answered: it does not know its id and cannot heartbeat yet.
    `is_told`: a client was told the id. `former`: the last ids before this one that clients of a static member were
    told.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = True
    is_told: bool = False
    former: tuple[str, ...] = ()
    joining: Ticket[JoinResult] | None = field(default=None, repr=False)
    syncing: Ticket[SyncResult] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, member_id: str, request: JoinRequest) -> "GroupMember":
        """A new member from its join request."""
        return cls(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
        )

    @property
    def size_bytes(self) -> int:
        """Memory that the member takes, in bytes."""
        return metadata_bytes(self.protocols) + len(self.assignment) + MEMBER_BYTES

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for a protocol; empty if the member does not offer the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: Collection[str]) -> str | None:
        """The first of the member's protocols that is a candidate; None if none is."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    def settle_join(self, result: JoinResult) -> bool:
        """Answer a waiting join; returns whether there was one."""
        ticket, self.joining = self.joining, None
        if ticket is not None:
            ticket.succeed(result)
        return ticket is not None

    def settle_sync(self, result: SyncResult) -> bool:
        """Answer a waiting sync; returns whether there was one."""
        ticket, self.syncing = self.syncing, None
        if ticket is not None:
            ticket.succeed(result)
        return ticket is not None

    def refuse(self, error: ErrorCode) -> None:
        """Answer a waiting join and a waiting sync with an error, because the member is removed or fenced."""
        self.settle_join(JoinResult(error, self.member_id))
        self.settle_sync(SyncResult(error))


def metadata_bytes(protocols: tuple[Protocol, ...]) -> int:
    """Size of the names and metadata of the protocols that a member offers."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)
