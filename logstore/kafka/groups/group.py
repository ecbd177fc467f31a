"""One group: its members, its leader and their common protocol. The coordinator decides when the group changes.

Invariants: `leader_id` is a member, or None if there are no members; `static` maps each instance id to its current
member; `pending_joins` (member ids handed out, not used yet) and members are disjoint; the state changes only along
`state.TRANSITIONS`.
"""

from collections import Counter
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from logstore.kafka.groups.members import (
    FORMER_IDS,
    NO_GENERATION,
    NO_MEMBER,
    GroupMember,
    JoinedMember,
    JoinRequest,
    JoinResult,
    Protocol,
    SyncResult,
)
from logstore.kafka.groups.state import TRANSITIONS, GroupState
from logstore.kafka.groups.subscription import subscribed_topics
from logstore.log.ticket import Ticket

CONSUMER_PROTOCOL_TYPE = "consumer"


class ConsumerGroup:
    """The state of one group. `emptied_s`: when it became empty, in monotonic seconds; offsets expire from then on."""

    def __init__(self, group_id: str, *, protocol_type: str | None, now_s: float) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.protocol_type = protocol_type
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, GroupMember] = {}
        self.static: dict[str, str] = {}
        self.outlived: set[str] = set()
        """Instance ids whose member ids are those of a former coordinator: it may have told one of them a newer one."""
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self.member_added = False
        self.subscription: frozenset[str] | None = None
        self.initial_delay_ms = 0
        self.initial_remaining_ms: int | None = None
        self.assigned_generation = NO_GENERATION
        """The newest generation whose members have assignments, whether they were told or not."""
        self.emptied_s = now_s

    @classmethod
    def formed(
        cls,
        group_id: str,
        *,
        protocol_type: str,
        protocol_name: str,
        generation_id: int,
        leader_id: str,
        members: Iterable[GroupMember],
    ) -> "ConsumerGroup":
        """A group whose members were told their assignments by a former coordinator."""
        group = cls(group_id, protocol_type=protocol_type, now_s=0.0)
        group.state = group.previous_state = GroupState.STABLE
        group.protocol_name, group.leader_id = protocol_name, leader_id
        group.generation_id = group.assigned_generation = generation_id
        group.members = {member.member_id: member for member in members}
        group.static = {each.instance_id: name for name, each in group.members.items() if each.instance_id is not None}
        group.outlived = set(group.static)
        group.subscription = group._subscription()
        return group

    # ---- queries

    @property
    def size_bytes(self) -> int:
        """Memory that the members take, in bytes."""
        return sum(member.size_bytes for member in self.members.values())

    @property
    def joining_count(self) -> int:
        """How many members wait for the answer to their join."""
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether every member, and every client that was given a member id, has joined."""
        return not self.pending_joins and all(member.joining is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def shared_protocols(self) -> set[str]:
        """Names of the protocols that every member offers."""
        counts = Counter(name for member in self.members.values() for name in {name for name, _ in member.protocols})
        return {name for name, count in counts.items() if count == len(self.members)}

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether the group still has a common protocol if a client with these protocols joins."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        shared = self.shared_protocols()
        return protocol_type == self.protocol_type and any(name in shared for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with most votes: each member votes for the first protocol of its list that all members share.

        In a tie, the protocol that got its first vote earliest wins.
        """
        shared = self.shared_protocols()
        votes = Counter(vote for member in self.members.values() if (vote := member.vote(shared)) is not None)
        return votes.most_common(1)[0][0]

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether this is a member: `none`, `unknown_member_id` or `fenced_instance_id`."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.unknown_member_id
            if current != member_id:
                # A client that is fenced ends for good; one whose id may be the newer one is asked to join.
                is_newer = instance_id in self.outlived and member_id not in self.members[current].former
                return ErrorCode.unknown_member_id if is_newer else ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def is_subscribed(self, topic: str) -> bool:
        """Whether the group's consumers read the topic; True if a consumer's subscription cannot be parsed."""
        if self.subscription is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE and bool(self.members)
        return topic in self.subscription

    def view(self, member_id: str, *, skip_assignment: bool = False, as_leader: bool | None = None) -> JoinResult:
        """The current generation, as the answer to a member's join."""
        if as_leader is None:
            as_leader = member_id == self.leader_id
        members: tuple[JoinedMember, ...] = ()
        if as_leader:
            members = tuple(
                JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
                for member in self.members.values()
            )
        return JoinResult(
            ErrorCode.none,
            member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or NO_MEMBER,
            skip_assignment=skip_assignment,
            members=members,
        )

    def synced(self, member: GroupMember) -> SyncResult:
        """A member's assignment in the current generation."""
        return SyncResult(ErrorCode.none, member.assignment, self.protocol_type, self.protocol_name)

    # ---- changes

    def move(self, state: GroupState) -> None:
        """Change the state."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"group {self.group_id!r}: {self.state.value} to {state.value} is not a transition")
        self.previous_state, self.state = self.state, state

    def add(self, member: GroupMember, protocol_type: str, joining: Ticket[JoinResult]) -> None:
        """Add a member whose join waits."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
            self.outlived.discard(member.instance_id)
        self.pending_joins.discard(member.member_id)
        member.joining = joining

    def update(self, member: GroupMember, request: JoinRequest, joining: Ticket[JoinResult]) -> None:
        """A member joins again. Its client gave up an earlier join that still waits, so that gets an error."""
        member.settle_join(JoinResult(ErrorCode.rebalance_in_progress, member.member_id))
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.joining = joining

    def remove(self, member_id: str, error: ErrorCode) -> None:
        """Remove a member, or a member id that is not used yet; its waiting requests are answered with `error`."""
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        member.refuse(error)

    def replace_static(self, instance_id: str, new_id: str) -> GroupMember:
        """Give a static member a new id; requests under its old id are fenced from now on."""
        old_id = self.static[instance_id]
        member = self.members.pop(old_id)
        self.pending_syncs.discard(old_id)
        member.refuse(ErrorCode.fenced_instance_id)
        if member.is_told:
            member.former = (*member.former, old_id)[-FORMER_IDS:]
        member.is_told = False
        self.outlived.discard(instance_id)
        member.member_id = new_id
        self.members[new_id] = member
        self.static[instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        return member

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that has joined; False if no member has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].joining is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.joining is not None), None)
        if joined is None:
            return False
        self.leader_id = joined
        return True

    def next_generation(self, now_s: float) -> None:
        """Form the next generation from the current members; without members, the group becomes Empty."""
        self.generation_id += 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.move(GroupState.COMPLETING)
        else:
            self.protocol_name = None
            self.emptied_s = now_s
            self.move(GroupState.EMPTY)
        self.subscription = self._subscription()

    def _subscription(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            part = subscribed_topics(member.metadata(self.protocol_name))
            if part is None:
                return None
            topics |= part
        return frozenset(topics)
