"""Batches of a replicated stream as its owner sends them: with their offsets and leader epochs."""

from __future__ import annotations

from logstore.format.batch import parse_header, patch_base
from logstore.format.control import Begin, End, encode_control
from logstore.format.records import Record, encode_batch
from logstore.format.snapshot import ProducerBatch, ProducerEntry, ProducerSnapshot, encode_snapshot
from logstore.replica.effects import WriteEntries
from logstore.replica.messages import BatchEntry, end_after
from logstore.replica.registrations import Prefix

TOPIC_ID = "0123456789abcdef0123456789abcdef"
STREAM = f"{TOPIC_ID}/0"
FIRST_MS = 1_700_000_000_000


def entry(
    offset: int, epoch: int, *, records: int = 1, value: bytes = b"value", producer: tuple[int, int, int] = (-1, -1, -1)
) -> BatchEntry:
    """One batch that begins at an offset. `producer`: id, epoch, first sequence."""
    rows = [Record(0, FIRST_MS + offset + at, None, value, ()) for at in range(records)]
    producer_id, producer_epoch, sequence = producer
    batch = encode_batch(rows, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)
    patch_base(batch, 0, offset, epoch)
    return BatchEntry(bytes(batch), records)


def group_entry(offset: int, epoch: int, *, batches: int = 1, value: bytes = b"value") -> BatchEntry:
    """An append group that begins at an offset: BEGIN, batches of one record, END."""
    body = b"".join(entry(offset + 1 + number, epoch, value=value).data for number in range(batches))
    begin = encode_control(Begin("query", offset, 1, ("0:a",), len(body), batches), timestamp_ms=FIRST_MS)
    end = encode_control(End("query", offset, 1, b"{}"), timestamp_ms=FIRST_MS)
    patch_base(begin, 0, offset, epoch)
    patch_base(end, 0, offset + 1 + batches, epoch)
    return BatchEntry(bytes(begin) + body + bytes(end), batches + 2)


def founding(base_offset: int, *producer_ids: int) -> bytes:
    """The producers' state as of the start of a chunk."""
    entries = [ProducerEntry(number, 0, FIRST_MS, (ProducerBatch(0, 0, 0),)) for number in producer_ids]
    return encode_snapshot(ProducerSnapshot(0, base_offset, entries))


class ChunkOfOwner:
    """What an owner sends of one chunk."""

    def __init__(self, epoch: int, base_offset: int = 0, stream: str = STREAM) -> None:
        self.stream, self.epoch, self.base_offset = stream, epoch, base_offset
        self.founding = founding(base_offset, 1)
        self.entries: list[BatchEntry] = []
        self.ends = [Prefix.empty(base_offset)]

    @property
    def end(self) -> Prefix:
        """Behind everything that was sent."""
        return self.ends[-1]

    def write(
        self, count: int = 1, *, records: int = 1, value: bytes = b"value", group_batches: int = -1
    ) -> WriteEntries:
        """The next entries; each is a group of so many batches, if `group_batches` is not negative."""
        at, made = self.end, []
        for _ in range(count):
            offset = self.end.next_offset
            if group_batches < 0:
                made.append(entry(offset, self.epoch, records=records, value=value))
            else:
                made.append(group_entry(offset, self.epoch, batches=group_batches, value=value))
            self.entries.append(made[-1])
            self.ends.append(end_after(self.end, (made[-1],)))
        return WriteEntries(self.stream, self.epoch, at, tuple(made), b"" if at.length_bytes else self.founding)


def offsets(entries: tuple[BatchEntry, ...]) -> list[int]:
    """The base offsets of batches."""
    return [parse_header(each.data).base_offset for each in entries]
