"""All errors that the log store raises on purpose, under one root class.

Messages name the offending value and a remedy. Bad bytes never raise ValueError or struct.error to a caller.
`logstore.kafka.errors` maps each class to the Kafka error code that a client gets. The root is that
of all programs of Cairn, `logstore.base.errors`.
"""

import errno
from typing import Final

from logstore.base.errors import CairnError as CairnError

# ---- invalid bytes


class CorruptBatch(CairnError):
    """A record batch whose bytes contradict themselves (length, magic, CRC-32C, counts)."""


class InvalidRecord(CairnError):
    """A well-formed batch that breaks a rule of the log (more than one batch, control bit from a client, …)."""


class UnsupportedBatchFormat(CairnError):
    """A message set older than RecordBatch v2 (magic 0 or 1)."""


PASSING_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""Errors of a read that say nothing about the file."""


class CorruptFile(CairnError):
    """A file of the data directory whose bytes contradict themselves; the message names file, position and loss."""


class CorruptChunk(CorruptFile):
    """Data of a chunk, once proven durable, no longer matches its checksum: it is never served and never cut off.

    `first_offset` and `last_offset` (inclusive) are the range of lost records.
    """

    def __init__(self, message: str, *, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class UnknownFormatVersion(CairnError):
    """The data directory or a file in it was written by a newer version."""


class CorruptRegister(CairnError):
    """A value of the metadata store whose bytes contradict themselves."""


class MalformedRequest(CairnError):
    """A request whose bytes cannot be decoded."""


class MalformedMessage(CairnError):
    """Bytes from another host of the cluster that are not a hello, a frame or a message."""


class UnsendableMessage(CairnError):
    """A message between hosts that exceeds a limit of a link."""


class LinkRefused(CairnError):
    """A link between hosts that one host refuses: another cluster, host or disk, or no common version."""


# ---- appends


class MessageTooLarge(CairnError):
    """A batch above the topic's max.message.bytes."""


class GroupTooLarge(MessageTooLarge):
    """An epoch has more bytes for a stream of a cluster than the stream accepts at once."""


class InvalidTimestamp(CairnError):
    """A record's timestamp is further from the clock than the topic allows, or cannot be read."""


class OutOfOrderSequence(CairnError):
    """An idempotent producer's batch does not follow the producer's last batch."""


class InvalidProducerEpoch(CairnError):
    """An idempotent producer's batch carries an epoch older than one already seen."""


class StorageFailed(CairnError):
    """The disk refused a write, and nothing was acknowledged. Reads continue; appends continue once writes succeed."""


# ---- reads


class OffsetOutOfRange(CairnError):
    """An offset below the log start or above the high watermark."""

    def __init__(self, stream: str, offset: int, start_offset: int, high_watermark: int) -> None:
        super().__init__(
            f"offset {offset} of {stream} is outside [{start_offset}, {high_watermark}]; "
            "seek to the earliest or latest offset"
        )
        self.stream = stream
        self.offset = offset
        self.start_offset = start_offset
        self.high_watermark = high_watermark


# ---- registered readers


class UnknownReader(CairnError):
    """No reader is registered under this name."""


class TooManyReaders(CairnError):
    """A registration that exceeds the maximum number of readers or of their streams."""


class ReaderReleased(CairnError):
    """A reader's position lies before the log start: it was released, or a client deleted the records."""


# ---- topics


class UnknownTopicOrPartition(CairnError):
    """The topic or partition does not exist."""


class UnknownTopicId(UnknownTopicOrPartition):
    """No topic has this id: the topic was deleted, or never existed."""


class TopicExists(CairnError):
    """A topic with this name exists."""


class InvalidTopic(CairnError):
    """A topic name that Kafka's rules do not allow."""


class InvalidPartitions(CairnError):
    """An invalid number of partitions."""


class InvalidConfig(CairnError):
    """A setting with an invalid name or value; the message names both and the allowed values."""


# ---- rights and quotas


class NotAuthorized(CairnError):
    """The caller has no right to do this."""


class TopicAuthorizationFailed(NotAuthorized):
    """No right on a topic."""


class GroupAuthorizationFailed(NotAuthorized):
    """No right on a group, or on the reader of that name."""


class ClusterAuthorizationFailed(NotAuthorized):
    """No right on the cluster."""


class TransactionalIdAuthorizationFailed(NotAuthorized):
    """No right on a transactional id: on the query of that name."""


class InvalidAcl(CairnError):
    """An invalid ACL, or an ACL above the maximum number."""


class InvalidQuota(CairnError):
    """A quota of an unknown kind, for an unknown kind of client, or out of range."""


class AdoptionUnderWay(CairnError):
    """The users, ACLs and quotas of a cluster that `cairn adopt` is making cannot be changed before it is made."""


class AccessFull(CairnError):
    """Users, ACLs and quotas of a cluster would exceed their limit in its metadata store."""


# ---- epochs


class FencedIncarnation(CairnError):
    """A newer incarnation of the same query exists; the older one may neither stage nor commit."""


class StaleEpoch(CairnError):
    """An epoch older than the last committed one (its checkpoint was rewound), or new output of a committed epoch."""


class StagedMissing(CairnError):
    """A commit names staged data that is missing or incomplete; nothing was committed."""


class StagePosition(CairnError):
    """A segment does not follow the staged segments of its attempt, or differs from one; `length`: their number."""

    def __init__(self, message: str, *, length: int) -> None:
        super().__init__(message)
        self.length = length


# ---- clusters


class TryAgain(CairnError):
    """A host of a cluster cannot carry out a request now. The outcome is unknown; any host may be asked again."""


class EndNotKnown(TryAgain):
    """The end of a stream is asked of a host that may show readers less than was acknowledged."""


class DiskRefused(CairnError):
    """The data directory is another host's, is an old copy, or is in use twice: the host must not start with it."""


class WrongCluster(CairnError):
    """The data directory belongs to another cluster than the metadata store."""


class HostNameTaken(CairnError):
    """Another host of the cluster, which is alive, has this name."""


class NodeIdTaken(CairnError):
    """Another host of the cluster, which is alive, has this node id."""


class NotLeader(TryAgain):
    """Another host owns the stream. `leader` is its name, "" if no owner is known; `epoch` is the owner's epoch."""

    def __init__(self, message: str, *, leader: str = "", epoch: int = 0) -> None:
        super().__init__(message)
        self.leader = leader
        self.epoch = epoch


class NotEnoughReplicas(TryAgain):
    """The stream has fewer members than it needs, or too many bytes wait for members; nothing was appended."""


class NotEnoughReplicasAfterAppend(TryAgain):
    """The stream has fewer members than it needs; the batch waits for members, and may be acknowledged later."""


class AppendTimedOut(TryAgain):
    """The batch was not acknowledged within the time limit of its request, and may be acknowledged later."""


class InvalidReplicas(CairnError):
    """A number of replicas that the cluster cannot have."""


class UnknownHost(CairnError):
    """No host of the cluster has this name, or no live host has it."""


class HostStays(CairnError):
    """A host that cannot be drained or removed now; the message says why, and what to do first."""


class NothingLost(CairnError):
    """A stream cannot continue without a chunk: it waits for no chunk, or the chunk may come back."""


class NoCluster(CairnError):
    """A request about a cluster, sent to a single sidecar."""


class AdoptionRefused(CairnError):
    """A data directory or a metadata store that cannot become a cluster's; the message says why, and what to do."""


class HostUnreachable(TryAgain):
    """Another host of the cluster gave no answer to a call; the outcome of the call is unknown."""


class ChunkUnreachable(TryAgain):
    """No member of a chunk has answered a read: the hosts with the chunk are away. The read may be repeated."""


# ---- the tier


class TierUnavailable(CairnError):
    """The object store of sealed chunks does not answer, is in safe mode, or has lost what it needs: a later try may
    succeed.
    """


class TierFull(TierUnavailable):
    """The object store is full, or a quota is reached; its operator must free space."""


class TierRefused(CairnError):
    """The object store refuses, and would refuse a later attempt too: rights, a wrong address, another program."""


class ObjectMissing(CairnError):
    """An object of the log is missing from the store."""


# ---- the process


class ConfigError(CairnError):
    """An invalid setting of the sidecar; the message names the setting and the allowed values."""
