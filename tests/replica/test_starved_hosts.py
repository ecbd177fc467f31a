"""Hosts that get too little processor time are slow, and do not fail in turns; those that are silent for good do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.base.longest_lately import LongestLately
from logstore.replica.effects import Effect, MemberFailed
from logstore.replica.host_state import LATELY_MS, HostProgress
from logstore.replica.messages import AppendDone
from logstore.replica.owner import Owner
from logstore.replica.patience import CALM_MS, TIMES_LONGEST, MemberPatience, PatienceLimits
from logstore.replica.placing import Placing
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer
from logstore.replica.registrations import Member, Prefix, StreamRegistration
from tests.replica.cluster import Planted
from tests.replica.starved import SHAPE, Starved, StarvedRun
from tests.replica.test_owner import HERE, A, B, C, swaps

SECONDS = 60
LIMITS = PatienceLimits(300, 2_000, 5_000)
MOST_ROLLS_IN_A_MINUTE = 15


class Impatient(MemberPatience):
    """The bounds are the least ones, whatever was seen."""

    def _bound(self, longest_lately_ms: int, least_ms: int, now_ms: int) -> int:
        return least_ms


class ImpatientOwner(Owner):
    """An owner as it was before its bounds followed what members take."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        least_ms = (self.limits.member_timeout_ms, self.limits.busy_timeout_ms)
        patience = Impatient(PatienceLimits(*least_ms, self.limits.longest_timeout_ms), self._shared.progress)
        self._appending.patience = patience


# ---- simulated clusters


@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_of_starved_hosts_goes_on(seed: int) -> None:
    """All hosts stand still for half of the time. Each is given up about once, until its owner knows how slow it is;
    acknowledgements go on, copies come to their end, and every promise is kept. Without bounds that follow what is
    seen, members fail again and again.
    """
    found = StarvedRun(seed).run(SECONDS)
    assert found.stalls > SECONDS
    assert found.acked > SECONDS
    before = StarvedRun(seed, Planted(owner=ImpatientOwner)).run(SECONDS)
    assert found.given_up <= len(SHAPE.hosts), found
    assert 4 * found.given_up < before.given_up, (found, before)
    assert found.epochs < before.epochs


def test_a_starved_run_repeats() -> None:
    """Same seed, same trace."""
    first, second = (StarvedRun(7).run(5) for _ in range(2))
    assert first == second
    assert isinstance(first, Starved)


# ---- how long is waited


def test_a_quick_host_is_given_up_after_the_least_time() -> None:
    """What it confirms at once teaches nothing; so a host that is dead costs what it did."""
    hosts = HostProgress()
    patience = MemberPatience(LIMITS, hosts)
    for now_ms in range(0, 10_000, 50):
        patience.confirmed("b", now_ms - 40, now_ms)
        hosts.note("b", now_ms)
    assert (patience.silent_ms("b", 10_000), patience.wait_ms("b", 10_000)) == (300, 2_000)
    assert patience.least_ms == 300


def test_a_slow_host_is_waited_for_until_it_is_quick_again() -> None:
    """Three times the longest silence that it has ended, for a while; no more than the longest time."""
    hosts = HostProgress()
    patience = MemberPatience(LIMITS, hosts)
    patience.confirmed("b", 0, 250)
    hosts.note("b", 250)
    assert patience.silent_ms("b", 250) == TIMES_LONGEST * 250
    assert patience.silent_ms("c", 250) == 300
    patience.confirmed("b", 260, 2_260)
    assert patience.silent_ms("b", 2_260) == 5_000
    assert patience.wait_ms("b", 2_260) == 5_000
    assert patience.silent_ms("b", 2_260 + LATELY_MS) == 5_000
    assert patience.silent_ms("b", 2_260 + 3 * LATELY_MS) == 300


def test_an_outage_is_no_slowness() -> None:
    """A host that was silent for longer than any is waited for was cut off: the next time it is given up as before."""
    hosts = HostProgress()
    patience = MemberPatience(LIMITS, hosts)
    patience.confirmed("b", 0, 60_000)
    assert patience.silent_ms("b", 60_000) == 300


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1_000)), max_size=50), st.integers(1, 100))
def test_the_longest_lately(steps: list[tuple[int, int]], window: int) -> None:
    """What was noted counts for a window, and not for more than two."""
    longest, now = LongestLately(window), 0
    noted: list[tuple[int, int]] = []
    for passed, took in steps:
        now += passed
        surely = max((each for at, each in noted if now - at < window), default=0)
        at_most = max((each for at, each in noted if now - at < 2 * window), default=0)
        assert surely <= longest.at(now) <= at_most
        longest.note(took, now)
        noted.append((now, took))


@pytest.mark.parametrize("hosts", [1, 6])
def test_rolls_for_slowness_are_bounded(hosts: int) -> None:
    """Members that confirm nothing at the worst time: each roll comes as soon as it may, and no minute has more than
    the number that is promised.
    """
    patience, rolled = MemberPatience(LIMITS, HostProgress()), list[int]()
    begun_ms = 0
    for now_ms in range(0, 5 * CALM_MS, 10):
        if any(now_ms - begun_ms > patience.silent_ms(f"h{number}", now_ms) for number in range(hosts)):
            patience.rolled(now_ms)
            rolled.append(now_ms)
            begun_ms = now_ms  # what waits is sent anew
    assert rolled
    for since_ms in rolled:
        assert len([now_ms for now_ms in rolled if 0 <= now_ms - since_ms < CALM_MS]) <= MOST_ROLLS_IN_A_MINUTE


# ---- an owner


class World:
    """An owner on host c, with a metadata store that makes its swaps at once."""

    def __init__(self, copies: int, min_copies: int, live: tuple[Member, ...], placing: Placing | None = None) -> None:
        self.now_ms = 0
        self.failed: list[str] = []
        self.owner = Owner("s", HERE)
        self.owner.live_members(live, 0, placing or Placing())
        self.owner.start(0)
        self.take(self.owner.registration_read(RegistrationRead("s", 1, StreamRegistration(copies, min_copies)), 0))

    def take(self, effects: list[Effect]) -> None:
        """Carry out what the owner asks the metadata store for."""
        self.failed += [effect.host for effect in effects if isinstance(effect, MemberFailed)]
        while wanted := swaps(effects):
            revision = self.owner.revision
            effects = self.owner.swap_answered(SwapAnswer("s", revision, True, revision + 1, wanted[0]), self.now_ms)
            self.failed += [effect.host for effect in effects if isinstance(effect, MemberFailed)]

    @property
    def members(self) -> tuple[Member, ...]:
        """Of the open chunk."""
        chunk = self.owner.registration.open_chunk
        assert chunk is not None
        return chunk.members

    def append(self) -> None:
        """A batch."""
        self.take(self.owner.append(b"x", 1, self.now_ms))

    def confirm(self, member: Member, epoch: int | None = None) -> None:
        """A member confirms the first batch of a chunk, the open one if no other is named."""
        registration = self.owner.registration
        epoch = registration.epoch if epoch is None else epoch
        chunk = next(chunk for chunk in registration.chunks if chunk.epoch == epoch)
        durable = Prefix.empty(chunk.base_offset).followed_by(b"x", 1)
        self.take(self.owner.receive(AppendDone("s", epoch, member, durable), self.now_ms))

    def pass_time(self, duration_ms: int, until: Callable[[], bool] = lambda: False) -> None:
        """Ticks; what the owner reads of its registration is answered."""
        for _ in range(0, duration_ms, 20):
            if until():
                return
            self.now_ms += 20
            effects = self.owner.tick(self.now_ms)
            self.take(effects)
            if any(isinstance(effect, ReadRegistration) for effect in effects):
                read = RegistrationRead("s", self.owner.revision, self.owner.registration)
                self.take(self.owner.registration_read(read, self.now_ms))


def test_a_member_that_was_given_up_too_early_teaches() -> None:
    """It confirms 800 ms later what it was given up for: the next time it is waited for that long."""
    world = World(2, 1, (C, A))
    world.append()
    epoch = world.owner.registration.epoch
    world.confirm(C)
    world.pass_time(1_000, lambda: bool(world.failed))
    assert (world.failed, world.now_ms, world.members) == (["a"], 320, (C,))
    world.pass_time(480)
    world.take(world.owner.receive(AppendDone("s", epoch, A, Prefix.empty(0).followed_by(b"x", 1)), world.now_ms))
    world.confirm(C)
    world.pass_time(10_000, lambda: A in world.members)
    assert world.members == (C, A)
    world.append()
    world.confirm(C)
    begun_ms = world.now_ms
    world.pass_time(10_000, lambda: len(world.failed) > 1)
    assert TIMES_LONGEST * 780 < world.now_ms - begun_ms <= TIMES_LONGEST * 800 + 20


def test_a_disk_that_hangs_teaches_nothing() -> None:
    """It answers what is sent again, with nothing new: the next time it is given up as early, but for the doubling."""
    world = World(2, 1, (C, A))
    world.append()
    epoch = world.owner.registration.epoch
    world.confirm(C)
    world.pass_time(1_000, lambda: bool(world.failed))
    world.take(world.owner.receive(AppendDone("s", epoch, A, Prefix.empty(0)), world.now_ms))
    world.confirm(C)
    world.pass_time(10_000, lambda: A in world.members)
    world.append()
    world.confirm(C)
    begun_ms = world.now_ms
    world.pass_time(10_000, lambda: len(world.failed) > 1)
    assert world.now_ms - begun_ms == 2 * 300 + 20


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_host_that_is_drained_does_not_stand_in_for_slow_ones(is_slow: bool) -> None:
    """A member that is too slow again and again, and confirms later, is not one that is broken: the drained host would
    get chunks as long as the others are slow, and its drain would not end.
    """
    world = World(2, 1, (C, A, B), Placing(frozenset("b")))
    stood_in = False
    for _ in range(4):
        world.pass_time(60_000, lambda: A in world.members)
        world.append()
        epoch = world.owner.registration.epoch
        world.confirm(C)
        world.pass_time(6_000, lambda: A not in world.members)
        stood_in = stood_in or B in world.members
        for member in world.members:
            world.confirm(member)
        if is_slow:
            late = world.owner.registration.chunk(epoch)
            base_offset = 0 if late is None else late.base_offset
            durable = Prefix.empty(base_offset).followed_by(b"x", 1)
            world.take(world.owner.receive(AppendDone("s", epoch, A, durable), world.now_ms))
    assert world.failed.count("a") == 4
    assert stood_in is not is_slow
