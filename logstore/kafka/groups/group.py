"""One group: its members, its leader and the protocol they share. What it does when is the coordinator's business.

Invariants: `leader_id` is a member, or None when there are none; `static` maps each instance id to the one member that
has it now; `pending_joins` (ids handed out, not used yet) and members are disjoint; the state changes only along
`state.TRANSITIONS`.
"""

from collections import Counter

from kio.schema.errors import ErrorCode

from logstore.kafka.groups.members import (
    NO_MEMBER,
    JoinedMember,
    JoinRequest,
    JoinResult,
    Member,
    Protocol,
    SyncResult,
)
from logstore.kafka.groups.state import TRANSITIONS, GroupState
from logstore.kafka.groups.subscription import subscribed_topics
from logstore.log.ticket import Ticket

CONSUMER_PROTOCOL_TYPE = "consumer"


class Group:
    """The state of one group. `emptied_s`: since when it has been empty, monotonic; offsets expire from there."""

    def __init__(self, group_id: str, *, protocol_type: str | None, now_s: float) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.protocol_type = protocol_type
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self.member_added = False
        self.subscription: frozenset[str] | None = None
        self.initial_delay_ms = 0
        self.initial_remaining_ms: int | None = None
        self.emptied_s = now_s

    # ---- what is so

    @property
    def size_bytes(self) -> int:
        """Memory its members take."""
        return sum(member.size_bytes for member in self.members.values())

    @property
    def joining_count(self) -> int:
        """How many members wait for their join to be answered."""
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether every member, and everybody who was given an id, has joined."""
        return not self.pending_joins and all(member.joining is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def shared_protocols(self) -> set[str]:
        """Names of the protocols that every member offers."""
        counts = Counter(name for member in self.members.values() for name in {name for name, _ in member.protocols})
        return {name for name, count in counts.items() if count == len(self.members)}

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether somebody with these protocols can join without leaving the group without a common one."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        shared = self.shared_protocols()
        return protocol_type == self.protocol_type and any(name in shared for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with most votes: each member votes for the first of its list that all share.

        A tie goes to the one that got its first vote earliest.
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
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def is_subscribed(self, topic: str) -> bool:
        """Whether its consumers read the topic. A consumer group whose subscriptions cannot be parsed may read any."""
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

    def synced(self, member: Member) -> SyncResult:
        """A member's assignment in the current generation."""
        return SyncResult(ErrorCode.none, member.assignment, self.protocol_type, self.protocol_name)

    # ---- what changes

    def move(self, state: GroupState) -> None:
        """Change the state."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"group {self.group_id!r}: {self.state.value} to {state.value} is not a transition")
        self.previous_state, self.state = self.state, state

    def add(self, member: Member, protocol_type: str, joining: Ticket[JoinResult]) -> None:
        """Take in a member whose join waits."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.pending_joins.discard(member.member_id)
        member.joining = joining

    def update(self, member: Member, request: JoinRequest, joining: Ticket[JoinResult]) -> None:
        """A member joins again. A join of it that still waits was given up by its sender: told to try again."""
        member.settle_join(JoinResult(ErrorCode.rebalance_in_progress, member.member_id))
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.joining = joining

    def remove(self, member_id: str, error: ErrorCode) -> None:
        """Remove a member or an id handed out; what it waits for is answered with `error`."""
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

    def replace_static(self, instance_id: str, new_id: str) -> Member:
        """Give a static member a new id; its predecessor of the same instance is fenced at once."""
        old_id = self.static[instance_id]
        member = self.members.pop(old_id)
        self.pending_syncs.discard(old_id)
        member.refuse(ErrorCode.fenced_instance_id)
        member.member_id = new_id
        self.members[new_id] = member
        self.static[instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        return member

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is somebody who has joined; False if nobody has."""
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
        """Form the next generation of those who are here; Empty if nobody is."""
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
