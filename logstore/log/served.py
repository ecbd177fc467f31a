"""What serves clients: an engine, its store of topics, and their streams, as the front that speaks to clients asks.

| role | on a host alone | on a host of a cluster |
|---|---|---|
| `ServingEngine` | `logstore.engine.StoreEngine` | `logstore.cluster.engine.ClusterEngine` |
| `ServedStore` | `logstore.log.store.Store` | `logstore.cluster.streams.topics.ClusterTopics` |
| `ServedTopic` | `logstore.log.store.Topic` | `logstore.cluster.streams.topics.ReplicatedTopic` |
| `ServedStream` | `logstore.log.stream.Stream` | `logstore.cluster.streams.replicated_stream.ReplicatedStream` |

Invariants: a front knows these roles alone, so it is the same for both. What one of the two has and the other has not
(registered readers, the room on the disk) is no part of a role: who needs it is given the class that has it. An engine
takes the streams of its own store; another stream is a defect, which it says (`ForeignStream`).
"""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from logstore.base.events import LogEvent
from logstore.log.read_patience import ReadPatience
from logstore.log.reading import ReadResult, TimeFound
from logstore.log.scanning import ScanResult
from logstore.log.store import StoreSettings
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import Ticket, TicketView
from logstore.log.topics import TopicConfig

T = TypeVar("T")

NO_LEADER_EPOCH: Final = -1


class LeaderEpochEnd(NamedTuple):
    """A leader epoch, and the offset behind its last record: where the next epoch begins, or the end of the log."""

    leader_epoch: int
    end_offset: int


class ServedStream(Protocol):
    """A stream that clients append to and read."""

    fetched_bytes: int
    """Given to clients since the start; the front counts them."""

    @property
    def name(self) -> str:
        """Topic and partition, as reports have them."""

    @property
    def partition(self) -> int:
        """The number of the partition."""

    @property
    def deleted(self) -> bool:
        """Whether the topic is gone."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that is there."""

    @property
    def high_watermark(self) -> int:
        """The offset after the last record that clients see."""

    @property
    def local_start_offset(self) -> int:
        """The first offset that is not in the tier alone."""

    @property
    def tiered_end_offset(self) -> int:
        """The offset after the last record in the tier; -1: nothing is there."""

    @property
    def tiered_chunk_count(self) -> int:
        """How many chunks are in the tier."""

    @property
    def tiered_bytes(self) -> int:
        """Bytes of their batches."""

    @property
    def config(self) -> TopicConfig:
        """The settings of its topic."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its chunks."""

    @property
    def chunk_count(self) -> int:
        """The number of its chunks."""

    @property
    def appended_bytes(self) -> int:
        """Acknowledged by this host since its start."""

    @property
    def appended_records(self) -> int:
        """The same in records."""

    @property
    def is_leader(self) -> bool:
        """Whether this host serves the stream's clients."""

    @property
    def is_readable(self) -> bool:
        """Whether it serves its readers: also one that takes no appends, for want of members."""

    @property
    def leader_epoch(self) -> int:
        """The epoch that clients are told."""

    @property
    def newest_epoch(self) -> int:
        """The newest epoch that any host may have told clients."""

    def append(self, records: bytearray | memoryview, *, now_ms: int, are_times_checked: bool = False) -> AppendTicket:
        """Append one RecordBatch v2, which the stream patches in place and keeps. Raises CairnError."""

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless `offset` may be read; NotLeader, UnknownTopicOrPartition in a cluster."""

    def check_end(self) -> None:
        """Raise EndNotKnown if records may be acknowledged behind the high watermark."""

    def delete_records(self, before_offset: int) -> Ticket[int]:
        """Trim all records before an offset (-1: all); the result is the new log start. Raises OffsetOutOfRange."""

    def add_waiter(self, callback: Callable[[], None]) -> None:
        """Call `callback` with every change."""

    def remove_waiter(self, callback: Callable[[], None]) -> None:
        """Undo `add_waiter`."""


class ServedTopic(Protocol):
    """A topic and its streams, one for each partition."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def topic_id(self) -> uuid.UUID:
        """Its id, which no other topic ever has."""

    @property
    def overrides(self) -> Mapping[str, str]:
        """The settings that are its own."""

    @property
    def config(self) -> TopicConfig:
        """All its settings."""

    @property
    def partitions(self) -> Sequence[ServedStream]:
        """Its streams."""

    @property
    def internal(self) -> bool:
        """Whether clients only look at it."""


class ServedStore(Protocol):
    """The topics that clients see, and their changes. Tickets fail with CairnError."""

    @property
    def cluster_id(self) -> str:
        """The cluster that clients are told."""

    @property
    def node_id(self) -> int:
        """The node that clients are told."""

    @property
    def settings(self) -> StoreSettings:
        """Limits and defaults."""

    @property
    def default_replicas(self) -> int:
        """Copies of topics that ask for no number."""

    @property
    def topics(self) -> Mapping[str, ServedTopic]:
        """All topics, by name."""

    def report(self, event: LogEvent, /, **fields: object) -> None:
        """Report an event to the operator."""

    def topic(self, name: str) -> ServedTopic:
        """The topic called `name`. Raises UnknownTopicOrPartition."""

    def topic_by_id(self, topic_id: uuid.UUID) -> ServedTopic | None:
        """The topic with this id, or None."""

    def stream(self, topic: str, partition: int) -> ServedStream:
        """One stream. Raises UnknownTopicOrPartition."""

    def streams(self) -> Sequence[ServedStream]:
        """Every stream."""

    def replicas_of(self, wanted: int) -> int:
        """The number of replicas of a new topic; -1: the default. Raises InvalidReplicas."""

    def check_topic(self, name: str, partitions: int, config: Mapping[str, str], replicas: int = -1) -> TopicConfig:
        """Make the checks of `create_topic`, and raise what it raises."""

    def creation(self, name: str) -> TicketView[ServedTopic] | None:
        """The creation of this topic that is in progress, or None."""

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str], replicas: int = -1
    ) -> TicketView[ServedTopic]:
        """Create a topic. Raises InvalidTopic, TopicExists, InvalidPartitions, InvalidConfig, InvalidReplicas."""

    def add_partitions(self, name: str, total: int) -> TicketView[ServedTopic]:
        """Grow a topic to `total` partitions."""

    def alter_topic(
        self, name: str, changes: Mapping[str, str | None], *, resets_others: bool = False
    ) -> TicketView[ServedTopic]:
        """Change settings of a topic; None resets a setting to its default. `resets_others`: so does every setting of
        its own that is not named, as of the moment of the change.
        """

    def delete_topic(self, name: str) -> TicketView[None]:
        """Delete a topic."""

    def allocate_producer_id(self) -> TicketView[int]:
        """Allocate a producer id that was never allocated before."""


Elsewhere = Callable[[ServedStream, int], bool]


class ServingEngine(Protocol):
    """Runs the store's work, lets tasks wait for it, and reads streams."""

    @property
    def store(self) -> ServedStore:
        """The topics and streams."""

    def append(self, stream: ServedStream, records: bytearray | memoryview, *, now_ms: int) -> AppendTicket:
        """`stream.append`, for a caller that calls `kick` before it waits for anything. Raises CairnError."""

    def kick(self) -> None:
        """Have the queued disk jobs started soon. Call it after a burst of appends."""

    def begin(self) -> None:
        """As `kick`, for a caller who has no more to append now: the queued disk jobs may start, and end, meanwhile."""

    async def wait(self, ticket: TicketView[T]) -> T:
        """Wait for a ticket; returns its result or raises its error."""

    def after_settling(self, callback: Callable[[], None]) -> bool:
        """Call `callback` once all jobs that finished together have settled; False, and never, if none settles now."""

    async def read(
        self, stream: ServedStream, offset: int, max_bytes: int, *, patience: ReadPatience | None = None
    ) -> ReadResult:
        """Read whole batches, starting with the batch that holds `offset`; none, with some `patience`, while they are
        on their way from the tier or, for longer than that, from other hosts: the stream's waiters are woken then.
        Raises CairnError, OSError.
        """

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Says whether a read at an offset of a stream waits for the answer of another host; None: none ever does."""

    async def end_of_epoch(self, stream: ServedStream, epoch: int, patience: ReadPatience) -> LeaderEpochEnd | None:
        """The largest leader epoch of a stream up to `epoch`, and where its records end; None: `epoch` is above the
        newest, or -1. `patience`: for how long what is read for it may take. Raises CairnError.
        """

    async def leader_epoch_at(self, stream: ServedStream, offset: int, patience: ReadPatience) -> int:
        """The leader epoch that wrote, or will write, the record at an offset; -1: not known. Raises CairnError."""

    @property
    def has_read_ahead(self) -> bool:
        """Whether `read_ahead_of` may find something now."""

    def read_ahead_of(self, stream: ServedStream, offset: int, max_bytes: int) -> ReadResult | None:
        """What `read` would give, at least one batch, if it was read ahead and may be given without a wait. None: ask
        `read`. It is to be sent at once, or copied (`compact`): it may keep a whole piece in memory.
        """

    async def find_timestamp(self, stream: ServedStream, timestamp_ms: int) -> TimeFound | None:
        """The first record with this timestamp or a later one; None if there is none. Raises CairnError, OSError."""

    async def max_timestamp(self, stream: ServedStream) -> TimeFound | None:
        """The record with the latest timestamp; None: no records. Raises CairnError, OSError."""

    async def scan_controls(
        self,
        stream: ServedStream,
        before_offset: int,
        types: Collection[int],
        max_bytes: int,
        *,
        from_offset: int = 0,
    ) -> ScanResult:
        """Control batches before an offset (-1: the high watermark), newest first. Raises CairnError, OSError."""


class ForeignStream(TypeError):
    """A defect: an engine was given a stream that another one serves."""

    def __init__(self, stream: ServedStream, engine: ServingEngine) -> None:
        super().__init__(f"{stream.name} is a {type(stream).__name__}, which a {type(engine).__name__} does not serve")
