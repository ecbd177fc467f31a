"""Arrow columns as RecordBatch v2, grouped by target stream.

Invariants:
* Records of one target keep their order; each lies in exactly one batch; every batch carries its CRC-32C.
* Batches are uncompressed unless a codec is asked for, are not idempotent (producer id −1: whoever stages them orders
  them) and start at offset 0, which the log replaces.
"""

import struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from logstore.errors import InvalidRecord
from logstore.format.batch import CRC_OFFSET, CRC_START, HEADER, HEADER_BYTES, LENGTH_OVERHEAD
from spe_adapter.codec import kernels
from spe_adapter.codec.columns import EMPTY_BYTES, EMPTY_OFFSETS, BytesColumn, ListColumn
from spe_adapter.codec.compression import NONE, compress

DEFAULT_BATCH_BYTES: Final = 256 * 1024
"""Large enough that a batch's header, CRC and index entry cost nothing, well below the usual max.message.bytes (1
MiB).
"""

_START, _END, _TARGET, _COUNT, _FIRST_TIMESTAMP, _MAX_TIMESTAMP = range(6)
_NO_PRODUCER: Final = -1
_MAGIC: Final = 2
_CRC: Final = struct.Struct(">I")


class Columns(NamedTuple):
    """What records are made of; rows agree. `timestamps` are milliseconds; keys and headers may be missing."""

    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None
    timestamps: kernels.Int64s


class EncodedBatch(NamedTuple):
    """One batch in the bytes that `encode` returned; `target` is the group it belongs to."""

    target: int
    start: int
    end: int
    records: int


class _Headers(NamedTuple):
    lists: ListColumn
    names: BytesColumn
    values: BytesColumn


_NO_BYTES_COLUMN: Final = BytesColumn(EMPTY_OFFSETS, EMPTY_BYTES, 0, EMPTY_BYTES)
_NO_HEADERS: Final = _Headers(ListColumn(EMPTY_OFFSETS, EMPTY_BYTES, 0), _NO_BYTES_COLUMN, _NO_BYTES_COLUMN)


def encode(
    columns: Columns, targets: kernels.Int32s, batch_bytes: int = DEFAULT_BATCH_BYTES, codec: int = NONE
) -> tuple[memoryview, list[EncodedBatch]]:
    """The records as batches of at most `batch_bytes`, those of one target end to end, targets ascending.

    `targets` names each record's group. A record larger than `batch_bytes` gets a batch of its own. Raises
    InvalidRecord for a header without a name.
    """
    rows = len(targets)
    if not rows:
        return memoryview(b""), []
    order = np.argsort(targets, kind="stable") if rows > 1 and targets.min() != targets.max() else np.arange(rows)
    keys = _no_keys(rows) if columns.keys is None else BytesColumn.of(columns.keys)
    values = BytesColumn.of(columns.values)
    headers = _NO_HEADERS if columns.headers is None else _header_columns(columns.headers)
    content_bytes = _content_bytes(keys, values, headers)
    entries = max(len(headers.names.offsets) - 1, 0)
    room = content_bytes + rows * kernels.RECORD_OVERHEAD_BYTES + entries * kernels.HEADER_OVERHEAD_BYTES
    # Any two neighbours together exceed a batch, or have different targets.
    max_batches = min(rows, 2 * room // max(batch_bytes, 1) + 2 * len(np.unique(targets)) + 1)
    out = np.empty(room + max_batches * HEADER_BYTES, np.uint8)
    table = np.zeros((max_batches + 1, 6), np.int64)
    count = kernels.encode_records(
        order.astype(np.int64, copy=False), targets, columns.timestamps,
        keys.offsets, keys.bitmap, keys.bit, keys.data, values.offsets, values.bitmap, values.bit, values.data,
        *headers.lists, headers.names.offsets, headers.names.data,
        headers.values.offsets, headers.values.bitmap, headers.values.bit, headers.values.data,
        batch_bytes, out, table,
    )  # fmt: skip
    return _seal(out.data, table[:count], codec)


def _no_keys(rows: int) -> BytesColumn:
    return BytesColumn(np.zeros(rows + 1, np.int32), np.zeros((rows + 7) // 8, np.uint8), 0, EMPTY_BYTES)


def _header_columns(headers: pa.Array) -> _Headers:
    pairs = headers.values
    names, values = pairs.field(0), pairs.field(1)
    if pairs.null_count or names.null_count:
        raise InvalidRecord("a record header without a name; every entry of 'headers' needs a key that is not null")
    return _Headers(ListColumn.of(headers), BytesColumn.of(names), BytesColumn.of(values))


def _content_bytes(keys: BytesColumn, values: BytesColumn, headers: _Headers) -> int:
    columns = (keys, values, headers.names, headers.values)
    return sum(int(column.offsets[-1]) - int(column.offsets[0]) for column in columns if len(column.offsets))


def _seal(out: memoryview, table: kernels.Int64s, codec: int) -> tuple[memoryview, list[EncodedBatch]]:
    """Write the batches' headers, compressing their records if asked to."""
    batches: list[EncodedBatch] = []
    pieces: list[bytearray] = []
    at = 0
    for row in table.tolist():
        start, end = row[_START], row[_END]
        if codec != NONE:
            piece = bytearray(HEADER_BYTES) + compress(codec, out[start + HEADER_BYTES : end])
            _write_header(memoryview(piece), row, codec)
            pieces.append(piece)
            start, end = at, at + len(piece)
        else:
            _write_header(out[start:end], row, codec)
        batches.append(EncodedBatch(row[_TARGET], start, end, row[_COUNT]))
        at = end
    if codec != NONE:
        out = memoryview(b"".join(pieces))
    return out[:at], batches


def _write_header(batch: memoryview, row: list[int], codec: int) -> None:
    HEADER.pack_into(
        batch, 0, 0, len(batch) - LENGTH_OVERHEAD, 0, _MAGIC, 0, codec, row[_COUNT] - 1,
        row[_FIRST_TIMESTAMP], row[_MAX_TIMESTAMP], _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, row[_COUNT],
    )  # fmt: skip
    _CRC.pack_into(batch, CRC_OFFSET, crc32c(batch[CRC_START:]))
