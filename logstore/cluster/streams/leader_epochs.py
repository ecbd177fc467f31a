"""Which leader epoch wrote which offsets of a replicated stream, as Kafka's leader epoch cache has it.

A registration lists chunks with epochs of their own, which grow with each rolled chunk; what clients know is the epoch
of the ownership that wrote a batch, which stands in the batch. So the epochs of earlier owners are read where they
are: in the first batch of a chunk.

Invariants:
* All batches of a chunk have one leader epoch, which is the chunk's epoch or a lower one, and no lower than that of the
  chunk in front. So a search by halves finds the first chunk behind an epoch; and one batch that was read tells the
  epoch of all chunks in front whose own epoch is not below it.
* What this host's ownership has written begins where the ownership begins; of that, and of chunks that have no higher
  epoch than is asked for, nothing is read.
* An epoch that wrote nothing is in no batch, so the epoch in front of it answers for it, as in Kafka. What lies in
  front of the log start belongs to nobody.
* A chunk whose batch cannot be read in time, or whose records are deleted meanwhile, counts as one of no higher epoch.
  The end of an epoch may be told as a later one then, never as an earlier one: a client takes an end in front of what
  it has read for a loss.
* MAX_KNOWN chunks' epochs are remembered; those of a chunk never change.

Sources: KIP-101, KIP-279, KIP-320; `LeaderEpochFileCache.endOffsetFor` of Kafka.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import trio

from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.errors import CairnError, NotLeader
from logstore.format.batch import parse_header
from logstore.log.read_patience import ReadPatience
from logstore.log.served import NO_LEADER_EPOCH, LeaderEpochEnd
from logstore.replica.registrations import ChunkRegistration

MAX_KNOWN: Final = 16_384
"""Of all streams of a host: about 3 MB."""

_EPOCH: Final = attrgetter("epoch")
_BASE_OFFSET: Final = attrgetter("base_offset")


class LeaderEpochs:
    """See the module."""

    def __init__(self, reads: ChunkReads) -> None:
        self._reads = reads
        self._known: OrderedDict[tuple[str, int], int] = OrderedDict()
        """The leader epoch of a chunk's batches, by stream and epoch of the chunk; the one used last is the last."""

    @property
    def known_chunks(self) -> int:
        """Of how many chunks the leader epoch is remembered."""
        return len(self._known)

    async def end_of(self, stream: ReplicatedStream, epoch: int, patience: ReadPatience) -> LeaderEpochEnd | None:
        """The largest leader epoch of the stream up to `epoch`, and the offset at which the next one begins, or the end
        of the log; `epoch` itself if all that is left is newer. None: `epoch` is above the newest, or -1. `patience`:
        for how long all reads for the request may last together.

        Raises NotLeader, UnknownTopicOrPartition.
        """
        stream.check_reads()
        if epoch < 0 or epoch > stream.newest_epoch:
            return None
        if epoch >= stream.leader_epoch:
            return LeaderEpochEnd(stream.leader_epoch, stream.log_end)
        ownership, start, led_from = stream.ownership, stream.log_start_offset, stream.led_from
        chunks, (low, high) = stream.registration.chunks, _in_front(stream)
        above = await self._first_above(stream, epoch, chunks[:high], low, patience)
        end_offset, before = led_from if above == high else chunks[above].base_offset, epoch
        if above > low:
            in_front = chunks[above - 1]
            found = await self._of(stream, in_front, patience)
            before = min(epoch, in_front.epoch) if found == NO_LEADER_EPOCH else found
        _check_ownership(stream, ownership)
        return LeaderEpochEnd(before, max(end_offset, start))

    async def at(self, stream: ReplicatedStream, offset: int, patience: ReadPatience) -> int:
        """The leader epoch that wrote the record at an offset; -1: it cannot be read in time. Raises as `end_of`."""
        stream.check_reads()
        ownership, epoch = stream.ownership, stream.leader_epoch
        chunk = stream.registration.chunk_at(offset) if offset < stream.led_from else None
        if chunk is not None:
            epoch = await self._of(stream, chunk, patience)
        _check_ownership(stream, ownership)
        return epoch

    async def _first_above(
        self,
        stream: ReplicatedStream,
        epoch: int,
        chunks: Sequence[ChunkRegistration],
        low: int,
        patience: ReadPatience,
    ) -> int:
        """The number of the first chunk, from `low` on, whose batches have a higher leader epoch than `epoch`; their
        number if none has.
        """
        low, high = max(low, bisect_right(chunks, epoch, key=_EPOCH)), len(chunks)
        while low < high:
            middle = (low + high) // 2
            found = await self._of(stream, chunks[middle], patience)
            if found <= epoch:
                low = middle + 1
            else:
                high = bisect_left(chunks, found, low, middle, key=_EPOCH)
        return low

    async def _of(self, stream: ReplicatedStream, chunk: ChunkRegistration, patience: ReadPatience) -> int:
        """The leader epoch of a chunk's batches; -1: it cannot be read in time, its records are deleted, or a batch has
        an epoch that it cannot have.
        """
        key = (stream.stream, chunk.epoch)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        first = max(chunk.base_offset, stream.log_start_offset)
        if chunk.end is not None and first >= chunk.end.next_offset:
            return NO_LEADER_EPOCH  # deleted since the search began; another chunk's batch is there
        found = await self._read(stream, first, patience)
        if not 0 <= found <= chunk.epoch:
            return NO_LEADER_EPOCH  # the checksum of a batch does not cover its epoch
        self._known[key] = found
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return found

    async def _read(self, stream: ReplicatedStream, offset: int, patience: ReadPatience) -> int:
        begun_s = trio.current_time()
        patience.begin(begun_s)
        try:
            with trio.move_on_after(patience.left_at(begun_s)):
                found = await self._reads.read(stream, offset, 1)
                return parse_header(found.buffers[0]).partition_leader_epoch if found.buffers else NO_LEADER_EPOCH
        except (CairnError, OSError):
            return NO_LEADER_EPOCH  # whoever reads the records there is told why they cannot be read
        finally:
            patience.end(trio.current_time())
        return NO_LEADER_EPOCH


def _in_front(stream: ReplicatedStream) -> tuple[int, int]:
    """The numbers of the first chunk with records that are not deleted, and of the first one behind those of earlier
    owners. Raises NotLeader.
    """
    start, chunks = stream.log_start_offset, stream.registration.chunks
    behind = bisect_left(chunks, stream.led_from, key=_BASE_OFFSET)
    first = max(0, bisect_right(chunks, start, hi=behind, key=_BASE_OFFSET) - 1)
    end = chunks[first].end if first < behind else None
    return first + (end is not None and end.next_offset <= start), behind


def _check_ownership(stream: ReplicatedStream, ownership: int) -> None:
    """Raise NotLeader if the ownership whose epochs were looked at is over."""
    stream.check_reads()
    if stream.ownership != ownership:
        raise NotLeader(f"{stream.name}: its ownership has restarted; ask again")
