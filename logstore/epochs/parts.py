"""What the epochs of queries are built on: a ledger, staged output, and who publishes; for a host alone or a cluster.

| part | on a host alone | in a cluster |
|---|---|---|
| ledger | `logstore.log.ledger` | a replicated stream (`logstore.cluster.epochs.replicated_ledger`) |
| staging | files (`staging`) | records of the same stream (`replicated_staging`) |
| publisher | into the host's streams (`publisher`) | to the streams' owners (`remote_publisher`) |

Invariant: a ticket settles when what it stands for is durable.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.epochs.commit_in_progress import CommitInProgress
from logstore.epochs.epoch_block import EpochBlock
from logstore.epochs.ledger_entries import CommitRecord, Target
from logstore.epochs.publisher import EpochPublisher
from logstore.epochs.staging import Staging
from logstore.errors import StagedMissing, StorageFailed
from logstore.format.epoch_api import Part
from logstore.format.staged import AttemptKey, SegmentHeader
from logstore.interfaces import Buffer
from logstore.log.store import Store
from logstore.log.stream_state import Pin
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig


class EpochLedger(Protocol):
    """The durable map of queries and epochs."""

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """All pairs under a prefix, as of now."""

    def put(self, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        """Store entries atomically; None deletes. The ticket fails with StorageFailed."""


class AttemptSegment(Protocol):
    """A staged segment."""

    @property
    def header(self) -> SegmentHeader:
        """Its attempt, its place in it, and its parts."""


class Attempt(Protocol):
    """The staged output of a task attempt."""

    @property
    def key(self) -> AttemptKey:
        """Which attempt."""

    @property
    def segments(self) -> Sequence[AttemptSegment]:
        """All segments, those that are not durable yet too."""

    @property
    def durable_segments(self) -> int:
        """How many of them are durable, from the first on."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""

    @property
    def failure(self) -> StorageFailed | None:
        """Why nothing of the attempt counts."""

    @property
    def last_staged_ms(self) -> int:
        """Wall time of the newest segment, in ms."""


class StagingArea(Protocol):
    """The staged output of all attempts, and the limit on its bytes."""

    @property
    def used_bytes(self) -> int:
        """Bytes of all staged output."""

    def stage(
        self, key: AttemptKey, position: int, parts: tuple[Part, ...], data: Buffer, *, now_ms: int
    ) -> Ticket[int]:
        """Stage a segment; the result is `position` + 1, once it is durable. Raises StagePosition, StorageFailed."""

    def get(self, key: AttemptKey) -> Attempt | None:
        """The attempt with this key, or None if it has staged nothing."""

    def attempts(self, query: str) -> Sequence[Attempt]:
        """The attempts of a query."""

    def all_attempts(self) -> Sequence[Attempt]:
        """Every attempt."""

    def drop(self, keys: Iterable[AttemptKey]) -> int:
        """Remove these attempts; returns their bytes."""


class Publisher(Protocol):
    """Brings committed epochs into their streams. `finds_published`: a start finds for itself which streams have an
    epoch (`search_from`), and needs no staged data of those.
    """

    finds_published: bool

    def config(self, topic: str, partition: int) -> TopicConfig:
        """The settings that staged batches of a stream have to keep. Raises UnknownTopicOrPartition."""

    async def locate(self, places: Collection[tuple[str, int]]) -> None:
        """Find out what `target` needs of these streams. Raises TryAgain."""

    def target(self, topic: str, partition: int) -> Target:
        """A stream, after `locate`, as a target of an epoch. Raises UnknownTopicOrPartition, TryAgain."""

    def check_group(self, target: Target, size_bytes: int) -> None:
        """Check that a stream can take so much of an epoch. Raises MessageTooLarge."""

    def pins(self, record: CommitRecord) -> list[Pin]:
        """Protect what a start would search for the epoch's END."""

    def search_from(self, target: Target) -> int | None:
        """Where a start searches a stream for the epoch's END; None: nowhere."""

    async def prepare(
        self, commit: CommitInProgress, changes: bytes, settle: Callable[[], Ticket[None]]
    ) -> EpochBlock | None:
        """The epoch's groups and its decision as parts of one block of a journal; None if that cannot be."""

    async def publish(self, commit: CommitInProgress) -> None:
        """Append the epoch's group to every stream that lacks it. Raises CairnError; the epoch stays committed."""


class SpaceAdmission(Protocol):
    """Looks after the room for what is staged."""

    def promise(self, promised_bytes: Callable[[], int], /) -> None:
        """Keep so many bytes free."""

    def when_short(self, make_room: Callable[[], None], /) -> None:
        """Call `make_room` when there is too little room."""

    def admit(self, size_bytes: int, /, *, promised_bytes: int = 0) -> None:
        """Count bytes that are to be staged. Raises StorageFailed if there is no room."""


class EpochParts(NamedTuple):
    """What `Epochs` is built on."""

    ledger: EpochLedger
    staging: StagingArea
    publisher: Publisher
    space: SpaceAdmission
    clock: Clock


def of_host(store: Store, staging: Staging, report: Report) -> EpochParts:
    """The parts on a host alone."""
    return EpochParts(store.epochs, staging, EpochPublisher(staging, store, report), store.space, store.clock)


def check_complete(key: AttemptKey, attempt: Attempt | None, segments: int) -> None:
    """Check that an attempt has exactly so many segments, durably. Raises StagedMissing."""
    here = attempt.durable_segments if attempt is not None and attempt.failure is None else 0
    if attempt is None or here != segments or len(attempt.segments) != segments:
        raise StagedMissing(
            f"task {key.task} of epoch {key.epoch} of query {key.query!r}: attempt {key.attempt!r} should have "
            f"{segments} staged segments, {here} are here; nothing was committed, run the epoch again"
        )
