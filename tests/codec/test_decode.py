"""Decoding what fetches return: whole, torn at every byte, trailing, every bit flipped, and against codecs written by
others.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptBatch, UnsupportedBatchFormat
from logstore.format.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    empty_batch,
    parse_header,
    seal_batch,
)
from logstore.format.control import Begin, encode_control
from logstore.format.records import Record, decode_batch, encode_batch, write_varint
from spe_adapter.codec.compression import ZSTD, compress, decompress
from spe_adapter.codec.decode import Decoder, scan
from tests.codec.batches import EVERYTHING, at_offset, decode, encode_all, sample
from tests.support.limits import PROGRAM_S

TEXTS = st.text(max_size=12).filter(lambda text: "\x00" not in text)
PAYLOADS = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**50),
        PAYLOADS,
        PAYLOADS,
        st.lists(st.tuples(TEXTS, st.none() | st.binary(max_size=20)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=40,
)


def numbered(records: Sequence[Record], base_offset: int) -> list[Record]:
    """Records with the offsets they get."""
    return [record._replace(offset=base_offset + index) for index, record in enumerate(records)]


def test_a_batch_gives_its_records() -> None:
    """Keys, values, nulls, empty fields, headers and timestamps come out as they went in."""
    records, batch = sample()
    assert decode(batch, position=10) == records


def test_a_record_without_headers_has_null_headers() -> None:
    """As in Spark's Kafka source: null, not an empty list."""
    _, batch = sample()
    (rows,) = Decoder("t", 0, with_headers=True).decode(batch, scan(batch, 10), 10, EVERYTHING)
    assert [headers is None for headers in rows.column("headers").to_pylist()] == [True, False, False, True]


@given(RECORDS, st.integers(0, 2**40))
def test_random_records_come_out_as_the_slow_codec_wrote_them(records: list[Record], base_offset: int) -> None:
    """The two decoders agree with each other and with what was written."""
    batch = encode_batch(records, base_offset=base_offset)
    expected = numbered(records, base_offset)
    assert decode_batch(batch) == expected
    assert decode(batch, position=base_offset) == expected


@given(st.lists(RECORDS, min_size=1, max_size=5), st.data())
def test_a_range_gives_exactly_its_records(groups: list[list[Record]], data: st.DataObject) -> None:
    """Batches end to end, fetched from their start, filtered to a range within."""
    whole = bytearray()
    expected: list[Record] = []
    for group in groups:
        whole += encode_batch(group, base_offset=len(expected))
        expected += numbered(group, len(expected))
    first = data.draw(st.integers(0, len(expected)))
    end = data.draw(st.integers(first, len(expected) + 1))
    assert decode(whole, first=first, end=end) == expected[first:end]


def test_torn_at_every_byte() -> None:
    """A fetch may end within a batch: what is whole is read, the rest is left for the next fetch."""
    records, batch = sample()
    following = encode_batch(records, base_offset=14)
    for length in range(len(following)):
        cut = bytes(batch + following[:length])
        assert decode(cut, position=10) == records
        assert scan(cut, 10).next_offset == 14
    assert len(decode(batch + following, position=10)) == 8


def test_bytes_behind_the_last_record_are_refused() -> None:
    """A batch whose length claims more than its records fill is corrupt, though its checksum is right."""
    _, batch = sample()
    with pytest.raises(CorruptBatch, match="behind the last"):
        decode(seal_batch(batch + b"\x00"), position=10)


def test_every_bit_flipped_is_noticed() -> None:
    """No flipped bit that the checksum covers, or that makes length or magic wrong, ever changes what is read."""
    records, batch = sample()
    for bit in range(8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << (bit % 8)
        byte = bit // 8
        try:
            found = decode(flipped, position=10)
        except (CorruptBatch, UnsupportedBatchFormat):
            continue
        if byte < 8:  # the base offset is outside the checksum: the log's index guards it
            moved = parse_header(flipped).base_offset >= EVERYTHING
            assert [record[1:] for record in found] == ([] if moved else [record[1:] for record in records])
        elif byte < LENGTH_OVERHEAD:  # a longer length makes the batch look torn
            assert found == []
        else:  # the leader epoch is outside the checksum, and nothing is read from it
            assert 12 <= byte < 16
            assert found == records


def test_a_batch_that_goes_back_is_refused() -> None:
    """An offset below where its predecessor ended can only be damage."""
    _, batch = sample()
    with pytest.raises(CorruptBatch, match="expected"):
        decode(batch + batch, position=10)
    with pytest.raises(CorruptBatch, match="expected"):
        decode(batch, position=14)


FLIPS_WITH_VALID_CHECKSUMS = """
import sys
sys.path.insert(0, sys.argv[1])
from logstore.errors import CorruptBatch
from logstore.format.batch import HEADER_BYTES, seal_batch
from logstore.format.records import decode_batch
from tests.codec.batches import decode, sample
_, batch = sample()
kept = refused = 0
for bit in range(8 * 21, 8 * len(batch)):
    flipped = bytearray(batch)
    flipped[bit // 8] ^= 1 << (bit % 8)
    seal_batch(flipped)
    try:
        found = decode(flipped, position=10)
    except CorruptBatch:
        refused += 1
        continue
    kept += 1
    if bit < 8 * HEADER_BYTES or not found:
        continue
    try:
        expected = decode_batch(flipped)
    except CorruptBatch as error:
        assert "UTF-8" in str(error), error
        continue
    assert found == expected, (bit, found, expected)
print("kept", kept, "refused", refused)
"""


def test_hostile_bytes_with_valid_checksums_stay_within_bounds(tmp_path: Path) -> None:
    """With the compiler's bounds checks on: every flipped bit under a valid checksum is refused or read as the slow
    codec does.
    """
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", FLIPS_WITH_VALID_CHECKSUMS, str(root)],
        env=environment, capture_output=True, text=True, check=False, timeout=PROGRAM_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout


def forged(body: bytes, *, count: int = 1, last_delta: int = 0) -> bytearray:
    """A batch with a valid checksum around whatever bytes."""
    header = HEADER.pack(0, 0, 0, 2, 0, 0, last_delta, 0, 0, -1, -1, -1, count)
    return seal_batch(bytearray(header + body))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\xff" * 12, "varint does not end"),
        (b"\x80" * 5, "fit|varint"),
        (b"\x7f" + b"\x00" * 8, "length exceeds its batch"),
        (b"\x0d" + b"\x00" * 9, "length exceeds|fit"),
        (b"\x0c\x00\x00\x00\xfe\xff\xff\xff\x7f", "length exceeds|field"),
        (b"\x0c\x00\x00\x00\x01\x01\x40", "field's length"),
        (b"\x0c\x00\x00\x02\x01\x01\x00", "outside its batch"),
        (b"\x0c\x00\x00\x01\x01\x01\x00", "outside its batch"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "behind the last field"),
    ],
)
def test_lies_inside_a_record_are_refused(body: bytes, what: str) -> None:
    """Varints without end, negative or huge lengths, counts beyond what is there, offsets outside the batch."""
    with pytest.raises(CorruptBatch, match=what):
        decode(forged(body))


def test_a_timestamp_that_microseconds_cannot_hold_is_refused() -> None:
    """Spark's timestamps are microseconds; wrapping around would be wrong data. Spark's Kafka source fails too."""
    for timestamp in (2**62, -(2**63), 2**63 - 1):
        with pytest.raises(CorruptBatch, match="timestamp"):
            decode(encode_batch([Record(0, timestamp, None, b"v", ())]))


def test_a_huge_record_count_allocates_nothing() -> None:
    """A count of two thousand million in a tiny batch is refused by arithmetic, before any array is made."""
    with pytest.raises(CorruptBatch, match="do not fit"):
        decode(forged(b"\x0c\x00\x00\x00\x01\x01\x00", count=2**31 - 1, last_delta=2**31 - 2))


def test_control_batches_and_empty_batches_only_move_the_position() -> None:
    """Neither a control batch nor the empty batch that stands for one gives rows; the offsets behind them are
    reached.
    """
    control = encode_control(Begin("q", 1, 1, ("a",), 10, 1), timestamp_ms=5)
    records, batch = sample(base_offset=1)
    whole = at_offset(control, 0) + batch + at_offset(empty_batch(parse_header(control)), 5)
    assert decode(whole) == records
    assert scan(whole, 0).next_offset == 6


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_of_a_real_client(codec: int) -> None:
    """What aiokafka's own builder writes, in every compression, is read back the same."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    expected = []
    for index in range(200):
        headers = [("h", b"x" * index)] if index % 3 == 0 else []
        record = Record(index, 1_700_000_000_000 + index % 7, b"k%d" % index, b"v" * (index % 50), tuple(headers))
        builder.append(index, record.timestamp, record.key, record.value, headers)
        expected.append(record)
    assert decode(bytes(builder.build())) == expected


def recompressed(batch: bytearray, codec: int, packed: bytes) -> bytearray:
    """The batch with its records replaced by packed ones."""
    header = bytearray(batch[:HEADER_BYTES])
    struct.pack_into(">h", header, CRC_START, codec)
    return seal_batch(header + packed)


def test_bare_snappy_is_read_too() -> None:
    """Some clients write snappy without xerial's framing."""
    records, batch = sample()
    packed = bytes(cramjam.snappy.compress_raw(bytes(batch[HEADER_BYTES:])))
    assert decode(recompressed(batch, 2, packed), position=10) == records


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 7])
def test_damaged_compression_is_refused(codec: int) -> None:
    """Bytes that no codec wrote, under a valid checksum, are a corrupt batch and nothing worse."""
    _, batch = sample()
    with pytest.raises(CorruptBatch):
        decode(recompressed(batch, codec, b"\x82SNAPPY\x00" + b"\x7f" * 40), position=10)


def test_a_decompression_bomb_stops_at_the_limit() -> None:
    """A few KiB that unpack to more than allowed are refused while unpacking, not after."""
    with pytest.raises(CorruptBatch, match="more than"):
        decompress(ZSTD, compress(ZSTD, bytes(3_000_000)), limit_bytes=1_000_000)
    bomb = bytearray()
    write_varint(bomb, 0)
    with pytest.raises(CorruptBatch, match="more than"):
        decompress(2, b"\xff\xff\xff\xff\x0f" + b"\x00" * 10, limit_bytes=1_000_000)


def test_log_append_time_comes_from_the_batch() -> None:
    """A broker that stamps records itself says so in the batch; every record then has that time and type 1."""
    records, batch = sample()
    struct.pack_into(">h", batch, CRC_START, 8)
    seal_batch(batch)
    (rows,) = Decoder("t", 0, with_headers=False).decode(batch, scan(batch, 10), 10, EVERYTHING)
    assert rows.column("timestampType").to_pylist() == [1] * len(records)
    assert {moment.timestamp() for moment in rows.column("timestamp").to_pylist()} == {1_700_000_000.124}


def test_many_batches_come_in_several_arrow_batches_of_bounded_size() -> None:
    """What is decoded at once is bounded, whatever a fetch returned."""
    records = [Record(0, 0, None, b"x" * 1000)] * 1000
    data, batches = encode_all(records * 20, [0] * 20_000)
    whole, offset = bytearray(), 0
    for batch in batches:
        whole += at_offset(data[batch.start : batch.end], offset)
        offset += batch.records
    sizes = [rows.nbytes for rows in Decoder("t", 0, with_headers=False).decode(whole, scan(whole, 0), 0, offset)]
    assert len(sizes) > 1
    assert max(sizes) < 12_000_000
