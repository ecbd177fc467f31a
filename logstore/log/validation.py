"""Checks of a client's batch before it is appended: one whole, intact batch of plain records, not from the future.

Invariants: the checks change and write nothing; every refusal names the stream and the offending value.

Source: Kafka's own checks on produce (magic 2 only; one batch per partition). A timestamp far ahead would keep the open
chunk from being trimmed by age.
"""

from logstore.errors import CorruptBatch, InvalidRecord, InvalidTimestamp, MessageTooLarge, UnsupportedBatchFormat
from logstore.format.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    HIGHEST_COMPRESSION,
    LENGTH_OVERHEAD,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_batch,
    parse_header,
)
from logstore.format.compression import open_records
from logstore.format.records import iterate_times
from logstore.interfaces import Buffer
from logstore.log.chunks import MAX_APPEND_BYTES
from logstore.log.topics import NO_LIMIT_MS, TopicConfig

MAX_CHECKED_BYTES = 16 << 20
"""To check its records' times, a batch is decompressed up to this size."""
FEW_RECORDS = 500
"""The number of records whose times can be checked in less than a millisecond."""


def check_produced(
    records: Buffer, stream: str, config: TopicConfig, now_ms: int, *, are_times_checked: bool = False
) -> BatchHeader:
    """Check the one batch in `records`, which a client wants to append to `stream`; returns its header.
    `are_times_checked`: the records' times were already checked on a thread.

    Raises CorruptBatch, UnsupportedBatchFormat, InvalidRecord, MessageTooLarge or InvalidTimestamp.
    """
    limit = min(config.max_message_bytes, MAX_APPEND_BYTES)
    if len(records) > limit:
        # The limit applies to all of `records` before a batch is parsed: several batches are a client's error anyway.
        raise MessageTooLarge(f"a batch of {len(records)} bytes exceeds {stream}'s max.message.bytes {limit}")
    header = check_batch(records)
    attributes = header.attributes
    if header.batch_length + LENGTH_OVERHEAD != len(records):
        raise InvalidRecord(f"{stream}: one batch per partition and request, but bytes follow the first")
    if attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
        raise InvalidRecord(f"{stream}: control and transactional batches are not accepted from clients")
    if header.record_count != header.last_offset_delta + 1 or header.record_count == 0:
        raise InvalidRecord(
            f"{stream}: {header.record_count} records do not match last offset delta {header.last_offset_delta}"
        )
    if attributes & COMPRESSION_MASK > HIGHEST_COMPRESSION:
        raise InvalidRecord(f"{stream}: compression codec {header.compression} is unknown")
    if not are_times_checked:
        check_times(memoryview(records), header, stream, config, now_ms)
    return header


def takes_long_to_check(records: Buffer, config: TopicConfig) -> bool:
    """Whether checking the times of a batch's records would delay other clients, so that a thread should do it."""
    if config.timestamp_before_max_ms == NO_LIMIT_MS or config.stamps_appends or len(records) < HEADER_BYTES:
        return False
    try:
        header = parse_header(records)
    except (CorruptBatch, UnsupportedBatchFormat):
        return False
    return bool(header.compression) or header.record_count > FEW_RECORDS


def check_times(batch: memoryview, header: BatchHeader, stream: str, config: TopicConfig, now_ms: int) -> None:
    """Refuse a batch whose records' times are further from the clock than the topic allows; a topic with LogAppendTime
    accepts any.

    The limit ahead of the clock needs only the header; the limit behind the clock needs every record, and is checked
    only if the topic sets it. Raises InvalidTimestamp, also if the records' times cannot be read.
    """
    if header.has_log_append_time:
        raise InvalidTimestamp(f"{stream}: clients write CreateTime, not LogAppendTime")
    if config.stamps_appends:
        return
    if header.max_timestamp > now_ms + config.timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"{stream}: timestamp {header.max_timestamp} is more than message.timestamp.after.max.ms "
            f"({config.timestamp_after_max_ms}) ahead of the clock"
        )
    if config.timestamp_before_max_ms == NO_LIMIT_MS:
        return
    try:
        records = open_records(batch[HEADER_BYTES : header.size_bytes], header.compression, MAX_CHECKED_BYTES)
        oldest = min((timestamp for _, timestamp in iterate_times(records, header)), default=now_ms)
    except CorruptBatch as error:
        raise InvalidTimestamp(
            f"{stream} has message.timestamp.before.max.ms, but the batch's timestamps cannot be seen ({error}, or it "
            f"opens to more than {MAX_CHECKED_BYTES} bytes); send smaller batches"
        ) from error
    if oldest < now_ms - config.timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"{stream}: timestamp {oldest} is more than message.timestamp.before.max.ms "
            f"({config.timestamp_before_max_ms}) behind the clock"
        )
