"""Generations of groups in the replicated ledger: hosts that coordinate a group one after the other."""

import json
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from logstore.cluster.epochs.replicated_ledger import ReplicatedLedger
from logstore.cluster.streams.replicated_stream import MAX_WAITING_BYTES
from logstore.kafka.groups.generations import (
    MAX_ENTRY_BYTES,
    MAX_KEY,
    PREFIX,
    REJOINED,
    KeptGenerations,
    decode_generation,
    encode_generation,
)
from logstore.kafka.groups.members import FORMER_IDS, JoinResult, Protocol
from logstore.kafka.groups.settings import REFUSED_S, WRITE_LIMIT_S
from logstore.kafka.groups.state import GroupState
from tests.cluster.support import Front
from tests.cluster.test_replicated_ledger import Owners
from tests.kafka.groups.driver import GROUP, SESSION_MS, Client, World, stable, subscription

OTHERS: tuple[Any, ...] = ("?", 1.5, -1, 10**400, [1], {})
GOLDEN = (
    b'{"v":1,"type":"consumer","protocol":"range","generation":1,"leader":"a-id1","members":[{"id":"a-id1",'
    b'"instance":null,"client":"a","host":"/127.0.0.1","session_ms":10000,"rebalance_ms":60000,'
    b'"protocols":[["range","AAAAAAABAAZvcmRlcnP/////"]],"assignment":"YS1pZDE="}]}'
)


class Host(NamedTuple):
    """A host that coordinates the group."""

    front: Front
    ledger: ReplicatedLedger
    world: World

    @property
    def entries(self) -> dict[str, bytes]:
        """The generations that the ledger has."""
        return dict(self.ledger.items(PREFIX))


async def coordinate(owners: Owners, *, kept: int = 0, **settings: int) -> Host:
    """Another host takes over, and `kept` of the puts that were not acknowledged with it."""
    front, ledger = await owners.lead(kept=kept)
    world = World(KeptGenerations(ledger, front.clock), first_id=1000 * owners.owner.epoch, **settings)
    for _ in world.coordinator.recover(lambda: world.now_s):
        pass
    return Host(front, ledger, world)


def ack(owners: Owners) -> None:
    """The members of the ledger's chunk confirm what was put."""
    owners.owner.ack(len(owners.owner.window))


def ask_for_assignments(clients: list[Client]) -> None:
    """All clients sync, the leader with assignments: each its own member id."""
    leader = clients[0].joined().leader
    for client in clients:
        client.joined()
    for client in sorted(clients, key=lambda client: client.member_id == leader):
        is_leader = client.member_id == leader
        client.sync({each.member_id: each.member_id.encode() for each in clients} if is_leader else None)


async def formed(owners: Owners, host: Host, *names: str, instance: str | None = None) -> list[Client]:
    """A stable group, whose generation is kept."""
    clients = [Client(host.world, name, instance=instance).join() for name in names]
    host.world.advance(1.0)
    ask_for_assignments(clients)
    ack(owners)
    assert [client.syncing.result().assignment for client in clients] == [each.member_id.encode() for each in clients]
    return clients


async def test_members_go_on_when_another_host_coordinates() -> None:
    """The same generation, members and assignments, nobody has to join; each has a whole session, and no longer."""
    owners = Owners()
    clients = await formed(owners, await coordinate(owners), "a", "b")
    other = await coordinate(owners)
    for client in clients:
        client.world = other.world
        assert client.heartbeat() is client.may_commit() is ErrorCode.none
        assert client.sync().syncing.result().assignment == client.member_id.encode()
    group = other.world.group
    assert (group.state, group.generation_id, set(group.members)) == (
        GroupState.STABLE, clients[0].generation, {client.member_id for client in clients},
    )  # fmt: skip
    assert group.is_subscribed("orders")
    assert not group.is_subscribed("others")
    other.world.advance(SESSION_MS / 1000 - 1)
    assert clients[0].heartbeat() is ErrorCode.none
    other.world.advance(2)
    assert clients[0].heartbeat() is ErrorCode.rebalance_in_progress
    assert set(other.world.group.members) == {clients[0].member_id}


async def test_nobody_is_told_before_the_generation_is_kept() -> None:
    """A host that is lost in between has told nobody; the next one has the generation, or does not know the group."""
    owners = Owners()
    for kept, found in ((0, ErrorCode.unknown_member_id), (1, ErrorCode.none)):
        host = await coordinate(owners)
        clients = [Client(host.world, name).join() for name in ("a", "b")]
        host.world.advance(1.0)
        ask_for_assignments(clients)
        assert not any(client.syncing.done for client in clients)
        assert host.world.group.state is GroupState.COMPLETING
        other = await coordinate(owners, kept=kept)
        host.front.stream.deposed(9)
        assert {client.syncing.result().error for client in clients} == {ErrorCode.coordinator_not_available}
        for client in clients:
            client.world = other.world
            assert client.heartbeat() is found
    assert clients[1].sync().syncing.result().assignment == clients[1].member_id.encode()


async def test_a_rebalance_begins_while_a_generation_is_being_kept() -> None:
    """Who waits for the old one joins again, and that it is durable at last changes nothing."""
    owners = Owners()
    host = await coordinate(owners)
    first = Client(host.world, "a").join()
    host.world.advance(1.0)
    ask_for_assignments([first])
    second = Client(host.world, "b").join()
    assert first.syncing.result().error is ErrorCode.rebalance_in_progress
    ack(owners)
    assert host.world.group.state is GroupState.PREPARING
    first.join()
    ask_for_assignments([first, second])
    ack(owners)
    assert first.syncing.result().assignment == first.member_id.encode()
    other = await coordinate(owners)
    first.world = second.world = other.world
    assert first.generation == second.generation == 2
    assert first.heartbeat() is second.heartbeat() is ErrorCode.none


async def test_the_first_assignments_of_a_leader_count() -> None:
    """It sends them again, because an answer is late: what is told is what is kept."""
    owners = Owners()
    host = await coordinate(owners)
    leader = Client(host.world, "a").join()
    host.world.advance(1.0)
    leader.joined()
    leader.sync({leader.member_id: b"first"})
    late = leader.syncing
    leader.sync({leader.member_id: b"second"})
    assert late.result().error is ErrorCode.rebalance_in_progress
    ack(owners)
    assert leader.syncing.result().assignment == b"first"
    leader.world = (await coordinate(owners)).world
    assert leader.sync().syncing.result().assignment == b"first"


async def test_a_static_member_is_told_its_new_id_when_that_is_kept() -> None:
    """The next coordinator knows the process that has started last, and fences the one before."""
    owners = Owners()
    host = await coordinate(owners)
    (former,) = await formed(owners, host, "a", instance="i")
    again = Client(host.world, "a", instance="i").join()
    assert not again.joining.done
    ack(owners)
    assert again.joined().generation_id == former.generation
    former.world = again.world = (await coordinate(owners)).world
    assert again.heartbeat() is ErrorCode.none
    assert former.heartbeat() is ErrorCode.fenced_instance_id
    assert again.sync().syncing.result().assignment == former.member_id.encode()


async def test_a_static_member_waits_for_a_rebalance_that_has_begun() -> None:
    """Its new id is kept when others join already: its answer is the next generation."""
    owners = Owners()
    host = await coordinate(owners)
    await formed(owners, host, "a", instance="i")
    again = Client(host.world, "a", instance="i").join()
    other = Client(host.world, "b").join()
    ack(owners)
    assert again.joined().generation_id == other.joined().generation_id == 2


async def test_a_static_member_is_asked_again_where_its_new_id_is_not_kept() -> None:
    """Its client looks for the coordinator, and joins there."""
    owners = Owners()
    host = await coordinate(owners)
    await formed(owners, host, "a", instance="i")
    again = Client(host.world, "a", instance="i").join()
    host.front.stream.deposed(9)
    assert again.joining.result().error is ErrorCode.coordinator_not_available


async def test_a_static_member_that_was_told_its_new_id_in_a_rebalance_is_not_fenced() -> None:
    """The former coordinator has told it, and kept no generation with it: its client joins again. Whom that replaces is
    fenced, there and at each coordinator after.
    """
    owners = Owners()
    host = await coordinate(owners)
    former, other = await formed(owners, host, "a", instance="i"), Client(host.world, "b").join()
    again = Client(host.world, "a", instance="i").join()
    assert again.joined().generation_id == other.joined().generation_id == 2
    again.world = former[0].world = (host := await coordinate(owners)).world
    assert again.sync().syncing.result().error is ErrorCode.unknown_member_id
    assert again.heartbeat() is again.may_commit() is again.leave() is ErrorCode.unknown_member_id
    assert former[0].heartbeat() is ErrorCode.none
    again.member_id = ""
    again.join()
    ack(owners)
    assert again.joined().generation_id == 1
    for _ in range(2):
        assert again.heartbeat() is ErrorCode.none
        assert former[0].heartbeat() is ErrorCode.fenced_instance_id
        again.world = former[0].world = (await coordinate(owners)).world


async def test_a_static_member_has_a_session_from_when_its_new_id_is_kept() -> None:
    """Also where that takes long, and its client cannot be heard meanwhile: if it is gone then, its partitions go to
    others.
    """
    owners = Owners()
    host = await coordinate(owners)
    await formed(owners, host, "a", instance="i")
    again = Client(host.world, "a", instance="i").join()
    host.world.advance(WRITE_LIMIT_S - 1)
    host.front.clock.advance(int(host.world.now_s * 1000))
    ack(owners)
    again.joined()
    host.world.advance(SESSION_MS / 1000 - 1)
    assert set(host.world.group.members) == {again.member_id}
    host.world.advance(2)
    assert host.world.group.state is GroupState.EMPTY


async def test_a_static_member_whose_new_id_was_not_kept_in_a_session_is_gone() -> None:
    """Its client was told to look for the coordinator, and did not come."""
    owners = Owners()
    host = await coordinate(owners)
    await formed(owners, host, "a", instance="i")
    again = Client(host.world, "a", instance="i").join()
    host.world.advance(2 * SESSION_MS / 1000)
    host.front.clock.advance(int(host.world.now_s * 1000))
    host.front.stream.deposed(9)
    assert again.joining.result().error is ErrorCode.coordinator_not_available
    host.world.advance(SESSION_MS / 1000 + 1)
    assert not host.world.group.members


async def formed_large(owners: Owners, host: Host, members: int = 30, prefix: str = "i/") -> list[Client]:
    """A group of static members, each with a kilobyte, whose generation is kept."""
    clients = [Client(host.world, f"c{number}", instance=f"{prefix}{number}") for number in range(members)]
    for client in clients:
        client.protocols = (Protocol("range", subscription("orders") + bytes(1000)),)
        client.join()
    host.world.advance(1.0)
    ask_for_assignments(clients)
    ack(owners)
    assert clients[0].sync().syncing.result().assignment == clients[0].member_id.encode()
    return clients


def rejoin(owners: Owners, client: Client) -> tuple[Client, str]:
    """The process of a static member is started again; with the id that the former one has."""
    again = Client(client.world, client.name, instance=client.instance)
    again.protocols = client.protocols
    again.join()
    ack(owners)
    again.joined()
    return again, client.member_id


async def test_a_static_member_of_a_large_group_costs_its_own_bytes() -> None:
    """However large the group is. The next coordinators know the new id, fence the former one, and go on so, also the
    leader; with the next generation all of that is one entry again.
    """
    owners = Owners()
    host = await coordinate(owners)
    clients = await formed_large(owners, host)
    for number in (0, 7, 7):
        put_bytes = host.ledger.span_bytes
        clients[number], former = rejoin(owners, clients[number])
        assert host.ledger.span_bytes - put_bytes < 3_000
        host = await coordinate(owners)
        for client in clients:
            client.world = host.world
            assert client.heartbeat() is ErrorCode.none
            assert client.sync().syncing.result().assignment.startswith(b"i/")
        assert host.world.coordinator.heartbeat(GROUP, 1, former, clients[number].instance, host.world.now_s) is (
            ErrorCode.fenced_instance_id
        )
        assert host.world.group.leader_id == clients[0].member_id
    assert len(dict(host.ledger.items(REJOINED))) == 2
    clients[0].protocols = (Protocol("range", subscription("orders") + bytes(900)),)
    for client in clients:
        client.join()
    ask_for_assignments(clients)
    ack(owners)
    assert len(dict(host.ledger.items(REJOINED))) == 0
    host = await coordinate(owners)
    assert {member.member_id for member in host.world.group.members.values()} == {each.member_id for each in clients}


async def test_an_instance_with_a_long_name_is_kept_with_its_group() -> None:
    """Keys are bounded: the ledger takes none above 64 KiB."""
    owners = Owners()
    clients = await formed_large(owners, await coordinate(owners), members=12, prefix="i" * MAX_KEY)
    again, former = rejoin(owners, clients[1])
    again.world = (host := await coordinate(owners)).world
    assert again.heartbeat() is ErrorCode.none
    assert former not in host.world.group.members
    assert dict(host.ledger.items(REJOINED)) == {}


async def test_entries_of_members_take_no_more_than_that_of_their_group() -> None:
    """However often they are started again; without members there are none."""
    owners = Owners()
    host = await coordinate(owners)
    clients = await formed_large(owners, host)
    whole_bytes, most, times = len(host.entries[PREFIX + GROUP]), 0, 0
    for _ in range(3):
        for number, client in enumerate(clients):
            clients[number], _ = rejoin(owners, client)
            rejoined_bytes = sum(len(value) for _, value in host.ledger.items(REJOINED))
            times += rejoined_bytes == 0
            most = max(most, rejoined_bytes)
    assert 0 < most <= 1.1 * whole_bytes
    assert 0 < times <= 4
    clients[0], _ = rejoin(owners, clients[0])
    for client in clients:
        assert client.leave() is ErrorCode.none
    ack(owners)
    assert dict(host.ledger.items()) == {}


async def test_what_a_host_of_an_earlier_version_has_written_counts() -> None:
    """It coordinated in between, and knows no entries of members: those that are left say nothing of what it wrote. So
    do those that cannot be read, of another generation, and of instances that the group has not.
    """
    owners = Owners()
    host = await coordinate(owners)
    clients = await formed_large(owners, host)
    known = dict(host.entries)
    (again, former) = rejoin(owners, clients[3])
    ((key, value),) = host.ledger.items(REJOINED)
    for whole, beside, expected in (
        (known[PREFIX + GROUP].replace(b'"rejoined":true,', b""), value, former),
        (known[PREFIX + GROUP], value.replace(b'"generation":1', b'"generation":2'), former),
        (known[PREFIX + GROUP], value.replace(b'"v":1', b'"v":2'), former),
        (known[PREFIX + GROUP], value[:-1], former),
        (known[PREFIX + GROUP], value.replace(b'"i/3"', b'"i/x"'), former),
        (known[PREFIX + GROUP], value, again.member_id),
    ):
        host.ledger.put({PREFIX + GROUP: whole, key: beside})
        ack(owners)
        host = await coordinate(owners)
        assert host.world.group.static["i/3"] == expected


async def test_joins_that_fail_put_nobody_in_front_of_who_was_told() -> None:
    """What has no room is not kept, and its client is told no id, however often it tries: the process before is still
    fenced by the next coordinator.
    """
    owners = Owners()
    host = await coordinate(owners)
    (former,) = await formed(owners, host, "a", instance="i")
    again = Client(host.world, "a", instance="i")
    owners.owner.max_in_flight = 0
    host.ledger.put({"x": bytes(MAX_WAITING_BYTES)})
    for _ in range(FORMER_IDS + 1):
        again.join()
        host.world.advance(REFUSED_S)
        assert again.joining.result() == JoinResult(ErrorCode.coordinator_not_available, "")
    owners.owner.max_in_flight = 100
    host.front.stream.room()
    ack(owners)
    again.join()
    ack(owners)
    again.joined()
    former.world = again.world = (await coordinate(owners)).world
    assert again.heartbeat() is ErrorCode.none
    assert former.heartbeat() is ErrorCode.fenced_instance_id


async def test_members_whose_generation_was_not_kept_have_a_session_to_join_again() -> None:
    """From when that is known, however long it took: they wait for an answer meanwhile, and are not heard."""
    owners = Owners()
    host = await coordinate(owners)
    clients = [Client(host.world, name).join() for name in ("a", "b")]
    host.world.advance(1.0)
    ask_for_assignments(clients)
    host.world.advance(WRITE_LIMIT_S - 1)
    host.front.clock.advance(int(host.world.now_s * 1000))
    host.front.stream.deposed(9)
    assert {client.syncing.result().error for client in clients} == {ErrorCode.coordinator_not_available}
    host.world.advance(SESSION_MS / 1000 - 1)
    for client in clients:
        client.join()
    assert {client.joined().generation_id for client in clients} == {2}


async def test_members_hear_in_time_of_a_generation_that_waits() -> None:
    """Their assignments are refused when Kafka refuses them, and they join again. What waits is kept later, and changes
    nothing: the next generation is told, and is what another coordinator finds.
    """
    owners = Owners()
    host = await coordinate(owners)
    clients = [Client(host.world, name).join() for name in ("a", "b")]
    host.world.advance(1.0)
    ask_for_assignments(clients)
    host.world.advance(WRITE_LIMIT_S - 0.1)
    assert not any(client.syncing.done for client in clients)
    host.world.advance(0.1)
    assert {client.syncing.result().error for client in clients} == {ErrorCode.coordinator_not_available}
    for client in clients:
        client.join()
    ask_for_assignments(clients)
    host.front.clock.advance(int(host.world.now_s * 1000))
    owners.owner.ack()
    assert not any(client.syncing.done for client in clients)
    owners.owner.ack()
    assert [client.syncing.result().assignment for client in clients] == [each.member_id.encode() for each in clients]
    host.world.advance(WRITE_LIMIT_S + 1)
    assert {client.heartbeat() for client in clients} == {ErrorCode.none}
    assert {client.generation for client in clients} == {2}
    found = (await coordinate(owners)).world.group
    assert (found.generation_id, set(found.members)) == (2, {client.member_id for client in clients})


async def test_a_static_member_hears_in_time_that_its_new_id_waits() -> None:
    """It joins again, without the id that it was not told, which is kept later."""
    owners = Owners()
    host = await coordinate(owners)
    await formed(owners, host, "a", instance="i")
    again = Client(host.world, "a", instance="i").join()
    host.world.advance(WRITE_LIMIT_S)
    assert again.joining.result() == JoinResult(ErrorCode.coordinator_not_available, "")
    ack(owners)
    assert not host.world.group.members[host.world.group.static["i"]].is_told
    again.join()
    host.front.clock.advance(int(host.world.now_s * 1000))
    ack(owners)
    assert again.joined().generation_id == 1
    host.world.advance(WRITE_LIMIT_S + 1)
    assert again.heartbeat() is ErrorCode.none
    again.world = (await coordinate(owners)).world
    assert again.heartbeat() is ErrorCode.none


async def test_a_group_without_members_is_forgotten() -> None:
    """When the last member leaves, and only then."""
    owners = Owners()
    host = await coordinate(owners)
    clients = await formed(owners, host, "a", "b")
    assert clients[0].leave() is ErrorCode.none
    assert list(host.entries) == [PREFIX + GROUP]
    assert clients[1].leave() is ErrorCode.none
    ack(owners)
    assert host.entries == {}
    assert (await coordinate(owners)).world.coordinator.find(GROUP) is None


async def test_a_group_is_forgotten_at_the_next_time_where_that_was_refused() -> None:
    """Too much waits for the members of the ledger's chunk."""
    owners = Owners()
    host = await coordinate(owners)
    (client,) = await formed(owners, host, "a")
    owners.owner.max_in_flight = 0
    host.ledger.put({"x": bytes(MAX_WAITING_BYTES)})
    assert client.leave() is ErrorCode.none
    owners.owner.max_in_flight = 100
    host.front.stream.room()
    ack(owners)
    assert list(host.entries) == [PREFIX + GROUP]
    host.world.coordinator.drop(GROUP)
    assert host.entries == {}


async def test_an_entry_that_cannot_be_read_goes_with_its_group() -> None:
    """An operator deletes the group, which is empty here."""
    owners = Owners()
    host = await coordinate(owners)
    host.ledger.put({PREFIX + GROUP: b"?"})
    ack(owners)
    host = await coordinate(owners)
    host.world.coordinator.ensure(GROUP, host.world.now_s)
    host.world.coordinator.drop(GROUP)
    assert host.entries == {}


async def test_a_generation_that_is_too_large_is_not_kept() -> None:
    """Nor is the one before it, when members are told: its members would be taken for those of now, and the next
    coordinator would give the number of this generation to another.
    """
    owners = Owners()
    host = await coordinate(owners)
    (small,) = await formed(owners, host, "a")
    large = Client(host.world, "b")
    large.protocols = (Protocol("range", subscription("orders") + b"x" * MAX_ENTRY_BYTES),)
    large.join()
    small.join()
    ask_for_assignments([small, large])
    assert not large.syncing.done
    large.protocols = (Protocol("range", subscription("orders") + b"z" * MAX_ENTRY_BYTES),)
    large.join()
    small.join()
    ask_for_assignments([small, large])
    assert not large.syncing.done  # the entry is still on its way out
    ack(owners)
    assert large.syncing.result().assignment == large.member_id.encode()
    assert host.entries == {}
    large.protocols = (Protocol("range", subscription("orders") + b"y" * MAX_ENTRY_BYTES),)
    large.join()
    small.join()
    ask_for_assignments([small, large])
    assert large.syncing.result().assignment == large.member_id.encode()  # there is no entry that must go before


async def test_what_there_is_no_room_for_is_not_taken_over() -> None:
    """A host with lower limits takes what it may."""
    owners = Owners()
    await formed(owners, await coordinate(owners), "a")
    assert (await coordinate(owners, max_groups=0)).world.coordinator.find(GROUP) is None
    assert (await coordinate(owners, max_bytes=100)).world.coordinator.find(GROUP) is None
    assert (await coordinate(owners)).world.group.state is GroupState.STABLE


def test_golden_bytes() -> None:
    """docs/format.md shows this entry; it is read back as it was."""
    world = World()
    stable(world, "a")
    assert encode_generation(world.group) == GOLDEN
    group, _ = decode_generation(GROUP, GOLDEN, ())
    assert group is not None
    assert encode_generation(group) == GOLDEN
    assert group.members == world.group.members


def test_entries_that_cannot_be_read_are_left_out() -> None:
    """Cut, of a later version, without a field, with one of another kind: the members join again. What is read is what
    was kept.
    """
    entry = json.loads(GOLDEN)
    broken = [GOLDEN[:at] for at in range(len(GOLDEN))]
    for fields in (entry, entry["members"][0]):
        for name in list(fields):
            value = fields.pop(name)
            broken.append(json.dumps(entry).encode())
            for other in OTHERS:
                fields[name] = other
                broken.append(json.dumps(entry).encode())
            fields[name] = value
    broken += [json.dumps({**entry, "v": 2}).encode(), json.dumps({**entry, "members": entry["members"] * 2}).encode()]
    broken += [b"[]", b"1", b"null", b"\xff"]
    read = [(each, group) for each in broken if (group := decode_generation(GROUP, each, ())[0]) is not None]
    assert len(read) < 10
    for each, group in read:
        assert json.loads(encode_generation(group)) == json.loads(each)
        assert all(member.session_timeout_ms < 1 << 31 for member in group.members.values())


@pytest.mark.parametrize("group_id", ["a/b", "%2F", "ü", ""])
async def test_any_name_of_a_group_is_kept(group_id: str) -> None:
    """Names are encoded in keys."""
    owners = Owners()
    host = await coordinate(owners)
    world = World()
    stable(world, "a")
    group, _ = decode_generation(group_id, encode_generation(world.group), ())
    assert group is not None
    kept = KeptGenerations(host.ledger, host.front.clock).keep(group, 0.0)
    ack(owners)
    assert kept.done
    (found,) = KeptGenerations(host.ledger, host.front.clock).groups()
    assert found is not None
    assert found.group_id == group_id
