"""Generations that the ledger of groups refuses at once, as it does while its stream lacks members."""

from kio.schema.errors import ErrorCode

from logstore.cluster.streams.replicated_stream import MAX_WAITING_BYTES
from logstore.kafka.groups.members import JoinResult
from logstore.kafka.groups.settings import REFUSED_S
from tests.cluster.test_generations import ack, ask_for_assignments, coordinate, formed
from tests.cluster.test_replicated_ledger import Owners
from tests.kafka.groups.driver import GROUP, Client


async def test_what_is_refused_at_once_is_told_later() -> None:
    """A client that joins again without a pause has a second for each try, as a member and as a static one."""
    owners = Owners()
    host = await coordinate(owners)
    await formed(owners, host, "a", instance="i")
    owners.owner.max_in_flight = 0
    host.ledger.put({"x": bytes(MAX_WAITING_BYTES)})
    again = Client(host.world, "a", instance="i").join()
    for _ in range(2):
        host.world.advance(REFUSED_S - 0.1)
        assert not again.joining.done
        host.world.advance(0.1)
        assert again.joining.result() == JoinResult(ErrorCode.coordinator_not_available, "")
        again.join()
    host.world.advance(REFUSED_S)
    other = Client(host.world, "b").join()
    again.join()
    host.world.advance(1.0)
    for generation in (2, 3):
        ask_for_assignments([again, other])
        host.world.advance(REFUSED_S - 0.1)
        assert not again.syncing.done
        assert not other.syncing.done
        host.world.advance(0.1)
        for client in (again, other):
            assert client.syncing.result().error is ErrorCode.coordinator_not_available
            assert client.generation == generation
            client.join()


async def test_a_group_of_which_nothing_was_kept_leaves_nothing() -> None:
    """Clients may make group after group while the ledger refuses all: what is known of each ends with it."""
    owners = Owners()
    host = await coordinate(owners)
    owners.owner.max_in_flight = 0
    host.ledger.put({"x": bytes(MAX_WAITING_BYTES)})
    client = Client(host.world, "a").join()
    host.world.advance(1.0)
    client.joined()
    client.sync({client.member_id: b"a"})
    assert client.leave() is ErrorCode.none
    owners.owner.max_in_flight = 100
    host.front.stream.room()
    ack(owners)
    host.world.coordinator.drop(GROUP)
    assert not owners.owner.window
