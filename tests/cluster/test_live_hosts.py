"""A host that reaches no other one leaves, and is back as soon as another one answers, whatever the answer is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import trio
import trio.testing

from logstore.cluster.live_hosts import LiveHosts
from logstore.cluster.members.membership import Membership
from logstore.cluster.members.view import ClusterView
from logstore.replica.messages import Message
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.cluster.test_membership import identity_of, members, membership_of


class Answers:
    """Links whose state a test sets."""

    def __init__(self) -> None:
        self.reachable = {"a", "b", "c"}
        self.strangers: set[str] = set()

    def send(self, host: str, message: Message) -> None:
        """See Links."""

    def is_reachable(self, host: str) -> bool:
        """See Links."""
        return host in self.reachable

    def is_stranger_to(self, host: str) -> bool:
        """See Links."""
        return host in self.strangers

    def deals(self, host: str) -> bool:
        """See Links."""
        return True


World = tuple[SimulatedMetadata, Answers, dict[str, Membership]]


def with_three_hosts(test: Callable[[World], Awaitable[None]]) -> None:
    """Run a test with three members; c looks at what its links say."""

    async def main() -> None:
        service = SimulatedMetadata(Random(0), MetadataFaults(max_delay_s=0.01))
        answers, memberships = Answers(), dict[str, Membership]()
        async with trio.open_nursery() as outer:
            await outer.start(service.serve)
            async with trio.open_nursery() as nursery:
                for number, name in enumerate(("a", "b", "c"), 1):
                    identity = await identity_of(service, name, SimDisk(), number)
                    memberships[name] = membership_of(service.store(name), identity, RecordedReports(), number)
                    await nursery.start(memberships[name].run)
                view = ClusterView(service.store("c"), RecordedReports())
                nursery.start_soon(view.run)
                nursery.start_soon(LiveHosts("c", view, answers, memberships["c"], lambda: None).watch_links)
                await trio.sleep(10)
                assert set(await members(service)) == {"a", "b", "c"}
                await test((service, answers, memberships))
                nursery.cancel_scope.cancel()
            outer.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_host_that_is_cut_off_leaves_until_it_reaches_another_one() -> None:
    """Not for less than three seconds; and not as long as one other host is reached."""

    async def test(world: World) -> None:
        service, answers, _ = world
        answers.reachable -= {"a"}
        await trio.sleep(20)
        assert "c" in await members(service)
        answers.reachable -= {"b"}
        await trio.sleep(2.5)
        assert "c" in await members(service)
        await trio.sleep(3)
        assert "c" not in await members(service)
        await trio.sleep(60)
        assert "c" not in await members(service)
        answers.reachable |= {"b"}
        await trio.sleep(2)
        assert "c" in await members(service)

    with_three_hosts(test)


def test_a_host_that_stood_still_does_not_leave_for_that() -> None:
    """It reached nobody for 1.5 s, and then stood still for 1.9: that is no time in which it could have connected."""

    async def test(world: World) -> None:
        service, answers, _ = world
        answers.reachable -= {"a", "b"}
        await trio.sleep(1.5)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(1.9)
        await trio.sleep(0.5)
        assert "c" in await members(service)
        answers.reachable |= {"a"}
        await trio.sleep(10)
        assert "c" in await members(service)

    with_three_hosts(test)


def test_a_host_that_left_is_back_when_others_say_that_they_do_not_know_it() -> None:
    """Both others were killed and have started again, and take no connection of a host that is no member: that they
    answer is enough, and it stays.
    """

    async def test(world: World) -> None:
        service, answers, _ = world
        answers.reachable -= {"a", "b"}
        await trio.sleep(10)
        assert "c" not in await members(service)
        answers.strangers = {"a"}
        await trio.sleep(2)
        assert "c" in await members(service)
        await trio.sleep(20)
        assert "c" in await members(service)

    with_three_hosts(test)


def test_a_host_that_left_is_back_when_it_is_the_only_one() -> None:
    """The leases of all others have ended: nobody could take over."""

    async def test(world: World) -> None:
        service, answers, memberships = world
        answers.reachable -= {"a", "b"}
        await trio.sleep(10)
        assert "c" not in await members(service)
        memberships["a"].resign()
        await trio.sleep(2)
        assert "c" not in await members(service)
        memberships["b"].resign()
        await trio.sleep(2)
        assert set(await members(service)) == {"c"}

    with_three_hosts(test)
