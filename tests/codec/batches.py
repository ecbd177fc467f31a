"""What the codec tests share: records as plain tuples, and their journey through the vectorised codec and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from logstore.format.batch import patch_base
from logstore.format.records import Record, encode_batch
from spe_adapter.codec.decode import Decoder, scan
from spe_adapter.codec.encode import DEFAULT_BATCH_BYTES, Columns, EncodedBatch, encode

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
EVERYTHING = 2**62


def decode(
    buffer: bytes | bytearray | memoryview, *, position: int = 0, first: int = 0, end: int = EVERYTHING
) -> list[Record]:
    """The records that the vectorised decoder finds in fetched bytes, as tuples."""
    chunk = scan(buffer, position)
    records: list[Record] = []
    for batch in Decoder("topic", 3, with_headers=True).decode(buffer, chunk, first, end):
        batch.validate(full=True)
        assert set(batch.column("topic").to_pylist()) == {"topic"}
        assert set(batch.column("partition").to_pylist()) == {3}
        moments = batch.column("timestamp").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value", "headers")]
        for moment, offset, key, value, headers in zip(moments, *columns, strict=True):
            pairs = tuple((header["key"], header["value"]) for header in headers or ())
            assert moment % 1000 == 0
            records.append(Record(offset, moment // 1000, key, value, pairs))
    return records


def columns_of(records: Sequence[Record]) -> Columns:
    """Records as the columns that the encoder takes."""
    return Columns(
        keys=pa.array([record.key for record in records], pa.binary()),
        values=pa.array([record.value for record in records], pa.binary()),
        headers=pa.array(
            [[{"key": k, "value": v} for k, v in r.headers] if r.headers else None for r in records], HEADERS
        ),
        timestamps=np.array([record.timestamp for record in records], np.int64),
    )


def encode_all(
    records: Sequence[Record], targets: Sequence[int], batch_bytes: int = DEFAULT_BATCH_BYTES, codec: int = 0
) -> tuple[memoryview, list[EncodedBatch]]:
    """Records through the vectorised encoder."""
    return encode(columns_of(records), np.array(targets, np.int32), batch_bytes, codec)


def at_offset(batch: bytes | bytearray | memoryview, offset: int) -> bytearray:
    """A batch where the log would put it."""
    placed = bytearray(batch)
    patch_base(placed, 0, offset, 0)
    return placed


def sample(base_offset: int = 10) -> tuple[list[Record], bytearray]:
    """A few records with everything that records can have, and the batch that the slow codec makes of them."""
    records = [
        Record(base_offset, 1_700_000_000_000, b"key", b"value", ()),
        Record(base_offset + 1, 1_700_000_000_123, None, b"", (("h", b"x"), ("h", None))),
        Record(base_offset + 2, 1_699_999_999_000, b"", None, (("näme", b""),)),
        Record(base_offset + 3, 1_700_000_000_124, b"k" * 70, b"v" * 200, ()),
    ]
    return records, encode_batch(records, base_offset=base_offset)
