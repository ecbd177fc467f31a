"""One owner and its repair, message by message: what a takeover seals, and what a repair drops."""

from __future__ import annotations

from collections.abc import Callable
from cProfile import Profile
from dataclasses import replace
from typing import TypeVar

import pytest

from logstore.replica.effects import (
    Effect,
    EnoughMembers,
    MemberFailed,
    Readable,
    Send,
    StreamUnavailable,
    TooFewMembers,
)
from logstore.replica.growths import GATHER_MS, LONGEST_TURN_MS, Growths
from logstore.replica.host_state import HostState
from logstore.replica.messages import Append, AppendDone, CopyChunk, CopyDone, FenceDone, Reason, Refused
from logstore.replica.owner import Owner
from logstore.replica.owner_states import OwnerState
from logstore.replica.placing import Placing
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import (
    MAX_CHUNKS,
    ChunkRegistration,
    Member,
    OwnerId,
    Prefix,
    StreamRegistration,
)
from logstore.replica.repair import Repair, RepairState

A, B, C, D = Member("a", "disk1"), Member("b", "disk2"), Member("c", "disk3"), Member("d", "disk4")
OPENED = StreamRegistration(2, 1).claimed(OwnerId("a", "a.1")).opened((A, B), 0)
HERE = OwnerId("c", "c.1")
T = TypeVar("T")


def fencing(registration: StreamRegistration) -> Owner:
    """An owner that has claimed a stream, and fences its members."""
    owner = Owner("s", HERE)
    owner.live_members((C, A, B), 0)
    owner.start(0)
    owner.registration_read(RegistrationRead("s", 1, registration), 0)
    owner.swap_answered(SwapAnswer("s", 1, True, 2, registration.claimed(HERE)), 0)
    assert owner.state is OwnerState.FENCING
    return owner


def fenced(member: Member, records: int) -> FenceDone:
    """A member's answer: it has so many records."""
    return FenceDone("s", 1, member, 2, Prefix(10 * records, records, records), 0)


def swaps(effects: list[Effect]) -> list[StreamRegistration]:
    """The registrations that are to be swapped in."""
    return [effect.registration for effect in effects if isinstance(effect, SwapRegistration)]


def test_a_copy_that_ends_in_front_of_the_log_start_does_not_count() -> None:
    """Everything below the log start was acknowledged: a member that has less has lost it, and is no holder."""
    owner = fencing(OPENED.trimmed(8, keeps_last=True))
    effects = [*owner.receive(fenced(A, 5), 1), *owner.receive(fenced(B, 8), 2)]
    assert [chunk.members for each in swaps(effects) for chunk in each.chunks] == [(B,)]
    assert [chunk.end for each in swaps(effects) for chunk in each.chunks] == [Prefix(80, 8, 8)]


def test_without_a_copy_up_to_the_log_start_the_stream_waits() -> None:
    """It says which member has what, and does not end its host; a member that has enough lets it go on."""
    owner = fencing(OPENED.trimmed(8, keeps_last=True))
    effects = [*owner.receive(fenced(A, 5), 1), *owner.tick(1_000)]
    assert not swaps(effects)
    (report,) = [effect for effect in effects if isinstance(effect, StreamUnavailable)]
    assert "a (disk disk1) has less than was acknowledged, b (disk disk2) does not answer" in report.reason
    assert len(swaps(owner.receive(fenced(B, 8), 2_000))) == 1


def appending() -> Owner:
    """An owner on host c, with a member on each of three hosts; two are enough."""
    registration = StreamRegistration(3, 2)
    owner = Owner("s", HERE)
    owner.live_members((C, A, B), 0)
    owner.start(0)
    owner.registration_read(RegistrationRead("s", 1, registration), 0)
    claimed = registration.claimed(HERE)
    (opened,) = swaps(owner.swap_answered(SwapAnswer("s", 1, True, 2, claimed), 0))
    owner.swap_answered(SwapAnswer("s", 2, True, 3, opened), 0)
    assert owner.state is OwnerState.APPENDING
    return owner


def refuse(owner: Owner, epoch: int, members: tuple[Member, ...], now_ms: int) -> list[StreamRegistration]:
    """The disks of members take nothing; the registrations that the owner wants then."""
    refusals = (Refused("s", epoch, member, Reason.DISK_FAILED, 0) for member in members)
    return swaps([effect for refused in refusals for effect in owner.receive(refused, now_ms)])


def wait_swap(owner: Owner, begun_ms: int) -> tuple[StreamRegistration, int]:
    """What the owner wants when time passes, and when it does."""
    for now_ms in range(begun_ms, begun_ms + 100 * owner.limits.suspect_ms, 100):
        wanted = swaps(owner.tick(now_ms))
        if wanted:
            return wanted[0], now_ms
    raise AssertionError("it waits for ever")


def test_a_stream_goes_on_when_all_its_members_have_failed() -> None:
    """All disks were full at a time: no member can take the chunk any more, and nobody stands in. When the members are
    no suspects any more, the next chunk is opened with all of them, and what waits is sent there; those that fail again
    are left out for twice as long.
    """
    owner, epoch, now_ms = appending(), 1, 0
    owner.append(b"x" * 100, 1, now_ms)
    for pauses in (1, 2):
        (without_a,) = refuse(owner, epoch, (A,), now_ms)
        owner.swap_answered(SwapAnswer("s", owner.revision, True, owner.revision + 1, without_a), now_ms)
        assert refuse(owner, epoch + 1, (B, C), now_ms) == []
        failed_ms = now_ms
        rolled, now_ms = wait_swap(owner, failed_ms)
        assert pauses * owner.limits.suspect_ms <= now_ms - failed_ms <= pauses * owner.limits.suspect_ms + 200
        epoch += 2
        assert rolled.open_chunk == ChunkRegistration(epoch, 0, (C, A, B))
        sent = owner.swap_answered(SwapAnswer("s", owner.revision, True, owner.revision + 1, rolled), now_ms)
        appends = [each.message for each in sent if isinstance(each, Send) and isinstance(each.message, Append)]
        assert {append.epoch for append in appends} == {epoch}


def sealed(count: int, members: tuple[Member, ...]) -> StreamRegistration:
    """A stream with sealed chunks of ten records, and an open one."""
    chunks = tuple(ChunkRegistration(n + 1, 10 * n, members, Prefix(100, 10 * n + 10, n)) for n in range(count))
    last = ChunkRegistration(count + 1, 10 * count, members)
    return StreamRegistration(2, 1, count + 1, OwnerId("a", "a.1"), (*chunks, last))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_damaged_copy_is_no_reason_to_forget_that_of_a_removed_host(is_damaged: bool) -> None:
    """The copy of a removed host stays registered as long as the others have none that is whole."""
    repair, live = Repair("s", 100, 1_000), (B,)
    repair.placing = Placing(frozenset("a"), frozenset("a"))
    if is_damaged:
        repair.receive(Refused("s", 1, B, Reason.DAMAGED, 0), 0)
    step = repair.tick(sealed(1, (A, B)), 1, live, 0, is_urgent=False)
    assert (step.wanted is None) is is_damaged


def calls(work: Callable[[], T]) -> tuple[T, int]:
    """What work returns, and how many functions it called."""
    profile = Profile(builtins=False)
    result = profile.runcall(work)
    return result, sum(entry.callcount for entry in profile.getstats())


def test_a_roll_costs_the_same_however_many_chunks_there_are() -> None:
    """A repair that has looked at all chunks looks at those that have changed, and at all when other hosts live."""
    registration, repair, live = sealed(MAX_CHUNKS - 2, (A, B)), Repair("s", 100, 1_000), (A, B, C)
    step, count = calls(lambda: repair.tick(registration, 1, live, 0, is_urgent=False))
    assert step.wanted is None
    assert count >= MAX_CHUNKS - 2
    rolled = registration.rolled(Prefix(100, 10 * (MAX_CHUNKS - 1), 7), (A,), (B,), (A, C))
    step, count = calls(lambda: repair.tick(rolled, 2, live, 0, is_urgent=False))
    assert count < 100
    (order,) = [effect.message for effect in step.effects if isinstance(effect, Send)]
    assert isinstance(order, CopyChunk)  # of the chunk that has changed, and lacks a copy
    assert order.epoch == MAX_CHUNKS - 1


def test_all_chunks_are_looked_at_when_hosts_come_or_go() -> None:
    """A chunk in front lacks a copy, though only the last one has changed since the last look."""
    registration, repair = sealed(3, (A, B)), Repair("s", 100, 1_000)
    assert repair.tick(registration, 1, (A, B, C), 0, is_urgent=False).wanted is None
    step = repair.tick(registration.rolled(Prefix(100, 40, 7), (A, C), (), (A, C)), 2, (A, C), 0, is_urgent=False)
    assert step.wanted is not None
    assert [chunk.epoch for chunk in step.wanted.chunks if chunk.candidates == (C,)] == [3]


def test_a_repair_rests_when_another_host_has_the_copy() -> None:
    """A target that has failed may be asked again at a time that the repair names, and costs no tick until then."""
    copies, repair, live = replace(sealed(1, (A, B)), copies=3), Repair("s", 100, 1_000), (A, B, C, D)
    revision, now_ms, targets = 1, 0, []
    while repair.state is not RepairState.IDLE or not repair.is_at_rest(revision, live):
        step = repair.tick(copies, revision, live, now_ms, is_urgent=False)
        if step.wanted is not None:
            copies, revision = step.wanted, revision + 1
            repair.registered(now_ms)
        for order in [effect.message for effect in step.effects if isinstance(effect, Send)]:
            assert isinstance(order, CopyChunk)
            targets.append(order.disk)
            if order.disk == C.disk:
                repair.receive(Refused("s", 1, C, Reason.DISK_FULL, 0), now_ms)
            else:
                repair.receive(CopyDone("s", 1, D, Prefix(100, 10, 0), order.revision), now_ms)
        now_ms += 10
        assert now_ms < 10_000
    assert (targets, repair.wake_ms) == ([C.disk, D.disk], 1_010)
    assert [chunk.members for chunk in copies.chunks if not chunk.is_open] == [(A, B, D)]
    assert repair.tick(copies, revision, live, 1_020, is_urgent=False).wanted is None
    assert (repair.is_at_rest(revision, live), repair.wake_ms) == (True, None)


def test_a_repair_asks_a_target_again_at_the_time_that_it_has_named() -> None:
    """The only host that may get the copy has failed: the repair rests, and goes on with that host later."""
    copies, repair, live = replace(sealed(1, (A, B)), copies=3), Repair("s", 100, 1_000), (A, B, C)
    step = repair.tick(copies, 1, live, 0, is_urgent=False)
    assert step.wanted is not None
    repair.registered(0)
    assert repair.tick(step.wanted, 2, live, 0, is_urgent=False).effects
    repair.receive(Refused("s", 1, C, Reason.DISK_FULL, 0), 0)
    assert not repair.tick(step.wanted, 2, live, 10, is_urgent=False).effects
    assert (repair.is_at_rest(2, live), repair.wake_ms) == (True, 1_000)
    assert repair.tick(step.wanted, 2, live, 1_000, is_urgent=False).effects


def test_an_only_copy_that_is_damaged_costs_no_ticks() -> None:
    """Nothing can be done about it until another member lives: then it is dropped."""
    copies, repair = sealed(1, (A, B)), Repair("s", 100, 1_000)
    repair.tick(copies, 1, (B,), 0, is_urgent=False)
    repair.receive(Refused("s", 1, B, Reason.DAMAGED, 0), 0)
    assert not repair.is_at_rest(1, (B,))
    assert repair.tick(copies, 1, (B,), 10, is_urgent=False).wanted is None
    assert repair.is_at_rest(1, (B,))
    assert not repair.is_at_rest(1, (A, B))
    dropped = repair.tick(copies, 1, (A, B), 20, is_urgent=False).wanted
    assert dropped is not None
    assert dropped.chunks[0].members == (A,)


def test_an_owner_rests_while_a_member_is_not_chosen() -> None:
    """It names the time at which the member may be chosen again, and has nothing to do before."""
    owner, revision = Owner("s", HERE), 1
    owner.start(0)
    owner.live_members((C, A, B), 0)

    def settle(effects: list[Effect]) -> None:
        nonlocal revision
        while wanted := swaps(effects):
            revision += 1
            effects = owner.swap_answered(SwapAnswer("s", revision - 1, True, revision, wanted[0]), 0)

    settle(owner.registration_read(RegistrationRead("s", 1, StreamRegistration(3, 2)), 0))
    owner.append(b"x", 1, 0)
    settle(owner.receive(Refused("s", 1, A, Reason.DISK_FAILED, 0), 0))
    durable, epoch = Prefix.empty(0).followed_by(b"x", 1), owner.registration.epoch
    for member in (C, B):
        owner.receive(AppendDone("s", epoch, member, durable), 0)
    owner.tick(owner.limits.tell_ms)
    assert (owner.is_at_rest, owner.wake_ms) == (True, 5_000)
    assert ReadRegistration("s") in owner.tick(5_000)
    assert not owner.is_at_rest


def test_a_host_that_is_drained_stands_in_for_one_that_fails_again_and_again() -> None:
    """A disk that is full for a moment keeps no host; while it stays full, a chunk has no copy less for the drain."""
    owner, now_ms, revision = Owner("s", HERE), 0, 1
    owner.start(0)
    owner.live_members((C, A, B), 0, Placing(frozenset("b")))
    sets: list[tuple[Member, ...]] = []

    def settle(effects: list[Effect]) -> None:
        """The metadata store makes all swaps, and answers."""
        nonlocal revision
        if any(isinstance(effect, ReadRegistration) for effect in effects):
            effects = owner.registration_read(RegistrationRead("s", revision, owner.registration), now_ms)
        while wanted := swaps(effects):
            revision += 1
            if wanted[0].open_chunk not in (None, owner.registration.open_chunk):
                sets.append(wanted[0].open_chunk.members)
            effects = owner.swap_answered(SwapAnswer("s", revision - 1, True, revision, wanted[0]), now_ms)

    settle(owner.registration_read(RegistrationRead("s", 1, StreamRegistration(2, 1)), 0))
    for _ in range(3):
        settle(owner.append(b"x", 1, now_ms))
        settle(owner.receive(Refused("s", owner.registration.epoch, A, Reason.DISK_FULL, 0), now_ms))
        chunk = owner.registration.open_chunk
        assert chunk is not None
        durable = Prefix.empty(chunk.base_offset).followed_by(b"x", 1)
        for member in chunk.members:
            settle(owner.receive(AppendDone("s", chunk.epoch, member, durable), now_ms))
        while A not in sets[-1]:
            now_ms += 1_000
            settle(owner.tick(now_ms))
    assert sets == [(C, A), (C,), (C, A), (C, B), (C, A), (C, B), (C, A)]


def opened(owner: Owner, registration: StreamRegistration, live: tuple[Member, ...]) -> None:
    """The owner claims a stream, and opens a chunk."""
    owner.live_members(live, 0)
    owner.start(0)
    owner.registration_read(RegistrationRead("s", 1, registration), 0)
    (wanted,) = swaps(owner.swap_answered(SwapAnswer("s", 1, True, 2, registration.claimed(HERE)), 0))
    owner.swap_answered(SwapAnswer("s", 2, True, 3, wanted), 0)
    assert owner.state is OwnerState.APPENDING


def sent_to(effects: list[Effect], member: Member) -> list[Append]:
    """The batches that a member gets directly from the owner."""
    messages = [each.message for each in effects if isinstance(each, Send) and each.host == member.host]
    return [message for message in messages if isinstance(message, Append) and message.entries]


def test_a_disk_that_hangs_for_a_moment_is_not_one_that_is_broken() -> None:
    """Nobody stands in for a member, and its disk hangs. It answers what is sent again, with nothing new, and confirms
    one batch after the other at last. It has failed once, and is told of once: not for ten minutes.
    """
    owner, batches, reports = Owner("s", HERE), 50, list[Effect]()
    opened(owner, StreamRegistration(2, 2), (C, B))
    for _ in range(batches):
        owner.append(b"x", 1, 0)
    owner.receive(AppendDone("s", 1, C, Prefix(batches, batches, 0)), 1)
    for now_ms in range(20, 3_000, 20):
        effects = owner.tick(now_ms)
        for _ in sent_to(effects, B):
            effects = [*effects, *owner.receive(AppendDone("s", 1, B, Prefix.empty(0)), now_ms)]
        reports += [each for each in effects if isinstance(each, MemberFailed)]
    assert len(reports) == 1
    for count in range(1, batches):
        owner.receive(AppendDone("s", 1, B, Prefix(count, count, 0)), 3_000 + 40 * count)
        owner.tick(3_010 + 40 * count)
    (without_b,) = swaps(owner.require(1, 5_010))  # one that was so slow is waited for as long as anybody is
    assert without_b.open_chunk is not None
    assert without_b.open_chunk.members == (C,)
    owner.swap_answered(SwapAnswer("s", owner.revision, True, owner.revision + 1, without_b), 5_010)
    assert owner.wake_ms is not None
    assert owner.wake_ms <= 5_010 + owner.limits.suspect_ms


def test_a_stream_at_its_most_chunks_takes_batches_after_a_trim() -> None:
    """Its last chunk is due, and another one may not follow: whatever the metadata store answers, batches go on."""
    owner = Owner("s", HERE)
    owner.size_chunks(10)
    registration = sealed(MAX_CHUNKS - 1, (C, A))
    opened(owner, replace(registration, chunks=registration.chunks[:-1], epoch=MAX_CHUNKS - 1), (C, A))
    assert len(owner.registration.chunks) == MAX_CHUNKS
    for now_ms in (1_000, 1_010):
        assert sent_to(owner.append(b"x" * 20, 1, now_ms), A)
    (trimmed,) = swaps(owner.trim(5, 1_020, keeps_last=True))
    owner.swap_answered(SwapAnswer("s", 3, True, 4, trimmed), 1_030)
    owner.registration_read(RegistrationRead("s", 4, trimmed), 1_040)
    assert sent_to(owner.append(b"x" * 20, 1, 1_050), A)


def test_a_stream_with_too_few_hosts_holds_up_no_other_one() -> None:
    """It would have more members than now, and may not open a chunk with so few: it takes no turn to do so."""
    shared = HostState()
    owner = Owner("s", HERE, shared=shared)
    opened(owner, StreamRegistration(3, 1), (C,))
    owner.require(3, 10)
    owner.live_members((C, A), 20)
    owner.tick(40)
    assert owner.is_at_rest
    assert shared.growths.take("another", 60)
    owner.live_members((C, A, B), 90)
    shared.growths.leave("another")
    assert ReadRegistration("s") in owner.tick(100)


def test_a_stream_whose_registration_cannot_be_read_holds_up_no_other_one() -> None:
    """It would have more members, and asks for its registration in vain: after a while it is another stream's turn, and
    then its own again.
    """
    woken: list[str] = []
    shared = HostState(growths=Growths(woken.append))
    owner, another = (Owner(name, HERE, shared=shared) for name in ("s", "t"))
    for each in (owner, another):
        opened(each, StreamRegistration(3, 1), (C, A))
    assert ReadRegistration("s") in owner.live_members((C, A, B), 10)
    assert ReadRegistration("t") not in another.live_members((C, A, B), 10 + GATHER_MS + 1)
    now_ms = 100
    while not owner.is_at_rest:
        assert woken == []
        now_ms += 20
        owner.tick(now_ms)
    assert LONGEST_TURN_MS <= now_ms < 2 * LONGEST_TURN_MS
    assert woken == ["t"]
    assert ReadRegistration("t") in another.tick(now_ms)
    while not another.is_at_rest:
        now_ms += 20
        another.tick(now_ms)
    assert ReadRegistration("s") in owner.tick(now_ms)


def test_a_stream_whose_registration_cannot_be_swapped_holds_up_no_other_one() -> None:
    """Its entry was damaged behind the answer with which its chunk could end: the turn is another stream's after a
    while. If the store answers late, it goes on with its members.
    """
    woken: list[str] = []
    shared = HostState(growths=Growths(woken.append))
    owner, another = (Owner(name, HERE, shared=shared) for name in ("s", "t"))
    for each in (owner, another):
        opened(each, StreamRegistration(3, 1), (C, A))
    assert ReadRegistration("s") in owner.live_members((C, A, B), 10)
    assert ReadRegistration("t") not in another.live_members((C, A, B), 10 + GATHER_MS + 1)
    (wanted,) = swaps(owner.registration_read(RegistrationRead("s", owner.revision, owner.registration), 40))
    assert owner.state is OwnerState.ROLLING
    now_ms = 60
    while not woken and now_ms < 2 * LONGEST_TURN_MS:
        now_ms += 20
        owner.tick(now_ms)
    assert woken == ["t"]
    assert now_ms <= LONGEST_TURN_MS + 2 * owner.limits.resend_ms
    assert ReadRegistration("t") in another.tick(now_ms)
    owner.swap_answered(SwapAnswer("s", owner.revision, True, owner.revision + 1, wanted), now_ms)
    assert [chunk.members for chunk in owner.registration.chunks if chunk.is_open] == [(C, A, B)]
    assert shared.growths.has("t")


def told_shortage(effects: list[Effect]) -> list[Effect]:
    """What the owner says of too few members."""
    return [effect for effect in effects if isinstance(effect, TooFewMembers | EnoughMembers)]


def in_need_of_all() -> Owner:
    """An owner on host c whose chunk needs all three hosts, and has them."""
    owner = Owner("s", HERE)
    opened(owner, StreamRegistration(3, 3), (C, A, B))
    owner.live_members((C, A, B), 0)
    return owner


@pytest.mark.parametrize("has_batch", [False, True])
def test_a_stream_with_too_few_members_says_so_and_when_that_ends(*, has_batch: bool) -> None:
    """Not before `short_after_ms`, once, and also where nobody writes; the end is told when the member is back."""
    owner = in_need_of_all()
    after_ms = owner.limits.short_after_ms
    if has_batch:
        owner.append(b"x", 1, 0)
    assert not told_shortage(owner.live_members((C, A), 100) + owner.tick(120))
    assert owner.is_at_rest is not has_batch
    assert owner.wake_ms == 100 + after_ms
    assert not told_shortage(owner.tick(99 + after_ms))
    assert told_shortage(owner.tick(100 + after_ms)) == [TooFewMembers("s", 1, 3)]
    assert not told_shortage(owner.tick(20_000))
    effects = owner.live_members((C, A, B), 30_000)
    if has_batch:
        assert not told_shortage(effects)
        for member in (C, A, B):
            effects += owner.receive(AppendDone("s", 1, member, Prefix(1, 1, 1)), 30_010)
        effects += owner.tick(30_020)
    assert told_shortage(effects) == [EnoughMembers("s")]
    assert not told_shortage(owner.tick(40_000))


def test_readers_may_see_all_when_fewer_members_are_needed() -> None:
    """The new owner had let them see a part; what producers hear follows, as at first, and nothing is said twice."""
    end = Prefix(1, 1, 1)
    registration = StreamRegistration(3, 3, chunks=(ChunkRegistration(1, 0, (C, A), end),), epoch=1)
    owner = Owner("s", HERE)
    owner.live_members((C,), 0)
    owner.start(0)
    owner.registration_read(RegistrationRead("s", 1, registration), 0)
    owner.swap_answered(SwapAnswer("s", 1, True, 2, registration.claimed(HERE)), 0)
    epoch, after_ms = owner.registration.epoch, owner.limits.short_after_ms

    def told(effects: list[Effect]) -> list[Effect]:
        return [effect for effect in effects if isinstance(effect, Readable | TooFewMembers)]

    assert told(owner.tick(after_ms)) == [Readable("s", epoch, 1, False), TooFewMembers("s", epoch, 3)]
    assert not told(owner.tick(2 * after_ms))
    assert told(owner.require(2, 2 * after_ms)) == [Readable("s", epoch, 1, True), TooFewMembers("s", epoch, 2)]
    assert not told(owner.tick(3 * after_ms))


def test_a_short_absence_of_a_member_is_told_to_nobody() -> None:
    """A host that starts again within the bound costs its producers time, and no error."""
    owner = in_need_of_all()
    for begin_ms in range(0, 60_000, 10_000):
        effects = owner.live_members((C, A), begin_ms)
        effects += owner.tick(begin_ms + owner.limits.short_after_ms - 1)
        effects += owner.live_members((C, A, B), begin_ms + owner.limits.short_after_ms)
        assert not told_shortage(effects + owner.tick(begin_ms + owner.limits.short_after_ms + 20))


def test_a_stream_with_a_member_that_hangs_has_too_few() -> None:
    """It lives, and confirms nothing: no batch is acknowledged, whatever its lease says."""
    owner = in_need_of_all()
    owner.append(b"x", 1, 0)
    told: list[tuple[int, Effect]] = []
    for now_ms in range(0, 60_000, 20):
        effects = owner.tick(now_ms)
        for member in (C, A):
            effects += owner.receive(AppendDone("s", 1, member, Prefix(1, 1, 1)), now_ms)
        told += [(now_ms, effect) for effect in told_shortage(effects)]
    ((first_ms, first),) = told
    assert first == TooFewMembers("s", 1, 3)
    assert owner.limits.slow_after_ms < first_ms <= owner.limits.longest_timeout_ms + owner.limits.slow_after_ms + 20
    effects = owner.receive(AppendDone("s", 1, B, Prefix(1, 1, 1)), 60_000)
    assert told_shortage(effects + owner.tick(60_020)) == [EnoughMembers("s")]


@pytest.mark.parametrize("silent_ms", [1_000, 3_300, 9_000])
def test_a_member_that_is_slow_is_told_to_nobody(silent_ms: int) -> None:
    """All hosts live, and one disk confirms nothing for some seconds: producers wait, and hear of no error."""
    owner = in_need_of_all()
    owner.append(b"x", 1, 0)
    effects = list[Effect]()
    for now_ms in range(0, silent_ms, 20):
        effects += owner.tick(now_ms)
        for member in (C, A):
            effects += owner.receive(AppendDone("s", 1, member, Prefix(1, 1, 1)), now_ms)
    effects += owner.receive(AppendDone("s", 1, B, Prefix(1, 1, 1)), silent_ms)
    for now_ms in range(silent_ms, 60_000, 200):
        effects += owner.tick(now_ms)
    assert not told_shortage(effects)
    assert owner.is_at_rest


def test_a_slow_member_that_goes_is_told_when_it_has_gone() -> None:
    """Members were wanting for longer than `short_after_ms` already."""
    owner = in_need_of_all()
    owner.append(b"x", 1, 0)
    effects = [effect for now_ms in range(0, 8_000, 20) for effect in owner.tick(now_ms)]
    assert not told_shortage(effects)
    assert told_shortage(owner.live_members((C, A), 8_000)) == [TooFewMembers("s", 1, 3)]


def test_what_is_needed_is_told_again_when_the_topic_says_another_number() -> None:
    """Producers and operators read the number that counts now."""
    owner = in_need_of_all()
    effects = owner.live_members((C,), 0) + owner.tick(owner.limits.short_after_ms)
    effects += owner.require(2, 20_000) + owner.tick(20_020)
    assert told_shortage(effects) == [TooFewMembers("s", 1, 3), TooFewMembers("s", 1, 2)]
    reasons = [effect.reason for effect in effects if isinstance(effect, StreamUnavailable)]
    assert [reason[:27] for reason in reasons] == ["the next chunk needs 3 host", "the next chunk needs 2 host"]


def test_a_chunk_with_fewer_members_than_the_topic_wants_now_has_too_few() -> None:
    """The setting was raised, and no other host lives; it is over when the next chunk can have all that are wanted."""
    owner = Owner("s", HERE)
    opened(owner, StreamRegistration(3, 1), (C,))
    effects = owner.require(2, 10) + owner.tick(10 + owner.limits.short_after_ms)
    assert told_shortage(effects) == [TooFewMembers("s", 1, 2)]
    assert told_shortage(owner.live_members((C, A), 20_000)) == [EnoughMembers("s")]


def test_too_few_members_are_told_to_the_operator_where_nobody_writes() -> None:
    """A stream that refuses its producers says why, once, and again when it is so anew."""
    owner = in_need_of_all()
    for begin_ms in (0, 100_000):
        effects = owner.live_members((C, A), begin_ms)
        for now_ms in range(begin_ms, begin_ms + 50_000, 1_000):
            effects += owner.tick(now_ms)
        (told,) = [effect for effect in effects if isinstance(effect, StreamUnavailable)]
        assert "needs 3 hosts, and these can have it: c, a; start another host" in told.reason
        assert owner.is_at_rest
        owner.live_members((C, A, B), begin_ms + 50_000)


def test_full_disks_are_no_end_of_a_shortage() -> None:
    """They may have the next chunk, and take nothing of it: producers are told once, and that it is over when what
    waits is acknowledged. A producer that was told of an end each time would send what waits again, and have it twice.
    """

    def answers(epoch: int) -> list[AppendDone | Refused]:
        confirmed = [AppendDone("s", epoch, member, Prefix(1, 1, 1)) for member in (C, B)]
        return [*confirmed, Refused("s", epoch, A, Reason.DISK_FULL, 0)]

    owner, revision, told = in_need_of_all(), 3, list[Effect]()
    owner.append(b"x", 1, 0)
    for now_ms in range(0, 200_000, 100):
        effects = owner.tick(now_ms)
        told += told_shortage(effects)
        if wanted := swaps(effects):
            revision += 1
            told += told_shortage(owner.swap_answered(SwapAnswer("s", revision - 1, True, revision, wanted[0]), now_ms))
        for answer in answers(owner.registration.epoch):
            told += told_shortage(owner.receive(answer, now_ms))
    assert owner.registration.epoch > 3
    assert told == [TooFewMembers("s", 1, 3)]
    owner.receive(AppendDone("s", owner.registration.epoch, A, Prefix(1, 1, 1)), 200_000)
    assert told_shortage(owner.tick(200_020)) == [EnoughMembers("s")]
