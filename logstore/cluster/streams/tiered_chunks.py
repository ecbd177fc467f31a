"""Chunks of replicated streams in the tier: from what a registration says to what reads and removes objects.

Invariants:
* An attempt to store a chunk is named by the epoch with which the ownership began, and a number that no other attempt
  of the process has. No two owners have the same epoch, and a later owner has a higher one: so a name is never given
  twice, and whoever sees one knows whether a later owner than itself may have stored it.
* Nothing here does I/O.
"""

from collections.abc import Callable, Collection, Container, Iterator
from itertools import count
from typing import Final, NamedTuple

from logstore.format.index import UNKNOWN_TIME
from logstore.format.tiered_chunk import ParsedKey, StoredObject, TieredChunk
from logstore.log.topics import TopicConfig
from logstore.replica.registrations import ChunkRegistration, StreamRegistration, TieredCopy

EPOCH_DIGITS: Final = 10
NUMBER_DIGITS: Final = 6
"""In hexadecimal; together they are the 16 digits of an attempt."""


def has_copies(chunk: ChunkRegistration, copies: int, alive: Collection[str]) -> bool:
    """Whether a chunk has so many copies, or as many as hosts are alive, and none is being made. A candidate that is
    not alive may be gone for good.
    """
    is_copied = any(candidate.host in alive for candidate in chunk.candidates)
    return len(chunk.members) >= min(copies, len(alive)) and not is_copied


class TieredStream(NamedTuple):
    """Which stream an object belongs to."""

    topic_id: str
    partition: int


def attempts(epoch: int) -> Callable[[], str]:
    """Gives names to the attempts of an ownership that began with an epoch."""
    if not 0 <= epoch < 1 << 4 * EPOCH_DIGITS:
        raise AssertionError(f"epoch {epoch} has more than {EPOCH_DIGITS} hexadecimal digits")
    return lambda: f"{epoch:0{EPOCH_DIGITS}x}{next(_numbers) % (1 << 4 * NUMBER_DIGITS):0{NUMBER_DIGITS}x}"


_numbers: Iterator[int] = count()


def epoch_of(attempt: str) -> int:
    """The epoch with which the ownership began that made an attempt."""
    return int(attempt[:EPOCH_DIGITS], 16)


def stream_of(key: ParsedKey) -> TieredStream | None:
    """The stream of an object's key; None if it is none of a cluster's."""
    cluster_id, _, place = key.place.partition("/")
    topic, _, partition = place.partition("/")
    topic_id = topic.rpartition(".")[2]
    if not cluster_id or len(topic_id) != 32 or not partition.isascii() or not partition.isdecimal():
        return None
    if any(digit not in "0123456789abcdef" for digit in topic_id) or str(int(partition)) != partition:
        return None
    return TieredStream(topic_id, int(partition))


def tiered_chunk(place: str, chunk: ChunkRegistration) -> TieredChunk | None:
    """A chunk as the tier has it; None: it is not there. `place`: what the keys of its stream's objects start with."""
    copy, end = chunk.tiered, chunk.end
    if copy is None or end is None:
        return None
    return TieredChunk(
        chunk.base_offset,
        end.next_offset,
        copy.max_timestamp,
        chunk.written_ms,
        place,
        copy.attempt,
        StoredObject(end.length_bytes, end.checksum),
        StoredObject(*copy.index_sum),
        None if copy.producers_sum is None else StoredObject(*copy.producers_sum),
        chunk.epoch,
    )


def tiered_copy(found: TieredChunk) -> TieredCopy:
    """What the registration says of a chunk that was stored and read back."""
    producers = None if found.producers is None else (found.producers.size_bytes, found.producers.crc)
    return TieredCopy(found.attempt, found.max_timestamp, (found.index.size_bytes, found.index.crc), producers)


class SealedChunks(NamedTuple):
    """The sealed chunks of a registration, as the tier looks at them; in order, but for those in the tier alone.

    `unstored`: those that are not in the tier. `held`: those that hosts hold, and `held_bytes` their batches' bytes.
    """

    unstored: tuple[ChunkRegistration, ...] = ()
    held: tuple[ChunkRegistration, ...] = ()
    held_bytes: int = 0

    @classmethod
    def of(cls, registration: StreamRegistration) -> "SealedChunks":
        """Those of a registration."""
        sealed = [chunk for chunk in registration.chunks if not chunk.is_open]
        held = tuple(chunk for chunk in sealed if not chunk.is_tiered_alone)
        unstored = tuple(chunk for chunk in held if chunk.tiered is None)
        return cls(unstored, held, sum(map(_length, held)))

    def next_to_store(self, first_offset: int, is_due: Callable[[ChunkRegistration], bool]) -> ChunkRegistration | None:
        """The oldest chunk with records from an offset on that is due."""
        for chunk in self.unstored:
            if chunk.end is not None and chunk.end.next_offset > first_offset and is_due(chunk):
                return chunk
        return None

    def local_excess(self, config: TopicConfig, open_bytes: int, served_ms: int, there: Container[int]) -> int | None:
        """The offset up to which hosts' copies are beyond the topic's local retention and in the tier; None: none is.

        The last sealed chunk always stays. `open_bytes`: of the open chunk; `served_ms` is the retention clock;
        `there`: epochs of chunks whose objects are in the tier.
        """
        left_bytes, before_offset = open_bytes + self.held_bytes, None
        most_bytes, oldest_ms = config.kept_local_bytes, config.kept_local_ms
        for chunk in self.held[:-1]:
            left_bytes -= _length(chunk)
            is_too_big = 0 <= most_bytes <= left_bytes
            is_too_old = chunk.written_ms != UNKNOWN_TIME and 0 <= oldest_ms <= served_ms - chunk.written_ms
            is_there = chunk.tiered is not None and chunk.epoch in there
            if not is_there or chunk.end is None or not (is_too_big or is_too_old):
                break
            before_offset = chunk.end.next_offset
        return before_offset


def _length(chunk: ChunkRegistration) -> int:
    return 0 if chunk.end is None else chunk.end.length_bytes
