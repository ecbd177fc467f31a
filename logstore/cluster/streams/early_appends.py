"""Appends of clients that come before this host takes them: it has claimed the stream, and will lead it in a moment.

A client that was told of the new leader sends what waits at once. A refusal would make it pause for a tenth of a second
and longer each time, although the takeover is over in some dozen milliseconds.

Invariants:
* An append is held for PATIENCE_S at most since the first one of this takeover came, and MAX_BYTES are held; then it is
  refused as on any host that does not lead. Nothing of it was appended until it is released.
* Appends are released in the order in which they came, before any other append of clients is taken. Behind one that is
  refused nothing is held in this takeover: what its producer has sent behind it must not overtake it. `end` says for
  how long that may still arrive.
"""

from functools import partial
from typing import Final, NamedTuple, Protocol

import trio

from logstore.cluster.interfaces import Spawn
from logstore.cluster.streams.refusal_window import ON_THE_WAY_S
from logstore.errors import CairnError
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import Ticket

PATIENCE_S: Final = 0.5
"""Takeovers of one stream take less; the answers to what the same client has sent to other streams wait as long."""
MAX_BYTES: Final = 8 << 20
"""As much as a stream lets wait for the members of its chunk."""


class TakeAppend(Protocol):
    """Appends a client's batch, or raises CairnError."""

    def __call__(
        self, records: bytearray | memoryview, /, *, now_ms: int, are_times_checked: bool = False
    ) -> AppendTicket:
        """See ServedStream.append."""


class _Held(NamedTuple):
    """An append, and what its client waits for."""

    records: bytearray | memoryview
    now_ms: int
    are_times_checked: bool
    ticket: AppendTicket


class EarlyAppends:
    """Of one stream; see the module. `take` appends what is released."""

    def __init__(self, take: TakeAppend, spawn: Spawn) -> None:
        self._take = take
        self._spawn = spawn
        self._held: list[_Held] = []
        self._held_bytes = 0
        self._refused_s: float | None = None
        """When an append of this takeover was refused last; None: none was."""
        self._until_s: float | None = None
        """When the patience of this takeover ends; None: no append has come."""

    def hold(
        self, records: bytearray | memoryview, *, now_ms: int, are_times_checked: bool = False
    ) -> AppendTicket | None:
        """Hold an append; None: it is not held, because the patience is over, or too much is held or was sent."""
        now_s = trio.current_time()
        if self._until_s is None:
            self._until_s = now_s + PATIENCE_S
        has_room = self._held_bytes + len(records) <= MAX_BYTES
        if self._refused_s is not None or now_s >= self._until_s or not has_room:
            self._refused_s = now_s
            return None
        ticket: AppendTicket = Ticket()
        self._held.append(_Held(records, now_ms, are_times_checked, ticket))
        self._held_bytes += len(records)
        if len(self._held) == 1:
            self._spawn(partial(self._lose_patience, self._until_s))
        return ticket

    def refused(self) -> None:
        """An append was refused although this host has claimed the stream."""
        self._refused_s = trio.current_time()

    async def _lose_patience(self, until_s: float) -> None:
        await trio.sleep_until(until_s)
        if self._until_s == until_s:
            self._refused_s = trio.current_time()
            self._release()

    def end(self) -> float:
        """The stream is led now, or will not be: what is held is taken, or refused. Returns for how many seconds behind
        the answers to it a batch may arrive that was sent before its client knew of a refusal.
        """
        refused_s, self._refused_s, self._until_s = self._refused_s, None, None
        held = bool(self._held)
        self._release()
        if refused_s is None:
            return 0.0
        return ON_THE_WAY_S if held else max(0.0, refused_s + ON_THE_WAY_S - trio.current_time())

    def _release(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        for append in held:
            try:
                taken = self._take(append.records, now_ms=append.now_ms, are_times_checked=append.are_times_checked)
            except CairnError as error:
                append.ticket.fail(error)
            else:
                taken.add_callback(partial(_pass_on, append.ticket))


def _pass_on(ticket: AppendTicket, taken: AppendTicket) -> None:
    if taken.error is None:
        ticket.succeed(taken.result())
    else:
        ticket.fail(taken.error)
