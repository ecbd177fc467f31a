"""What of a replicated stream lies in the tier.

Invariant: only the host that owns the stream knows it, also while it takes no appends yet; others say that nothing
does.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import takewhile

from logstore.log.waiters import Waitable
from logstore.replica.registrations import ChunkRegistration, StreamRegistration


class TieredBounds(Waitable):
    """Of one stream; see the module."""

    log_start_offset: int

    @property
    @abstractmethod
    def is_readable(self) -> bool:
        """Whether this host serves the stream's readers."""

    @property
    @abstractmethod
    def registration(self) -> StreamRegistration:
        """The stream's registration, while this host owns it. Raises NotLeader."""

    @property
    def local_start_offset(self) -> int:
        """The first offset that is not in the tier alone."""
        if not self.is_readable:
            return self.log_start_offset
        held = next((chunk for chunk in self.registration.chunks if not chunk.is_tiered_alone), None)
        return self.log_start_offset if held is None else max(self.log_start_offset, held.base_offset)

    @property
    def tiered_end_offset(self) -> int:
        """The offset after the last record in the tier; -1: nothing is there."""
        tiered = self._tiered_chunks
        return -1 if not tiered or tiered[-1].end is None else tiered[-1].end.next_offset

    @property
    def tiered_chunk_count(self) -> int:
        """How many chunks are in the tier, from the first one on, without a gap."""
        return len(self._tiered_chunks)

    @property
    def tiered_bytes(self) -> int:
        """Bytes of their batches."""
        return sum(chunk.end.length_bytes for chunk in self._tiered_chunks if chunk.end is not None)

    @property
    def _tiered_chunks(self) -> Sequence[ChunkRegistration]:
        """None where another host owns the stream."""
        chunks = self.registration.chunks if self.is_readable else ()
        return list(takewhile(lambda chunk: chunk.tiered is not None, chunks))
