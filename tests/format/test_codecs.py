"""Every decoder of what stands on disk: whole, byte by byte, with trailing data, with every bit flipped.

Bad bytes raise an error of ours or end the readable part; they are never another value than what was written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logstore.epochs.ledger_entries import CommitRecord, Target, decode_commit_record, encode_commit_record
from logstore.errors import CairnError, CorruptBatch, CorruptFile, UnknownFormatVersion, UnsupportedBatchFormat
from logstore.format.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    check_batch,
    empty_batch,
    iterate_batches,
    parse_header,
    patch_base,
    seal_batch,
)
from logstore.format.control import (
    FOOTPRINTS_TYPE,
    PEEK_BYTES,
    Begin,
    ControlRecord,
    End,
    control_type,
    decode_control,
    decode_control_record,
    encode_control,
    encode_control_record,
    known_type,
)
from logstore.format.epoch_api import TaskOutput
from logstore.format.fields import MAX_FIELDS_VALUES
from logstore.format.index import (
    CONTROL_FLAG,
    TYPE_SHIFT,
    UNKNOWN_TIME,
    IndexBlock,
    IndexEntry,
    decode_blocks,
    decode_seal,
    encode_block,
)
from logstore.format.journal_block import (
    VERSION,
    WITH_LEDGER,
    PartPlace,
    encode_head,
    ledger_place,
    scan_blocks,
)
from logstore.format.ledger_frame import (
    KIND_CHANGES,
    KIND_SNAPSHOT,
    LedgerFrame,
    encode_changes,
    encode_frame,
    scan_frames,
)
from logstore.format.records import Record, decode_batch, encode_batch, first_since, iterate_times
from logstore.format.snapshot import ProducerBatch, ProducerEntry, ProducerSnapshot, decode_snapshots, encode_snapshot

RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value", (("h", b"x"), ("empty", None))),
    Record(1, 1_700_000_000_005, None, b""),
    Record(2, 1_699_999_999_990, b"", None),
]
BATCH = bytes(encode_batch(RECORDS, producer_id=7, producer_epoch=2, base_sequence=40))
BEGIN = Begin("query", 3, 2, ("a0", "a1"), 1234, 5)
END = End("query", 3, 2, b"positions")
STATE = ControlRecord(FOOTPRINTS_TYPE, {"query": "query", "epoch": 3, "n": 2}, memoryview(b"columns"))
BLOCK = IndexBlock(
    4096, 17, 1_700_000_000_005, [IndexEntry(0, -1, 0, 0xDEADBEEF, 0), IndexEntry(9, 5, 999, 1, CONTROL_FLAG)], 60_001
)
TYPED_BLOCK = IndexBlock(
    9000, 18, 5, [IndexEntry(17, 5, 4096, 0xDEADBEEF, CONTROL_FLAG | FOOTPRINTS_TYPE << TYPE_SHIFT)]
)
SNAPSHOT = ProducerSnapshot(
    300, 12, (ProducerEntry(7, 2, 99, (ProducerBatch(0, 4, 0), ProducerBatch(5, 5, 5))), ProducerEntry(8, 0, 98, ()))
)
KEY = bytes.fromhex("0123456789abcdef")
PARTS = [
    (PartPlace(b"streams/t.0a/0", 5, 300, 9), b"one batch"),
    (PartPlace(b"streams/t.0a/1", 0, 71, 1), b"two batches"),
]
DECIDED = [PARTS[0], (ledger_place("epochs"), encode_changes({"last/q": b"7", "gone": None}))]
FRAME = LedgerFrame(KIND_SNAPSHOT, 0, {"a": b"1", "ü": b"", "gone": None})


class Codec(NamedTuple):
    """A format: golden bytes, and how one decodes them to a comparable value. None: nothing readable there."""

    name: str
    encoded: bytes
    decode: Callable[[bytes], object]
    value: object
    free_bytes: frozenset[int] = frozenset()
    """Bytes that no checksum covers and that are checked against their neighbours instead (tests/crash)."""


def _first_block(data: bytes) -> object:
    blocks, _ = decode_blocks(data)
    return blocks[0] if blocks else None


def _first_snapshot(data: bytes) -> object:
    snapshots, _ = decode_snapshots(data)
    return ProducerSnapshot(*snapshots[0][:2], tuple(snapshots[0].producers)) if snapshots else None


def _first_frame(data: bytes) -> object:
    frames = scan_frames(data, "file").frames
    return frames[0] if frames else None


def journal_block(
    generation: int, position: int, parts: list[tuple[PartPlace, bytes]], *, key: bytes = KEY, version: int = VERSION
) -> bytes:
    """A whole block."""
    head = encode_head(generation, position, [(place, [data]) for place, data in parts], key=key, version=version)
    return head + b"".join(data for _, data in parts)


def _first_parts(data: bytes) -> object:
    return [(part.place, bytes(part.data)) for part in scan_blocks(data, KEY).parts] or None


CODECS = (
    Codec("batch", BATCH, decode_batch, RECORDS, frozenset([*range(8), *range(12, 16)])),
    Codec(
        "begin",
        bytes(encode_control(BEGIN, timestamp_ms=1)),
        decode_control,
        BEGIN,
        frozenset([*range(8), *range(12, 16)]),
    ),
    Codec(
        "end", bytes(encode_control(END, timestamp_ms=1)), decode_control, END, frozenset([*range(8), *range(12, 16)])
    ),
    Codec(
        "footprints",
        bytes(encode_control_record(STATE.kind, STATE.fields, STATE.payload, 1)),
        decode_control_record,
        STATE,
        frozenset([*range(8), *range(12, 16)]),
    ),
    Codec("index block", encode_block(BLOCK), _first_block, BLOCK),
    Codec("index block with types", encode_block(TYPED_BLOCK), _first_block, TYPED_BLOCK),
    Codec("producer snapshot", encode_snapshot(SNAPSHOT), _first_snapshot, SNAPSHOT),
    Codec("ledger frame", encode_frame(FRAME), _first_frame, FRAME),
    Codec("journal block", journal_block(3, 0, PARTS), _first_parts, PARTS),
    Codec("journal block with a decision", journal_block(3, 0, DECIDED, version=WITH_LEDGER), _first_parts, DECIDED),
)

_CONTROL_HEAD = "0000000000000000000000010000000000000001" + "ff" * 14 + "00000001"
GOLDEN = {
    "batch": BATCH.hex(),
    "begin": "0000000000000000000000a00000000002220207ce0020"
    + _CONTROL_HEAD
    + "da0100000008000003e8c40100000000005c"
    + b'{"query":"query","epoch":3,"run":2,"attempts":["a0","a1"],"byte_count":1234,"batch_count":5}'.hex()
    + "00",
    "end": "00000000000000000000006e0000000002309d6d160020"
    + _CONTROL_HEAD
    + "7800000008000003e964000000000023"
    + b'{"query":"query","epoch":3,"run":2}positions'.hex()
    + "00",
    "footprints": "00000000000000000000006a0000000002430667340020"
    + _CONTROL_HEAD
    + "7000000008000003ea5c000000000021"
    + b'{"query":"query","epoch":3,"n":2}columns'.hex()
    + "00",
    "index block with types": "434944580002000000000001"
    "000000000000232800000000000000120000000000000005ffffffffffffffffd4439005"
    "000000000000001100000000000000050000000000001000deadbeef03ea0001",
    "index block": "434944580002000000000002"
    "00000000000010000000000000000011"
    "0000018bcfe56805000000000000ea61df290b56"
    "0000000000000000ffffffffffffffff0000000000000000deadbeef00000000"
    "0000000000000009000000000000000500000000000003e70000000100000001",
    "producer snapshot": "435052440001000000000002"
    "000000000000012c000000000000000c000000487fe6ef86"
    "0000000000000007000200020000000000000063"
    "00000000000000040000000000000000"
    "00000005000000050000000000000005"
    "0000000000000008000000000000000000000062",
    "ledger frame": "434a4e4c000100010000001a0000000000000000c5cb3078"
    "0001000000016131"
    "000200000000c3bc"
    "0004ffffffff676f6e65",
    "journal block": (
        "434a424b000100020000000000000003000000000000000000000058000000140123456789abcdefc12a9fcf000e00000009"
        "0000000000000005000000000000012c000000000000000973747265616d732f742e30612f30000e0000000b000000000000"
        "00000000000000000047000000000000000173747265616d732f742e30612f316f6e6520626174636874776f206261746368"
        "6573"
    ),
    "journal block with a decision": (
        "434a424b000200020000000000000003000000000000000000000057000000200123456789abcdefce843b8b000e00000009"
        "0000000000000005000000000000012c000000000000000973747265616d732f742e30612f30000d00000017000000000000"
        "0000000000000000000000000000000000006c65646765722f65706f6368736f6e652062617463680006000000016c617374"
        "2f71370004ffffffff676f6e65"
    ),
}
"""What each of them is on disk, byte for byte (docs/format.md)."""


def outcome(codec: Codec, data: bytes) -> object:
    """The decoded value; None if the bytes are refused, or nothing readable is there."""
    try:
        return codec.decode(data)
    except CairnError:
        return None


@pytest.fixture(params=CODECS, ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Codec:
    """Each format in turn."""
    assert isinstance(request.param, Codec)
    return request.param


def test_whole(codec: Codec) -> None:
    """What was written reads back."""
    assert codec.decode(codec.encoded) == codec.value


def test_golden_bytes(codec: Codec) -> None:
    """What is written is what the format document says, byte for byte: old data directories stay readable."""
    assert codec.encoded.hex() == GOLDEN[codec.name]


def test_byte_by_byte(codec: Codec) -> None:
    """Every prefix is refused or holds nothing; never an error of another kind, never a wrong value."""
    for length in range(len(codec.encoded)):
        assert outcome(codec, codec.encoded[:length]) is None


@pytest.mark.parametrize("trailing", [b"\0", b"\0" * 100, b"\xff" * 100, b"CIDX", b"CJNL" + b"\0" * 40])
def test_trailing(codec: Codec, trailing: bytes) -> None:
    """Bytes behind the end change nothing in what stands in front of them."""
    assert codec.decode(codec.encoded + trailing) == codec.value


def test_every_bit_flipped(codec: Codec) -> None:
    """A flipped bit under a checksum is refused, wherever it is."""
    for bit in range(len(codec.encoded) * 8):
        if bit // 8 in codec.free_bytes:
            continue
        data = bytearray(codec.encoded)
        data[bit // 8] ^= 0x80 >> bit % 8
        assert outcome(codec, bytes(data)) is None, f"bit {bit % 8} of byte {bit // 8}"


@given(data=st.binary(max_size=300))
def test_noise(data: bytes) -> None:
    """Random bytes are refused with errors of ours, by every decoder."""
    for codec in CODECS:
        outcome(codec, data)


@given(data=st.data())
def test_lies_under_a_right_checksum(data: st.DataObject) -> None:
    """A batch whose checksum is right and whose records are not what they claim is refused; nothing else is raised."""
    batch = bytearray(BATCH)
    at = data.draw(st.integers(CRC_START, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    seal_batch(batch)
    for decode in (decode_batch, decode_control, control_type, decode_control_record):
        with contextlib.suppress(CairnError):
            decode(batch)


# ---- record batches


def test_golden_batch() -> None:
    """The bytes of a batch as Kafka's documentation lays them out, field by field."""
    header = HEADER.unpack_from(BATCH)
    assert BATCH[:8] == bytes(8)
    assert int.from_bytes(BATCH[8:12], "big") == len(BATCH) - 12
    assert BATCH[16] == 2
    assert int.from_bytes(BATCH[17:21], "big") == crc32c(BATCH[21:])
    assert header[6:] == (2, 1_700_000_000_000, 1_700_000_000_005, 7, 2, 40, 3)
    assert BATCH[61:].hex() == (
        "32" "00" "00" "00" "06" "6b6579" "0a" "76616c7565" "04" "02" "68" "02" "78" "0a" "656d707479" "01"
        "0c" "00" "0a" "02" "01" "00" "00"
        "0c" "00" "13" "04" "00" "01" "00"
    )  # fmt: skip


def test_base_offset_and_leader_epoch_are_patched_without_the_checksum() -> None:
    """The eight bytes in front, and the leader epoch, may change; the checksum still holds."""
    batch = bytearray(BATCH)
    patch_base(batch, 0, 1 << 40, 5)
    header = check_batch(batch)
    assert (header.base_offset, header.partition_leader_epoch, header.next_offset) == (1 << 40, 5, (1 << 40) + 3)
    assert [record.offset for record in decode_batch(batch)] == [(1 << 40) + at for at in range(3)]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_named(magic: int) -> None:
    """Message sets of old clients are refused by name, not as damage."""
    batch = bytearray(BATCH)
    batch[16] = magic
    with pytest.raises(UnsupportedBatchFormat, match=str(magic)):
        parse_header(batch)
    with pytest.raises(UnsupportedBatchFormat):
        parse_header(batch[:30])


def test_batches_end_to_end() -> None:
    """A chunk is batches end to end; trailing bytes are damage."""
    data = BATCH * 3
    assert [position for position, _ in iterate_batches(data)] == [0, len(BATCH), 2 * len(BATCH)]
    with pytest.raises(CorruptBatch):
        list(iterate_batches(data + b"\0"))


def test_empty_batch_spans_the_same_offsets() -> None:
    """What stands for a control batch in a fetch has no records and moves readers just as far."""
    header = check_batch(BATCH)
    empty = check_batch(empty_batch(header._replace(base_offset=99)))
    assert (empty.base_offset, empty.next_offset, empty.record_count) == (99, 102, 0)
    assert not empty.is_control
    assert empty.size_bytes == HEADER_BYTES


def test_a_control_batch_without_records_is_damage() -> None:
    """A control batch must have its record: an empty one is refused."""
    header = check_batch(encode_control(END, timestamp_ms=1))
    bare = bytearray(HEADER.pack(*BatchHeader(*header)._replace(record_count=0, batch_length=49)))
    with pytest.raises(CorruptBatch):
        control_type(seal_batch(bare))


@given(
    kind=st.integers(1000, 2**15 - 1),
    fields=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=4),
    tail=st.binary(max_size=20_000),
    timestamp_ms=st.integers(0, 1 << 50),
)
def test_control_records_are_ordinary_records(
    kind: int, fields: dict[str, object], tail: bytes, timestamp_ms: int
) -> None:
    """What is written in one go is what the slow path writes, and reads back; its first bytes tell its type."""
    batch = encode_control_record(kind, fields, tail, timestamp_ms)
    (record,) = decode_batch(batch)
    assert encode_batch([record], control=True) == batch
    assert (record.timestamp, record.headers) == (timestamp_ms, ())
    assert decode_control_record(b"behind" + bytes(batch), 6) == ControlRecord(kind, fields, memoryview(tail))
    assert control_type(batch[:PEEK_BYTES]) == known_type(batch) == kind


@given(data=st.data())
def test_control_lies_under_a_right_checksum(data: st.DataObject) -> None:
    """A control batch whose checksum is right and whose lengths lie is refused with an error of ours, or is another
    record; nothing outside of it is ever looked at.
    """
    batch = bytearray(encode_control_record(STATE.kind, STATE.fields, STATE.payload, 1))
    at = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    seal_batch(batch)
    results: list[ControlRecord | None] = []
    for behind in (b"", b"\xff" * 40):
        try:
            results.append(decode_control_record(bytes(batch) + behind))
        except CairnError:
            results.append(None)
    assert results[0] == results[1]


def test_types_of_what_is_not_ours() -> None:
    """The index notes no type for plain batches, foreign ones, and keys of other versions."""
    assert known_type(BATCH) == 0
    assert known_type(encode_control_record(-5, {}, b"", 1)) == 0
    other = encode_batch([Record(0, 1, b"\0\1\3\xe8", b"")], control=True)
    assert known_type(other) == 0
    assert control_type(other) is None
    with pytest.raises(CorruptBatch, match="another version"):
        decode_control_record(other)


@given(
    values=st.lists(
        st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200), st.integers(-5, 5)),
        min_size=1,
        max_size=20,
    ),
    base=st.integers(0, 1 << 50),
)
def test_records_round_trip(values: list[tuple[bytes | None, bytes | None, int]], base: int) -> None:
    """Any records come back as they were."""
    records = [Record(base + at, 1000 + delta, key, value) for at, (key, value, delta) in enumerate(values)]
    assert decode_batch(encode_batch(records, base_offset=base)) == records


# ---- versions


def _as_next_version(data: bytes, version_at: int, crc_at: int) -> bytes:
    """The same bytes as a later version would have them: the next version, checksum right."""
    changed = bytearray(data)
    changed[version_at + 1] += 1
    crc = crc32c(bytes(changed[crc_at + 4 :]), crc32c(bytes(changed[:crc_at])))
    changed[crc_at : crc_at + 4] = crc.to_bytes(4, "big")
    return bytes(changed)


def test_index_blocks_of_version_1_are_read() -> None:
    """They lack the time of the last append: it is unknown."""
    golden = (
        "43494458000100000000000200000000000010000000000000000011"
        "0000018bcfe56805ee3c346a"
        "0000000000000000ffffffffffffffff0000000000000000deadbeef00000000"
        "0000000000000009000000000000000500000000000003e70000000100000001"
    )
    old = bytes.fromhex(golden)
    blocks, end = decode_blocks(old + encode_block(BLOCK))
    assert (blocks, end) == ([BLOCK._replace(written_ms=UNKNOWN_TIME), BLOCK], len(old) + len(encode_block(BLOCK)))
    sealed = encode_block(BLOCK._replace(entries=[]))
    assert decode_seal(old[-8:] + sealed) == BLOCK._replace(entries=[])
    assert decode_seal(old) is None


def test_unknown_versions_are_named() -> None:
    """Intact data of a newer version is no damage: the error says which version it is."""
    with pytest.raises(UnknownFormatVersion, match="3"):
        decode_blocks(_as_next_version(encode_block(BLOCK), 4, 44))
    with pytest.raises(UnknownFormatVersion, match="2"):
        decode_snapshots(_as_next_version(encode_snapshot(SNAPSHOT), 4, 32))
    with pytest.raises(UnknownFormatVersion, match="2"):
        scan_frames(_as_next_version(encode_frame(FRAME), 4, 20), "file")
    batch = bytearray(encode_control(END, timestamp_ms=1))
    at = bytes(batch).index(b'{"query"') - 6
    batch[at : at + 2] = (1).to_bytes(2, "big")
    with pytest.raises(UnknownFormatVersion, match="1"):
        decode_control(seal_batch(batch))


def test_unknown_control_types_are_somebody_elses() -> None:
    """Kafka's own control records (commit, abort) are skipped, not refused."""
    batch = encode_batch([Record(0, 1, (0).to_bytes(2, "big") + (1).to_bytes(2, "big"), b"\0" * 6)], control=True)
    assert decode_control(batch) is None
    assert control_type(batch) == 1


# ---- sequences of blocks and frames


def test_blocks_end_at_the_first_that_does_not_continue() -> None:
    """An index block that goes back in position or offset ends what is believed."""
    first, second = encode_block(BLOCK), encode_block(BLOCK._replace(durable_end=5000, next_offset=20))
    blocks, end = decode_blocks(first + second + b"CIDX")
    assert ([block.durable_end for block in blocks], end) == ([4096, 5000], len(first) + len(second))
    blocks, end = decode_blocks(second + first)
    assert ([block.durable_end for block in blocks], end) == ([5000], len(second))


def test_a_later_frame_vouches_for_earlier_ones() -> None:
    """Damage in front of an intact frame that says all before it was synced is no torn write: refused by name."""
    first = encode_frame(FRAME)
    second = encode_frame(LedgerFrame(KIND_CHANGES, len(first), {"a": b"2"}))
    scan = scan_frames(first + second + b"torn", "file")
    assert ([frame.kind for frame in scan.frames], scan.end) == ([KIND_SNAPSHOT, KIND_CHANGES], len(first + second))
    assert scan_frames(first + second[:-1], "file").end == len(first)
    damaged = bytearray(first + second)
    damaged[len(first) - 1] ^= 1
    with pytest.raises(CorruptFile, match="file"):
        scan_frames(bytes(damaged), "file")


def test_times_are_those_of_the_records() -> None:
    """A look at offsets and timestamps alone sees what decoding the records does, and stops at a record that lies."""
    batch = bytes(encode_batch(RECORDS, base_offset=41))
    expected = [(record.offset, record.timestamp) for record in decode_batch(batch)]
    records = memoryview(batch)[HEADER_BYTES:]
    assert list(iterate_times(records, parse_header(batch))) == expected
    found = iterate_times(records[: len(records) // 2], parse_header(batch))
    with pytest.raises(CorruptBatch):
        list(found)


def test_times_of_appends_are_the_header_s() -> None:
    """In a batch with LogAppendTime every record has the header's time, whatever it says itself."""
    batch = encode_batch(RECORDS, base_offset=41)
    header = parse_header(batch)
    header = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=77)
    expected = [(41 + number, 77) for number in range(len(RECORDS))]
    assert list(iterate_times(memoryview(batch)[HEADER_BYTES:], header)) == expected


@given(
    deltas=st.lists(st.integers(-10_000, 10_000) | st.integers(-(2**40), 2**40), min_size=1, max_size=20),
    sizes=st.lists(st.integers(0, 200) | st.just(20_000), min_size=20, max_size=20),
    wanted=st.integers(-2, 2),
    offset=st.integers(38, 62),
    cut=st.just(0) | st.integers(0, 300),
    is_append_time=st.booleans(),
    data=st.data(),
)
def test_a_look_up_finds_what_a_walk_over_all_times_does(
    deltas: list[int],
    sizes: list[int],
    wanted: int,
    offset: int,
    cut: int,
    is_append_time: bool,
    data: st.DataObject,
) -> None:
    """Varints of any size, records of any order, from any offset on; bytes that end early are refused by both."""
    at_ms = 1_700_000_000_000
    records = [Record(0, at_ms + delta, None, bytes(size)) for delta, size in zip(deltas, sizes, strict=False)]
    batch = encode_batch(records, base_offset=41)
    header = parse_header(batch)
    if is_append_time:
        header = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_BIT)
    content = memoryview(batch)[HEADER_BYTES : len(batch) - cut]
    time_ms = at_ms + data.draw(st.sampled_from(deltas)) + wanted

    def by_walk() -> tuple[int, int] | None:
        times = iterate_times(content, header)
        return next((found for found in times if found[0] >= offset and found[1] >= time_ms), None)

    try:
        expected = by_walk()
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            first_since(content, header, time_ms, offset)
    else:
        assert first_since(content, header, time_ms, offset) == expected


def test_a_commit_record_of_as_many_values_as_a_request_may_have_is_read_again() -> None:
    """The ledger's form of a commit has more values than the request that it came with, and a query's positions may
    hold commas: what was accepted and stored is read, however many values that makes.
    """
    targets = tuple(Target("topic", "id", number, 0) for number in range(MAX_FIELDS_VALUES // 4))
    record = CommitRecord("query", "run", 1, 1, "," * MAX_FIELDS_VALUES, (TaskOutput(0, "a", 1),), targets)
    assert decode_commit_record("query", encode_commit_record(record)) == record
