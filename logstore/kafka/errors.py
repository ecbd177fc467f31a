"""One table from Cairn's errors to Kafka's error codes.

Invariants: the table has every class of `logstore.errors` that a request can raise, or a base class of it; any other
exception becomes UNKNOWN_SERVER_ERROR.
"""

from kio.schema.errors import ErrorCode

from logstore import errors
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown

CODES: dict[type[Exception], ErrorCode] = {
    errors.CorruptBatch: ErrorCode.corrupt_message,
    errors.InvalidRecord: ErrorCode.invalid_record,
    errors.UnsupportedBatchFormat: ErrorCode.unsupported_for_message_format,
    # Not CORRUPT_MESSAGE: some consumers skip a batch that they take as damaged in transit. An operator must see it.
    errors.CorruptChunk: ErrorCode.kafka_storage_error,
    errors.CorruptFile: ErrorCode.kafka_storage_error,
    errors.CorruptRegister: ErrorCode.kafka_storage_error,
    errors.UnknownFormatVersion: ErrorCode.kafka_storage_error,
    errors.MalformedRequest: ErrorCode.invalid_request,
    errors.MessageTooLarge: ErrorCode.message_too_large,
    errors.GroupTooLarge: ErrorCode.message_too_large,
    errors.InvalidTimestamp: ErrorCode.invalid_timestamp,
    errors.OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    errors.InvalidProducerEpoch: ErrorCode.invalid_producer_epoch,
    errors.StorageFailed: ErrorCode.kafka_storage_error,
    errors.NotEnoughReplicas: ErrorCode.not_enough_replicas,
    errors.NotEnoughReplicasAfterAppend: ErrorCode.not_enough_replicas_after_append,
    errors.InvalidReplicas: ErrorCode.invalid_replication_factor,
    errors.HostStays: ErrorCode.invalid_request,
    errors.NothingLost: ErrorCode.invalid_request,
    errors.NoCluster: ErrorCode.unsupported_version,
    errors.UnknownHost: ErrorCode.invalid_request,
    errors.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    errors.UnknownTopicOrPartition: ErrorCode.unknown_topic_or_partition,
    errors.UnknownTopicId: ErrorCode.unknown_topic_id,
    errors.TopicExists: ErrorCode.topic_already_exists,
    errors.InvalidTopic: ErrorCode.invalid_topic_exception,
    errors.InvalidPartitions: ErrorCode.invalid_partitions,
    errors.InvalidConfig: ErrorCode.invalid_config,
    errors.NotAuthorized: ErrorCode.cluster_authorization_failed,
    errors.TopicAuthorizationFailed: ErrorCode.topic_authorization_failed,
    errors.GroupAuthorizationFailed: ErrorCode.group_authorization_failed,
    errors.ClusterAuthorizationFailed: ErrorCode.cluster_authorization_failed,
    errors.TransactionalIdAuthorizationFailed: ErrorCode.transactional_id_authorization_failed,
    errors.InvalidAcl: ErrorCode.invalid_request,
    errors.InvalidQuota: ErrorCode.invalid_request,
    errors.AccessFull: ErrorCode.policy_violation,
    errors.AdoptionUnderWay: ErrorCode.policy_violation,
    MetadataUnavailable: ErrorCode.request_timed_out,
    OutcomeUnknown: ErrorCode.request_timed_out,
    errors.NotLeader: ErrorCode.not_leader_or_follower,
    errors.ChunkUnreachable: ErrorCode.kafka_storage_error,
    errors.HostUnreachable: ErrorCode.request_timed_out,
    errors.AppendTimedOut: ErrorCode.request_timed_out,
    errors.EndNotKnown: ErrorCode.offset_not_available,
    errors.TryAgain: ErrorCode.request_timed_out,
    errors.TierUnavailable: ErrorCode.kafka_storage_error,
    errors.TierFull: ErrorCode.kafka_storage_error,
    errors.TierRefused: ErrorCode.kafka_storage_error,
    errors.ObjectMissing: ErrorCode.kafka_storage_error,
}


class RefusedWithCode(errors.CairnError):
    """A part of a request is refused with one of Kafka's error codes, which no error of ours stands for."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_code(error: Exception) -> ErrorCode:
    """The error code to send to a client."""
    if isinstance(error, RefusedWithCode):
        return error.code
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return ErrorCode.unknown_server_error
