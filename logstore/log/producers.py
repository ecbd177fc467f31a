"""Idempotent producers: each batch is appended once and in order, and counts only after it is synced.

Invariants:
* `admit` checks a batch against synced and pending batches; `synced` moves a batch from pending to durable;
  `fail_pending` forgets all pending batches, because the stream fails all appends after a failed sync.
* The duplicate of a pending batch gets the ticket of that batch: both get the same answer at the same time.
* At most `max_producers` are remembered; the one that wrote least recently is evicted first.
* What `load_packed` was given is decoded at the first use: most streams of a sidecar with many are not written to.

Source: KIP-98, KIP-360.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from logstore.errors import InvalidProducerEpoch, OutOfOrderSequence
from logstore.format.batch import BatchHeader
from logstore.format.snapshot import (
    ProducerBatch,
    ProducerEntry,
    ProducerSnapshot,
    decode_snapshots,
    encode_snapshot,
)

REMEMBERED_BATCHES = 5
"""The number of requests that an idempotent client may have in flight."""
_SEQUENCE_MODULUS = 1 << 31

T = TypeVar("T")


class _Pending(NamedTuple, Generic[T]):
    epoch: int
    first_sequence: int
    last_sequence: int
    ticket: T


class Duplicate(NamedTuple, Generic[T]):
    """A batch that is already in the log (`base_offset`) or still pending (`ticket`)."""

    base_offset: int
    ticket: T | None


class ProducerTable(Generic[T]):
    """A stream's state of its idempotent producers. T is the ticket type of pending batches."""

    __slots__ = ("_expired_ms", "_known", "_max_producers", "_packed", "_pending")

    def __init__(self, max_producers: int = 10_000) -> None:
        self._max_producers = max_producers
        self._known: OrderedDict[int, ProducerEntry] | None = None
        self._packed = b""
        self._expired_ms = 0
        self._pending: dict[int, list[_Pending[T]]] = {}

    @property
    def _durable(self) -> OrderedDict[int, ProducerEntry]:
        """The producers with synced batches; made at the first use."""
        known = self._known
        if known is None:
            known = self._known = OrderedDict()
            if self._packed:
                snapshots, _ = decode_snapshots(self._packed)
                self._packed = b""
                self.load(entry for found in snapshots for entry in found.producers)
                self.expire(self._expired_ms)
                known = self._known
        return known

    def admit(self, header: BatchHeader, ticket: T) -> Duplicate[T] | None:
        """Add a batch as pending, or return the batch that it duplicates.

        Raises InvalidProducerEpoch or OutOfOrderSequence, and then changes nothing.
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

    def knows(self, producer_id: int) -> bool:
        """Whether `admit` keeps this producer's batches in order: it has a batch, synced or pending."""
        return producer_id in self._pending or producer_id in self._durable

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
        """Note that a batch is durable at `base_offset`. Recovery also replays batches through this method."""
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

    def replace_tickets(self, fresh: Mapping[T, T]) -> None:
        """Whoever sends a pending batch again gets the new one of its ticket from now on."""
        for producer_id, pending in self._pending.items():
            renewed = (batch._replace(ticket=fresh.get(batch.ticket, batch.ticket)) for batch in pending)
            self._pending[producer_id] = list(renewed)

    def fail_pending(self) -> None:
        """Forget all batches that are not synced."""
        self._pending.clear()

    def expire(self, before_ms: int) -> None:
        """Forget producers that have not written since `before_ms` (wall time)."""
        if self._known is None:
            self._expired_ms = before_ms
            return
        for producer_id in [key for key, entry in self._durable.items() if entry.last_append_ms < before_ms]:
            if producer_id not in self._pending:
                del self._durable[producer_id]

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Start from a snapshot."""
        self._known = OrderedDict((entry.producer_id, entry) for entry in entries)

    def load_packed(self, snapshot: bytes) -> None:
        """Start from an encoded snapshot (`logstore.format.snapshot`; empty: no producers), decoded when it is used."""
        self._known, self._packed = None, snapshot

    def entries(self) -> list[ProducerEntry]:
        """All producers with synced batches, least recently written first."""
        return list(self._durable.values())

    def packed(self, position: int, next_offset: int) -> bytes:
        """An encoded snapshot for `load_packed`, as of a position in the last chunk; empty without producers."""
        if self._known is None:
            return self._packed
        entries = self.entries()
        return encode_snapshot(ProducerSnapshot(position, next_offset, entries)) if entries else b""


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCE_MODULUS
