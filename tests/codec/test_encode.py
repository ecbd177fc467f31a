"""Encoding Arrow columns as record batches, against the slow codec and a codec written by others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRecord
from logstore.format.batch import iterate_batches
from logstore.format.records import Record, decode_batch
from spe_adapter.codec.encode import Columns, encode
from tests.codec.batches import HEADERS, columns_of, decode, encode_all, sample
from tests.codec.test_decode import RECORDS


@given(RECORDS, st.integers(1, 4), st.integers(1, 2000), st.randoms(use_true_random=False))
def test_every_target_gets_its_records_in_order(
    records: list[Record], targets: int, batch_bytes: int, random: object
) -> None:
    """Grouped by target, in their order, each record in exactly one batch, whatever the batch size."""
    chosen = [random.randrange(targets) for _ in records]  # type: ignore[attr-defined]
    data, batches = encode_all(records, chosen, batch_bytes)
    assert [header.size_bytes for _, header in iterate_batches(data)] == [b.end - b.start for b in batches]
    assert [batch.target for batch in batches] == sorted(batch.target for batch in batches)
    for target in range(targets):
        expected = [record for record, where in zip(records, chosen, strict=True) if where == target]
        found: list[Record] = []
        for batch in batches:
            if batch.target == target:
                piece = decode_batch(data[batch.start : batch.end])
                assert len(piece) == batch.records
                assert [record.offset for record in piece] == list(range(len(piece)))
                assert decode(data[batch.start : batch.end]) == piece
                found += piece
        assert [record[1:] for record in found] == [record[1:] for record in expected]


def test_a_client_written_by_others_reads_it() -> None:
    """aiokafka finds the same records, and a checksum and header that it accepts."""
    records, _ = sample()
    data, batches = encode_all(records, [0] * len(records))
    assert len(batches) == 1
    foreign = DefaultRecordBatch(bytes(data))
    assert foreign.validate_crc()
    found = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in foreign]
    assert [record[1:] for record in found] == [record[1:] for record in records]
    assert foreign.max_timestamp == max(record.timestamp for record in records)


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_compressed_batches_are_read_by_others(codec: int) -> None:
    """gzip, lz4 and zstd as aiokafka unpacks them."""
    records = [Record(index, 1000 + index, b"k", b"v" * 100, ()) for index in range(500)]
    data, batches = encode_all(records, [index % 2 for index in range(500)], codec=codec)
    assert len(data) < 5000
    for batch in batches:
        foreign = DefaultRecordBatch(bytes(data[batch.start : batch.end]))
        assert foreign.validate_crc()
        assert [r.timestamp for r in foreign] == [1000 + index for index in range(batch.target, 500, 2)]


@given(RECORDS, st.data())
def test_slices_of_columns_are_encoded_as_their_rows(records: list[Record], data: st.DataObject) -> None:
    """Arrow columns may begin in the middle of their buffers, at any bit of the validity bitmap."""
    start = data.draw(st.integers(0, len(records) - 1))
    columns = columns_of(records)
    assert columns.keys is not None
    assert columns.headers is not None
    sliced = Columns(
        columns.keys[start:], columns.values[start:], columns.headers[start:], columns.timestamps[start:].copy()
    )
    whole, batches = encode(sliced, np.zeros(len(records) - start, np.int32))
    assert len(batches) == 1
    assert [record[1:] for record in decode_batch(whole)] == [record[1:] for record in records[start:]]


def test_strings_wide_and_narrow_are_bytes() -> None:
    """Spark may hand over strings, and 64-bit offsets if so configured."""
    for kind in (pa.string(), pa.large_string(), pa.large_binary()):
        values = pa.array(["ä", None, "c"]).cast(kind)
        data, _ = encode(Columns(None, values, None, np.zeros(3, np.int64)), np.zeros(3, np.int32))
        assert [record.value for record in decode_batch(data)] == ["ä".encode(), None, b"c"]


def test_a_header_without_a_name_is_refused() -> None:
    """Kafka has no such thing."""
    headers = pa.array([[{"key": None, "value": b"x"}]], HEADERS)
    with pytest.raises(InvalidRecord, match="without a name"):
        encode(Columns(None, pa.array([b"v"]), headers, np.zeros(1, np.int64)), np.zeros(1, np.int32))


def test_nothing_gives_nothing() -> None:
    """No rows, no batches."""
    data, batches = encode(Columns(None, pa.array([], pa.binary()), None, np.zeros(0, np.int64)), np.zeros(0, np.int32))
    assert (bytes(data), batches) == (b"", [])


def test_a_record_larger_than_a_batch_stands_alone() -> None:
    """No batch exceeds its size because of who came before: what cannot be split gets a batch of its own."""
    records = [Record(0, 0, None, b"x" * size) for size in (10, 10, 5000, 10, 400, 400, 400)]
    _, batches = encode_all(records, [0] * len(records), batch_bytes=1000)
    assert [batch.records for batch in batches] == [2, 1, 3, 1]
    assert [batch.end - batch.start <= 1000 for batch in batches] == [True, False, True, True]
