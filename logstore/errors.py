"""Every error the log store raises on purpose, under one root.

Messages name the offending value and what to do. Bad bytes never raise ValueError or struct.error to a caller.
`logstore.kafka.errors` says which of Kafka's error codes a client gets for each class.
"""


class CairnError(Exception):
    """Root of all errors of the log store."""


# ---- bytes that are not what they should be


class CorruptBatch(CairnError):
    """A record batch whose bytes contradict themselves (length, magic, CRC-32C, counts)."""


class InvalidRecord(CairnError):
    """A well-formed batch that breaks a rule of the log (more than one batch, control bit from a client, …)."""


class UnsupportedBatchFormat(CairnError):
    """A message set older than RecordBatch v2 (magic 0 or 1)."""


class CorruptFile(CairnError):
    """A file of ours whose bytes contradict themselves; the message names file, position and what is lost."""


class CorruptChunk(CorruptFile):
    """Proven data of a chunk that no longer matches its checksum: never served, never cut.

    `first_offset` and `last_offset` (inclusive) name the records that are lost here.
    """

    def __init__(self, message: str, *, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class UnknownFormatVersion(CairnError):
    """The data directory or a file in it was written by a newer version."""


class MalformedRequest(CairnError):
    """A request whose bytes cannot be decoded."""


# ---- appends


class MessageTooLarge(CairnError):
    """A batch above the topic's max.message.bytes."""


class InvalidTimestamp(CairnError):
    """A record's timestamp is further ahead of the clock than the topic allows."""


class OutOfOrderSequence(CairnError):
    """An idempotent producer's batch does not follow its last one."""


class InvalidProducerEpoch(CairnError):
    """An idempotent producer's batch carries an epoch older than one already seen."""


class StorageFailed(CairnError):
    """The disk refused: nothing was acknowledged. Reads go on; appends go on when the disk does."""


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


# ---- topics


class UnknownTopicOrPartition(CairnError):
    """No such topic or partition here."""


class TopicExists(CairnError):
    """A topic of that name exists."""


class InvalidTopic(CairnError):
    """A topic name that Kafka's rules do not allow."""


class InvalidPartitions(CairnError):
    """A partition count that cannot be."""


class InvalidConfig(CairnError):
    """A setting with a name or value that cannot be; the message names both and what is allowed."""


# ---- epochs


class FencedRun(CairnError):
    """A newer run of the same query exists; this one may neither stage nor commit."""


class StaleEpoch(CairnError):
    """An epoch older than the last committed one: somebody rewound a checkpoint."""


class StagedMissing(CairnError):
    """A commit names staged data that is not here (or not all of it); nothing was committed."""


class StagePosition(CairnError):
    """A piece of staged data that does not continue what is here; `length` says how much is."""

    def __init__(self, message: str, *, length: int) -> None:
        super().__init__(message)
        self.length = length


# ---- the process


class DataDirectoryInUse(CairnError):
    """Another sidecar holds the data directory."""


class ConfigError(CairnError):
    """A setting of the sidecar that cannot be; the message names it and what is allowed."""
