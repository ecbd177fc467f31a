"""Epochs over hosts: a host is lost at each step of an epoch, and every stream has every epoch once.

Bugs are planted in the code of the product, one at a time; losing a host at some step finds each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from logstore.cluster.group_appends import GroupAppends
from logstore.cluster.group_delivery import GroupDelivery
from logstore.cluster.owner_calls import OwnerCalls
from logstore.epochs.epochs import Epochs
from logstore.epochs.stream_ends import StreamEnds
from logstore.errors import HostUnreachable
from logstore.format.fields import encode_fields
from tests.cluster.epochs_world import LATE_S, EpochsWorld, epochs_world

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


def run(kill_at: Mapping[int, str], *, seed: int = 0) -> Told:
    """Three epochs; during the second one hosts are lost at steps. `kill_at`: a host's name, `home`, or `owner`: one
    that owns a stream of the topic and is not the home. Raises AssertionError if a stream is not as it must be.
    """
    told = Told()

    async def main() -> None:
        async with epochs_world("a", "b", "c", seed=seed, partitions=PARTITIONS) as world:
            await world.epoch(0, PARTITIONS)
            told.home = await world.home()
            told.owners = await owners(world)
            roles = {"home": told.home, "owner": next(name for name in told.owners if name != told.home)}
            world.kill_at = {step: roles.get(role, role) for step, role in kill_at.items()}
            world.is_counting = True
            begin_s = trio.current_time()
            await world.epoch(1, PARTITIONS)
            told.took_s = trio.current_time() - begin_s
            world.is_counting = False
            await world.bring_back()
            await world.epoch(2, PARTITIONS)
            await trio.sleep(LATE_S + 1)
            await world.check(3, PARTITIONS)
            assert (await world.describe()).last_epoch == 2
            told.steps, told.outcomes = world.steps, world.outcomes

    async def bounded() -> None:
        with trio.move_on_after(LIMIT_S) as scope:
            await main()
        assert not scope.cancelled_caught, "an epoch is stuck"

    try:
        trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseExceptionGroup as failures:
        raise AssertionError(str(failures.exceptions)) from failures
    return told


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


def steps_named(told: Told, name: str, number: int = 0) -> int:
    """The index of the step of this name that is so many behind the first."""
    return [index for index, step in enumerate(told.steps) if step == name][number]


@pytest.mark.parametrize("role", ["home", "owner"])
@pytest.mark.parametrize("name", ["call 3", "answer 3", "call 2", "answer 2", "call 1", "answer 1"])
def test_a_host_is_lost_at_a_step(undisturbed: Told, role: str, name: str) -> None:
    """The epoch is committed all the same, in every stream once, within a second and a half."""
    told = run({steps_named(undisturbed, name): role})
    assert told.took_s < 1.5, told.outcomes


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_a_host_is_lost_at_every_step(undisturbed: Told, victim: str) -> None:
    """Each message, each call, each answer."""
    for step in range(len(undisturbed.steps)):
        assert run({step: victim}, seed=step % 3).took_s < 5.0, step


@pytest.mark.slow
def test_two_hosts_are_lost_one_after_the_other(undisturbed: Told) -> None:
    """With three copies of which one is left, the cluster waits until hosts are back; nothing is there twice."""
    for step in range(0, len(undisturbed.steps), 3):
        run({step: "home", step + 10: "owner"}, seed=step % 5)


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

    async def nothing(self: GroupAppends, *_: object) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(GroupAppends, "_search", nothing)


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
    (published_before_the_decision, (("answer 1", "home", 0),)),
    (ends_not_searched, (("answer 1", "owner", 0), ("answer 1", "owner", 1), ("answer 1", "owner", 2))),
    (groups_not_compared, (("call 1", "owner", 0),)),
    (staged_output_dropped_at_the_decision, (("answer 1", "home", 0), ("answer 1", "home", 1))),
    (lost_answer_taken_for_done, (("call 1", "owner", 0), ("call 1", "owner", 1), ("call 1", "owner", 2))),
    (unknown_topic_taken_for_deleted, (("call 1", "owner", 0), ("call 1", "owner", 1), ("call 1", "owner", 2))),
    (decisions_of_former_homes_forgotten, (("call 1", "home", 0),)),
]
"""Each with steps, by name, who is lost, and number: at one of them at the latest the bug shows."""


@pytest.mark.parametrize(("plant", "losses"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(
    undisturbed: Told, monkeypatch: pytest.MonkeyPatch, plant: Plant, losses: tuple[tuple[str, str, int], ...]
) -> None:
    """What the other tests say of every loss does not hold any more."""
    steps = [(steps_named(undisturbed, name, number), role) for name, role, number in losses]
    plant(monkeypatch)
    for step, role in steps:
        try:
            run({step: role})
        except AssertionError:
            return
    pytest.fail("the bug was not found")
