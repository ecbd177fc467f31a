"""What a client's batch must be before it is appended: one whole, intact batch of plain records, not from the future.

Invariants: nothing is changed or written here; every refusal names the stream and the offending value.

Source: Kafka's own checks on produce (magic 2 only; one batch per partition). A timestamp far ahead would keep its
chunk from ever being trimmed by age.
"""

from logstore.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from logstore.format.batch import HIGHEST_COMPRESSION, BatchHeader, check_batch
from logstore.interfaces import Buffer
from logstore.log.chunks import MAX_APPEND_BYTES
from logstore.log.topics import TopicConfig


def check_produced(records: Buffer, stream: str, config: TopicConfig, now_ms: int) -> BatchHeader:
    """The header of the one batch in `records`, which a client wants appended to `stream`.

    Raises CorruptBatch, UnsupportedBatchFormat, InvalidRecord, MessageTooLarge or InvalidTimestamp.
    """
    limit = min(config.max_message_bytes, MAX_APPEND_BYTES)
    if len(records) > limit:
        # Whole first: a request with several batches is the client's mistake, not its size.
        raise MessageTooLarge(f"a batch of {len(records)} bytes exceeds {stream}'s max.message.bytes {limit}")
    header = check_batch(records)
    if header.size_bytes != len(records):
        raise InvalidRecord(f"{stream}: one batch per partition and request, but bytes follow the first")
    if header.is_control or header.is_transactional:
        raise InvalidRecord(f"{stream}: control and transactional batches are not accepted from clients")
    if header.record_count != header.last_offset_delta + 1 or header.record_count == 0:
        raise InvalidRecord(
            f"{stream}: {header.record_count} records do not match last offset delta {header.last_offset_delta}"
        )
    if header.compression > HIGHEST_COMPRESSION:
        raise InvalidRecord(f"{stream}: compression codec {header.compression} is unknown")
    if header.has_log_append_time:
        raise InvalidTimestamp(f"{stream}: clients write CreateTime, not LogAppendTime")
    if header.max_timestamp > now_ms + config.timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"{stream}: timestamp {header.max_timestamp} is more than message.timestamp.after.max.ms "
            f"({config.timestamp_after_max_ms}) ahead of the clock"
        )
    return header
