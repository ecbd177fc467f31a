"""The repair of a stream's sealed chunks, alone."""

from __future__ import annotations

from logstore.replica.effects import Send
from logstore.replica.messages import CopyChunk
from logstore.replica.registrations import Member, OwnerId, Prefix, StreamRegistration
from logstore.replica.repair import Repair

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
