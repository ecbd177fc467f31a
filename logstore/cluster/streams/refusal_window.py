"""The time behind a refusal in which batches still arrive that clients have sent before they knew of it.

A stream has refused a batch for want of room, and its client will send it again. What the same client had sent behind
it is on its way: appended now, it would be in front of that batch for good.

Invariants:
* The window is open until what the stream took before the refusal is answered, and for ON_THE_WAY_S more: answers on a
  connection leave in order, so a client hears of the refusal behind those. A refusal in an open window changes nothing,
  so the window ends whatever clients do.
* It concerns batches that no sequence number keeps in order: those without a producer id, and those of producers whom
  the stream does not know. A known producer's batch in the wrong place is OutOfOrderSequence.
* Nobody is told apart: all clients of the stream wait that long, whoever's batch was refused.
"""

from typing import Final

from logstore.base.clock import Clock
from logstore.log.stream_state import AppendTicket

ON_THE_WAY_S: Final = 0.05
"""Longer than a client needs to read an answer; less than clients wait before they send again, 80 ms with defaults."""


class RefusalWindow:
    """Of one stream; see the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awaited: AppendTicket | None = None
        """Of the last batch that the stream took before the refusal, until it settles."""
        self._until_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a batch may have been sent before its client knew of the refusal."""
        return self._awaited is not None or self._clock.monotonic_s() < self._until_s

    def begin(self, last: AppendTicket | None, for_s: float = ON_THE_WAY_S) -> None:
        """A batch was refused. `last`: of the last batch in front of it; None: all in front of it is answered."""
        if self.is_open:
            return
        if last is None:
            self._until_s = self._clock.monotonic_s() + for_s
            return
        self._awaited = last
        last.add_callback(self._note_answered)

    def _note_answered(self, _: AppendTicket) -> None:
        self._awaited = None
        self._until_s = self._clock.monotonic_s() + ON_THE_WAY_S
