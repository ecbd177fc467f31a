"""Idempotent producers: a batch counts once, in order, and only once it is synced.

Invariants:
* `admit` decides against synced and pending batches together; `synced` moves a batch from pending to durable knowledge;
  `fail_pending` forgets everything pending, as the stream fails everything behind a failed sync.
* The duplicate of a pending batch gets that batch's own ticket: it is answered when, and as, the original is.
* At most `max_producers` are remembered; the one that wrote least recently goes first.

Source: KIP-98, KIP-360.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from logstore.errors import InvalidProducerEpoch, OutOfOrderSequence
from logstore.format.batch import BatchHeader
from logstore.format.snapshot import ProducerBatch, ProducerEntry

REMEMBERED_BATCHES = 5
"""As many requests as an idempotent client may have in flight."""
_SEQUENCE_MODULUS = 1 << 31

T = TypeVar("T")


class _Pending(NamedTuple, Generic[T]):
    epoch: int
    first_sequence: int
    last_sequence: int
    ticket: T


class Duplicate(NamedTuple, Generic[T]):
    """A batch that is in the log already (`base_offset`) or on its way there (`ticket`)."""

    base_offset: int
    ticket: T | None


class ProducerTable(Generic[T]):
    """What a stream knows of its idempotent producers. T is the ticket type of pending batches."""

    def __init__(self, max_producers: int = 10_000) -> None:
        self._max_producers = max_producers
        self._durable: OrderedDict[int, ProducerEntry] = OrderedDict()
        self._pending: dict[int, list[_Pending[T]]] = {}

    def admit(self, header: BatchHeader, ticket: T) -> Duplicate[T] | None:
        """Take a batch in as pending, or tell of which batch it is a duplicate.

        Raises InvalidProducerEpoch or OutOfOrderSequence; nothing changes then.
        """
        first = header.base_sequence
        last = _last_sequence(header)
        pending = self._pending.get(header.producer_id, [])
        durable = self._durable.get(header.producer_id)
        if pending or durable is not None:
            epoch = pending[-1].epoch if pending else durable.epoch if durable else -1
            if header.producer_epoch < epoch:
                raise InvalidProducerEpoch(
                    f"producer {header.producer_id} writes with epoch {header.producer_epoch}; {epoch} has been seen"
                )
            if header.producer_epoch == epoch:
                duplicate = self._find_duplicate(header.producer_id, epoch, first, last)
                if duplicate is not None:
                    return duplicate
            self._check_order(header, epoch, durable, pending)
        self._pending.setdefault(header.producer_id, []).append(_Pending(header.producer_epoch, first, last, ticket))
        return None

    def _find_duplicate(self, producer_id: int, epoch: int, first: int, last: int) -> Duplicate[T] | None:
        for batch in self._pending.get(producer_id, ()):
            if (batch.epoch, batch.first_sequence, batch.last_sequence) == (epoch, first, last):
                return Duplicate(-1, batch.ticket)
        durable = self._durable.get(producer_id)
        if durable is not None and durable.epoch == epoch:
            for known in durable.batches:
                if (known.first_sequence, known.last_sequence) == (first, last):
                    return Duplicate(known.base_offset, None)
        return None

    @staticmethod
    def _check_order(
        header: BatchHeader, epoch: int, durable: ProducerEntry | None, pending: "list[_Pending[T]]"
    ) -> None:
        if header.producer_epoch > epoch:
            expected = 0
        elif pending:
            expected = (pending[-1].last_sequence + 1) % _SEQUENCE_MODULUS
        elif durable is not None and durable.batches:
            expected = (durable.batches[-1].last_sequence + 1) % _SEQUENCE_MODULUS
        else:
            return
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} epoch {header.producer_epoch}: sequence {header.base_sequence} "
                f"comes where {expected} is due"
            )

    def synced(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """A batch is durable at `base_offset`: it counts from now on. Also replays batches at recovery."""
        pending = self._pending.get(header.producer_id)
        if pending:
            pending.pop(0)
            if not pending:
                del self._pending[header.producer_id]
        known = self._durable.pop(header.producer_id, None)
        batches = known.batches if known is not None and known.epoch == header.producer_epoch else ()
        batch = ProducerBatch(header.base_sequence, _last_sequence(header), base_offset)
        self._durable[header.producer_id] = ProducerEntry(
            header.producer_id, header.producer_epoch, now_ms, (*batches, batch)[-REMEMBERED_BATCHES:]
        )
        if len(self._durable) > self._max_producers:
            self._durable.popitem(last=False)

    def fail_pending(self) -> None:
        """Forget everything that is not synced."""
        self._pending.clear()

    def expire(self, before_ms: int) -> None:
        """Forget producers that have not written since `before_ms` (wall time)."""
        for producer_id in [key for key, entry in self._durable.items() if entry.last_append_ms < before_ms]:
            if producer_id not in self._pending:
                del self._durable[producer_id]

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Start from a snapshot."""
        self._durable = OrderedDict((entry.producer_id, entry) for entry in entries)

    def entries(self) -> list[ProducerEntry]:
        """All durable knowledge, least recently written first."""
        return list(self._durable.values())


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCE_MODULUS
