"""The life of a group, as Kafka's clients live it. Expectations are Kafka 4.2's."""

import pytest
from kio.schema.errors import ErrorCode

from logstore.kafka.groups.members import Leaver, Protocol
from logstore.kafka.groups.state import GroupState
from tests.kafka.groups.driver import GROUP, Client, World, settle, stable, subscription


def test_one_consumer_becomes_leader_and_gets_what_it_assigns() -> None:
    """A lone consumer waits for the initial delay only, leads generation 1 and reads its own assignment back."""
    world = World(initial_rebalance_delay_ms=100)
    client = Client(world, "a").join()
    assert not client.joining.done
    world.advance(0.1)
    result = client.joined()
    assert (result.generation_id, result.protocol_name, result.leader) == (1, "range", client.member_id)
    assert [member.member_id for member in result.members] == [client.member_id]
    client.sync({client.member_id: b"all"})
    assert client.syncing.result().assignment == b"all"
    assert world.group.state is GroupState.STABLE
    assert client.heartbeat() is ErrorCode.none


def test_consumers_that_start_together_share_the_first_generation() -> None:
    """Members that come within the initial delay extend it, and only the leader sees the others."""
    world = World(initial_rebalance_delay_ms=100)
    clients = []
    for name in ("a", "b", "c"):
        clients.append(Client(world, name).join())
        world.advance(0.08)
    assert not any(client.joining.done for client in clients)
    world.advance(0.3)
    results = [client.joined() for client in clients]
    assert {result.generation_id for result in results} == {1}
    assert [len(result.members) for result in results] == [3, 0, 0]
    assert settle(world, clients) == {client.name: client.member_id.encode() for client in clients}


def test_a_client_before_version_4_joins_without_a_second_try() -> None:
    """Old clients get no MEMBER_ID_REQUIRED."""
    world = World(initial_rebalance_delay_ms=0)
    assert Client(world, "old", version=2).join().joined().generation_id == 1


def test_a_newcomer_makes_the_others_rejoin() -> None:
    """Members learn of a rebalance by their heartbeat; the new generation waits until all have joined."""
    world = World()
    a, b = stable(world, "a", "b")
    c = Client(world, "c").join()
    assert a.heartbeat() is ErrorCode.rebalance_in_progress
    a.join()
    assert not a.joining.done
    assert not c.joining.done
    b.join()
    assert settle(world, [a, b, c]).keys() == {"a", "b", "c"}
    assert {client.generation for client in (a, b, c)} == {2}


def test_who_does_not_rejoin_in_time_is_left_out() -> None:
    """After the longest rebalance timeout the generation is formed of those who are there, with a leader among them."""
    world = World()
    a, b = stable(world, "a", "b")
    c = Client(world, "c").join()
    for _ in range(10):  # a is alive, but busy
        world.advance(6.0)
        a.heartbeat()
        if not b.joining.done:
            continue
        b.join()
    assert c.joined().generation_id == 2
    assert b.joined().generation_id == 2
    assert a.heartbeat() is ErrorCode.unknown_member_id
    assert c.joined().leader in (b.member_id, c.member_id)


def test_a_silent_member_is_expired_and_the_rest_rebalances() -> None:
    """Without a heartbeat for the session timeout a member is out; the others notice at their next heartbeat."""
    world = World()
    a, b = stable(world, "a", "b")
    world.advance(9.0)
    assert b.heartbeat() is ErrorCode.none
    world.advance(1.5)
    assert b.heartbeat() is ErrorCode.rebalance_in_progress
    assert a.heartbeat() is ErrorCode.unknown_member_id
    assert settle(world, [b.join()]) == {"b": b.member_id.encode()}


def test_leaving_hands_over_at_once() -> None:
    """LeaveGroup starts the rebalance without waiting for the session to end; the last to leave empties the group."""
    world = World()
    a, b = stable(world, "a", "b")
    assert a.leave() is ErrorCode.none
    assert a.leave() is ErrorCode.unknown_member_id
    assert b.heartbeat() is ErrorCode.rebalance_in_progress
    settle(world, [b.join()])
    assert b.leave() is ErrorCode.none
    assert world.group.state is GroupState.EMPTY
    assert world.coordinator.next_deadline() is None


def test_a_leader_that_dies_before_assigning_does_not_block_its_followers() -> None:
    """Followers that wait for the leader's assignment are told to rejoin once the leader is gone."""
    world = World()
    a, b = (Client(world, name).join() for name in "ab")
    world.advance(1.0)
    a.joined()
    b.joined()
    b.sync()
    world.advance(10.0)
    assert b.syncing.result().error is ErrorCode.rebalance_in_progress
    assert settle(world, [b.join()]) == {"b": b.member_id.encode()}


def test_a_member_that_never_syncs_is_put_out() -> None:
    """A member that heartbeats but never asks for its assignment is removed after the rebalance timeout."""
    world = World()
    a, b = (Client(world, name).join() for name in "ab")
    world.advance(1.0)
    a.joined()
    b.joined()
    a.sync({})
    for _ in range(13):
        world.advance(5.0)
        a.heartbeat()
        b.heartbeat()
    assert b.heartbeat() is ErrorCode.unknown_member_id
    assert a.heartbeat() is ErrorCode.rebalance_in_progress


def test_requests_of_another_time_or_nobody_are_refused() -> None:
    """Each refusal has Kafka's error: unknown member, unknown group, illegal generation, inconsistent protocol."""
    world = World()
    a, b = stable(world, "a", "b")
    stranger = Client(world, "x")
    stranger.member_id = "nobody"
    assert stranger.heartbeat() is ErrorCode.unknown_member_id
    assert stranger.join().joining.result().error is ErrorCode.unknown_member_id
    assert stranger.sync().syncing.result().error is ErrorCode.unknown_member_id
    b.generation += 1
    assert b.heartbeat() is ErrorCode.illegal_generation
    assert b.sync().syncing.result().error is ErrorCode.illegal_generation
    assert b.may_commit() is ErrorCode.illegal_generation
    other = Client(world, "y")
    other.protocols = (Protocol("sticky", b""),)
    assert other.join().joining.result().error is ErrorCode.inconsistent_group_protocol
    other.protocols, other.protocol_type = a.protocols, "connect"
    assert other.join().joining.result().error is ErrorCode.inconsistent_group_protocol
    assert world.coordinator.leave("no such group", [Leaver("m", None)], world.now_s) == [ErrorCode.unknown_member_id]


@pytest.mark.parametrize("session_ms", [0, 5_999, 1_800_001])
def test_session_timeouts_have_bounds(session_ms: int) -> None:
    """INVALID_SESSION_TIMEOUT outside group.min/max.session.timeout.ms, and no group comes of it."""
    world = World()
    client = Client(world, "a")
    client.session_ms = session_ms
    assert client.join().joining.result().error is ErrorCode.invalid_session_timeout
    assert world.coordinator.find(GROUP) is None


def test_the_protocol_most_members_prefer_wins() -> None:
    """Members vote for the first of their protocols that all share."""
    world = World()
    both = (Protocol("range", b"r"), Protocol("sticky", b"s"))
    clients = [Client(world, name) for name in "abc"]
    clients[0].protocols = (Protocol("own", b""), *both)
    clients[1].protocols = clients[2].protocols = both[::-1]
    for client in clients:
        client.join()
    world.advance(1.0)
    result = clients[0].joined()
    assert result.protocol_name == "sticky"
    assert {member.metadata for member in result.members} == {b"s"}


def test_a_lost_answer_to_a_join_does_not_disturb_the_group() -> None:
    """A follower that joins again with the same metadata is told the generation that stands."""
    world = World()
    a, b = stable(world, "a", "b")
    assert b.join().joined().generation_id == 1
    assert world.group.state is GroupState.STABLE
    b.protocols = (Protocol("range", subscription("orders", "returns")),)
    b.join()
    assert not b.joining.done
    a.join()
    assert settle(world, [a, b]).keys() == {"a", "b"}


def test_the_leader_can_ask_for_a_rebalance() -> None:
    """A leader that joins again (its topics got partitions) starts a new generation."""
    world = World()
    a, b = stable(world, "a", "b")
    a.join()
    assert b.heartbeat() is ErrorCode.rebalance_in_progress
    settle(world, [a, b.join()])
    assert a.generation == 2


def test_an_id_that_is_never_used_does_not_block_the_group() -> None:
    """A rebalance waits for an id handed out, but only for its session timeout (KIP-394)."""
    world = World()
    (a,) = stable(world, "a")
    stranger = Client(world, "b")
    stranger._send_join()  # the first half of a join, by a client that then dies
    assert stranger.joining.result().error is ErrorCode.member_id_required
    a.join()
    world.advance(9.0)
    assert not a.joining.done
    world.advance(1.5)
    assert a.joined().generation_id == 2


def test_a_full_group_takes_nobody_more() -> None:
    """GROUP_MAX_SIZE_REACHED, and those who are in go on undisturbed."""
    world = World(max_members=2)
    a, _ = stable(world, "a", "b")
    assert Client(world, "c").join().joining.result().error is ErrorCode.group_max_size_reached
    assert a.heartbeat() is ErrorCode.none


def test_groups_and_bytes_are_bounded() -> None:
    """Neither many groups nor large metadata can fill the memory."""
    world = World(max_groups=1, max_bytes=1500)
    (a,) = stable(world, "a")
    assert world.coordinator.ensure("another", world.now_s) is ErrorCode.policy_violation
    assert world.coordinator.ensure("x" * 1025, world.now_s) is ErrorCode.invalid_group_id
    fat = Client(world, "b")
    fat.protocols = (Protocol("range", bytes(500)),)
    assert fat.join().joining.result().error is ErrorCode.group_max_size_reached
    a.join().joined()
    a.sync({a.member_id: bytes(1000)})
    assert a.syncing.result().error is ErrorCode.unknown_server_error


# ---- static members (KIP-345, KIP-814)


def static_pair(world: World, version: int = 9) -> list[Client]:
    """A stable group of two static members; the first leads."""
    clients = [Client(world, name, instance=f"i-{name}", version=version).join() for name in "ab"]
    world.advance(1.0)
    settle(world, clients)
    return clients


def test_a_static_follower_is_back_without_a_rebalance() -> None:
    """A restart within the session keeps generation and assignment; the old self is fenced."""
    world = World()
    a, b = static_pair(world)
    again = Client(world, "b", instance="i-b").join()
    assert again.joined().generation_id == 1
    assert again.sync().syncing.result().assignment == b.member_id.encode()
    assert b.heartbeat() is ErrorCode.fenced_instance_id
    assert b.may_commit() is ErrorCode.fenced_instance_id
    assert b.leave() is ErrorCode.fenced_instance_id
    assert a.heartbeat() is again.heartbeat() is ErrorCode.none


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_is_back_without_a_rebalance(version: int) -> None:
    """It learns that it leads and need not assign (version 9), or takes another for the leader (before)."""
    world = World()
    a, _ = static_pair(world, version)
    again = Client(world, "a", instance="i-a", version=version).join()
    result = again.joined()
    assert result.generation_id == 1
    assert result.skip_assignment is (version == 9)
    assert (result.leader == again.member_id) is (version == 9)
    assert len(result.members) == (2 if version == 9 else 0)
    assert again.sync().syncing.result().assignment == a.member_id.encode()


def test_a_static_member_with_another_protocol_rebalances() -> None:
    """If its return changes the group's protocol, keeping the generation would be wrong."""
    world = World()
    both = (Protocol("range", b"r"), Protocol("sticky", b"s"))
    clients = [Client(world, name, instance=name) for name in "ab"]
    for client in clients:
        client.protocols = both
        client.join()
    world.advance(1.0)
    settle(world, clients)
    again = Client(world, "b", instance="b")
    again.protocols = both[1:]
    again.join()
    assert not again.joining.done
    settle(world, [clients[0].join(), again])
    assert again.joined().protocol_name == "sticky"


def test_a_waiting_predecessor_is_fenced_at_once() -> None:
    """Two processes with one instance id: the older one's waiting join ends with FENCED_INSTANCE_ID."""
    world = World(initial_rebalance_delay_ms=1000)
    first = Client(world, "a", instance="i").join()
    second = Client(world, "a", instance="i").join()
    assert first.joining.result().error is ErrorCode.fenced_instance_id
    world.advance(5.0)
    assert second.joined().generation_id == 1


def test_static_members_are_removed_by_name() -> None:
    """An administrator removes by instance id alone; a batch answers for each."""
    world = World()
    a, b = static_pair(world)
    leavers = [Leaver("", "i-a"), Leaver("", "i-x"), Leaver("wrong", "i-b"), Leaver("", None)]
    assert world.coordinator.leave(GROUP, leavers, world.now_s) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.unknown_member_id,
    ]
    assert a.heartbeat() is ErrorCode.unknown_member_id
    assert b.heartbeat() is ErrorCode.rebalance_in_progress


def test_silent_static_members_are_kept_until_their_session_ends() -> None:
    """A rebalance does not drop a static member that is away, and ends without it."""
    world = World()
    clients = [Client(world, name, instance=f"i-{name}") for name in "ab"]
    for client in clients:
        client.session_ms = 300_000
        client.join()
    world.advance(1.0)
    settle(world, clients)
    a, b = clients
    a.join()  # the leader asks for a rebalance; b is away
    world.advance(60.0)
    assert a.joined().generation_id == 2
    assert b.member_id in {member.member_id for member in a.joined().members}


# ---- commits


def test_who_may_commit() -> None:
    """Members of the generation may, also in a rebalance; outsiders only while the group is empty."""
    world = World()
    outsider = Client(world, "tool")
    assert outsider.may_commit() is ErrorCode.none
    a, b = stable(world, "a", "b")
    assert outsider.may_commit() is ErrorCode.unknown_member_id
    assert a.may_commit() is ErrorCode.none
    c = Client(world, "c").join()
    assert a.may_commit() is ErrorCode.none
    a.join()
    b.join()
    c.joined()
    a.joined()
    assert a.may_commit() is ErrorCode.rebalance_in_progress
    assert world.coordinator.check_commit("new", 3, "m", None, world.now_s) is ErrorCode.group_id_not_found


def test_a_commit_keeps_the_session_alive() -> None:
    """A client that commits often enough need not heartbeat."""
    world = World()
    (a,) = stable(world, "a")
    for _ in range(5):
        world.advance(8.0)
        assert a.may_commit() is ErrorCode.none
    assert a.heartbeat() is ErrorCode.none


def test_only_groups_without_members_can_be_deleted() -> None:
    """NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and gone is gone."""
    world = World()
    (a,) = stable(world, "a")
    assert world.coordinator.check_delete(GROUP) is ErrorCode.non_empty_group
    assert world.coordinator.check_delete("none") is ErrorCode.group_id_not_found
    a.leave()
    assert world.coordinator.check_delete(GROUP) is ErrorCode.none
    world.coordinator.drop(GROUP)
    assert world.coordinator.find(GROUP) is None
