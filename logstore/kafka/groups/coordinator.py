"""The membership protocol of Kafka's classic consumer groups, without I/O: joins, generations, sessions.

Requests are values and come with the time (`now_s`, monotonic seconds). A request that cannot be answered at once gets
a ticket, which settles when other members act or when a deadline passes. The caller calls `expire(now_s)` at the time
that `next_deadline()` returns.

Invariants:
* Every ticket settles: each waiting request depends on a deadline of its member or of its group. If an answer depends
  on a write, the write has WRITE_LIMIT_S, as in Kafka; after that it counts as failed. An immediate refusal is answered
  after REFUSED_S.
* A generation has one leader, one protocol and one assignment; a member belongs to the current generation or to none.
* Bounded: groups, members (and member ids handed out) per group, and bytes of metadata and assignments of all groups.

In a cluster generations are stored (`generations`), and members continue in them when another host coordinates the
group, as in Kafka. On a single host membership is in memory only: after a restart members get UNKNOWN_MEMBER_ID, and
clients join again automatically and continue from offsets that are as durable as records.
Rules: KIP-62, KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member ids), KIP-559, KIP-814; in cases of
doubt, the behaviour of Kafka 4.2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from logstore.base.events import Report, ignore
from logstore.events import GROUP_REBALANCED
from logstore.kafka.groups.deadlines import DeadlineKind, GroupDeadlines
from logstore.kafka.groups.generation_log import GenerationLog, KeepResult, NothingKept
from logstore.kafka.groups.group import ConsumerGroup
from logstore.kafka.groups.members import (
    MEMBER_BYTES,
    NO_MEMBER,
    GroupMember,
    JoinRequest,
    JoinResult,
    Leaver,
    SyncRequest,
    SyncResult,
    metadata_bytes,
)
from logstore.kafka.groups.settings import GROUP_ID_MAX_BYTES, REFUSED_S, WRITE_LIMIT_S, GroupSettings
from logstore.kafka.groups.state import CAN_REBALANCE, GroupState
from logstore.log.ticket import Ticket

NEW_MEMBER_JOIN_TIMEOUT_S = 300.0
"""A member cannot heartbeat before its first join is answered; if its client gave up, it is removed after this time."""

RECOVER_GROUPS = 100
RECOVER_BYTES = 128 << 10
"""So much of a former coordinator's groups is read in one go, and the rest of a group: ten milliseconds, or thirty for
the largest group that is kept."""


class GroupCoordinator:
    """All groups of one sidecar. `new_id` returns unique text for member ids."""

    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        report: Report = ignore,
        generations: GenerationLog | None = None,
    ) -> None:
        self._settings = settings
        self._new_id = new_id
        self._report = report
        self._generations = generations or NothingKept()
        self._groups: dict[str, ConsumerGroup] = {}
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0
        self._deadlines = GroupDeadlines()

    # ---- groups

    def groups(self) -> Iterator[ConsumerGroup]:
        """All groups; the caller must not change them."""
        return iter(tuple(self._groups.values()))

    def find(self, group_id: str) -> ConsumerGroup | None:
        """A group by its id; the caller must not change it."""
        return self._groups.get(group_id)

    def recover(self, now: Callable[[], float]) -> Iterator[None]:
        """Go on with the generations of a former coordinator, as far as there is room; pauses after each RECOVER_GROUPS
        of them, or when their members take RECOVER_BYTES. Each member has a whole session from the end on: it may have
        lacked a coordinator for a while. `now`: monotonic seconds.
        """
        count = size_bytes = 0
        for group in self._generations.groups():
            if group is not None:
                self._take_over(group)
                size_bytes += group.size_bytes
            count += 1
            if count >= RECOVER_GROUPS or size_bytes >= RECOVER_BYTES:
                count = size_bytes = 0
                yield
        for number, group in enumerate(self.groups(), start=1):
            for member in group.members.values():
                self._deadlines.heard(group.group_id, member, now())
            if not number % RECOVER_GROUPS:
                yield

    def _take_over(self, group: ConsumerGroup) -> None:
        has_room = self._size_bytes + group.size_bytes <= self._settings.max_bytes
        if has_room and len(self._groups) < self._settings.max_groups:
            self._groups[group.group_id] = group
            self._account(group)

    def ensure(self, group_id: str, now_s: float, *, protocol_type: str | None = None) -> ErrorCode:
        """Create an empty group if it is missing: for offsets found at start, or committed without membership."""
        if group_id not in self._groups:
            if not _is_valid_id(group_id):
                return ErrorCode.invalid_group_id
            if len(self._groups) >= self._settings.max_groups:
                return ErrorCode.policy_violation
            self._groups[group_id] = ConsumerGroup(group_id, protocol_type=protocol_type, now_s=now_s)
        return ErrorCode.none

    def check_delete(self, group_id: str) -> ErrorCode:
        """Whether a group may be deleted: `none` if it exists and is empty."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        return ErrorCode.none if group.state is GroupState.EMPTY else ErrorCode.non_empty_group

    def drop(self, group_id: str) -> ConsumerGroup:
        """Remove an empty group; returns the group."""
        group = self._groups[group_id]
        group.move(GroupState.DEAD)
        for member_id in list(group.pending_joins):
            self._remove(group, member_id)
        self._deadlines.cancel(DeadlineKind.JOIN, group_id)
        self._deadlines.cancel(DeadlineKind.SYNC, group_id)
        self._generations.forget(group_id)  # one that could not be read
        self._size_bytes -= self._sizes.pop(group_id, 0)
        return self._groups.pop(group_id)

    # ---- join

    def join(self, request: JoinRequest, now_s: float) -> Ticket[JoinResult]:
        """JoinGroup. Settles when the generation is formed, or at once with an error or the current generation."""
        ticket: Ticket[JoinResult] = Ticket()
        error = self._admit(request, now_s)
        if error is not ErrorCode.none:
            keep = error not in (ErrorCode.invalid_session_timeout, ErrorCode.group_max_size_reached)
            ticket.succeed(JoinResult(error, request.member_id if keep else NO_MEMBER))
            return ticket
        group = self._groups[request.group_id]
        if not group.supports(request.protocol_type, request.protocols):
            ticket.succeed(JoinResult(ErrorCode.inconsistent_group_protocol, request.member_id))
        elif request.member_id == NO_MEMBER:
            self._join_new(group, request, ticket, now_s)
        elif request.member_id in group.pending_joins:
            self._add(group, request.member_id, request, ticket, now_s)
        else:
            self._join_known(group, request, ticket, now_s)
        self._account(group)
        return ticket

    def _admit(self, request: JoinRequest, now_s: float) -> ErrorCode:
        settings = self._settings
        if not request.group_id or not _is_valid_id(request.group_id):
            return ErrorCode.invalid_group_id
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            return ErrorCode.invalid_session_timeout
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER:
                return ErrorCode.unknown_member_id
            if not request.protocol_type or not request.protocols:
                return ErrorCode.inconsistent_group_protocol
        elif not self._has_room(group, request.member_id):
            self._remove(group, request.member_id)
            self._complete_if_all_joined(group, now_s)
            return ErrorCode.group_max_size_reached
        if self._size_bytes + self._growth_bytes(group, request) > settings.max_bytes:
            return ErrorCode.group_max_size_reached
        return self.ensure(request.group_id, now_s) if group is None else ErrorCode.none

    def _growth_bytes(self, group: ConsumerGroup | None, request: JoinRequest) -> int:
        known = None
        if group is not None:
            known = group.members.get(group.static.get(request.instance_id or NO_MEMBER, request.member_id))
        freed = 0 if known is None else metadata_bytes(known.protocols) + MEMBER_BYTES
        return metadata_bytes(request.protocols) + MEMBER_BYTES - freed

    def _has_room(self, group: ConsumerGroup, member_id: str) -> bool:
        limit = self._settings.max_members
        if member_id == NO_MEMBER and len(group.pending_joins) >= limit:
            return False
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING:
            if member is None and len(group.members) >= 2 * limit:
                return False
            return (member is not None and member.joining is not None) or group.joining_count < limit
        return member is not None or len(group.members) < limit

    def _join_new(self, group: ConsumerGroup, request: JoinRequest, ticket: Ticket[JoinResult], now_s: float) -> None:
        member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if request.instance_id is not None:
            if request.instance_id in group.static:
                self._replace_static(group, member_id, request, ticket, now_s)
            else:
                self._add(group, member_id, request, ticket, now_s)
        elif request.require_member_id:
            group.pending_joins.add(member_id)
            self._deadlines.expect(group.group_id, member_id, now_s + request.session_timeout_ms / 1000)
            ticket.succeed(JoinResult(ErrorCode.member_id_required, member_id))
        else:
            self._add(group, member_id, request, ticket, now_s)

    def _join_known(self, group: ConsumerGroup, request: JoinRequest, ticket: Ticket[JoinResult], now_s: float) -> None:
        error = group.check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.none:
            ticket.succeed(JoinResult(error, request.member_id))
            return
        member = group.members[request.member_id]
        same = member.protocols == request.protocols
        is_leader = member.member_id == group.leader_id
        if (group.state is GroupState.COMPLETING and same) or (
            group.state is GroupState.STABLE and same and not is_leader
        ):
            # The answer to the member's last join was lost: nothing has changed, so no other member has to rejoin.
            ticket.succeed(group.view(member.member_id))
            return
        group.update(member, request, ticket)
        self._rebalance(group, now_s)

    def _add(
        self, group: ConsumerGroup, member_id: str, request: JoinRequest, ticket: Ticket[JoinResult], now_s: float
    ) -> None:
        if group.state is GroupState.PREPARING and group.previous_state is GroupState.EMPTY:
            group.member_added = True
        group.add(GroupMember.of(member_id, request), request.protocol_type, ticket)
        self._deadlines.expect(group.group_id, member_id, now_s + NEW_MEMBER_JOIN_TIMEOUT_S)
        self._rebalance(group, now_s)

    def _replace_static(
        self, group: ConsumerGroup, new_id: str, request: JoinRequest, ticket: Ticket[JoinResult], now_s: float
    ) -> None:
        """A static member joins after a restart: its old member id is fenced, its assignment is kept if possible."""
        instance_id = request.instance_id or ""
        self._deadlines.forget(group.group_id, group.static[instance_id])
        former_leader = group.leader_id
        member = group.replace_static(instance_id, new_id)
        group.update(member, request, ticket)
        self._deadlines.expect(group.group_id, new_id, now_s + member.session_timeout_ms / 1000)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol_name:
            self._rebalance(group, now_s)
            return
        if request.may_skip_assignment:
            answer = group.view(new_id, skip_assignment=group.leader_id == new_id)
        else:
            # A client that does not know the skip flag must not see itself as the leader and assign again.
            answer = group.view(new_id, as_leader=False)._replace(leader=former_leader or NO_MEMBER)
        kept = self._generations.keep_member(group, member, now_s)
        if self._waits(group, kept, now_s, new_id):
            kept.add_callback(partial(self._replaced, group, member, ticket, answer))

    def _waits(self, group: ConsumerGroup, kept: Ticket[KeepResult], now_s: float, member_id: str = NO_MEMBER) -> bool:
        """Whether what is to be kept says when it is, or is not. What is refused at once is told at a deadline as well,
        later: librdkafka joins again without a pause, a thousand times a second.
        """
        is_refused = kept.done and not kept.result().is_durable
        if is_refused or not kept.done:
            limit_s = REFUSED_S if is_refused else WRITE_LIMIT_S
            self._deadlines.set(DeadlineKind.KEPT, group.group_id, now_s + limit_s, member_id)
        return not is_refused

    def _replaced(
        self,
        group: ConsumerGroup,
        member: GroupMember,
        ticket: Ticket[JoinResult],
        answer: JoinResult,
        settled: Ticket[KeepResult],
    ) -> None:
        """The new id of a static member is kept, or not. If a rebalance has begun meanwhile, its answer is that of the
        next generation.
        """
        if member.joining is not ticket or group.state is not GroupState.STABLE:
            return
        kept = settled.result()
        self._deadlines.cancel(DeadlineKind.KEPT, group.group_id, member.member_id)
        if not kept.is_durable:
            self._not_replaced(group, member, kept.at_s)
            return
        member.is_told = True
        member.settle_join(answer)
        self._deadlines.heard(group.group_id, member, kept.at_s)

    def _not_replaced(self, group: ConsumerGroup, member: GroupMember, now_s: float) -> None:
        """The client joins again, without an id: nobody was told the one that may be kept."""
        member.settle_join(JoinResult(ErrorCode.coordinator_not_available, NO_MEMBER))
        self._deadlines.heard(group.group_id, member, now_s)

    # ---- rebalance

    def _rebalance(self, group: ConsumerGroup, now_s: float) -> None:
        if group.state in CAN_REBALANCE:
            self._prepare(group, now_s)
        else:
            self._complete_if_all_joined(group, now_s)

    def _prepare(self, group: ConsumerGroup, now_s: float) -> None:
        if group.state is GroupState.COMPLETING:
            self._propagate(group, ErrorCode.rebalance_in_progress, now_s)
        self._deadlines.cancel(DeadlineKind.SYNC, group.group_id)
        self._deadlines.cancel(DeadlineKind.KEPT, group.group_id)
        is_initial = group.state is GroupState.EMPTY
        group.move(GroupState.PREPARING)
        if is_initial:
            group.member_added = False
            group.initial_delay_ms = self._settings.initial_rebalance_delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - group.initial_delay_ms, 0)
            self._deadlines.set(DeadlineKind.JOIN, group.group_id, now_s + group.initial_delay_ms / 1000)
            if not group.initial_delay_ms:
                self._join_timeout(group, now_s)
        elif group.all_joined:
            self._complete_join(group, now_s)
        else:
            self._await_joins(group, now_s)

    def _await_joins(self, group: ConsumerGroup, now_s: float) -> None:
        self._deadlines.set(DeadlineKind.JOIN, group.group_id, now_s + group.rebalance_timeout_ms / 1000)

    def _complete_if_all_joined(self, group: ConsumerGroup, now_s: float) -> None:
        if group.state is GroupState.PREPARING and group.all_joined and group.previous_state is not GroupState.EMPTY:
            self._complete_join(group, now_s)

    def _join_timeout(self, group: ConsumerGroup, now_s: float) -> None:
        """The time to join is up. A group's first rebalance extends it while new members keep joining (KIP-134)."""
        remaining_ms = group.initial_remaining_ms
        if remaining_ms and group.member_added:
            group.member_added = False
            delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
            group.initial_remaining_ms = max(remaining_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay_ms
            self._deadlines.set(DeadlineKind.JOIN, group.group_id, now_s + delay_ms / 1000)
        else:
            self._complete_join(group, now_s)

    def _complete_join(self, group: ConsumerGroup, now_s: float) -> None:
        self._deadlines.cancel(DeadlineKind.JOIN, group.group_id)
        group.initial_remaining_ms = None
        for member in list(group.members.values()):
            if member.joining is None and member.instance_id is None:
                self._remove(group, member.member_id)
        if not group.elect_joined_leader() and group.members:
            # Only static members that have not joined are left: they stay until their sessions expire.
            self._await_joins(group, now_s)
            return
        group.next_generation(now_s)
        if not group.members:
            self._generations.forget(group.group_id)
        for member in group.members.values():
            if member.settle_join(group.view(member.member_id)):
                member.is_told = True
            member.is_new = False
            self._deadlines.heard(group.group_id, member, now_s)
            group.pending_syncs.add(member.member_id)
        self._report(
            GROUP_REBALANCED,
            group=group.group_id,
            generation=group.generation_id,
            members=len(group.members),
        )
        if group.members:
            self._deadlines.set(DeadlineKind.SYNC, group.group_id, now_s + group.rebalance_timeout_ms / 1000)

    # ---- sync

    def sync(self, request: SyncRequest, now_s: float) -> Ticket[SyncResult]:
        """SyncGroup. Settles when the leader has sent the assignment, and it is kept."""
        ticket: Ticket[SyncResult] = Ticket()
        group = self._groups.get(request.group_id)
        error = _check_sync(group, request)
        if group is None or error is not ErrorCode.none:
            ticket.succeed(SyncResult(error))
            return ticket
        member = group.members[request.member_id]
        self._synced(group, member.member_id)
        if group.state is GroupState.STABLE:
            self._deadlines.heard(group.group_id, member, now_s)
            ticket.succeed(group.synced(member))
            return ticket
        member.settle_sync(SyncResult(ErrorCode.rebalance_in_progress))
        member.syncing = ticket
        if member.member_id == group.leader_id and group.assigned_generation != group.generation_id:
            self._assign(group, request.assignments, now_s)
        return ticket

    def _assign(self, group: ConsumerGroup, assignments: Mapping[str, bytes], now_s: float) -> None:
        size_bytes = sum(len(assignments.get(member_id, b"")) for member_id in group.members)
        if self._size_bytes + size_bytes > self._settings.max_bytes:
            self._propagate(group, ErrorCode.unknown_server_error, now_s)
            self._rebalance(group, now_s)
            return
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.assigned_generation = group.generation_id
        self._account(group)
        kept = self._generations.keep(group, now_s)
        if self._waits(group, kept, now_s):
            kept.add_callback(partial(self._assigned, group, group.generation_id))

    def _assigned(self, group: ConsumerGroup, generation_id: int, settled: Ticket[KeepResult]) -> None:
        """A generation is kept, or not; by then another one may be formed."""
        if group.state is not GroupState.COMPLETING or group.generation_id != generation_id:
            return
        kept = settled.result()
        if not kept.is_durable:
            self._not_kept(group, kept.at_s)
            return
        self._deadlines.cancel(DeadlineKind.KEPT, group.group_id)
        self._propagate(group, ErrorCode.none, kept.at_s)
        group.move(GroupState.STABLE)

    def _not_kept(self, group: ConsumerGroup, now_s: float) -> None:
        """Members join again, as in Kafka. If the generation is kept later, it is one that nobody was told of."""
        self._propagate(group, ErrorCode.coordinator_not_available, now_s)
        self._rebalance(group, now_s)

    def _propagate(self, group: ConsumerGroup, error: ErrorCode, now_s: float) -> None:
        """Answer all waiting syncs: with the assignment, or with an error, which also clears every assignment."""
        for member in group.members.values():
            if error is not ErrorCode.none:
                member.assignment = b""
            result = group.synced(member) if error is ErrorCode.none else SyncResult(error)
            if member.settle_sync(result):
                self._deadlines.heard(group.group_id, member, now_s)

    def _synced(self, group: ConsumerGroup, member_id: str) -> None:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._deadlines.cancel(DeadlineKind.SYNC, group.group_id)

    def _sync_timeout(self, group: ConsumerGroup, now_s: float) -> None:
        if group.state in (GroupState.COMPLETING, GroupState.STABLE) and group.pending_syncs:
            for member_id in list(group.pending_syncs):
                self._remove(group, member_id)
            self._prepare(group, now_s)

    # ---- heartbeats, commits, leaving

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, instance_id: str | None, now_s: float
    ) -> ErrorCode:
        """Heartbeat: renews the member's session."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.illegal_generation
        self._deadlines.heard(group.group_id, group.members[member_id], now_s)
        return ErrorCode.rebalance_in_progress if group.state is GroupState.PREPARING else ErrorCode.none

    def check_commit(
        self, group_id: str, generation_id: int, member_id: str, instance_id: str | None, now_s: float
    ) -> ErrorCode:
        """Whether a commit is allowed; counts as a heartbeat. A commit without membership creates a missing group."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found if generation_id >= 0 else self.ensure(group_id, now_s)
        if generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.none
        if generation_id < 0 and not member_id and instance_id is None:
            return ErrorCode.unknown_member_id
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.illegal_generation
        if group.state is GroupState.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self._deadlines.heard(group.group_id, group.members[member_id], now_s)
        return ErrorCode.none

    def leave(self, group_id: str, leavers: Sequence[Leaver], now_s: float) -> list[ErrorCode]:
        """LeaveGroup: one error code per leaver, in order."""
        group = self._groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leavers)
        errors = [self._leave_one(group, leaver) for leaver in leavers]
        if ErrorCode.none in errors:
            self._after_loss(group, now_s)
        return errors

    def _leave_one(self, group: ConsumerGroup, leaver: Leaver) -> ErrorCode:
        if leaver.member_id == NO_MEMBER:
            if leaver.instance_id is None or leaver.instance_id not in group.static:
                return ErrorCode.unknown_member_id
            self._remove(group, group.static[leaver.instance_id])
            return ErrorCode.none
        if leaver.member_id not in group.pending_joins:
            error = group.check_member(leaver.member_id, leaver.instance_id)
            if error is not ErrorCode.none:
                return error
        self._remove(group, leaver.member_id)
        return ErrorCode.none

    def _remove(self, group: ConsumerGroup, member_id: str) -> None:
        group.remove(member_id, ErrorCode.unknown_member_id)
        self._deadlines.forget(group.group_id, member_id)
        self._account(group)

    def _after_loss(self, group: ConsumerGroup, now_s: float) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(group, now_s)
        else:
            self._complete_if_all_joined(group, now_s)

    # ---- time

    def next_deadline(self) -> float | None:
        """When to call `expire`, in monotonic seconds (may be early, never late); None: nothing is pending."""
        return self._deadlines.next_s()

    def expire(self, now_s: float) -> None:
        """Act on all deadlines up to now."""
        while (deadline := self._deadlines.due(now_s)) is not None:
            group = self._groups.get(deadline.group_id)
            if group is None:
                continue
            if deadline.kind is DeadlineKind.JOIN:
                self._join_timeout(group, now_s)
            elif deadline.kind is DeadlineKind.SYNC:
                self._sync_timeout(group, now_s)
            elif deadline.kind is DeadlineKind.KEPT:
                self._kept_timeout(group, deadline.member_id, now_s)
            else:
                self._session_timeout(group, deadline.member_id, now_s)

    def _kept_timeout(self, group: ConsumerGroup, member_id: str, now_s: float) -> None:
        member = group.members.get(member_id)
        if member_id == NO_MEMBER and group.state is GroupState.COMPLETING:
            self._not_kept(group, now_s)
        elif member is not None and member.joining is not None and group.state is GroupState.STABLE:
            self._not_replaced(group, member, now_s)

    def _session_timeout(self, group: ConsumerGroup, member_id: str, now_s: float) -> None:
        if member_id in group.pending_joins:
            self._remove(group, member_id)
            self._complete_if_all_joined(group, now_s)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.joining is not None or member.syncing is not None):
            return  # the member waits for an answer; its session starts when the answer is sent
        self._remove(group, member_id)
        self._after_loss(group, now_s)

    def _account(self, group: ConsumerGroup) -> None:
        size_bytes = group.size_bytes
        self._size_bytes += size_bytes - self._sizes.get(group.group_id, 0)
        self._sizes[group.group_id] = size_bytes


def _check_sync(group: ConsumerGroup | None, request: SyncRequest) -> ErrorCode:
    if group is None:
        return ErrorCode.unknown_member_id
    error = group.check_member(request.member_id, request.instance_id)
    if error is not ErrorCode.none:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (
        None,
        group.protocol_name,
    ):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.rebalance_in_progress if group.state is GroupState.PREPARING else ErrorCode.none


def _is_valid_id(group_id: str) -> bool:
    return len(group_id.encode(errors="replace")) <= GROUP_ID_MAX_BYTES
