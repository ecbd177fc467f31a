"""What an owner notes of chunks in the tier, and what its repair makes of chunks that lie there alone."""

from __future__ import annotations

from logstore.replica.effects import Effect, Send, StreamUnavailable
from logstore.replica.messages import CopyChunk, CopyDone
from logstore.replica.owner import Owner
from logstore.replica.owner_states import OwnerState
from logstore.replica.register import RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import (
    ChunkRegistration,
    Member,
    OwnerId,
    Prefix,
    StreamRegistration,
    TieredCopy,
)
from logstore.replica.repair import Repair

A, B, C = Member("a", "disk1"), Member("b", "disk2"), Member("c", "disk3")
COPY = TieredCopy("0000000001000000", 7, (40, 11), None)
OTHER = COPY._replace(attempt="0000000002000000")


def sealed(count: int, members: tuple[Member, ...] = (A, B)) -> StreamRegistration:
    """A stream with sealed chunks of ten records, and an open one."""
    chunks = tuple(ChunkRegistration(n + 1, 10 * n, members, Prefix(100, 10 * n + 10, n)) for n in range(count))
    last = ChunkRegistration(count + 1, 10 * count, members)
    return StreamRegistration(2, 1, count + 1, OwnerId("a", "a.1"), (*chunks, last))


class DrivenOwner:
    """An owner, and a metadata store that makes swaps when a test says so."""

    def __init__(self, registration: StreamRegistration) -> None:
        self.owner = Owner("s", OwnerId("a", "a.2"))
        self.revision = 1
        self.swap: StreamRegistration | None = None
        self.now_ms = 0
        self.owner.live_members((A, B), 0)
        self.owner.start(0)
        closed = registration.sealed(Prefix(10, registration.chunks[-1].base_offset + 1, 3), (A, B))
        self.take(self.owner.registration_read(RegistrationRead("s", 1, closed), 0))
        while self.owner.state is not OwnerState.APPENDING:
            self.answer()

    def take(self, effects: list[Effect]) -> None:
        """Keep the swap that is asked for."""
        for effect in effects:
            if isinstance(effect, SwapRegistration):
                self.swap = effect.registration

    def answer(self, *, is_done: bool = True) -> None:
        """The metadata store has made the swap, or has another owner's registration."""
        swap, self.swap = self.swap, None
        assert swap is not None
        before, self.revision = self.revision, self.revision + 1
        found = swap if is_done else swap.claimed(OwnerId("b", "b.1"))
        self.take(self.owner.swap_answered(SwapAnswer("s", before, is_done, self.revision, found), self.now_ms))

    def tick(self) -> StreamRegistration | None:
        """The swap that is under way after a tick."""
        self.now_ms += 1
        self.take(self.owner.tick(self.now_ms))
        return self.swap

    def alone(self) -> list[int]:
        """The chunks that the acknowledged registration has in the tier alone."""
        return [chunk.epoch for chunk in self.owner.registration.chunks if chunk.is_tiered_alone]


def test_copies_go_by_a_swap_behind_the_one_that_names_the_objects() -> None:
    """However early the copies are to go: the swap that takes them out follows from what was acknowledged."""
    driven = DrivenOwner(sealed(2))
    driven.owner.trimming.tier.drop_members(100)
    driven.owner.trimming.tier.note(1, COPY)
    first = driven.tick()
    assert first is not None
    assert (first.chunks[0].tiered, first.chunks[0].members) == (COPY, (A, B))
    for _ in range(3):
        assert driven.tick() is first, "nothing else is asked for before the answer"
    driven.answer()
    assert driven.owner.registration == first
    assert driven.swap is not None
    driven.answer()
    assert driven.alone() == [1]
    assert driven.tick() is None
    assert not driven.owner.trimming.is_wanted


def test_an_owner_that_was_replaced_notes_nothing() -> None:
    """Its swap is refused: it is deposed, and no copy goes."""
    driven = DrivenOwner(sealed(2))
    driven.owner.trimming.tier.note(1, COPY)
    driven.owner.trimming.tier.drop_members(100)
    assert driven.tick() is not None
    driven.answer(is_done=False)
    assert driven.owner.state is OwnerState.DEPOSED
    assert driven.tick() is None


def test_a_note_that_comes_too_late_is_forgotten() -> None:
    """A second attempt's, and that of a chunk that was trimmed meanwhile; the owner is at rest then."""
    driven = DrivenOwner(sealed(3))
    driven.owner.trimming.tier.note(1, COPY)
    driven.tick()
    driven.answer()
    driven.owner.trimming.tier.note(1, OTHER)
    assert driven.tick() is None
    assert driven.owner.registration.chunks[0].tiered == COPY
    driven.take(driven.owner.trim(25, driven.now_ms, keeps_last=True))
    driven.owner.trimming.tier.note(2, OTHER)
    driven.answer()
    assert driven.tick() is None
    assert [chunk.tiered for chunk in driven.owner.registration.chunks] == [None] * 3
    assert not driven.owner.trimming.is_wanted


def test_nobody_copies_what_lies_in_the_tier_alone() -> None:
    """A chunk in front without members is left as it is, and no chunk of the tier is called unavailable."""
    registration = sealed(3).with_tiered(1, COPY).without_members(10).with_tiered(2, OTHER)
    repair = Repair("s", 100, 1_000)
    step = repair.tick(registration, 1, (A, B, C), 0)
    assert step.wanted is None
    assert not step.effects
    gone = Repair("s", 100, 1_000).tick(registration, 1, (C,), 0)
    assert [effect.epoch for effect in gone.effects if isinstance(effect, StreamUnavailable)] == [3]


def test_a_copy_under_way_ends_when_the_chunk_lies_in_the_tier_alone() -> None:
    """The target is not made a member, whatever it says; the next chunk gets its copy."""
    registration = sealed(2, (A,)).with_tiered(2, COPY).with_tiered(1, OTHER)
    registration = StreamRegistration(2, 1, 4, OwnerId("a", "a.1"), (
        *registration.chunks[:2], ChunkRegistration(3, 20, (A, B), Prefix(100, 30, 4)), ChunkRegistration(4, 30, (A, B))
    ))  # fmt: skip
    repair, live = Repair("s", 100, 1_000), (A, B)
    named = repair.tick(registration, 1, live, 0).wanted
    assert named is not None
    repair.registered(0)
    (order,) = repair.tick(named, 2, live, 0).effects
    assert isinstance(order, Send)
    assert isinstance(order.message, CopyChunk)
    epoch = order.message.epoch
    alone = named.without_members(20)
    assert alone.chunks[0].is_tiered_alone
    assert alone.chunks[1].is_tiered_alone
    repair.receive(CopyDone("s", epoch, B, order.message.end, order.message.revision), 1)
    step = repair.tick(alone, 3, live, 2)
    assert (step.wanted, step.effects) == (None, ())
    assert repair.is_at_rest(3, live)
