"""Clients' batches that come before a host leads: held for a moment, taken in order, and refused like any others."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from logstore.cluster.streams.early_appends import MAX_BYTES, PATIENCE_S
from logstore.cluster.streams.refusal_window import ON_THE_WAY_S
from logstore.errors import NotEnoughReplicas, NotLeader
from logstore.log.stream_state import AppendTicket
from tests.cluster.support import Front, MemoryOwner


def taking_over() -> Front:
    """A stream that its host has claimed, and does not lead yet."""
    owner = MemoryOwner()
    owner.is_taking_over = True
    return Front(owner)


def error_of(ticket: AppendTicket) -> type[Exception] | None:
    """Of a ticket that has settled."""
    assert ticket.done
    return None if ticket.error is None else type(ticket.error)


async def test_what_comes_early_is_taken_when_the_host_leads(autojump_clock: trio.testing.MockClock) -> None:
    """In order, in front of what comes then, and once if a producer has sent it twice."""
    front = taking_over()
    tickets = [front.append(b"1", producer_id=7, sequence=0), front.append(b"2", producer_id=7, sequence=1)]
    tickets.append(front.append(b"2", producer_id=7, sequence=1))
    (lose_patience,) = front.tasks.waiting
    front.tasks.waiting.clear()
    front.owner.own(front.stream)
    assert not front.owner.window
    await front.tasks.run()
    tickets.append(front.append(b"3"))
    front.owner.ack(3)
    assert front.owner.values == [b"1", b"2", b"3"]
    assert [ticket.result().base_offset for ticket in tickets] == [0, 1, 1, 2]
    await lose_patience()
    assert front.stream.is_leader


async def test_patience_ends_once_in_a_takeover(autojump_clock: trio.testing.MockClock) -> None:
    """What is held then is refused, and what comes later is at once; the next takeover is waited for again."""
    front = taking_over()
    first = front.append(b"1")
    await trio.sleep(PATIENCE_S / 2)
    second = front.append(b"2")
    async with trio.open_nursery() as nursery:
        for work in front.tasks.waiting:
            nursery.start_soon(work)
        front.tasks.waiting.clear()
        await trio.sleep(PATIENCE_S / 4)
        assert not first.done
    assert [error_of(first), error_of(second)] == [NotLeader, NotLeader]
    with pytest.raises(NotLeader):
        front.append(b"3")
    front.stream.deposed(5)
    third = front.append(b"3")
    assert not third.done
    front.stream.deposed(6)
    assert error_of(third) is NotLeader


async def test_patience_with_one_takeover_does_not_end_that_with_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What another takeover holds is not refused when the time of the one before would be over."""
    front = taking_over()
    front.append(b"1")
    async with trio.open_nursery() as nursery:
        for work in front.tasks.waiting:
            nursery.start_soon(work)
        front.tasks.waiting.clear()
        await trio.sleep(PATIENCE_S / 2)
        front.stream.deposed(5)
        second = front.append(b"2")
    assert not second.done


async def test_what_is_held_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """More is refused at once, as on a host that does not lead."""
    front = taking_over()
    held: list[AppendTicket] = []
    with pytest.raises(NotLeader):
        held.extend(front.append(bytes(1 << 20)) for _ in range(MAX_BYTES // (1 << 20) + 1))
    assert len(held) == MAX_BYTES // (1 << 20) - 1
    front.stream.abandon()
    assert all(ticket.error is not None for ticket in held)


async def test_nothing_overtakes_what_was_refused(autojump_clock: trio.testing.MockClock) -> None:
    """A producer's first batch is refused for want of room: the second one, which is smaller, is refused as well, also
    if it comes when the host leads, but was sent before. It would be taken for the first one of a producer that nobody
    knows, and the first one would be out of order for ever; so would batches without numbers be.
    """
    front = taking_over()
    half = bytes(1 << 19)
    held = [front.append(half) for _ in range(MAX_BYTES // len(half) - 1)]
    for sequence, value in enumerate((half, b"small")):
        with pytest.raises(NotLeader):
            front.append(value, producer_id=7, sequence=sequence)
    front.tasks.waiting.clear()
    front.owner.own(front.stream)
    await front.tasks.run()
    for step in (len(held), 0):
        with pytest.raises(NotEnoughReplicas):
            front.append(b"small", producer_id=7, sequence=1)
        with pytest.raises(NotEnoughReplicas):
            front.append(b"small")
        front.owner.ack(step)
    front.clock.advance(round(1000 * ON_THE_WAY_S))
    first = front.append(b"1", producer_id=7, sequence=0)
    front.owner.ack()
    assert [ticket.result().base_offset for ticket in (*held, first)] == list(range(len(held) + 1))
    front.stream.deposed(5)
    assert not front.append(b"2", producer_id=7, sequence=1).done


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_refusal_long_before_the_end_of_a_takeover(
    autojump_clock: trio.testing.MockClock, *, is_late: bool
) -> None:
    """Its client has heard of it by then, and what it sends is taken; not so behind a refusal at the last moment."""
    front = taking_over()
    front.append(b"1")
    (lose_patience,) = front.tasks.waiting
    front.tasks.waiting.clear()
    await lose_patience()
    if not is_late:
        await trio.sleep(2 * ON_THE_WAY_S)
    front.owner.own(front.stream)
    await front.tasks.run()
    if is_late:
        with pytest.raises(NotEnoughReplicas):
            front.append(b"2")
        front.clock.advance(round(2000 * ON_THE_WAY_S))
    assert not front.append(b"1").done


async def test_a_host_that_has_not_claimed_the_stream_holds_nothing() -> None:
    """The client is to ask who leads it."""
    front = taking_over()
    front.owner.is_taking_over = False
    with pytest.raises(NotLeader):
        front.append(b"1")


@pytest.mark.parametrize("is_claimed", [True, False])
async def test_the_first_batch_that_a_takeover_refuses_is_not_overtaken(
    autojump_clock: trio.testing.MockClock, *, is_claimed: bool
) -> None:
    """The client hears late of it, behind answers of other streams: what it has sent behind it waits for that one, also
    long after the host leads. So it does where the host had not heard that it would lead.
    """
    front = taking_over()
    front.owner.is_taking_over = is_claimed
    if is_claimed:
        refused = front.append(b"0", producer_id=9, sequence=0)
        await front.tasks.run()
        assert error_of(refused) is NotLeader
    else:
        with pytest.raises(NotLeader):
            front.append(b"0", producer_id=9, sequence=0)
    with pytest.raises(NotLeader):
        front.append(b"1", producer_id=9, sequence=1)
    front.owner.own(front.stream)
    await front.tasks.run()
    front.clock.advance(round(20_000 * ON_THE_WAY_S))
    with pytest.raises(NotEnoughReplicas, match="just now"):
        front.append(b"2", producer_id=9, sequence=2)
    front.append(b"another", producer_id=8, sequence=0)
    for sequence in range(3):
        front.append(b"%d" % sequence, producer_id=9, sequence=sequence)
    front.owner.ack(4)
    assert front.owner.values == [b"another", b"0", b"1", b"2"]
