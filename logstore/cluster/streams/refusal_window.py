"""The time behind a refusal in which batches still arrive that clients have sent before they knew of it.

A stream has refused a batch for want of room or members, and its client will send it again. What the same client had
sent behind it is on its way: appended now, it would be in front of that batch for good.

Invariants:
* The window is open until what the stream took before the refusal is answered, and for ON_THE_WAY_S more: answers on a
  connection leave in order, so a client hears of the refusal behind those. A refusal in an open window changes nothing,
  so the window ends whatever clients do. While members are wanting everything is refused, and the window ends
  ON_THE_WAY_S behind the last of these refusals.
* It concerns batches that no sequence number keeps in order: those without a producer id, and those of producers whom
  the stream does not know. A known producer's batch in the wrong place is OutOfOrderSequence.
* Nobody is told apart: all clients of the stream wait that long, whoever's batch was refused.
* A producer who has an id, and whom the stream does not know, is told apart: behind its first batch that was refused no
  other one is taken for FIRST_S, unless that one comes again before. That holds for a refusal because this host does
  not lead the stream, too: it may lead it when the next batch comes, and knows then whom the log knows. So nothing
  overtakes a batch that was refused at the end of the window, or whose client hears of it late, behind answers of other
  streams. MAX_FIRST such batches of a stream are known, the newest, and MAX_OF_HOST of all streams of a host: of more
  than these, the stream that has the most forgets its oldest, so that a few streams cost the others nothing.
  Those that are not waited for any more go when another batch comes, or the stream is looked after.
"""

from contextlib import suppress
from typing import Final, NamedTuple

from logstore.base.clock import Clock
from logstore.errors import CorruptBatch, UnsupportedBatchFormat
from logstore.format.batch import BatchHeader, parse_header
from logstore.log.stream_state import AppendTicket

ON_THE_WAY_S: Final = 0.05
"""Longer than a client needs to read an answer; less than clients wait before they send again, 80 ms with defaults."""
FIRST_S: Final = 30.0
"""As long as clients wait for an answer, with defaults: that to a refused batch may wait behind others of the same
connection, of streams that are slow or lack members. A client that gives the batch up goes on in another epoch."""
MAX_FIRST: Final = 1_000
MAX_OF_HOST: Final = 10_000
"""About 4 MB. Producers that are refused by thousands of streams at once send again within a second or two."""


class _FirstRefused(NamedTuple):
    """The first batch of a producer's that was refused: its number, and until when it is waited for."""

    producer_epoch: int
    sequence: int
    until_s: float

    def is_in_front(self, header: BatchHeader, now_s: float) -> bool:
        is_same = now_s < self.until_s and self.producer_epoch == header.producer_epoch
        return is_same and self.sequence < header.base_sequence


class RefusedFirsts:
    """First batches that were refused, of all streams of a host, in the order in which they were."""

    def __init__(self) -> None:
        self._kept: dict[tuple[RefusalWindow, int], None] = {}
        """By the window of a stream and the producer."""
        self._of: dict[RefusalWindow, int] = {}
        self._with: dict[int, dict[RefusalWindow, None]] = {}
        """The windows that have so many, for each number that there is: the one with the most is found at once."""
        self._most = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._kept)

    def add(self, window: "RefusalWindow", producer_id: int) -> None:
        """One more, which `window` keeps. Of more than MAX_OF_HOST those go that are not waited for any more, or else
        the oldest of the stream that has the most.
        """
        self._kept[window, producer_id] = None
        self._count(window, 1)
        if len(self._kept) > MAX_OF_HOST:
            oldest, _ = next(iter(self._kept))
            oldest.tidy()  # its stream may be gone, and nobody look after it
        if len(self._kept) > MAX_OF_HOST:
            next(iter(self._with[self._most])).forget_oldest()

    def discard(self, window: "RefusalWindow", producer_id: int) -> None:
        """It is not waited for any more."""
        del self._kept[window, producer_id]
        self._count(window, -1)

    def _count(self, window: "RefusalWindow", by: int) -> None:
        """A window has one more, or one less."""
        before = self._of.pop(window, 0)
        if before:
            del self._with[before][window]
            if not self._with[before]:
                del self._with[before]
        now = before + by
        if now:
            self._of[window] = now
            self._with.setdefault(now, {})[window] = None
        if now > self._most or self._most not in self._with:
            self._most = now  # if none has the most any more, this window, which had it, has the most still


class RefusalWindow:
    """Of one stream; see the module."""

    def __init__(self, clock: Clock, of_host: RefusedFirsts | None = None) -> None:
        """`of_host`: what the streams of the host share; None: nobody shares anything with this stream."""
        self._clock = clock
        self._of_host = of_host or RefusedFirsts()
        self._awaited: AppendTicket | None = None
        """Of the last batch that the stream took before the refusal, until it settles."""
        self._until_s = 0.0
        self._first: dict[int, _FirstRefused] = {}
        """By producer id."""

    def refuses(self, header: BatchHeader) -> bool:
        """Whether to refuse a batch without a producer id, or of a producer whom the stream does not know."""
        now_s = self._clock.monotonic_s()
        self._forget_old(now_s)
        first = self._first.get(header.producer_id)
        return self.is_open or (first is not None and first.is_in_front(header, now_s))

    def refused(self, header: BatchHeader) -> None:
        """Such a batch was refused."""
        now_s = self._clock.monotonic_s()
        self._forget_old(now_s)
        first = self._first.get(header.producer_id)
        if header.producer_id < 0 or (first is not None and first.is_in_front(header, now_s)):
            return
        self.forget(header.producer_id)
        if len(self._first) >= MAX_FIRST:
            self.forget_oldest()
        self._first[header.producer_id] = _FirstRefused(header.producer_epoch, header.base_sequence, now_s + FIRST_S)
        self._of_host.add(self, header.producer_id)

    def refused_elsewhere(self, records: bytearray | memoryview) -> None:
        """A batch was refused, unchecked, because this host does not lead the stream, or not yet."""
        with suppress(CorruptBatch, UnsupportedBatchFormat):
            self.refused(parse_header(records))

    def taken(self, header: BatchHeader) -> None:
        """Such a batch was taken: its producer is known from now on."""
        self.forget(header.producer_id)

    def forget_oldest(self) -> None:
        """Wait no more for the batch that was refused first."""
        self.forget(next(iter(self._first)))

    def forget(self, producer_id: int) -> None:
        """Wait for no batch of a producer."""
        if self._first.pop(producer_id, None) is not None:
            self._of_host.discard(self, producer_id)

    def tidy(self) -> None:
        """Forget what is not waited for any more."""
        self._forget_old(self._clock.monotonic_s())

    @property
    def first_refused(self) -> int:
        """How many producers' first batches are waited for, or were."""
        return len(self._first)

    def _forget_old(self, now_s: float) -> None:
        """All wait equally long, and the newest is the last: so the oldest ones are in front."""
        while self._first:
            oldest = next(iter(self._first))
            if now_s < self._first[oldest].until_s:
                return
            self.forget(oldest)

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

    def renew(self, header: BatchHeader) -> None:
        """A batch was refused for want of members, and all in front of it is answered: what comes behind the end of
        the want was sent before its client knew, for a while. There is one such refusal for each batch that comes.
        """
        self.refused(header)
        self._until_s = max(self._until_s, self._clock.monotonic_s() + ON_THE_WAY_S)

    def _note_answered(self, _: AppendTicket) -> None:
        self._awaited = None
        self._until_s = self._clock.monotonic_s() + ON_THE_WAY_S
