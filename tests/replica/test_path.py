"""The main path step by step, without a network: claim, append, acknowledge; a member fails; a host takes over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.replica.appending import MANY_BYTES, SMALL_BYTES, OwnerLimits
from logstore.replica.effects import Acked, Deposed, Effect, MemberFailed, Ready, Send, StreamUnavailable
from logstore.replica.messages import Append, AppendDone, Fence, FenceDone, OutOfOrder, Reason, Refused
from logstore.replica.owner import Owner
from logstore.replica.owner_states import OwnerState
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import (
    MAX_CHUNKS,
    SPARE_CHUNKS,
    ChunkRegistration,
    Member,
    OwnerId,
    Prefix,
    StreamRegistration,
)

A, B, C, D = Member("a", "1"), Member("b", "2"), Member("c", "3"), Member("d", "4")
LIVE = (A, B, C, D)
NEW = StreamRegistration(3, 2)


class Store:
    """A register, by hand."""

    def __init__(self, registration: StreamRegistration = NEW) -> None:
        self.registration = registration
        self.revision = 1

    def read(self) -> RegistrationRead:
        """The register."""
        return RegistrationRead("s", self.revision, self.registration)

    def swap(self, owner: Owner, effects: list[Effect], now_ms: int = 0) -> list[Effect]:
        """Do the swap among effects, and tell the owner."""
        (swap,) = [effect for effect in effects if isinstance(effect, SwapRegistration)]
        return owner.swap_answered(self.answer(swap), now_ms)

    def answer(self, swap: SwapRegistration) -> SwapAnswer:
        """Do a swap."""
        is_done = swap.expected_revision == self.revision
        if is_done:
            self.registration, self.revision = swap.registration, self.revision + 1
        return SwapAnswer("s", swap.expected_revision, is_done, self.revision, self.registration)


def appends(effects: list[Effect]) -> dict[str, Append]:
    """The appends among effects, by host."""
    return {
        effect.host: effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Append)
    }


def of_kind(effects: list[Effect], kind: type[Effect]) -> list[Effect]:
    """The effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def appending(store: Store, limits: OwnerLimits | None = None) -> Owner:
    """An owner on host a that has opened the first chunk."""
    owner = Owner("s", OwnerId("a", "a.1"), limits)
    assert owner.start(0) == [ReadRegistration("s")]
    owner.live_members(LIVE, 0)
    effects = store.swap(owner, owner.registration_read(store.read(), 0))
    effects = store.swap(owner, effects)
    assert of_kind(effects, Ready) == [Ready("s", 1, 0)]
    return owner


def confirm(
    owner: Owner, members: tuple[Member, ...], durable: Prefix, epoch: int = 1, now_ms: int = 1
) -> list[Effect]:
    """Members confirm a prefix; the effects of the last one."""
    effects: list[Effect] = []
    for member in members:
        effects = owner.receive(AppendDone("s", epoch, member, durable), now_ms)
    return effects


ONE = Prefix.empty(0).followed_by(b"one", 2)
TWO = ONE.followed_by(b"two", 1)


def test_a_batch_is_acknowledged_when_the_last_member_has_it() -> None:
    """The chunk is in the registration before the first append; two of three confirmations acknowledge nothing."""
    store = Store()
    owner = appending(store)
    assert [chunk.members for chunk in store.registration.chunks] == [(A, B, C)]
    sent = appends(owner.append(b"one", 2, 0))
    assert sorted(sent) == ["a", "b", "c"]
    assert (sent["b"].forward, sent["b"].at) == ((), Prefix.empty(0))
    assert of_kind(confirm(owner, (A, B), ONE), Acked) == []
    assert owner.high_watermark == 0
    assert of_kind(confirm(owner, (C,), ONE), Acked) == [Acked("s", 1, 2)]
    assert of_kind(confirm(owner, (C,), ONE), Acked) == []


def test_a_small_batch_that_is_alone_goes_to_all_members_at_once() -> None:
    """This host's own comes last. What is large takes the chain; so does what an acknowledgement lets go together."""
    owner = appending(Store())
    assert list(appends(owner.append(b"one", 2, 0))) == ["b", "c", "a"]
    confirm(owner, (A, B, C), ONE)
    large = bytes(SMALL_BYTES + 1)
    sent = appends(owner.append(large, 1, 0))
    assert (sorted(sent), sent["b"].forward, sent["a"].forward) == (["a", "b"], (C,), ())
    confirm(owner, (A, B, C), ONE.followed_by(large, 1))
    assert sorted(appends(owner.append(bytes(SMALL_BYTES), 1, 0))) == ["a", "b", "c"]


def test_batches_behind_one_that_went_to_all_go_to_all() -> None:
    """Along the chain they would overtake it at the last member. Once one takes the chain, all behind it do, until
    everything is acknowledged.
    """
    owner, end = appending(Store()), Prefix.empty(0)
    small = bytes(SMALL_BYTES)
    for _ in range(MANY_BYTES // SMALL_BYTES):
        assert sorted(appends(owner.append(small, 1, 0))) == ["a", "b", "c"]
        end = end.followed_by(small, 1)
    for data in (b"many", b"bytes"):
        assert sorted(appends(owner.append(data, 1, 0))) == ["a", "b"]
    confirm(owner, (A, B, C), end)
    assert sorted(appends(owner.append(b"behind", 1, 0))) == ["a", "b"]
    for data in (b"many", b"bytes", b"behind"):
        end = end.followed_by(data, 1)
    confirm(owner, (A, B, C), end)
    for data in (b"alone", b"next"):
        assert sorted(appends(owner.append(data, 1, 0))) == ["a", "b", "c"]
    for data in (bytes(SMALL_BYTES + 1), b"behind"):
        assert sorted(appends(owner.append(data, 1, 0))) == ["a", "b"]


def test_members_hear_what_is_acknowledged_with_the_next_batch_or_after_a_while() -> None:
    """A message of its own for each batch would be as many as the batches."""
    owner = appending(Store())
    owner.append(b"one", 2, 0)
    assert appends(confirm(owner, (A, B, C), ONE, now_ms=5)) == {}
    assert not owner.is_at_rest
    assert appends(owner.tick(10)) == {}
    assert {message.acked_bytes for message in appends(owner.append(b"two", 1, 15)).values()} == {3}
    confirm(owner, (A, B, C), TWO, now_ms=20)
    assert appends(owner.tick(20 + owner.limits.tell_ms - 1)) == {}
    told = appends(owner.tick(20 + owner.limits.tell_ms))
    assert {(message.acked_bytes, message.entries) for message in told.values()} == {(6, ())}
    assert owner.is_at_rest


def test_members_hear_at_once_what_is_acknowledged_where_the_owner_has_no_copy() -> None:
    """Readers are served by members then, and these show nothing beyond what they have heard of."""
    store = Store()
    owner = appending(store)
    owner.append(b"one", 2, 0)
    full = owner.receive(Refused("s", 1, A, Reason.DISK_FULL, 0), 1)
    assert sorted(appends(store.swap(owner, full, now_ms=1))) == ["b", "c", "d"]
    told = appends(confirm(owner, (B, C, D), ONE, epoch=2, now_ms=5))
    assert {(message.acked_bytes, message.entries) for message in told.values()} == {(3, ())}


def test_batches_in_flight_are_bounded() -> None:
    """Beyond the bound the log keeps a batch and asks again; one batch always has room."""
    owner = appending(Store(), OwnerLimits(max_in_flight_bytes=5))
    assert owner.may_append(100)
    owner.append(b"one", 2, 0)
    assert not owner.may_append(3)
    with pytest.raises(AssertionError, match="no room for 3 bytes"):
        owner.append(b"two", 1, 0)
    confirm(owner, (A, B, C), ONE)
    assert owner.may_append(3)


def test_a_member_that_is_late_costs_a_roll_and_no_error() -> None:
    """The chunk is sealed at the acknowledged length; the rest goes to the next chunk, at the same offset."""
    store = Store()
    owner = appending(store)
    owner.append(b"one", 2, 0)
    confirm(owner, (A, B, C), ONE)
    owner.append(b"two", 1, 10)
    confirm(owner, (A, B), TWO)
    assert list(appends(owner.tick(100))) == ["c"]
    effects = owner.tick(400)
    assert [failed.host for failed in effects if isinstance(failed, MemberFailed)] == ["c"]
    assert owner.state is OwnerState.ROLLING
    assert of_kind(confirm(owner, (C,), TWO), Acked) == []
    effects = store.swap(owner, effects, 400)
    first, second = store.registration.chunks
    assert (first.end, first.members, second.base_offset, second.members) == (ONE, (A, B, C), 2, (A, B, D))
    sent = appends(effects)
    assert (sent["b"].epoch, sent["b"].at, sent["b"].entries[0].data) == (2, Prefix.empty(2), b"two")
    again = Prefix.empty(2).followed_by(b"two", 1)
    assert of_kind(confirm(owner, (A, B, D), again, epoch=2), Acked) == [Acked("s", 2, 3)]


def test_a_member_that_lags_is_helped_directly() -> None:
    """A chain that is broken in the middle makes nobody fail but the one that is silent."""
    owner = appending(Store())
    owner.append(b"one", 2, 0)
    confirm(owner, (A,), ONE)
    assert list(appends(owner.tick(60))) == ["b", "c"]
    confirm(owner, (C,), ONE)
    failed = [effect.host for effect in owner.tick(400) if isinstance(effect, MemberFailed)]
    assert failed == ["b"]


def test_a_member_says_what_it_lacks() -> None:
    """It gets everything from there on, at once, and not again while that is on its way."""
    owner = appending(Store())
    owner.append(b"one", 2, 0)
    owner.append(b"two", 1, 0)
    lacking = OutOfOrder("s", 1, C, ONE)
    assert [message.entries[0].data for message in appends(owner.receive(lacking, 100)).values()] == [b"two"]
    assert owner.receive(lacking, 101) == []


def test_too_few_hosts_make_batches_wait() -> None:
    """Without `min_copies` members that are not suspected the chunk stays as it is, and goes on when they are back."""
    owner = appending(Store())
    owner.live_members((A, B, C), 0)
    owner.append(b"one", 2, 0)
    confirm(owner, (A,), ONE)
    assert len(of_kind(owner.tick(400), MemberFailed)) == 2
    assert owner.state is OwnerState.APPENDING
    assert of_kind(confirm(owner, (B, C), ONE), Acked) == [Acked("s", 1, 2)]


def test_a_stream_that_waits_for_hosts_says_so_once() -> None:
    """Not at once, for hosts start one after the other; then with what is missing."""
    owner, pause_ms = appending(Store()), OwnerLimits().suspect_ms
    said = "the next chunk needs 2 hosts, and these can have it: a; "
    said += "start another host, or lower min.insync.replicas of the topic"
    owner.append(b"one", 2, 0)
    confirm(owner, (A,), ONE)
    told = owner.live_members((A,), 0)
    for after in range(1, 5):
        assert [each.reason for each in told if isinstance(each, StreamUnavailable)] == [said] * (after == 2)
        gone = [MemberFailed("s", 1, host, "it is gone") for host in ("b", "c")]
        assert of_kind(told, MemberFailed) == gone * (after == 1)
        told = owner.tick(after * pause_ms)
    assert of_kind(confirm(owner, (B, C), ONE, now_ms=5 * pause_ms), Acked) == [Acked("s", 1, 2)]


def test_fewer_copies_may_be_required_of_a_stream_that_waits() -> None:
    """The topic's setting counts at once, in place of what it was when the stream was made."""
    store = Store()
    owner = appending(store)
    owner.append(b"one", 2, 0)
    confirm(owner, (A,), ONE)
    assert of_kind(owner.live_members((A,), 1), SwapRegistration) == []
    assert owner.require(2, 1) == []
    assert of_kind(store.swap(owner, owner.require(1, 1)), Acked) == []
    chunk = store.registration.open_chunk
    assert chunk is not None
    assert chunk.members == (A,)
    assert owner.require(3, 2) == []
    assert owner.state is OwnerState.APPENDING


def test_a_swap_whose_answer_was_lost_is_recognized() -> None:
    """The repeated swap is refused, and the register holds what was asked for: it was done."""
    store = Store()
    owner = Owner("s", OwnerId("a", "a.1"))
    owner.start(0)
    (swap,) = owner.registration_read(store.read(), 0)
    assert isinstance(swap, SwapRegistration)
    store.answer(swap)
    (repeated,) = owner.tick(60)
    assert repeated == swap
    owner.swap_answered(store.answer(swap), 60)
    assert owner.state is OwnerState.RESTORING


def test_a_repair_that_waits_for_the_store_holds_up_nothing() -> None:
    """The swap of a repair is not answered: what was lost is sent again, and acknowledged."""
    store = Store()
    owner = appending(store)
    owner.append(b"one", 2, 0)
    confirm(owner, (A, B, C), ONE)
    store.swap(owner, owner.receive(Refused("s", 1, C, Reason.DISK_FAILED), 10), 10)
    owner.live_members((A, B, D), 20)
    assert len(of_kind(owner.tick(100), SwapRegistration)) == 1
    owner.append(b"two", 1, 100)
    assert list(appends(owner.tick(200))) == ["a", "b", "d"]
    again = Prefix.empty(2).followed_by(b"two", 1)
    assert of_kind(confirm(owner, (A, B, D), again, epoch=2), Acked) == [Acked("s", 2, 3)]


def test_a_member_that_fails_again_and_again() -> None:
    """It is chosen again after 5 s, 10 s, 20 s, …, ten minutes: a broken disk does not fill the stream with chunks.
    A member that was gone, and one that has not failed for long, begin at 5 s.
    """
    store = Store()
    owner = appending(store)
    owner.live_members((A, B, C), 0)
    now_ms, pauses_ms = 0, []
    for _ in range(10):
        owner.append(b"one", 1, now_ms)
        epoch = owner.registration.epoch
        store.swap(owner, owner.receive(Refused("s", epoch, C, Reason.DISK_FAILED), now_ms), now_ms)
        chunk = owner.registration.open_chunk
        assert chunk is not None
        assert chunk.members == (A, B)
        end = Prefix.empty(chunk.base_offset).followed_by(b"one", 1)
        confirm(owner, (A, B), end, epoch=chunk.epoch, now_ms=now_ms)
        failed_ms = now_ms
        while owner.registration.open_chunk == chunk:
            now_ms += 1_000
            effects = owner.tick(now_ms)
            if of_kind(effects, ReadRegistration):
                effects += owner.registration_read(store.read(), now_ms)
            if of_kind(effects, SwapRegistration):
                store.swap(owner, effects, now_ms)
            assert now_ms < failed_ms + 1_000_000
        pauses_ms.append(now_ms - failed_ms)
    assert pauses_ms == [min(5_000 * 2**number, 600_000) for number in range(10)]


def test_a_takeover_fences_seals_and_goes_on() -> None:
    """The shortest answer is the length; who has not answered may have it; what was acknowledged is below it."""
    store = Store()
    appending(store)
    owner = Owner("s", OwnerId("b", "b.1"))
    owner.start(0)
    owner.live_members((B, C, D), 0)
    fences = store.swap(owner, owner.registration_read(store.read(), 0))
    assert [(send.host, send.message) for send in fences if isinstance(send, Send)] == [
        (member.host, Fence("s", member.disk, 1, 0, 2)) for member in (A, B, C)
    ]
    assert owner.receive(FenceDone("s", 1, B, 2, TWO, 0), 1) == []
    effects = owner.receive(FenceDone("s", 1, C, 2, ONE, 0), 2)  # nobody waits for a, which does not live
    effects = store.swap(owner, effects, 3)
    effects = store.swap(owner, effects, 4)
    assert of_kind(effects, Ready) == [Ready("s", 2, 2)]
    sealed, opened = store.registration.chunks
    assert (sealed.end, sealed.members, sealed.candidates) == (ONE, (B, C), (A,))
    assert (opened.epoch, opened.base_offset, opened.members) == (2, 2, (B, C, D))


def test_a_takeover_waits_for_members_that_live() -> None:
    """A member that lives has 300 ms to answer, so that it is named as a holder. With no answer, nothing is sealed."""
    store = Store()
    appending(store)
    owner = Owner("s", OwnerId("b", "b.1"))
    owner.start(0)
    owner.live_members((A, B, C, D), 0)
    store.swap(owner, owner.registration_read(store.read(), 0))
    assert of_kind(owner.tick(301), SwapRegistration) == []
    assert owner.state is OwnerState.FENCING
    (swap,) = of_kind(owner.receive(FenceDone("s", 1, B, 2, TWO, 0), 302), SwapRegistration)
    assert isinstance(swap, SwapRegistration)
    assert swap.registration.chunks[0].end == TWO

    owner = Owner("s", OwnerId("b", "b.1"))
    owner.start(0)
    owner.live_members((A, B, C, D), 0)
    store.swap(owner, owner.registration_read(store.read(), 0))
    assert owner.receive(FenceDone("s", 1, B, 3, TWO, 0), 1) == []
    assert owner.receive(FenceDone("s", 1, C, 3, ONE, 0), 2) == []
    assert of_kind(owner.receive(FenceDone("s", 1, A, 3, TWO, 0), 3), SwapRegistration) != []


def test_a_member_that_lost_what_it_had_confirmed_does_not_count() -> None:
    """Its length is below what another one knows to be acknowledged: it is neither a holder nor a candidate."""
    store = Store()
    appending(store)
    owner = Owner("s", OwnerId("b", "b.1"))
    owner.start(0)
    store.swap(owner, owner.registration_read(store.read(), 0))
    owner.receive(FenceDone("s", 1, A, 2, Prefix.empty(0), 0), 1)
    owner.receive(FenceDone("s", 1, B, 2, TWO, ONE.length_bytes), 1)
    effects = owner.receive(FenceDone("s", 1, C, 2, TWO, 0), 1)
    assert [failed.host for failed in effects if isinstance(failed, MemberFailed)] == ["a"]
    store.swap(owner, effects, 1)
    assert [(chunk.end, chunk.members, chunk.candidates) for chunk in store.registration.chunks] == [(TWO, (B, C), ())]


@pytest.mark.parametrize("reason", [Reason.WRONG_DISK, Reason.DAMAGED])
def test_a_stream_without_a_whole_copy_never_begins_anew(reason: Reason) -> None:
    """Every member has another disk, or damage: the owner waits, says so once, and the registration
    keeps the chunk.
    """
    store = Store()
    appending(store)
    owner = Owner("s", OwnerId("d", "d.1"))
    owner.start(0)
    owner.live_members((D,), 0)
    store.swap(owner, owner.registration_read(store.read(), 0))
    effects: list[Effect] = []
    for member in (A, B, C):
        disk = member.disk if reason is Reason.DAMAGED else "new"
        effects += owner.receive(Refused("s", 1, Member(member.host, disk), reason), 1)
    (unavailable,) = of_kind(effects, StreamUnavailable)
    assert isinstance(unavailable, StreamUnavailable)
    assert "c (disk 3) has another disk now, or a damaged copy; bring one back" in unavailable.reason
    assert of_kind(owner.tick(10_000), StreamUnavailable) == []
    assert store.registration.open_chunk is not None


@pytest.mark.parametrize("sign", ["append refused", "swap refused", "registration seen"])
def test_a_zombie_finds_out(sign: str) -> None:
    """By a fenced member, by a swap, or by the registration: it is deposed once, and acknowledges nothing any more."""
    store = Store()
    owner = appending(store)
    owner.append(b"one", 2, 0)
    taken = store.registration.claimed(OwnerId("b", "b.1"))
    if sign == "append refused":
        effects = owner.receive(Refused("s", 1, C, Reason.FENCED, 2), 1)
    elif sign == "registration seen":
        effects = owner.registration_read(RegistrationRead("s", store.revision + 1, taken), 1)
    else:
        confirm(owner, (A, B), ONE)
        swap = owner.tick(400)
        store.registration, store.revision = taken, store.revision + 1
        effects = store.swap(owner, swap, 400)
    assert effects == [Deposed("s", 2, 0)]
    assert confirm(owner, (A, B, C), ONE) == []
    assert owner.tick(10_000) == []
    assert not owner.may_append(1)


def test_an_old_refusal_deposes_nobody() -> None:
    """A member that was fenced by this very owner refuses what the owner's predecessor sent: that is no news."""
    owner = appending(Store())
    assert owner.receive(Refused("s", 1, C, Reason.FENCED, 1), 1) == []
    assert owner.state is OwnerState.APPENDING


def test_a_full_chunk_is_rolled_without_sending_twice() -> None:
    """The chunk is drained first: batches behind its end wait for the next one, and are sent once."""
    store = Store()
    owner = appending(store, OwnerLimits(chunk_bytes=3, min_chunk_ms=0))
    owner.append(b"one", 2, 0)
    assert of_kind(owner.tick(0), ReadRegistration)
    owner.registration_read(store.read(), 0)
    assert appends(owner.append(b"two", 1, 0)) == {}
    effects = confirm(owner, (A, B, C), ONE)
    sent = appends(store.swap(owner, effects))
    assert [(message.epoch, message.entries[0].data) for message in sent.values()] == [(2, b"two")] * 3


def test_a_chunk_that_drains_goes_on_when_no_other_may_follow() -> None:
    """A host is lost meanwhile, and a chunk needs more members now than live: batches go into the full chunk, whose
    members live. When the host is back, the chunk is drained again.
    """
    store = Store()
    owner = Owner("s", OwnerId("a", "a.1"), OwnerLimits(chunk_bytes=3, min_chunk_ms=0))
    owner.start(0)
    owner.live_members((A, B), 0)
    store.swap(owner, store.swap(owner, owner.registration_read(store.read(), 0)))
    owner.append(b"one", 2, 0)
    owner.live_members((A, B, C), 0)
    owner.require(3, 0)
    owner.registration_read(store.read(), 0)
    assert appends(owner.append(b"two", 1, 0)) == {}
    sent = appends(owner.live_members((A, B), 0))
    assert [message.entries[0].data for message in sent.values()] == [b"two", b"two"]
    end = ONE.followed_by(b"two", 1)
    assert of_kind(confirm(owner, (A, B), end), Acked)
    assert of_kind(owner.live_members((A, B, C), 400), ReadRegistration)
    store.swap(owner, owner.registration_read(store.read(), 400), 400)
    chunk = owner.registration.open_chunk
    assert chunk is not None
    assert (chunk.epoch, chunk.members) == (2, (A, B, C))


def test_a_full_chunk_goes_on_until_the_metadata_store_answers() -> None:
    """The store is asked once in 300 ms; while it is away, batches go into the full chunk and are acknowledged."""
    store = Store()
    owner = appending(store, OwnerLimits(chunk_bytes=3, min_chunk_ms=0))
    owner.append(b"one", 2, 0)
    end, asked = ONE, len(of_kind(confirm(owner, (A, B, C), ONE, now_ms=0), ReadRegistration))
    for now_ms in range(0, 6_000, 100):
        asked += len(of_kind(owner.tick(now_ms), ReadRegistration))
        assert len(appends(owner.append(b"two", 1, now_ms))) == 3
        end = end.followed_by(b"two", 1)
        confirm(owner, (A, B, C), end, now_ms=now_ms)
    assert (owner.high_watermark, asked) == (62, 20)
    assert not owner.is_at_rest
    store.swap(owner, owner.registration_read(store.read(), 6_000), 6_000)
    assert (owner.state, owner.registration.epoch, owner.acked.length_bytes) == (OwnerState.APPENDING, 2, 0)


def test_a_member_that_fails_while_the_metadata_store_is_away_holds_up_a_full_chunk() -> None:
    """Its chunk cannot end without the store: nothing is acknowledged before the swap is made, and all is then."""
    store = Store()
    owner = appending(store, OwnerLimits(chunk_bytes=3, min_chunk_ms=0))
    owner.append(b"one", 2, 0)
    confirm(owner, (A, B, C), ONE)
    owner.tick(0)
    owner.append(b"two", 1, 10)
    effects = owner.receive(Refused("s", 1, C, Reason.DISK_FAILED), 10)
    assert confirm(owner, (A, B, C), ONE.followed_by(b"two", 1), now_ms=20) == []
    assert (owner.state, owner.high_watermark) == (OwnerState.ROLLING, 2)
    store.swap(owner, effects, 5_000)
    again = Prefix.empty(2).followed_by(b"two", 1)
    assert of_kind(confirm(owner, (A, B, D), again, epoch=2), Acked) == [Acked("s", 2, 3)]


def test_an_answer_tells_nothing_while_a_swap_waits() -> None:
    """A trim that is not answered may have found the store away since: the full chunk is not drained behind it. The
    answer to the trim lets it be drained.
    """
    store = Store()
    owner = appending(store, OwnerLimits(chunk_bytes=3, min_chunk_ms=0))
    owner.append(b"one", 2, 0)
    confirm(owner, (A, B, C), ONE)
    trim = owner.trim(1, 0, keeps_last=True)
    owner.registration_read(store.read(), 0)
    assert len(appends(owner.append(b"two", 1, 0))) == 3
    store.swap(owner, trim, 300)
    assert appends(owner.append(b"three", 1, 300)) == {}


def test_a_chunk_has_a_largest_size() -> None:
    """While the metadata store is away a chunk grows up to its largest size; then batches wait for the next one."""
    store = Store()
    owner = appending(store, OwnerLimits(chunk_bytes=3, largest_chunk_bytes=9, min_chunk_ms=0))
    sent = [len(appends(owner.append(b"one", 1, 0))) for _ in range(5)]
    assert sent == [3, 3, 3, 0, 0]
    end = ONE._replace(next_offset=1).followed_by(b"one", 1).followed_by(b"one", 1)
    store.swap(owner, confirm(owner, (A, B, C), end))
    assert (owner.state, owner.waiting_batches) == (OwnerState.APPENDING, 2)


def sealed_chunks(number: int) -> StreamRegistration:
    """A registration with so many sealed chunks of one record, and no open one."""
    chunks = tuple(ChunkRegistration(each + 1, each, (A, B, C), Prefix(1, each + 1, 0)) for each in range(number))
    return replace(NEW, epoch=number, owner=OwnerId("a", "a.1"), chunks=chunks)


def taking_over(registration: StreamRegistration) -> tuple[Owner, Store, list[Effect]]:
    """A new owner that has claimed the stream, and what it asks for then."""
    store = Store(registration)
    owner = Owner("s", OwnerId("a", "a.2"))
    owner.start(0)
    owner.live_members(LIVE, 0)
    return owner, store, store.swap(owner, owner.registration_read(store.read(), 0))


def test_a_registration_has_a_bounded_number_of_chunks() -> None:
    """Behind all spare chunks a new owner opens one that takes no batches, and says so once; trims go on, and then the
    stream does. However often owners change, there are no more chunks.
    """
    registration = sealed_chunks(MAX_CHUNKS + SPARE_CHUNKS)
    for number in range(2):
        owner, store, effects = taking_over(registration)
        if number:
            fence = FenceDone("s", registration.chunks[-1].epoch, A, owner.registration.epoch, Prefix.empty(0), 0)
            end = Prefix.empty(registration.chunks[-1].base_offset)
            effects = [
                effect for each in (A, B, C) for effect in owner.receive(replace(fence, member=each, durable=end), 0)
            ]
            effects = store.swap(owner, effects)
        ready = store.swap(owner, effects)
        (unavailable,) = of_kind(ready, StreamUnavailable)
        assert isinstance(unavailable, StreamUnavailable)
        assert f"has {MAX_CHUNKS} chunks" in unavailable.reason
        assert of_kind(owner.tick(1000), StreamUnavailable) == []
        assert appends(owner.append(b"one", 1, 1000)) == {}
        registration = store.registration
        assert len(registration.chunks) == MAX_CHUNKS + SPARE_CHUNKS + 1
    effects = owner.trim(MAX_CHUNKS, 1000, keeps_last=True)
    while owner.state is OwnerState.APPENDING:
        effects = store.swap(owner, effects, 1000)
    assert sorted(appends(store.swap(owner, effects, 1000))) == ["a", "b", "c"]
    assert len(store.registration.chunks) < MAX_CHUNKS


def test_a_stream_at_the_bound_can_be_trimmed_by_a_new_owner() -> None:
    """It opens a chunk beyond the bound; it rolls that chunk when others have gone, and not before."""
    owner, store, effects = taking_over(sealed_chunks(MAX_CHUNKS))
    store.swap(owner, effects)
    assert owner.state is OwnerState.APPENDING
    owner.append(b"one", 2, 0)
    confirm(owner, (A, B, C), Prefix.empty(MAX_CHUNKS).followed_by(b"one", 2), epoch=owner.registration.epoch)
    assert len(of_kind(owner.roll(0), StreamUnavailable)) == 1
    owner.tick(owner.limits.tell_ms + 1)
    assert owner.is_at_rest
    trim = owner.trim(MAX_CHUNKS // 2, 0, keeps_last=True)
    store.swap(owner, store.swap(owner, trim))
    assert (owner.state, owner.registration.epoch) == (OwnerState.APPENDING, MAX_CHUNKS + 2)
