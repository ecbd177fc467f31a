"""Any interleaving of clients, deaths and time keeps the coordinator's invariants (Hypothesis state machine).

The model is what the clients were told: who was in which generation, with which assignment.
"""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from kio.schema.errors import ErrorCode

from logstore.kafka.groups.members import JoinResult, Protocol, SyncResult
from logstore.kafka.groups.state import GroupState
from logstore.log.ticket import Ticket
from tests.kafka.groups.driver import GROUP, Client, World, subscription

MAX_MEMBERS = 5
MAX_BYTES = 6_000
INSTANCES = ("i1", "i2")
BOTH = (Protocol("range", subscription("orders")), Protocol("sticky", subscription("returns")))
LONGEST_WAIT_S = 2_000.0  # more than every timeout below together


class GroupMachine(RuleBasedStateMachine):
    """Clients do what clients do, in any order, and also what broken clients do."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(max_members=MAX_MEMBERS, max_bytes=MAX_BYTES, initial_rebalance_delay_ms=100)
        self.tickets: list[Ticket[JoinResult] | Ticket[SyncResult]] = []
        self.leaders: dict[int, set[str]] = {}
        self.assigned: dict[tuple[int, str], set[bytes]] = {}
        self.rosters: dict[int, frozenset[str]] = {}

    @rule(
        target=clients,
        instance=st.sampled_from((None, None, *INSTANCES)),
        version=st.sampled_from((0, 4, 5, 9)),
        protocols=st.sampled_from((BOTH, BOTH[::-1], BOTH[:1])),
    )
    def start(self, instance: str | None, version: int, protocols: tuple[Protocol, ...]) -> Client:
        """A new process."""
        client = Client(self.world, f"c{len(self.tickets)}", instance=instance, version=version)
        client.protocols = protocols
        client.rebalance_ms = 20_000
        return client

    @rule(client=clients)
    def join(self, client: Client) -> None:
        """A client joins, from any state, also while an earlier join of it waits."""
        client.join()
        self.tickets.append(client.joining)
        client.joining.add_callback(lambda ticket: self.heard_join(client, ticket.result()))

    def heard_join(self, client: Client, result: JoinResult) -> None:
        """Take in an answer to a join, as the client and as the model."""
        if result.error in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            client.member_id = ""
        if result.error is not ErrorCode.none:
            return
        client.member_id, client.generation = result.member_id, result.generation_id
        if result.members:
            self.leaders.setdefault(result.generation_id, set()).add(client.instance or result.leader)
            assert {member.member_id for member in result.members} == set(self.world.group.members)

    @rule(client=clients, leads=st.booleans(), size=st.sampled_from((1, 1, 1, MAX_BYTES)))
    def sync(self, client: Client, leads: bool, size: int) -> None:
        """A client syncs; a leader assigns (or fails to), now and then too much."""
        group = self.world.coordinator.find(GROUP)
        assignments = {}
        if leads and group is not None:
            assignments = {member_id: member_id.encode().ljust(size, b".") for member_id in group.members}
        client.sync(assignments)
        self.tickets.append(client.syncing)
        generation, member_id = client.generation, client.member_id
        client.syncing.add_callback(lambda ticket: self.heard_sync(generation, member_id, ticket.result()))

    def heard_sync(self, generation: int, member_id: str, result: SyncResult) -> None:
        """Take in an assignment: one per member and generation, for ever."""
        if result.error is ErrorCode.none:
            seen = self.assigned.setdefault((generation, member_id), set())
            seen.add(result.assignment)
            assert len(seen) == 1

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        """Good only for a member of the current generation."""
        if client.heartbeat() is ErrorCode.none:
            assert client.generation == self.world.group.generation_id
            assert client.member_id in self.world.group.members

    @rule(client=clients)
    def commit(self, client: Client) -> None:
        """Allowed to members of the current generation, or to anybody without one while the group is empty."""
        if client.may_commit() is ErrorCode.none and client.generation >= 0:
            assert client.generation == self.world.group.generation_id
            assert client.member_id in self.world.group.members

    @rule(client=clients)
    def leave(self, client: Client) -> None:
        """After a leave that was accepted, the id is worth nothing."""
        if client.member_id and client.leave() is ErrorCode.none:
            assert client.heartbeat() is not ErrorCode.none

    @rule(seconds=st.sampled_from((0.05, 0.2, 3.0, 9.9, 25.0, 301.0)))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.world.advance(seconds)

    @invariant()
    def the_group_is_consistent(self) -> None:
        """The promises in the modules' docstrings."""
        group = self.world.coordinator.find(GROUP)
        if group is None:
            return
        members = group.members
        assert (group.leader_id in members) if members else group.leader_id is None
        assert set(group.static.values()) == {m.member_id for m in members.values() if m.instance_id is not None}
        assert all(members[member_id].instance_id == instance for instance, member_id in group.static.items())
        assert not group.pending_joins & set(members)
        assert group.pending_syncs <= set(members)
        assert (not members) or group.state is not GroupState.EMPTY
        assert members or group.state in (GroupState.EMPTY, GroupState.PREPARING)
        if group.state is not GroupState.PREPARING:
            assert not any(member.joining for member in members.values())
        if group.state is not GroupState.COMPLETING:
            assert not any(member.syncing for member in members.values())

    @invariant()
    def generations_do_not_change_their_members(self) -> None:
        """While a generation is complete, nobody but a static member's successor comes in."""
        group = self.world.coordinator.find(GROUP)
        if group is None or group.state not in (GroupState.COMPLETING, GroupState.STABLE):
            return
        roster = frozenset(member.instance_id or member.member_id for member in group.members.values())
        assert roster == self.rosters.setdefault(group.generation_id, roster)
        assert len(self.leaders.get(group.generation_id, set())) <= 1

    @invariant()
    def everything_is_bounded(self) -> None:
        """No more members, ids and bytes than allowed, and at most three deadlines more than there are of those."""
        group = self.world.coordinator.find(GROUP)
        if group is None:
            return
        assert len(group.members) <= 2 * MAX_MEMBERS
        assert group.joining_count <= MAX_MEMBERS
        assert len(group.pending_joins) <= MAX_MEMBERS
        assert group.size_bytes <= MAX_BYTES
        assert len(self.world.coordinator._deadlines) <= len(group.members) + len(group.pending_joins) + 2

    def teardown(self) -> None:
        """If everybody falls silent, every request is answered and the group is empty in the end."""
        self.world.advance(LONGEST_WAIT_S)
        assert all(ticket.done for ticket in self.tickets)
        group = self.world.coordinator.find(GROUP)
        assert group is None or group.state is GroupState.EMPTY
        assert self.world.coordinator.next_deadline() is None


TestGroupMachine = GroupMachine.TestCase
