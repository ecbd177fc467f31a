"""The compiled loops: records inside batches to columns, and columns to records.

Invariants:
* Every read is preceded by a check against the end of its record, so that no bytes, however hostile, lead outside an
  array. Loops report trouble as a negative status and never raise.
* Types are fixed (uint8 bytes, int32 Arrow offsets, int64 the rest), so each function compiles once; the result is
  cached on disk, because a Spark worker that starts afresh must not spend seconds compiling.
* Only the loops that must touch each byte are here; the compiled part stays small so that loading it stays quick.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Uint32s = NDArray[np.uint32]
Int64s = NDArray[np.int64]
Uint64s = NDArray[np.uint64]


def compiled(function: Any) -> Any:
    """The function, compiled; kept on disk where there is a place for it (a read-only container may have none)."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)


STATUS_OK: Final = 0
STATUS_BAD_LENGTH: Final = -1
STATUS_BAD_VARINT: Final = -2
STATUS_BAD_FIELD: Final = -3
STATUS_TRAILING: Final = -4
STATUS_BAD_OFFSET: Final = -5
STATUS_FULL: Final = -6
STATUS_BAD_TIMESTAMP: Final = -7

MESSAGES: Final = {
    STATUS_BAD_LENGTH: "a record's length exceeds its batch",
    STATUS_BAD_VARINT: "a varint does not end in time",
    STATUS_BAD_FIELD: "a field's length exceeds its record",
    STATUS_TRAILING: "bytes behind the last field or record",
    STATUS_BAD_OFFSET: "a record's offset lies outside its batch",
    STATUS_FULL: "more data than the batches could hold",
    STATUS_BAD_TIMESTAMP: "a timestamp beyond what microseconds in 64 bits can hold",
}

# Columns of the table of batches that `decode_records` walks.
START: Final = 0
END: Final = 1
COUNT: Final = 2
BASE_OFFSET: Final = 3
LAST_DELTA: Final = 4
BASE_TIMESTAMP: Final = 5
APPEND_TIMESTAMP: Final = 6
"""The broker's timestamp for the whole batch, or NO_APPEND_TIME."""
BATCH_COLUMNS: Final = 7
NO_APPEND_TIME: Final = -(2**63)

# What `decode_records` returns.
OUT_STATUS: Final = 0
OUT_RECORDS: Final = 1
OUT_KEY_NULLS: Final = 2
OUT_VALUE_NULLS: Final = 3
OUT_HEADERS: Final = 4
OUT_BATCH: Final = 5
"""The last batch looked at."""
OUT_COLUMNS: Final = 6

MICROSECONDS: Final = 1000
"""In a millisecond."""
LAST_TIMESTAMP: Final = (2**63 - 1) // MICROSECONDS

# The fixed part of a batch that `encode_records` leaves room for, and the most bytes a record has beside its fields:
# length, attributes, timestamp delta, offset delta, key length, value length, number of headers.
BATCH_HEADER_BYTES: Final = 61
RECORD_OVERHEAD_BYTES: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
HEADER_OVERHEAD_BYTES: Final = 5 + 5


@compiled
def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint below `end`: value and the position behind it, which is -1 if it does not end in time."""
    if position < end and data[position] < 0x80:  # most are small
        encoded = np.uint64(data[position])
        return np.int64(encoded >> np.uint64(1)) ^ -np.int64(encoded & np.uint64(1)), position + 1
    encoded = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < 64:
        byte = np.uint64(data[position])
        position += 1
        encoded |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            return np.int64(encoded >> np.uint64(1)) ^ -np.int64(encoded & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), -1


@compiled
def _skip_headers(data: Bytes, position: int, end: int, count: int) -> int:
    """The position behind `count` headers, or -1 if they do not fit."""
    for _ in range(count):
        length, position = _varint(data, position, end)
        if position < 0 or length < 0 or length > end - position:
            return -1
        position += length
        length, position = _varint(data, position, end)
        if position < 0 or length < -1 or length > end - position:
            return -1
        if length > 0:
            position += length
    return position


@compiled
def _copy(source: Bytes, start: int, target: Bytes, at: int, length: int) -> None:
    # Unsigned positions need no check for counting from the end, without which this loop becomes wide moves.
    source_at, target_at = np.uint64(start), np.uint64(at)
    for index in range(np.uint64(length)):
        target[target_at + index] = source[source_at + index]


@compiled
def _parse_record(
    data: Bytes, at: int, batch_end: int, last_delta: int
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """One record at `at`, checked: status, its end, timestamp delta, offset delta, position and length of key and of
    value (-1: null), position and number of its headers.
    """
    length, at = _varint(data, at, batch_end)
    if at < 0:
        return STATUS_BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if length < 1 or length > batch_end - at:
        return STATUS_BAD_LENGTH, 0, 0, 0, 0, 0, 0, 0, 0, 0
    end = at + length
    timestamp_delta, at = _varint(data, at + 1, end)
    if at < 0:
        return STATUS_BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, at = _varint(data, at, end)
    if at < 0:
        return STATUS_BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if offset_delta < 0 or offset_delta > last_delta:
        return STATUS_BAD_OFFSET, 0, 0, 0, 0, 0, 0, 0, 0, 0
    key_length, key_at = _varint(data, at, end)
    if key_at < 0 or key_length < -1 or key_length > end - key_at:
        return STATUS_BAD_FIELD, 0, 0, 0, 0, 0, 0, 0, 0, 0
    value_length, value_at = _varint(data, key_at + max(key_length, 0), end)
    if value_at < 0 or value_length < -1 or value_length > end - value_at:
        return STATUS_BAD_FIELD, 0, 0, 0, 0, 0, 0, 0, 0, 0
    header_count, headers_at = _varint(data, value_at + max(value_length, 0), end)
    # A header has at least two bytes, so a count beyond that is a lie and must not size anything.
    if headers_at < 0 or header_count < 0 or header_count > (end - headers_at) // 2:
        return STATUS_BAD_FIELD, 0, 0, 0, 0, 0, 0, 0, 0, 0
    at = _skip_headers(data, headers_at, end, header_count)
    if at != end:
        return STATUS_TRAILING if at >= 0 else STATUS_BAD_FIELD, 0, 0, 0, 0, 0, 0, 0, 0, 0
    return (
        STATUS_OK, end, timestamp_delta, offset_delta, key_at, key_length, value_at, value_length, headers_at,
        header_count
    )  # fmt: skip


@compiled
def _microseconds(base_timestamp: int, delta: int, append_timestamp: int) -> int:
    """A record's timestamp, or NO_APPEND_TIME if 64 bits cannot hold it."""
    if append_timestamp != NO_APPEND_TIME:
        base_timestamp, delta = append_timestamp, np.int64(0)
    for part in (base_timestamp, delta, base_timestamp + delta):
        if part < -LAST_TIMESTAMP or part > LAST_TIMESTAMP:
            return np.int64(NO_APPEND_TIME)
    return (base_timestamp + delta) * MICROSECONDS


@compiled
def _append_bytes(
    data: Bytes, at: int, length: int, row: int, offsets: Int32s, valid: Bytes, target: Bytes
) -> tuple[int, int]:
    """Append a field (-1: null) to a column of bytes: status, and 1 if it was null."""
    used = offsets[row]
    if length < 0:
        valid[row] = 0
        offsets[row + 1] = used
        return STATUS_OK, 1
    if length > target.shape[0] - used:
        return STATUS_FULL, 0
    _copy(data, at, target, used, length)
    valid[row] = 1
    offsets[row + 1] = used + length
    return STATUS_OK, 0


@compiled
def decode_records(
    data: Bytes,
    batches: Int64s,
    first_offset: int,
    end_offset: int,
    offsets: Int64s,
    timestamps: Int64s,
    key_offsets: Int32s,
    key_valid: Bytes,
    key_data: Bytes,
    value_offsets: Int32s,
    value_valid: Bytes,
    value_data: Bytes,
    header_at: Int64s,
    result: Int64s,
) -> None:
    """Copy the records of `batches` whose offsets lie in [first_offset, end_offset) into columns.

    `timestamps` are microseconds, as Spark wants them; `key_valid` and `value_valid` are one byte per record;
    `header_at` gets position, end and count of each record's headers (three numbers a record).
    """
    row, status = 0, STATUS_OK
    result[:] = 0
    key_offsets[0] = 0
    value_offsets[0] = 0
    for index in range(batches.shape[0]):
        at = batches[index, START]
        batch_end = batches[index, END]
        previous_delta = np.int64(-1)
        for _ in range(batches[index, COUNT]):
            status, at, time_delta, delta, key_at, key_length, value_at, value_length, headers_at, headers = (
                _parse_record(data, at, batch_end, batches[index, LAST_DELTA])
            )
            if status == STATUS_OK and delta <= previous_delta:
                status = STATUS_BAD_OFFSET
            if status != STATUS_OK:
                break
            previous_delta = delta
            offset = batches[index, BASE_OFFSET] + delta
            if offset < first_offset or offset >= end_offset:
                continue
            if row >= offsets.shape[0]:
                status = STATUS_FULL
                break
            offsets[row] = offset
            timestamps[row] = _microseconds(
                batches[index, BASE_TIMESTAMP], time_delta, batches[index, APPEND_TIMESTAMP]
            )
            if timestamps[row] == NO_APPEND_TIME:
                status = STATUS_BAD_TIMESTAMP
                break
            status, nulls = _append_bytes(data, key_at, key_length, row, key_offsets, key_valid, key_data)
            result[OUT_KEY_NULLS] += nulls
            if status == STATUS_OK:
                status, nulls = _append_bytes(data, value_at, value_length, row, value_offsets, value_valid, value_data)
                result[OUT_VALUE_NULLS] += nulls
            if status != STATUS_OK:
                break
            header_at[3 * row] = headers_at
            header_at[3 * row + 1] = at
            header_at[3 * row + 2] = headers
            result[OUT_HEADERS] += headers
            row += 1
        if status == STATUS_OK and at != batch_end:
            status = STATUS_TRAILING
        result[OUT_BATCH] = index
        if status != STATUS_OK:
            break
    result[OUT_STATUS] = status
    result[OUT_RECORDS] = row


@compiled
def decode_headers(
    data: Bytes,
    header_at: Int64s,
    rows: int,
    list_offsets: Int32s,
    name_offsets: Int32s,
    names: Bytes,
    value_offsets: Int32s,
    value_valid: Bytes,
    values: Bytes,
) -> tuple[int, int]:
    """Copy the headers that `decode_records` has already checked into columns; bytes of names and of values."""
    entry = 0
    name_bytes = 0
    value_bytes = 0
    list_offsets[0] = 0
    name_offsets[0] = 0
    value_offsets[0] = 0
    for row in range(rows):
        at = header_at[3 * row]
        end = header_at[3 * row + 1]
        for _ in range(header_at[3 * row + 2]):
            length, at = _varint(data, at, end)
            _copy(data, at, names, name_bytes, length)
            name_bytes += length
            at += length
            length, at = _varint(data, at, end)
            if length >= 0:
                _copy(data, at, values, value_bytes, length)
                value_bytes += length
                at += length
                value_valid[entry] = 1
            else:
                value_valid[entry] = 0
            entry += 1
            name_offsets[entry] = name_bytes
            value_offsets[entry] = value_bytes
        list_offsets[row + 1] = entry
    return name_bytes, value_bytes


@compiled
def _varint_bytes(value: int) -> int:
    encoded = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while encoded > 0x7F:
        encoded >>= np.uint64(7)
        size += 1
    return size


@compiled
def _put_varint(target: Bytes, at: int, value: int) -> int:
    encoded = np.uint64((value << 1) ^ (value >> 63))
    while encoded > 0x7F:
        target[at] = np.uint8((encoded & np.uint64(0x7F)) | np.uint64(0x80))
        encoded >>= np.uint64(7)
        at += 1
    target[at] = np.uint8(encoded)
    return at + 1


@compiled
def _bit(bitmap: Bytes, index: int) -> bool:
    """A bit of an Arrow validity bitmap; no bitmap means that all are valid."""
    return bitmap.shape[0] == 0 or (bitmap[index >> 3] >> np.uint8(index & 7)) & np.uint8(1) != 0


@compiled
def _headers_bytes(
    first: int, last: int, name_offsets: Int32s, value_offsets: Int32s, value_bitmap: Bytes, value_bit: int
) -> int:
    size = _varint_bytes(last - first)
    for entry in range(first, last):
        length = name_offsets[entry + 1] - name_offsets[entry]
        size += _varint_bytes(length) + length
        if _bit(value_bitmap, value_bit + entry):
            length = value_offsets[entry + 1] - value_offsets[entry]
            size += _varint_bytes(length) + length
        else:
            size += 1
    return size


@compiled
def _put_bytes(target: Bytes, at: int, source: Bytes, start: int, length: int) -> int:
    """Write a length (-1: null) and that many bytes; the position behind them."""
    at = _put_varint(target, at, length)
    if length > 0:
        _copy(source, start, target, at, length)
        at += length
    return at


@compiled
def _put_headers(
    out: Bytes,
    at: int,
    first: int,
    last: int,
    name_offsets: Int32s,
    names: Bytes,
    value_offsets: Int32s,
    value_bitmap: Bytes,
    value_bit: int,
    values: Bytes,
) -> int:
    at = _put_varint(out, at, last - first)
    for entry in range(first, last):
        start = np.int64(name_offsets[entry])
        at = _put_bytes(out, at, names, start, np.int64(name_offsets[entry + 1]) - start)
        start = np.int64(value_offsets[entry])
        length = np.int64(value_offsets[entry + 1]) - start if _bit(value_bitmap, value_bit + entry) else np.int64(-1)
        at = _put_bytes(out, at, values, start, length)
    return at


@compiled
def _length(offsets: Int32s, bitmap: Bytes, bit: int, row: int) -> int:
    """A field's length, -1 if it is null."""
    if not _bit(bitmap, bit + row):
        return np.int64(-1)
    return np.int64(offsets[row + 1]) - np.int64(offsets[row])


@compiled
def _close_batch(batches: Int64s, count: int, end: int, records: int) -> int:
    if records > 0:
        batches[count, 1] = end
        batches[count, 3] = records
        count += 1
    return count


@compiled
def encode_records(
    order: Int64s,
    targets: Int32s,
    timestamps: Int64s,
    key_offsets: Int32s,
    key_bitmap: Bytes,
    key_bit: int,
    key_data: Bytes,
    value_offsets: Int32s,
    value_bitmap: Bytes,
    value_bit: int,
    value_data: Bytes,
    list_offsets: Int32s,
    list_bitmap: Bytes,
    list_bit: int,
    name_offsets: Int32s,
    names: Bytes,
    header_offsets: Int32s,
    header_bitmap: Bytes,
    header_bit: int,
    headers: Bytes,
    batch_bytes: int,
    out: Bytes,
    batches: Int64s,
) -> int:
    """Write records, in `order` (which groups them by target), as batches of about `batch_bytes`; the number of
    batches.

    Room for each batch's header is left; `batches` gets its start, end, target, record count, first and highest
    timestamp. An empty `list_offsets` means that no record has headers. `out` is large enough for everything.
    """
    at = np.int64(0)
    count = 0
    delta = np.int64(0)
    for position in range(order.shape[0]):
        row = order[position]
        timestamp = timestamps[row]
        key_length = _length(key_offsets, key_bitmap, key_bit, row)
        value_length = _length(value_offsets, value_bitmap, value_bit, row)
        first = last = np.int64(0)
        if list_offsets.shape[0] != 0 and _bit(list_bitmap, list_bit + row):
            first, last = np.int64(list_offsets[row]), np.int64(list_offsets[row + 1])
        content = max(key_length, 0) + max(value_length, 0)
        content += _headers_bytes(first, last, name_offsets, header_offsets, header_bitmap, header_bit)
        max_bytes = at - batches[count, 0] + content + RECORD_OVERHEAD_BYTES
        if delta == 0 or targets[row] != batches[count, 2] or max_bytes > batch_bytes:
            count = _close_batch(batches, count, at, delta)
            delta = np.int64(0)
            batches[count, 0] = at
            batches[count, 2] = targets[row]
            batches[count, 4] = timestamp
            batches[count, 5] = timestamp
            at += BATCH_HEADER_BYTES
        batches[count, 5] = max(batches[count, 5], timestamp)
        timestamp -= batches[count, 4]
        size = 1 + _varint_bytes(timestamp) + _varint_bytes(delta) + content
        size += _varint_bytes(key_length) + _varint_bytes(value_length)
        at = _put_varint(out, at, size)
        out[at] = 0
        at = _put_varint(out, at + 1, timestamp)
        at = _put_varint(out, at, delta)
        at = _put_bytes(out, at, key_data, np.int64(key_offsets[row]), key_length)
        at = _put_bytes(out, at, value_data, np.int64(value_offsets[row]), value_length)
        at = _put_headers(
            out, at, first, last, name_offsets, names, header_offsets, header_bitmap, header_bit, headers
        )  # fmt: skip
        delta += 1
    return _close_batch(batches, count, at, delta)


@compiled
def murmur2_partitions(
    key_offsets: Int32s,
    key_bitmap: Bytes,
    key_bit: int,
    key_data: Bytes,
    partitions: int,
    null_partition: int,
    out: Int32s,
) -> None:
    """Kafka's default partitioner for each row: toPositive(murmur2(key)) % partitions; `null_partition` without a
    key.
    """
    multiplier = np.uint32(0x5BD1E995)
    for row in range(out.shape[0]):
        if not _bit(key_bitmap, key_bit + row):
            out[row] = null_partition
            continue
        at = np.int64(key_offsets[row])
        length = np.int64(key_offsets[row + 1]) - at
        state = np.uint32(0x9747B28C) ^ np.uint32(length)
        for _ in range(length // 4):
            word = (
                np.uint32(key_data[at])
                | np.uint32(key_data[at + 1]) << np.uint32(8)
                | np.uint32(key_data[at + 2]) << np.uint32(16)
                | np.uint32(key_data[at + 3]) << np.uint32(24)
            )
            word = np.uint32(word * multiplier)
            word = np.uint32(word ^ (word >> np.uint32(24)))
            word = np.uint32(word * multiplier)
            state = np.uint32(state * multiplier)
            state = np.uint32(state ^ word)
            at += 4
        rest = length % 4
        if rest == 3:
            state = np.uint32(state ^ np.uint32(np.uint32(key_data[at + 2]) << np.uint32(16)))
        if rest >= 2:
            state = np.uint32(state ^ np.uint32(np.uint32(key_data[at + 1]) << np.uint32(8)))
        if rest >= 1:
            state = np.uint32(state ^ np.uint32(key_data[at]))
            state = np.uint32(state * multiplier)
        state = np.uint32(state ^ (state >> np.uint32(13)))
        state = np.uint32(state * multiplier)
        state = np.uint32(state ^ (state >> np.uint32(15)))
        out[row] = np.int32(np.int64(state & np.uint32(0x7FFFFFFF)) % partitions)


@compiled
def crc32_partitions(
    key_offsets: Int32s,
    key_bitmap: Bytes,
    key_bit: int,
    key_data: Bytes,
    table: Uint32s,
    partitions: int,
    null_partition: int,
    out: Int32s,
) -> None:
    """librdkafka's default partitioner for each row: crc32(key) % partitions; `null_partition` where there are no
    bytes. `table` has the CRC-32 of each byte.
    """
    for row in range(out.shape[0]):
        start, end = np.int64(key_offsets[row]), np.int64(key_offsets[row + 1])
        if start == end or not _bit(key_bitmap, key_bit + row):
            out[row] = null_partition
            continue
        state = np.uint32(0xFFFFFFFF)
        for at in range(start, end):
            state = np.uint32(table[(state ^ key_data[at]) & np.uint32(0xFF)] ^ (state >> np.uint32(8)))
        out[row] = np.int32(np.int64(np.uint32(state ^ np.uint32(0xFFFFFFFF))) % partitions)
