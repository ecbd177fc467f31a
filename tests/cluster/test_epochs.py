"""Epochs over hosts: a host is lost at each step of an epoch, and every stream has every epoch once.

Bugs are planted in the code of the product, one at a time; losing a host at some step finds each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from logstore.base.failures import leaves
from logstore.cluster.epochs import replicated_ledger
from logstore.cluster.epochs.epochs_home import EpochsHome
from logstore.cluster.epochs.group_delivery import GroupDelivery
from logstore.cluster.epochs.replicated_ledger import ReadFrom
from logstore.cluster.streams.owner_calls import FORWARD, OwnerCalls
from logstore.cluster.streams.topics import EPOCHS_TOPIC
from logstore.epochs.epochs import Epochs
from logstore.epochs.stream_ends import StreamEnds
from logstore.errors import HostUnreachable, UnknownTopicOrPartition
from logstore.format.epoch_api import (
    DESCRIBE,
    STAGE,
    DescribeRequest,
    Part,
    StageReply,
    StageRequest,
    decode_reply,
    decode_request_header,
    encode_request,
)
from logstore.format.fields import encode_fields
from logstore.format.records import Record, encode_batch
from logstore.kafka import epoch_routing
from tests.cluster.epochs_world import LATE_S, EpochsWorld, Step, epochs_world
from tests.kafka.node import CALLER
from tests.support.virtual_time import run_virtual

PARTITIONS = 3
"""Of different owners: there are three hosts."""
LIMIT_S = 30.0
"""Virtual: an epoch that takes longer is stuck."""


@dataclass
class Told:
    """What a run tells: the steps of its second epoch, and what the client met."""

    home: str = ""
    owners: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    took_s: float = 0.0


SEED = 2
"""With it, streams of the topic have different owners."""


def run(kill_at: Mapping[Step, str], *, seed: int = SEED, returns_s: float | None = None) -> Told:
    """Three epochs; during the second one hosts are lost at steps. `kill_at`: a host's name, `home`, or `owner`: one
    that owns a stream of the topic and is not the home. They come back behind that epoch, or so long after the last of
    them was lost. Raises AssertionError if a stream is not as it must be.
    """
    told = Told()

    async def main() -> None:
        async with epochs_world("a", "b", "c", seed=seed, partitions=PARTITIONS) as world:
            await world.epoch(0, PARTITIONS)
            told.home = await world.home()
            told.owners = await owners(world)
            roles = {"home": told.home, "owner": next((each for each in told.owners if each != told.home), "a")}
            world.kill_at = {step: roles.get(role, role) for step, role in kill_at.items()}
            world.is_counting = True
            begin_s = trio.current_time()
            returned = trio.Event()

            async def bring_back() -> None:
                while len(world.lost) < len(kill_at):  # noqa: ASYNC110  time is virtual
                    await trio.sleep(0.01)
                await trio.sleep(returns_s or 0.0)
                await world.bring_back()
                returned.set()

            if returns_s is not None:
                world.nursery.start_soon(bring_back)
            await world.epoch(1, PARTITIONS)
            told.took_s = trio.current_time() - begin_s
            world.is_counting = False
            if returns_s is not None and len(world.lost) == len(kill_at):
                await returned.wait()
            else:
                await world.bring_back()
            await world.epoch(2, PARTITIONS)
            await trio.sleep(LATE_S + 1)
            await world.check(3, PARTITIONS)
            assert (await world.describe()).last_epoch == 2
            told.steps, told.outcomes = world.steps, world.outcomes

    in_virtual_time(main)
    return told


def in_virtual_time(main: Callable[[], Awaitable[None]], limit_s: float = LIMIT_S) -> None:
    """Run it. Raises AssertionError if it takes longer, or fails."""
    try:
        run_virtual(main, seed=7, limit_s=limit_s)
    except BaseExceptionGroup as failures:
        raise AssertionError("; ".join(repr(leaf) for leaf in leaves(failures))) from failures


async def owners(world: EpochsWorld) -> list[str]:
    """The owners of the topic's streams."""
    topic = next(iter(world.hosts.values())).topics.topic("out")
    return [(await world.cluster.owner(f"{topic.topic_id.hex}/{number}")).host.name for number in range(PARTITIONS)]


@pytest.fixture(scope="module")
def undisturbed() -> Told:
    """A run in which no host is lost."""
    return run({})


def test_an_epoch_has_streams_of_different_owners(undisturbed: Told) -> None:
    """So what is lost below is the home, an owner, or both; and an epoch takes a tenth of a second at most."""
    assert len(set(undisturbed.owners)) > 1
    assert undisturbed.took_s < 0.1
    assert undisturbed.outcomes == []


@pytest.mark.parametrize("role", ["home", "owner"])
@pytest.mark.parametrize("name", ["call 3", "answer 3", "call 2", "answer 2", "call 1", "answer 1"])
def test_a_host_is_lost_at_a_step(role: str, name: str) -> None:
    """The epoch is committed all the same, in every stream once, within a second and a half."""
    told = run({(name, 0): role})
    assert told.took_s < 1.5, told.outcomes


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_a_host_is_lost_at_every_step(undisturbed: Told, victim: str) -> None:
    """Each message, each call, each answer."""
    for step in range(len(undisturbed.steps)):
        assert run({step: victim}, seed=step % 3).took_s < 5.0, step


@pytest.mark.slow
def test_two_hosts_are_lost_one_after_the_other(undisturbed: Told) -> None:
    """With three copies of which one is left, the cluster waits until hosts are back; nothing is lost, nor is
    anything there twice.
    """
    for step in range(0, len(undisturbed.steps), 3):
        told = run({step: "home", step + 10: "owner"}, seed=step % 5, returns_s=3.0)
        assert told.took_s < 15.0, step


async def isolated(world: EpochsWorld, name: str) -> None:
    """Nothing passes between a host and the others, nor the metadata store, until another one has the epochs."""
    for other in world.hosts:
        if other != name:
            world.cluster.network.cut(name, other)
    world.cluster.metadata.cut_off(name)
    others = [host for host_name, host in world.hosts.items() if host_name != name]
    await world.cluster.until(lambda: any(host.home.epochs is not None for host in others))


async def cut_off_home(world: EpochsWorld) -> None:
    """A home that knows of nothing is asked for a query that has gone on elsewhere; then it is healed, and asked."""
    await world.epoch(0, PARTITIONS)
    home = await world.home()
    await isolated(world, home)
    assert world.hosts[home].home.epochs is not None
    world.asked = frozenset(world.hosts) - {home}
    await world.epoch(1, PARTITIONS)
    world.asked = frozenset({home})
    with trio.move_on_after(40) as patience:
        assert (await world.describe()).last_epoch == 1, "an old answer"
    assert patience.cancelled_caught
    assert set(world.outcomes) == {"describe: TryAgain"}
    world.cluster.network.heal()
    world.cluster.metadata.heal(home)
    assert (await world.describe()).last_epoch == 1


def run_cut_off() -> None:
    """See `cut_off_home`."""

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world:
            await cut_off_home(world)

    in_virtual_time(main, 100.0)


def test_a_home_that_is_cut_off_says_nothing_old() -> None:
    """It still has the epochs as they were, and another host has committed one since: who asks it is told to ask again,
    and gets the truth when it can be reached.
    """
    run_cut_off()


def test_a_home_that_was_replaced_does_not_say_where_to_read_from() -> None:
    """It has tidied its ledger, and would note an offset behind what the next home has: the store takes it no more."""

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world:
            await world.epoch(0, PARTITIONS)
            home = await world.home()
            old = world.hosts[home]
            noting, stream = old.home._home, old.topics.topics[EPOCHS_TOPIC].partitions[0]
            assert await noting._note_read_from(stream, ReadFrom(0, 0, 0))
            await isolated(world, home)
            world.cluster.metadata.heal(home)
            assert old.home.epochs is not None, "it has not heard yet"
            assert not await noting._note_read_from(stream, ReadFrom(10**6, 10**6, 0))
            key = f"{replicated_ledger.KEY_PREFIX}{EPOCHS_TOPIC}"
            entry = (await world.hosts[home].running.store.get(key)).entry
            assert entry is not None
            assert entry.value == b"0"

    in_virtual_time(main, 100.0)


def test_a_request_that_is_passed_on_ends_at_a_home_that_is_cut_off() -> None:
    """Its client is gone by then: a host that serves such requests for ever would have no room for others."""

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world:
            await world.epoch(0, PARTITIONS)
            home = await world.home()
            await isolated(world, home)
            frame = b"".join(encode_request(DescribeRequest("q"), correlation_id=1))
            body = memoryview(frame)[decode_request_header(frame)[-1] :]
            asked = b"".join(epoch_routing._encode(epoch_routing._AskedRequest(DESCRIBE, CALLER, body)))
            with trio.fail_after(60):
                assert await world.hosts[home].handlers[FORWARD]("x", memoryview(asked)) == []

    in_virtual_time(main, 100.0)


def test_a_topic_that_the_home_has_not_heard_of() -> None:
    """It was made by the host that passes the request on, a moment ago: what is staged for it is taken."""

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world:
            await world.epoch(0, PARTITIONS)
            home = await world.home()
            other = next(host for name, host in world.hosts.items() if name != home)
            world.cluster.metadata.faults.max_delay_s = 0.4
            for number in range(20):
                made = trio.Event()
                other.topics.create_topic(f"new{number}", 1, {}).add_callback(lambda _, made=made: made.set())  # type: ignore[misc]
                await made.wait()
                batch = encode_batch([Record(0, world.clock.wall_ms(), None, b"1")])
                part = Part(f"new{number}", 0, len(batch), 1, 1)
                request = StageRequest("q", "run", 1, number, "a", 0, (part,), bytes(batch))
                frame = b"".join(encode_request(request, correlation_id=1))
                body = memoryview(frame)[decode_request_header(frame)[-1] :]
                found = await world._ask_host(other, STAGE, body)
                assert found is not None
                _, reply = decode_reply(STAGE, bytes(4) + found)
                assert isinstance(reply, StageReply), reply

    in_virtual_time(main, 100.0)


def test_an_answer_that_is_not_confirmed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the home says what it has in memory."""

    async def hasty(self: EpochsHome, epochs: Epochs) -> bool:
        await trio.lowlevel.checkpoint()
        return self.is_current(epochs)

    monkeypatch.setattr(EpochsHome, "confirm", hasty)
    with pytest.raises(AssertionError, match="an old answer"):
        run_cut_off()


def test_a_topic_that_is_made_anew_is_another_one() -> None:
    """An epoch that was staged for a deleted topic is refused; the topic of the same name begins with the next ones."""

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world:
            await world.epoch(0, PARTITIONS)
            home = await world.home()
            host = world.hosts[home]
            await host.running.host.topics.delete("out", host.topics.topic("out").topic_id.hex)
            with pytest.raises(UnknownTopicOrPartition):
                await world.epoch(1, PARTITIONS)
            await world.cluster.create_topic("out", PARTITIONS)
            await world.cluster.until(lambda: all("out" in each.topics.topics for each in world.hosts.values()))
            await world.epoch(1, PARTITIONS)
            await world.epoch(2, PARTITIONS)
            await world.check(3, PARTITIONS, first=1)

    in_virtual_time(main)


async def trouble(world: EpochsWorld, random: Random, over: trio.Event) -> None:
    """Hosts are lost and come back, and are cut off from each other, as a seed says, until it is over."""
    names = sorted(world.hosts)
    away: list[str] = []
    while not over.is_set():
        await trio.sleep(random.expovariate(1 / 0.5))
        action = random.random()
        if action < 0.3 and not away:
            victim = random.choice([name for name in names if name not in away])
            away.append(victim)
            await world.kill(victim)
        elif action < 0.75 and away:
            await world.start(away.pop(random.randrange(len(away))))
        elif 0.75 <= action < 0.85:
            world.cluster.network.cut(*random.sample(names, 2))
        else:
            world.cluster.network.heal()
    world.cluster.network.heal()
    for name in away:
        await world.start(name)


async def deletions(world: EpochsWorld, random: Random, over: trio.Event) -> None:
    """A consumer deletes what it has read."""
    while not over.is_set():
        await trio.sleep(random.expovariate(1 / 0.02))
        await world.read_and_delete(random.randrange(PARTITIONS))


def run_random(seed: int, epochs: int = 30, *, has_deletions: bool = False) -> list[str]:
    """Epochs under random trouble; returns what the client met. Raises AssertionError."""
    outcomes: list[str] = []

    async def main() -> None:
        async with epochs_world("a", "b", "c", seed=seed, partitions=PARTITIONS) as world:
            over, random = trio.Event(), Random(seed)
            ended = trio.Event()

            async def disturb() -> None:
                await trouble(world, random, over)
                ended.set()

            world.nursery.start_soon(disturb)
            if has_deletions:
                world.nursery.start_soon(deletions, world, Random(seed), over)
            for number in range(epochs):
                await world.epoch(number, PARTITIONS)
                await trio.sleep(random.expovariate(1 / 0.02))
            over.set()
            await ended.wait()
            await trio.sleep(LATE_S + 1)
            await world.epoch(epochs, PARTITIONS)
            await world.check(epochs + 1, PARTITIONS)
            assert (await world.describe()).last_epoch == epochs
            outcomes.extend(world.outcomes)

    in_virtual_time(main, 600.0)
    return outcomes


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 60), marks=pytest.mark.slow)], ids=["a seed", "many seeds"]
)
@pytest.mark.parametrize("has_deletions", [False, True])
def test_random_histories(seeds: range, *, has_deletions: bool) -> None:
    """Hosts are lost, come back and are cut off at any time: every epoch is in every stream once, whole, in order, also
    where a consumer deletes what it has read.
    """
    for seed in seeds:
        run_random(seed, has_deletions=has_deletions)


# ---- planted bugs

Plant = Callable[[pytest.MonkeyPatch], None]


def published_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    """Groups are appended before the decision is durable."""
    record = Epochs._record

    async def late(self: Epochs, query: Any, commit: Any) -> None:
        await self._publisher.publish(commit)
        await record(self, query, commit)

    patch.setattr(Epochs, "_record", late)


def ends_not_searched(patch: pytest.MonkeyPatch) -> None:
    """A new owner takes what it has appended itself for all that there is."""
    patch.setattr(StreamEnds, "must_search", lambda self, decided_at: False)


def groups_not_compared(patch: pytest.MonkeyPatch) -> None:
    """An owner appends what a former home sends late."""
    patch.setattr(StreamEnds, "has", lambda self, query, epoch, decided_at: False)


def staged_output_dropped_at_the_decision(patch: pytest.MonkeyPatch) -> None:
    """It is gone for the next home when the epoch is not in all streams."""
    decided = Epochs._note_decided

    def note(self: Epochs, query: Any, commit: Any) -> None:
        decided(self, query, commit)
        self._staging._append(b"dropped", _dropped(commit))  # type: ignore[attr-defined]

    patch.setattr(Epochs, "_note_decided", note)


def _dropped(commit: Any) -> bytes:
    fields = [
        {"query": key.query, "run": key.incarnation, "epoch": key.epoch, "task": key.task, "attempt": key.attempt}
        for key in commit._keys
    ]
    return encode_fields({"attempts": fields})[4:]


def lost_answer_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    """A group whose owner is lost counts as appended."""
    call = OwnerCalls.call

    async def hopeful(self: OwnerCalls, stream: str, kind: int, payload: Any) -> memoryview:
        try:
            return await call(self, stream, kind, payload)
        except HostUnreachable:
            return memoryview(encode_fields({"error": None, "end": 0}))

    patch.setattr(OwnerCalls, "call", hopeful)


def unknown_topic_taken_for_deleted(patch: pytest.MonkeyPatch) -> None:
    """Any trouble with a stream counts as the end of its topic."""

    async def gone(self: GroupDelivery, *_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    patch.setattr(GroupDelivery, "_is_gone", gone)


def decisions_of_former_homes_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A new home does not go on with what the former one has decided."""
    patch.setattr(Epochs, "roll_forward", lambda self: None)


PLANTED: list[tuple[Plant, tuple[tuple[str, str, int], ...]]] = [
    (published_before_the_decision, (("answer 1", "home", 0), ("answer 1", "home", 1), ("answer 1", "home", 2))),
    (ends_not_searched, (("answer 1", "owner", 0), ("answer 1", "owner", 1), ("answer 1", "owner", 2))),
    (groups_not_compared, (("call 1", "owner", 0), ("call 1", "owner", 1))),
    (
        staged_output_dropped_at_the_decision,
        (("answer 1", "home", 0), ("answer 1", "home", 1), ("answer 1", "home", 2)),
    ),
    (lost_answer_taken_for_done, (("call 1", "owner", 0), ("call 1", "owner", 1), ("call 1", "owner", 2))),
    (unknown_topic_taken_for_deleted, (("call 1", "owner", 0), ("call 1", "owner", 1), ("call 1", "owner", 2))),
    (decisions_of_former_homes_forgotten, (("call 1", "home", 0), ("answer 1", "home", 0))),
]
"""Each with steps, by name, who is lost, and number: at one of them at the latest the bug shows."""


@pytest.mark.parametrize(("plant", "losses"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, losses: tuple[tuple[str, str, int], ...]
) -> None:
    """What the other tests say of every loss does not hold any more."""
    plant(monkeypatch)
    for name, role, number in losses:
        try:
            run({(name, number): role})
        except AssertionError:
            return
    pytest.fail("the bug was not found")
