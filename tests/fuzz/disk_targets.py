"""Fuzz targets for what recovery reads: files of a data directory and entries of its ledgers.

Invariant: of each format with a checksum, one target takes bytes as they are, and one puts the checksum right.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from crc32c import crc32c

from logstore.access import ledger as acl_ledger
from logstore.access import quota_ledger
from logstore.epochs import ledger_entries
from logstore.epochs.group_order import GroupOrder, decode_order, encode_order
from logstore.errors import CorruptFile, MalformedRequest, UnknownFormatVersion
from logstore.format import index, journal_block, ledger_frame, quiet_stream, snapshot, staged, tiered_chunk
from logstore.format.batch import intact_run
from logstore.format.epoch_api import TaskOutput
from logstore.format.records import encode_batch
from logstore.kafka.groups import offsets
from logstore.kafka.groups.generations import decode_generation
from logstore.log.reader_entries import ReaderEntry, decode_reader, encode_reader
from logstore.log.replica_chunk import ChunkPrefix, NotedReplica, decode_noted
from tests.fuzz.interface import Target
from tests.fuzz.kafka_targets import RECORDS

KEY: Final = b"journals"
NEWER: Final = (UnknownFormatVersion,)
DAMAGED: Final = (CorruptFile, UnknownFormatVersion)
Decode = Callable[[bytes], object]


def _sealed(call: Decode, head_bytes: int, crc_at: int, data: bytes) -> object:
    """Bytes that pass for a block with a head of this length, whose checksum is at `crc_at` and covers all else."""
    block = bytearray(data.ljust(head_bytes, b"\0"))
    crc = crc32c(block[head_bytes:], crc32c(block[:crc_at]))
    struct.pack_into(">I", block, crc_at, crc)
    return call(bytes(block))


def _index(data: bytes) -> object:
    return index.decode_blocks(data), index.decode_columns(data), index.decode_seal(data)


def _chunk(data: bytes) -> object:
    return intact_run(memoryview(data), 0, len(data), 0, 1 << 40, 1000)


def _journal(data: bytes) -> object:
    return journal_block.scan_blocks(data, KEY), journal_block.begins_with_another_key(data, KEY)


def _ledger(data: bytes) -> object:
    return ledger_frame.scan_frames(data, "topics")


def _changes(data: bytes) -> object:
    return ledger_frame.decode_changes(data)


def _segment(data: bytes) -> object:
    return staged.decode_segment_header(data)


def _quiet(data: bytes) -> object:
    found = quiet_stream.decode_entry(data, "orders-0")
    return snapshot.decode_snapshots(found.producers) if isinstance(found, quiet_stream.QuietStream) else found


def files() -> list[Target]:
    """Chunks, indexes, snapshots of producers, journals, ledgers, staged segments."""
    entry = index.IndexEntry(0, -1, 0, 7, 1)
    blocks = [index.encode_block(index.IndexBlock(100, 3, 5, entries, 9)) for entries in ([entry], [])]
    batch = snapshot.ProducerBatch(0, 2, 0)
    producers = snapshot.encode_snapshot(snapshot.ProducerSnapshot(10, 3, [snapshot.ProducerEntry(1, 0, 5, (batch,))]))
    records = bytes(encode_batch(RECORDS))
    place = journal_block.PartPlace(b"orders.id/0", 0, 0, 0)
    block = journal_block.encode_head(1, 0, [(place, [records])], key=KEY) + records
    opening = journal_block.encode_opening(1, [(2, 64)], key=KEY)
    frame = ledger_frame.encode_frame(ledger_frame.LedgerFrame(ledger_frame.KIND_CHANGES, 0, {"a": b"x", "b": None}))
    attempt = staged.AttemptKey("q", "r", 1, 0, "a")
    segment, _ = staged.encode_segment_header(attempt, position=0, staged_ms=5, parts=(), data=b"")
    formats: tuple[tuple[str, Decode, int, int, tuple[bytes, ...], tuple[type[BaseException], ...]], ...] = (
        ("index", _index, index.BLOCK.size, index.BLOCK.size - 4, tuple(blocks), NEWER),
        ("producers", snapshot.decode_snapshots, snapshot.BLOCK.size, snapshot.BLOCK.size - 4, (producers,), NEWER),
        ("journal", _journal, journal_block.HEAD.size, journal_block.HEAD.size - 4, (opening, block), NEWER),
        ("ledger", _ledger, ledger_frame.FRAME.size, ledger_frame.FRAME.size - 4, (frame,), DAMAGED),
        ("segment", _segment, staged.HEADER_BYTES, staged.HEADER_BYTES - 4, (segment,), DAMAGED),
    )
    found = [Target("chunk-run", _chunk, (), (records, records * 2))]
    for name, call, head, at, seeds, errors in formats:
        found.append(Target(name, call, errors, [*seeds, seeds[0] * 2]))
        found.append(Target(f"{name}-sealed", partial(_sealed, call, head, at), errors, seeds))
    return found


def entries() -> list[Target]:
    """Values of ledgers: epochs, readers, groups, quiet streams, replicas, chunks of the tier."""
    target = ledger_entries.Target("t", "i", 0, 1)
    record = ledger_entries.CommitRecord("q", "r", 1, 2, "{}", (TaskOutput(0, "a", 1),), (target,))
    last = ledger_entries.LastEpoch(2, 5, True, "{}", ("t",))
    order = GroupOrder(target, "q", 2, 1, "{}", ("a",), bytes(encode_batch(RECORDS)), 1)
    stored = tiered_chunk.StoredObject(10, 7)
    chunk = tiered_chunk.TieredChunk(0, 3, 5, 6, "c/t/0", "0" * 16, stored, stored)
    quiet = quiet_stream.QuietStream([quiet_stream.QuietChunk(0, 3, 10, 5, 6, 7, 0)], 0, 5, b"")
    noted = NotedReplica(0, ChunkPrefix(10, 3, 7), is_sealed=True, cut=(1, 2))
    group = b'{"v":1,"type":"consumer","protocol":"range","generation":1,"leader":"m","members":[{"id":"m"}]}'
    tokens = ledger_entries.encode_incarnations(ledger_entries.Incarnations(("a",), 1, 5))
    return [
        Target(
            "commit-record",
            partial(ledger_entries.decode_commit_record, "q"),
            DAMAGED,
            (ledger_entries.encode_commit_record(record),),
        ),
        Target("incarnations", partial(ledger_entries.decode_incarnations, "q"), DAMAGED, (tokens,)),
        Target(
            "last-epoch",
            partial(ledger_entries.decode_last_epoch, "q"),
            DAMAGED,
            (ledger_entries.encode_last_epoch(last),),
        ),
        Target("group-order", decode_order, (MalformedRequest,), (b"".join(map(bytes, encode_order(order))),)),
        Target("reader", partial(decode_reader, "r"), DAMAGED, (encode_reader(ReaderEntry("r", "g", {}, 5)),)),
        Target("generation", lambda data: decode_generation("g", data, (data,)), (), (group,)),
        Target("quiet-stream", _quiet, DAMAGED, (quiet_stream.encode_quiet(quiet), quiet_stream.encode_active(3))),
        Target("replica-note", lambda data: decode_noted(data, "d"), DAMAGED, (noted.encode(),)),
        Target(
            "tiered-chunk",
            lambda data: tiered_chunk.decode_entry(0, data, "ledger"),
            DAMAGED,
            (tiered_chunk.encode_entry(chunk),),
        ),
        *_keys(),
        Target("ledger-changes", _changes, (), (ledger_frame.encode_changes({"a": b"x", "b": None}),)),
    ]


def _keys() -> list[Target]:
    """Entries of ledgers that are their keys, and offsets of groups."""
    quota, offset = b'{"user":"a","client-id":null}', b'{"offset":1,"time":5,"epoch":0}'
    acl = b'[2,"orders",3,"User:a","*",3,3]'
    return [
        Target("acl-key", lambda data: acl_ledger._parse(_text(data)), DAMAGED, (acl,)),
        Target("quota-key", lambda data: quota_ledger._entity(_text(data)), DAMAGED, (quota,)),
        Target("quota", lambda data: quota_ledger._values("k", data), DAMAGED, (b'{"producer_byte_rate":1000.0}',)),
        Target("group-offset", lambda data: offsets._committed("k", data), DAMAGED, (offset,)),
    ]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
