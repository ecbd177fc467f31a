"""A host that stood still does not count that against others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
import trio
import trio.testing

from logstore.cluster.owner_ticks import LONGEST_TURN_S, TICK_S, OwnerTicks
from logstore.replica.effects import Effect, MemberFailed
from logstore.replica.messages import AppendDone
from logstore.replica.owner import Owner
from logstore.replica.registrations import Prefix, StreamRegistration
from tests.replica.test_owner import HERE, A, B, C, opened

SILENT_S = 0.28
"""Almost as long as a member may be."""
DURABLE = Prefix.empty(0).followed_by(b"x", 1)


class World:
    """An owner with a batch under way to its members, and its ticks."""

    def __init__(self) -> None:
        self.owner = Owner("s", HERE)
        opened(self.owner, StreamRegistration(3, 3), (C, A, B))
        self.failed: list[MemberFailed] = []
        self.ticks = OwnerTicks({"s": self.owner}, self.take)
        self.owner.append(b"x", 1, self.ticks.now_ms())
        self.ticks.follow(self.owner)

    def take(self, effects: Iterable[Effect]) -> None:
        """Carry out what the owner asks for."""
        self.failed += [effect for effect in effects if isinstance(effect, MemberFailed)]

    async def read(self, socket: trio.MemoryReceiveChannel[AppendDone]) -> None:
        """Take confirmations in, a turn of the event loop behind their arrival, as from a socket."""
        async for message in socket:
            await trio.lowlevel.checkpoint()
            self.take(self.owner.receive(message, self.ticks.now_ms()))


@pytest.mark.parametrize("stall_s", [0.05, 1.0, 60.0])
async def test_what_arrived_during_a_stall_is_read_first(
    autojump_clock: trio.testing.MockClock, stall_s: float
) -> None:
    """The members have confirmed while the host stood still: however long that was, nobody has failed."""
    world = World()
    send, receive = trio.open_memory_channel[AppendDone](10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.ticks.run)
        nursery.start_soon(world.read, receive)
        await trio.sleep(SILENT_S)
        for member in (A, B, C):
            send.send_nowait(AppendDone("s", 1, member, DURABLE))
        autojump_clock.jump(stall_s)
        await trio.sleep(1)
        assert not world.failed
        assert world.owner.high_watermark == 1
        nursery.cancel_scope.cancel()


async def test_a_stall_is_nobodys_silence(autojump_clock: trio.testing.MockClock) -> None:
    """Again and again the loop stands still for two seconds: each counts as two ticks. Members that confirm nothing
    while it runs are given up all the same.
    """
    world = World()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.ticks.run)
        for _ in range(4):
            autojump_clock.jump(2.0)
            await trio.sleep(1.5 * TICK_S)
        assert not world.failed, "at most four turns have counted for 40 ms, and four for 30"
        await trio.sleep(0.3 + LONGEST_TURN_S)
        assert {failure.host for failure in world.failed} == {"a", "b", "c"}
        nursery.cancel_scope.cancel()


async def test_ticks_that_take_long_do_not_make_time_pass(autojump_clock: trio.testing.MockClock) -> None:
    """A process that is preempted within a tick pauses for longer behind it; time passes as before in the pause."""
    world = World()
    stalls = iter([0.2, 0.2])

    def take(effects: Iterable[Effect]) -> None:
        world.take(effects)
        autojump_clock.jump(next(stalls, 0.0))

    world.ticks = OwnerTicks({"s": world.owner}, take)
    world.ticks.follow(world.owner)
    begun_ms = world.ticks.now_ms()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.ticks.run)
        await trio.sleep(0.45)
        autojump_clock.jump(5.0)
        await trio.sleep(TICK_S)
        assert world.ticks.now_ms() - begun_ms < 1_000
        nursery.cancel_scope.cancel()


async def test_ticks_of_many_owners_leave_turns_to_others(autojump_clock: trio.testing.MockClock) -> None:
    """A hundred owners have something to do when a host has come: other tasks run between a few ticks and the next. It
    was one turn of ten milliseconds.
    """
    owners = {f"s{number}": Owner(f"s{number}", HERE) for number in range(100)}
    for owner in owners.values():
        opened(owner, StreamRegistration(3, 3), (C, A, B))
        owner.append(b"x", 1, 0)
    turn, ticks = 0, Counter[int]()

    def take(effects: Iterable[Effect]) -> None:
        ticks[turn] += 1

    world = OwnerTicks(owners, take)
    for owner in owners.values():
        world.follow(owner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run)
        with trio.fail_after(1):
            while ticks.total() < 2 * len(owners):
                await trio.lowlevel.checkpoint()
                turn += 1
                if not turn % 100:
                    await trio.sleep(TICK_S)
        nursery.cancel_scope.cancel()
    assert max(ticks.values()) <= 2 * 16, (
        "the order of tasks in a turn is random: two turns of the ticks may lie in one"
    )
