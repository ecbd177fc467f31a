"""What a fetch returned, as Arrow record batches in the schema of Spark's Kafka source.

Invariants:
* Every batch's CRC-32C is checked before one of its records is looked at; control batches give no rows; a batch
  without records moves the position all the same.
* Offsets only grow: a batch that goes back behind its predecessor is corrupt.
* The bytes of a yielded batch belong to it alone; the input may be reused afterwards.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.errors import CorruptBatch
from logstore.format.batch import HEADER_BYTES, BatchHeader, check_batch, parse_header
from logstore.interfaces import Buffer
from spe_adapter.codec import kernels
from spe_adapter.codec.compression import decompress

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", HEADERS_TYPE))

_CREATE_TIME: Final = 0
_APPEND_TIME: Final = 1
# length, attributes, timestamp delta, offset delta, key length, value length, number of headers: a byte each at least
_MIN_RECORD_BYTES: Final = 7
# Rows of one Arrow batch come from batches of about this size; bounds memory when batches unpack to much more.
_GROUP_BYTES: Final = 8 * 1024 * 1024


class FetchedBatches(NamedTuple):
    """The whole, intact batches at the start of some fetched bytes, and the offset behind the last of them."""

    batches: list[tuple[int, BatchHeader]]
    next_offset: int


def scan(buffer: Buffer, position_offset: int) -> FetchedBatches:
    """The batches in `buffer`, which was fetched from `position_offset`; a torn one at the end is left out, as
    fetches tear it.

    Raises CorruptBatch for a batch whose CRC does not match or whose offsets go back, UnsupportedBatchFormat for old
    formats.
    """
    batches: list[tuple[int, BatchHeader]] = []
    at, size, next_offset = 0, len(buffer), position_offset
    while size - at >= HEADER_BYTES:
        header = parse_header(buffer, at)
        if header.size_bytes > size - at:
            break
        check_batch(buffer, at)
        if header.base_offset < (next_offset if batches else 0) or header.next_offset <= next_offset:
            raise CorruptBatch(f"a batch from offset {header.base_offset} on, where {next_offset} was expected")
        batches.append((at, header))
        next_offset = max(next_offset, header.next_offset)
        at += header.size_bytes
    return FetchedBatches(batches, next_offset)


class _BatchRecords(NamedTuple):
    """The records of one batch, uncompressed: data[start:end]."""

    data: kernels.Bytes
    start: int
    end: int
    header: BatchHeader


class Decoder:
    """Decodes the fetched batches of one stream, record for record the same as a consumer would see them."""

    def __init__(self, topic: str, partition: int, *, with_headers: bool) -> None:
        self._topic = topic
        self._partition = partition
        self._with_headers = with_headers
        self.schema: pa.Schema = SCHEMA_WITH_HEADERS if with_headers else SCHEMA

    def decode(
        self, buffer: Buffer, fetched: FetchedBatches, first_offset: int, end_offset: int
    ) -> Iterator[pa.RecordBatch]:
        """The records of `fetched` (found in `buffer` by `scan`) with offsets in [first_offset, end_offset).

        Yields Arrow record batches of at least one row. Raises CorruptBatch.
        """
        group: list[_BatchRecords] = []
        group_bytes = 0
        whole = np.frombuffer(buffer, np.uint8)
        for at, header in fetched.batches:
            if header.is_control or not header.record_count:
                continue
            if header.next_offset <= first_offset or header.base_offset >= end_offset:
                continue
            piece = _piece(whole, at, header)
            size = piece.end - piece.start
            if group and group_bytes + size > _GROUP_BYTES:
                yield from self._decode_group(group, first_offset, end_offset)
                group, group_bytes = [], 0
            group.append(piece)
            group_bytes += size
        if group:
            yield from self._decode_group(group, first_offset, end_offset)

    def _decode_group(self, group: list[_BatchRecords], first_offset: int, end_offset: int) -> Iterator[pa.RecordBatch]:
        group = _in_one_array(group)
        data, table = group[0].data, _table(group)
        capacity = int(table[:, kernels.COUNT].sum())
        room = sum(piece.end - piece.start for piece in group)
        key_offsets, value_offsets = np.empty(capacity + 1, np.int32), np.empty(capacity + 1, np.int32)
        key_valid, value_valid = np.empty(capacity, np.uint8), np.empty(capacity, np.uint8)
        key_data, value_data = np.empty(room, np.uint8), np.empty(room, np.uint8)
        offsets, timestamps = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        header_at, result = np.empty(3 * capacity, np.int64), np.zeros(kernels.OUT_COLUMNS, np.int64)
        kernels.decode_records(
            data, table, first_offset, end_offset, offsets, timestamps, key_offsets, key_valid, key_data,
            value_offsets, value_valid, value_data, header_at, result,
        )  # fmt: skip
        _check(result, group)
        rows = int(result[kernels.OUT_RECORDS])
        if not rows:
            return
        columns = [
            _binary(key_offsets, key_valid, key_data, rows, int(result[kernels.OUT_KEY_NULLS])),
            _binary(value_offsets, value_valid, value_data, rows, int(result[kernels.OUT_VALUE_NULLS])),
            _constant_string(self._topic, rows),
            pa.array(np.full(rows, self._partition, np.int32)),
            _fixed(pa.int64(), offsets, rows),
            _fixed(pa.timestamp("us", tz="UTC"), timestamps, rows),
            pa.array(_timestamp_types(group, offsets[:rows])),
        ]
        if self._with_headers:
            columns.append(_headers(data, header_at, rows, int(result[kernels.OUT_HEADERS])))
        yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _piece(whole: kernels.Bytes, at: int, header: BatchHeader) -> _BatchRecords:
    """Where the records of the batch at `at` are, unpacked if need be. Raises CorruptBatch."""
    start, end = at + HEADER_BYTES, at + header.size_bytes
    data = whole
    if header.compression:
        data = np.frombuffer(decompress(header.compression, whole[start:end].data), np.uint8)
        start, end = 0, len(data)
    if header.record_count > (end - start) // _MIN_RECORD_BYTES:
        raise CorruptBatch(
            f"batch at offset {header.base_offset}: {header.record_count} records do not fit {end - start} bytes"
        )
    return _BatchRecords(data, start, end, header)


def _in_one_array(group: list[_BatchRecords]) -> list[_BatchRecords]:
    """What was unpacked lies in memory of its own and is brought together; what was not is read where it is."""
    if all(piece.data is group[0].data for piece in group):
        return group
    together = np.concatenate([piece.data[piece.start : piece.end] for piece in group])
    moved: list[_BatchRecords] = []
    at = 0
    for piece in group:
        end = at + piece.end - piece.start
        moved.append(_BatchRecords(together, at, end, piece.header))
        at = end
    return moved


def _table(group: list[_BatchRecords]) -> kernels.Int64s:
    """The kernel's table of batches."""
    table = np.empty((len(group), kernels.BATCH_COLUMNS), np.int64)
    for index, (_, start, end, header) in enumerate(group):
        append_timestamp = header.max_timestamp if header.has_log_append_time else kernels.NO_APPEND_TIME
        table[index] = (
            start, end, header.record_count, header.base_offset, header.last_offset_delta,
            header.base_timestamp, append_timestamp,
        )  # fmt: skip
    return table


def _check(result: kernels.Int64s, group: list[_BatchRecords]) -> None:
    status = int(result[kernels.OUT_STATUS])
    if status != kernels.STATUS_OK:
        header = group[int(result[kernels.OUT_BATCH])].header
        raise CorruptBatch(f"batch at offset {header.base_offset}: {kernels.MESSAGES[status]}")


def _timestamp_types(group: list[_BatchRecords], offsets: kernels.Int64s) -> kernels.Int32s:
    """0 where the producer, 1 where the broker set the timestamp: a property of the batch."""
    types = np.full(len(offsets), _CREATE_TIME, np.int32)
    for *_, header in group:
        if header.has_log_append_time:
            first, last = np.searchsorted(offsets, (header.base_offset, header.next_offset))
            types[first:last] = _APPEND_TIME
    return types


def _fixed(kind: pa.DataType, values: kernels.Int64s, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values[:rows])])


def _bitmap(valid: kernels.Bytes, rows: int, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(valid[:rows], bitorder="little")) if nulls else None


def _binary(offsets: kernels.Int32s, valid: kernels.Bytes, data: kernels.Bytes, rows: int, nulls: int) -> pa.Array:
    buffers = [_bitmap(valid, rows, nulls), pa.py_buffer(offsets[: rows + 1]), pa.py_buffer(data[: offsets[rows]])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls)


def _constant_string(text: str, rows: int) -> pa.Array:
    encoded = np.frombuffer(text.encode(), np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(np.tile(encoded, rows))], 0
    )


def _headers(data: kernels.Bytes, header_at: kernels.Int64s, rows: int, entries: int) -> pa.Array:
    """Each record's headers, null for a record without any (as in Spark's Kafka source)."""
    lists, name_offsets = np.empty(rows + 1, np.int32), np.empty(entries + 1, np.int32)
    value_offsets, value_valid = np.empty(entries + 1, np.int32), np.empty(entries, np.uint8)
    counts = header_at[2 : 3 * rows : 3]
    room = int((header_at[1 : 3 * rows : 3] - header_at[0 : 3 * rows : 3])[counts > 0].sum())
    names, values = np.empty(room, np.uint8), np.empty(room, np.uint8)
    kernels.decode_headers(
        data, header_at, rows, lists, name_offsets, names, value_offsets, value_valid, values
    )  # fmt: skip
    keys = _text(_binary(name_offsets, np.ones(entries, np.uint8), names, entries, 0))
    nulls = entries - int(value_valid.sum())
    pairs = pa.StructArray.from_arrays(
        [keys, _binary(value_offsets, value_valid, values, entries, nulls)], fields=list(HEADERS_TYPE.value_type)
    )
    without = int((counts == 0).sum())
    bitmap = _bitmap((counts > 0).astype(np.uint8), rows, without)
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [bitmap, pa.py_buffer(lists)], without, children=[pairs])


def _text(names: pa.Array) -> pa.Array:
    """Bytes as strings; what is not UTF-8 becomes replacement characters, as in Kafka's Java client."""
    text = names.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([name.as_py().decode(errors="replace") for name in names], pa.string())
    return text
