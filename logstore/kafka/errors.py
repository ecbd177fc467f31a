"""Kafka's error code for each of our errors: one table.

Invariants: every class of `logstore.errors` that a request can meet is in it, by itself or by a base class; what is
not is UNKNOWN_SERVER_ERROR.
"""

from kio.schema.errors import ErrorCode

from logstore import errors

CODES: dict[type[Exception], ErrorCode] = {
    errors.CorruptBatch: ErrorCode.corrupt_message,
    errors.InvalidRecord: ErrorCode.invalid_record,
    errors.UnsupportedBatchFormat: ErrorCode.unsupported_for_message_format,
    # Not CORRUPT_MESSAGE: some consumers skip what they believe was damaged on the way. This one must be looked at.
    errors.CorruptChunk: ErrorCode.kafka_storage_error,
    errors.CorruptFile: ErrorCode.kafka_storage_error,
    errors.UnknownFormatVersion: ErrorCode.kafka_storage_error,
    errors.MalformedRequest: ErrorCode.invalid_request,
    errors.MessageTooLarge: ErrorCode.message_too_large,
    errors.InvalidTimestamp: ErrorCode.invalid_timestamp,
    errors.OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    errors.InvalidProducerEpoch: ErrorCode.invalid_producer_epoch,
    errors.StorageFailed: ErrorCode.kafka_storage_error,
    errors.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    errors.UnknownTopicOrPartition: ErrorCode.unknown_topic_or_partition,
    errors.TopicExists: ErrorCode.topic_already_exists,
    errors.InvalidTopic: ErrorCode.invalid_topic_exception,
    errors.InvalidPartitions: ErrorCode.invalid_partitions,
    errors.InvalidConfig: ErrorCode.invalid_config,
}


def error_code(error: Exception) -> ErrorCode:
    """The code that a client is sent for an error."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return ErrorCode.unknown_server_error
