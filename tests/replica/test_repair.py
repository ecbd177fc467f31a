"""The repair of a stream's sealed chunks, alone."""

from __future__ import annotations

import pytest

from logstore.replica.copy_tokens import CopyGo, CopyTokens, CopyWish
from logstore.replica.effects import Send
from logstore.replica.messages import CopyChunk, CopyDone, CopyProgress, Reason, Refused
from logstore.replica.placing import Placing
from logstore.replica.registrations import Member, OwnerId, Prefix, StreamRegistration
from logstore.replica.repair import GATHER_MS, ORDERS_PER_TIMEOUT, Repair

A, B, C, D = Member("a", "disk1"), Member("b", "disk2"), Member("c", "disk3"), Member("d", "disk4")
TIMEOUT_MS = 1_000


def test_a_target_that_failed_is_forgotten_when_its_chunk_has_its_copies() -> None:
    """A copy fails, and the chunk gets all its members without another one, from a host that comes back: the repair is
    at rest behind the pause of the target that failed. It ticked for ever, and looked at all chunks each time.
    """
    opened = StreamRegistration(2, 1).claimed(OwnerId("a", "a.1")).opened((A, B), 0)
    sealed = opened.rolled(Prefix(100, 10, 7), (A, B), (), (A, C))
    repair = Repair("s", 100, TIMEOUT_MS)
    named = repair.tick(sealed, 1, (A, C, D), 0).wanted
    assert named is not None
    repair.registered(0)
    (order,) = repair.tick(named, 2, (A, C, D), 0).effects
    assert isinstance(order, Send)
    assert isinstance(order.message, CopyChunk)
    live = (A, B, C, D)
    for now_ms in range(TIMEOUT_MS + 100, 2 * TIMEOUT_MS, 100):  # the target says nothing
        registration = named
        if step := repair.tick(named, 2, live, now_ms).wanted:
            registration = step
            break
    repair.registered(2 * TIMEOUT_MS)
    for now_ms in range(2 * TIMEOUT_MS, 4 * TIMEOUT_MS, 100):
        assert repair.tick(registration, 3, live, now_ms).wanted is None
    assert repair.is_at_rest(3, live)


@pytest.mark.parametrize("is_granted", [False, True])
def test_a_copy_that_was_wished_for_is_not_when_its_host_is_back(is_granted: bool) -> None:
    """The stream keeps neither its wish nor a go that has come meanwhile: others wait for the tokens of both hosts."""
    a, b, c, d = (Member(name, f"disk-{name}") for name in "abcd")
    copies = StreamRegistration(3, 2).claimed(OwnerId("a", "a.1")).opened((a, b, c), 0)
    copies = copies.rolled(Prefix(100, 10, 1), (a, b, c), (), (a, b, d))
    tokens = CopyTokens()
    tokens.follow_plan(is_planned=True)
    repair, everybody = Repair("s", 200, 10_000, tokens), (a, b, c, d)
    repair.tick(copies, 1, everybody, 0)
    repair.tick(copies, 1, (a, b, d), 100)
    assert tokens.counts == (0, 1)
    if is_granted:
        wish = tokens.waiting["s"]
        assert tokens.granted("s", CopyGo(wish.epoch, wish.target, wish.sources[0]))
    repair.tick(copies, 1, everybody, 200)
    assert tokens.counts == (0, 0)
    assert repair.is_at_rest(1, everybody)


def test_a_host_that_is_awaited_brings_one_copy_back() -> None:
    """A chunk names it twice, with the disk that it had and with that which it has now, and lacks two copies: one of
    them is made at once.
    """
    chunk = StreamRegistration(4, 2).claimed(OwnerId("a", "a.1")).opened((A, B, C), 0)
    again = Member("c", "disk5")
    registration = chunk.rolled(Prefix(100, 10, 7), (A, B, C), (again,), (A, B, D))
    repair = Repair("s", 100, TIMEOUT_MS)
    repair.placing = Placing(awaited=frozenset("c"))
    wanted = repair.tick(registration, 1, (A, B, D), 0).wanted
    assert wanted is not None
    assert wanted.chunks[0].candidates == (again, D)


class Ordered:
    """A repair that has ordered a copy to `c` at time 0; orders are repeated after RESEND_MS."""

    RESEND_MS = 100

    def __init__(self, tokens: CopyTokens | None = None) -> None:
        self.live = (A, B, C)
        sealed = StreamRegistration(3, 2).claimed(OwnerId("a", "a.1")).opened((A, B), 0)
        sealed = sealed.rolled(Prefix(100, 10, 7), (A, B), (), (A, B))
        self.repair = Repair("s", self.RESEND_MS, TIMEOUT_MS, tokens)
        named = self.repair.tick(sealed, 1, self.live, 0).wanted
        if tokens is not None and named is None:
            tokens.granted("s", CopyGo(1, "c", "a"))
            named = self.repair.tick(sealed, 1, self.live, 0).wanted
        assert named is not None
        self.named = named
        self.repair.registered(0)
        (self.order,) = self.orders(0)

    def orders(self, now_ms: int) -> list[CopyChunk]:
        """What a tick at a time orders."""
        effects = self.repair.tick(self.named, 2, self.live, now_ms).effects
        return [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, CopyChunk)]

    def done(self, now_ms: int) -> None:
        """The target has the whole chunk."""
        self.repair.receive(CopyDone("s", 1, C, self.order.end, self.order.revision), now_ms)

    def registers(self, now_ms: int, *, is_urgent: bool = False) -> bool:
        """Whether a tick at a time registers the copy."""
        return self.repair.tick(self.named, 2, self.live, now_ms, is_urgent=is_urgent).wanted is not None

    def progress(self, now_ms: int) -> None:
        """The target is on its way."""
        self.repair.receive(CopyProgress("s", 1, C, 50, self.order.revision), now_ms)

    @property
    def is_at_rest(self) -> bool:
        """Whether it needs no ticks before `wake_ms`."""
        return self.repair.is_at_rest(2, self.live)


def test_a_copy_that_is_made_costs_its_owner_no_ticks() -> None:
    """The repair names the time at which the order is repeated, later when the target makes progress, and goes on with
    the answer. It had fifty ticks a second for each copy.
    """
    ordered = Ordered()
    assert (ordered.is_at_rest, ordered.repair.wake_ms) == (True, Ordered.RESEND_MS)
    assert ordered.orders(Ordered.RESEND_MS - 1) == []
    assert ordered.orders(Ordered.RESEND_MS) == [ordered.order]
    assert ordered.repair.wake_ms == 2 * Ordered.RESEND_MS
    ordered.progress(150)
    assert (ordered.is_at_rest, ordered.repair.wake_ms) == (True, 150 + TIMEOUT_MS // ORDERS_PER_TIMEOUT)
    assert ordered.orders(150 + TIMEOUT_MS // ORDERS_PER_TIMEOUT) == [ordered.order]
    ordered.done(500)
    assert not ordered.is_at_rest
    assert ordered.registers(500)


def sharing() -> CopyTokens:
    """Tokens by a plan, where another stream wishes for a copy like that of `Ordered`."""
    tokens = CopyTokens()
    tokens.follow_plan(is_planned=True)
    tokens.take("other", CopyWish(1, "c", ("a", "b"), 2, size_bytes=100))
    return tokens


@pytest.mark.parametrize("becomes", ["whole", "given up", "late"])
def test_a_whole_copy_waits_for_those_that_share_its_go(becomes: str) -> None:
    """So that one call of the metadata store registers them all; until they are whole, too, or given up, and for
    GATHER_MS at most. Meanwhile it has no ticks.
    """
    tokens = sharing()
    ordered = Ordered(tokens)
    assert set(tokens.held) == {"s", "other"}
    ordered.done(500)
    assert (ordered.is_at_rest, ordered.repair.wake_ms) == (True, 500 + GATHER_MS)
    assert not ordered.registers(500 + GATHER_MS - 1)
    if becomes == "late":
        assert ordered.registers(500 + GATHER_MS)
        return
    if becomes == "whole":
        tokens.checked("other")
    else:
        tokens.give_back("other")
    assert not ordered.is_at_rest
    assert ordered.registers(501)


def test_a_copy_that_its_stream_waits_for_is_registered_at_once() -> None:
    """Its delay is an outage."""
    ordered = Ordered(sharing())
    ordered.done(500)
    assert not ordered.registers(500)
    assert ordered.registers(501, is_urgent=True)


def test_a_silent_target_is_asked_once_more_before_it_is_given_up() -> None:
    """The time of an owner at rest passes while its host stands still: what the target has said meanwhile is heard
    first. One that says nothing then is given up, and the stream has no copy under way.
    """
    late_ms = 50 * TIMEOUT_MS
    ordered = Ordered()
    assert ordered.orders(late_ms) == [ordered.order]
    ordered.progress(late_ms + 1)
    again_ms = late_ms + 1 + TIMEOUT_MS // ORDERS_PER_TIMEOUT
    assert ordered.orders(again_ms) == [ordered.order], "it was not given up"
    silent_ms = late_ms + 2 + TIMEOUT_MS
    assert ordered.orders(silent_ms) == [ordered.order]
    assert ordered.orders(silent_ms + Ordered.RESEND_MS - 1) == []
    assert ordered.orders(silent_ms + Ordered.RESEND_MS) == []
    assert ordered.repair.wake_ms == silent_ms + Ordered.RESEND_MS + TIMEOUT_MS, "when it may be chosen again"


def test_a_damaged_copy_makes_room_only_where_one_lives_that_is_not() -> None:
    """While the whole one is away, two damaged ones stay: each may have what the other one lacks. When it is back they
    go, one after the other.
    """
    registration = StreamRegistration(3, 2).claimed(OwnerId("a", "a.1")).opened((A, B, C), 0)
    registration = registration.rolled(Prefix(100, 10, 7), (A, B, C), (), (A, B, C))
    repair = Repair("s", 100, TIMEOUT_MS)
    for member in (A, C):
        repair.receive(Refused("s", 1, member, Reason.DAMAGED), 0)
    assert repair.tick(registration, 1, (A, C), 0).wanted is None
    assert repair.is_at_rest(1, (A, C))
    for revision, members in enumerate([(B, C), (B,)], 1):
        dropped = repair.tick(registration, revision, (A, B, C), 10 * revision).wanted
        assert dropped is not None
        assert dropped.chunks[0].members == members
        registration = dropped
        repair.registered(10 * revision)


def test_a_damaged_copy_that_was_not_whole_goes() -> None:
    """A candidate has less than a member, damaged or not: another one is made in its place."""
    registration = StreamRegistration(2, 1).claimed(OwnerId("a", "a.1")).opened((A, B), 0)
    registration = registration.rolled(Prefix(100, 10, 7), (A,), (B,), (A, B))
    repair = Repair("s", 100, TIMEOUT_MS)
    for member in (A, B):
        repair.receive(Refused("s", 1, member, Reason.DAMAGED), 0)
    dropped = repair.tick(registration, 1, (A, B), 0).wanted
    assert dropped is not None
    assert (dropped.chunks[0].members, dropped.chunks[0].candidates) == ((A,), ())
