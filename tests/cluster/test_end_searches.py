"""Searches for ENDs of epochs in a tier that is silent: the epochs that a chunk there may have wait, and nobody else
does. Hosts in memory, in virtual time.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from logstore.cluster.epochs.end_searches import SEARCH_WAIT_S
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.epochs.group_order import GroupOrder
from logstore.epochs.ledger_entries import Target
from logstore.errors import CairnError, ChunkUnreachable, NotLeader, TierUnavailable, TryAgain
from logstore.log.scanning import TakeEnd
from logstore.replica.registrations import TieredCopy
from tests.cluster.lost_chunks import all_shown, group
from tests.cluster.support import MemoryOwner
from tests.cluster.test_epoch_waits import append_epoch, ends
from tests.cluster.test_group_appends import Host, order, settle
from tests.cluster.test_tier_takeovers import HOSTS
from tests.cluster.tier_world import SILENCE_S, TierWorld, in_world
from tests.support.limits import PATIENCE_S
from tests.support.virtual_time import run_virtual

CHUNKS = 3
SOON_S = 0.2
"""Virtual: as long as an append to three hosts takes, and more."""


def in_time(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in virtual time."""
    run_virtual(test, clock=trio.testing.MockClock(autojump_threshold=0.01))


async def leave_epochs_to_the_tier(world: TierWorld) -> None:
    """Sealed chunks lie in the tier alone, the first has an epoch; the open chunk has records, and another host than
    the one that has appended the epoch owns the stream.
    """
    await world.create()
    await append_epoch(world)
    for _ in range(CHUNKS):
        await world.chunk()
    await world.settle(is_swept=False)
    await world.chunk()
    await world.append(2)
    life, _ = await world.wait_leader()
    await world.lose(life.running.host.name)
    await world.wait_leader()


async def asked(world: TierWorld, wanted: GroupOrder) -> tuple[type[CairnError] | None, float]:
    """What the owner says of a group, None: the stream has it; and after how many seconds."""
    life, _ = await world.wait_leader()
    began_s, error = trio.current_time(), None
    try:
        await life.appends.append(wanted)
    except CairnError as why:
        error = type(why)
    return error, trio.current_time() - began_s


def test_a_tier_that_is_silent_holds_up_the_epochs_that_it_may_have_alone() -> None:
    """Whoever sends such a group is told soon to ask again, at once while the search goes on, and later why it does
    not. Appends, reads of hosts' copies and the groups of epochs that were decided since go on. When the store answers
    again, the epoch is in the stream once. All questions together have the store asked one thing at a time.
    """

    async def test(world: TierWorld) -> None:
        await leave_epochs_to_the_tier(world)
        life, stream = await world.wait_leader()
        world.freeze()
        for query, most_s in (("q", SEARCH_WAIT_S), ("q", 0.0), ("other", 0.0)):
            error, waited_s = await asked(world, group(world, 1, query))
            assert error is TryAgain
            assert waited_s < most_s + SOON_S
        began_s = trio.current_time()
        await world.append(3)
        late = group(world, 1, "later")
        late = replace(late, target=replace(late.target, start_offset=stream.high_watermark))
        await life.appends.append(late)
        local = (await world.chunks())[-2].base_offset
        assert (await life.reads.read(stream, local, 4_000)).next_offset > local
        assert trio.current_time() - began_s < SOON_S
        assert life.tier_reads.most == 1

        told: set[type[CairnError] | None] = set()
        while TierUnavailable not in told:
            error, waited_s = await asked(world, group(world, 1))
            assert waited_s < SEARCH_WAIT_S + SOON_S
            told.add(error)
            await trio.sleep(0.5)
        assert told == {TryAgain, TierUnavailable}
        await trio.sleep(SILENCE_S / 2)
        error, waited_s = await asked(world, group(world, 1))
        assert error is TierUnavailable, "what is known is told during the next try"
        assert waited_s < SOON_S
        (wait,) = await all_shown(world)
        assert (wait.query, wait.is_for_epoch) == ("q", True)
        world.thaw()
        with trio.fail_after(3):
            while (await asked(world, group(world, 1)))[0] is not None:  # noqa: ASYNC110  time is virtual
                await trio.sleep(0.5)
        assert await ends(world) == [("later", 1), ("q", 1)]
        await life.appends.append(group(world, 1, "other"))
        assert await all_shown(world) == []
        sent = set(world.acked)
        assert [value for value in await world.read_all() if value in sent] == world.acked

    in_world(test, *HOSTS)


class _Silent(Host):
    """A host whose chunks, of which some lie in the tier, are read when a test says so."""

    def __init__(self, owner: MemoryOwner) -> None:
        super().__init__(owner)
        self.silent: dict[int, trio.Event] = {}
        """By epoch of the chunk: when it is read."""
        self.begun: list[int] = []
        self.late: set[int] = set()
        """Epochs of chunks that only hosts have that are known to be silent."""

    def is_late(self, stream: ReplicatedStream, before_offset: int, /) -> bool:
        chunk = stream.registration.chunk_at(before_offset - 1)
        return chunk is not None and chunk.epoch in self.late

    async def find_ends(
        self, stream: ReplicatedStream, from_offset: int, before_offset: int, /, *, take: TakeEnd
    ) -> None:
        chunk = stream.registration.chunk_at(before_offset - 1)
        assert chunk is not None
        self.begun.append(chunk.epoch)
        if chunk.epoch in self.silent:
            await self.silent[chunk.epoch].wait()
        await super().find_ends(stream, from_offset, before_offset, take=take)


async def with_chunks(count: int, tiered: tuple[int, ...] = ()) -> tuple[_Silent, list[int]]:
    """A host that has taken over, and the epochs of its chunks: query `qN` has its epoch in the chunk of number N.
    `tiered`: the numbers of chunks that lie in the tier alone.
    """
    owner = MemoryOwner()
    first = Host(owner)
    await first.lead()
    for number in range(count):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.send, 1, 0, f"q{number}")
            await settle()
            owner.ack()
        owner.roll()
    for number in tiered:
        chunk = owner.chunks[number]
        copy = TieredCopy("0" * 16, 0, (0, 0), None)
        chunk.registration = replace(chunk.registration, tiered=copy, members=())
    host = _Silent(owner)
    await host.lead()
    return host, [chunk.registration.epoch for chunk in owner.chunks[:count]]


def test_an_epoch_that_hosts_have_waits_for_no_tier() -> None:
    """Chunks that hosts have are read first. A chunk that cannot be read does not hide what lies in front of it."""

    async def test() -> None:
        host, chunks = await with_chunks(3, tiered=(1, 2))
        host.silent[chunks[2]] = trio.Event()
        with trio.fail_after(SEARCH_WAIT_S / 2):
            await host.send(1, 0, "q0")
        assert (host.outcomes, host.begun) == ([None], [chunks[0], chunks[2]])
        await host.send(1, 0, "q1")
        assert isinstance(host.outcomes[1], TryAgain)
        host.failure, host.damaged = TierUnavailable("no answer"), {chunks[2]}
        host.silent[chunks[2]].set()
        await settle()
        await host.send(1, 0, "q1")
        assert host.outcomes[2] is None
        assert host.groups == 3

    in_time(test)


def test_nobody_waits_for_a_host_that_is_known_to_be_silent() -> None:
    """Its parts are read behind those of others, which are waited for; what it has is told when it is there."""

    async def test() -> None:
        host, chunks = await with_chunks(3)
        host.silent[chunks[2]] = trio.Event()
        host.late = {chunks[2]}
        began_s = trio.current_time()
        for query, outcome in (("q0", type(None)), ("q2", TryAgain), ("other", TryAgain)):
            await host.send(1, 0, query)
            assert isinstance(host.outcomes[-1], outcome)
        assert host.begun == [chunks[1], chunks[0], chunks[2]]
        host.failure, host.damaged = ChunkUnreachable("nobody answers"), {chunks[2]}
        host.silent[chunks[2]].set()
        await settle()
        host.silent[chunks[2]] = trio.Event()
        for query in ("q2", "other"):
            await host.send(1, 0, query)
            assert isinstance(host.outcomes[-1], ChunkUnreachable)
        assert trio.current_time() - began_s < SOON_S
        host.damaged.clear()
        host.silent[chunks[2]].set()
        await settle()
        await host.send(1, 0, "q2")
        assert (host.outcomes[-1], host.groups) == (None, 3)

    in_time(test)


def test_those_who_ask_share_one_search() -> None:
    """However many there are: each chunk is read once, and each is told after SEARCH_WAIT_S, or when it is known."""

    async def test() -> None:
        host, chunks = await with_chunks(2, tiered=(0, 1))
        host.silent[chunks[0]] = trio.Event()
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for query in ("q0", "q1", "other") * 5:
                nursery.start_soon(host.send, 1, 0, query)
        assert trio.current_time() - began_s == pytest.approx(SEARCH_WAIT_S)
        assert [type(outcome) for outcome in host.outcomes] == [type(None)] * 5 + [TryAgain] * 10
        assert host.begun == [chunks[1], chunks[0]]
        host.silent[chunks[0]].set()
        await settle()
        host.outcomes.clear()
        async with trio.open_nursery() as nursery:
            for query in ("q0", "q1", "other") * 5:
                nursery.start_soon(host.send, 1, 0, query)
            await settle()
            host.owner.ack()
        assert host.outcomes == [None] * 15
        assert (host.groups, len(host.begun)) == (3, 2)

    in_time(test)


def test_a_search_ends_with_its_ownership() -> None:
    """Whoever waits for it is told so, and the next ownership searches for itself, whatever the store does."""

    async def test() -> None:
        host, chunks = await with_chunks(1, tiered=(0,))
        host.silent[chunks[0]] = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.send, 1, 0, "q0")
            await settle()
            host.front.stream.deposed(9)
        assert isinstance(host.outcomes[0], NotLeader)
        del host.silent[chunks[0]]
        await host.lead()
        await host.send(1, 0, "q0")
        assert (host.outcomes[1:], host.begun) == ([None], [chunks[0]] * 2)

    in_time(test)


class _Batches(bytearray):
    """Bytes of which it can be said whether anybody has them still."""


async def test_the_error_of_a_search_keeps_no_group() -> None:
    """A group has up to 16 MiB, and the error that it was refused with is kept until the next try."""
    host, chunks = await with_chunks(1, tiered=(0,))
    host.failure, host.damaged = TierUnavailable("no answer"), set(chunks)
    batches = _Batches(order(1, 0).batches)
    known = weakref.ref(batches)
    wanted = replace(order(1, 0, "other"), target=Target("orders", order(1, 0).target.topic_id, 0, 0), batches=batches)
    with pytest.raises(TierUnavailable):
        await host.appends.append(wanted)
    del batches, wanted
    with trio.fail_after(PATIENCE_S):
        while known() is not None:
            gc.collect()
            await trio.lowlevel.checkpoint()
