"""Budgets that all connections share, for bytes of requests and of answers: they bound the memory of all clients.

Invariants: bytes that are taken are given back exactly once; a waiting connection costs nothing and is woken when there
is room. Bytes of a request that was answered while the log still holds its batches are counted until it does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from logstore.log.stream_state import AnsweredEarly, AppendTicket
from logstore.log.tail import LARGE_BYTES


class RequestBudget:
    """Bytes of requests that are being read or handled.

    The limit is soft by one frame per connection: a request that was let in may finish, and no new request gets in.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._freed: trio.Event | None = None
        self._kept: set[AppendTicket] = set()
        """The tickets of batches whose bytes are kept: each counts once, however often it is sent again."""
        self.on_large: Callable[[], None] = _nothing
        """Called when a large request has been counted: others may give way to it."""
        self.kept_bytes = 0
        """Bytes of requests that were answered before their batches were acknowledged."""

    @property
    def used_bytes(self) -> int:
        """Bytes that are taken now."""
        return self._used_bytes

    @property
    def has_room(self) -> bool:
        """Whether another request may be read."""
        return self._used_bytes <= self._limit_bytes

    def take(self, size: int) -> None:
        """Count a request."""
        self._used_bytes += size
        if size >= LARGE_BYTES:
            self.on_large()

    def give(self, size: int) -> None:
        """Give back a request's bytes: the request is done, or the log holds its bytes now."""
        self._used_bytes -= size
        if self._freed is not None and self.has_room:
            self._freed.set()
            self._freed = None

    def keep(self, size: int, tickets: Sequence[AppendTicket]) -> None:
        """A request that was taken is answered before its batches are acknowledged. Its bytes are counted apart until
        all tickets have settled, up to the limit; beyond that they stay with those of unanswered requests.
        """
        present = {_present(ticket) for ticket in tickets}
        fresh = [ticket for ticket in present if not ticket.done and ticket not in self._kept]
        if not fresh:
            self.give(size)
            return
        is_apart = self.kept_bytes + size <= self._limit_bytes
        if is_apart:
            self.kept_bytes += size
            self.give(size)
        self._kept.update(fresh)
        left = set(fresh)
        for ticket in fresh:
            ticket.add_callback(partial(self._let_go, left, size, is_apart=is_apart))

    def _let_go(self, left: set[AppendTicket], size: int, ticket: AppendTicket, *, is_apart: bool) -> None:
        """A batch whose bytes were kept has settled, or has another ticket now."""
        self._kept.discard(ticket)
        left.discard(ticket)
        if isinstance(ticket.error, AnsweredEarly):
            following = _present(ticket)
            self._kept.add(following)
            left.add(following)
            following.add_callback(partial(self._let_go, left, size, is_apart=is_apart))
        if left:
            return
        if is_apart:
            self.kept_bytes -= size
        else:
            self.give(size)

    async def wait_room(self) -> None:
        """Wait until another request may be read."""
        while not self.has_room:
            if self._freed is None:
                self._freed = trio.Event()
            await self._freed.wait()


def _nothing() -> None:
    """Nobody gives way."""


def _present(ticket: AppendTicket) -> AppendTicket:
    """The ticket that a batch has now: it has another one each time that it was answered early."""
    while isinstance(ticket.error, AnsweredEarly):
        ticket = ticket.error.ticket
    return ticket


class AnswerBudget:
    """Bytes of Fetch and scan answers that are read but not sent. Never blocks: when it runs low, answers shrink."""

    MIN_BYTES = 256 * 1024
    """What an answer may have even when the budget is used up: one efficient read."""

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes
        self._waiting_parts = 0
        self.unsent = UnsentBudget(limit_bytes)
        """The budget of all other answers."""

    def begin_wait(self, parts: int, limit: int) -> bool:
        """Whether a request may wait for changes of `parts` partitions, where all waiting requests together have up to
        `limit` partitions. If True, call `end_wait` when the wait has ended.
        """
        if self._waiting_parts + parts > limit:
            return False
        self._waiting_parts += parts
        return True

    def end_wait(self, parts: int) -> None:
        """A request has stopped waiting."""
        self._waiting_parts -= parts

    @property
    def free_bytes(self) -> int:
        """Bytes that are left; negative when many answers have taken MIN_BYTES."""
        return self._free_bytes

    def take(self, wanted_bytes: int) -> int:
        """Reserve up to `wanted_bytes`, at most half of the free bytes (MIN_BYTES if more); returns the number."""
        granted = min(wanted_bytes, max(self.MIN_BYTES, self._free_bytes // 2))
        self._free_bytes -= granted
        return granted

    def give(self, size: int) -> None:
        """Give back reserved bytes, or take (`size` < 0) the bytes of an answer that exceed its reservation."""
        self._free_bytes += size


@dataclass(slots=True, eq=False)
class Unsent:
    """An answer that its client has not received in full. `give_up` ends the connection."""

    give_up: Callable[[], None]
    since_s: float
    """When the client last took bytes of it; before that, when the answer began to wait."""
    size_bytes: int = 0


SETTLING_ROUNDS = 3
"""Rounds of the event loop until every sender whose socket has room has sent."""


class UnsentBudget:
    """Bytes of answers that their clients have not taken, without the bytes that `AnswerBudget` has reserved.

    When they exceed the limit, answers whose clients have taken nothing for SLOW_ANSWER_S are given up, the longest
    waiting first, until an eighth of the limit is free. A client that reads is never given up.
    """

    SLOW_ANSWER_S = 1.0
    FREED_SHARE = 8

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[Unsent, None] = {}
        self._short = trio.Event()
        self.used_bytes = 0

    async def run(self) -> None:
        """While memory is short, look for slow clients again and again; runs until cancelled."""
        while True:
            await self._short.wait()
            # If the event loop stood still, no client was slow: let the senders note first what was taken meanwhile.
            for _ in range(SETTLING_ROUNDS):
                await trio.lowlevel.checkpoint()
            self._give_up_slow()
            if self.used_bytes <= self._limit_bytes:
                self._short = trio.Event()
            else:
                await trio.sleep(self.SLOW_ANSWER_S / 2)

    def begin(self, give_up: Callable[[], None]) -> Unsent:
        """An answer begins to wait."""
        unsent = Unsent(give_up, trio.current_time())
        self._waiting[unsent] = None
        return unsent

    def hold(self, unsent: Unsent, size: int) -> None:
        """Note that `size` bytes of an answer are left: fewer than before if the client took bytes."""
        if unsent not in self._waiting:
            return  # it was given up
        if size < unsent.size_bytes:
            unsent.since_s = trio.current_time()
        self.used_bytes += size - unsent.size_bytes
        unsent.size_bytes = size
        if self.used_bytes > self._limit_bytes:
            self._short.set()

    def end(self, unsent: Unsent) -> None:
        """An answer is sent, or its connection has ended."""
        if unsent in self._waiting:
            del self._waiting[unsent]
            self.used_bytes -= unsent.size_bytes

    def _give_up_slow(self) -> None:
        goal_bytes = self._limit_bytes - self._limit_bytes // self.FREED_SHARE
        latest_s = trio.current_time() - self.SLOW_ANSWER_S
        slow = [unsent for unsent in self._waiting if unsent.since_s <= latest_s]
        for unsent in sorted(slow, key=lambda unsent: unsent.since_s):
            if self.used_bytes <= goal_bytes:
                break
            self.end(unsent)
            unsent.give_up()
