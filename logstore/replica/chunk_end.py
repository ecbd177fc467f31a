"""When the open chunk of a stream ends, and why it takes batches until the metadata store answers.

| the chunk | means |
|---|---|
| is due | it is full or old, or the stream has its turn for a better set: another chunk is to follow. Batches go on |
| is draining | new batches wait for the next chunk, which is opened when all that was sent is acknowledged |

Invariants:
* A chunk that is due drains after the metadata store has answered, and not before: from the swap of a roll on, nothing
  is acknowledged until the store has made the swap. So a store that is away holds up no batch.
* Nor does one that no other may follow, because the stream has as many chunks as there may be, or too few hosts live:
  if that comes while it drains, batches go on.
* A chunk of `largest_chunk_bytes` drains in any case: the size of a chunk is bounded.
* The store is asked once in `ask_pause_ms`, one read of a register each time.
"""

from typing import Final

ASK_PAUSE_MS: Final = 300
"""Between two questions to a metadata store that does not answer."""


class OpenChunkEnd:
    """The end of the chunk that is open now; see the module. `chunk_bytes`: a chunk of this size is full."""

    def __init__(self, chunk_bytes: int, largest_chunk_bytes: int, min_chunk_ms: int) -> None:
        """`min_chunk_ms`: a chunk is not full before it has been open for so long."""
        self.chunk_bytes = chunk_bytes
        self._largest_chunk_bytes = largest_chunk_bytes
        self._min_chunk_ms = min_chunk_ms
        self._opened_ms = 0
        self._asked_ms: int | None = None
        self.is_over = False
        """Whether the chunk is full or old."""
        self.has_turn = False
        """Whether the stream goes on with a better set now, whatever the chunk has."""
        self.is_draining = False
        self._takes_no_more = False

    @property
    def is_due(self) -> bool:
        """Whether another chunk is to follow."""
        return self.is_over or self.has_turn

    def begin(self, now_ms: int) -> None:
        """A chunk was opened."""
        self._opened_ms, self._asked_ms = now_ms, None
        self.is_over = self.has_turn = self.is_draining = self._takes_no_more = False

    def grown(self, size_bytes: int, now_ms: int) -> None:
        """The chunk has so many bytes, before further ones are placed."""
        if size_bytes >= self.chunk_bytes and now_ms - self._opened_ms >= self._min_chunk_ms:
            self.is_over = True
        if size_bytes >= max(self.chunk_bytes, self._largest_chunk_bytes):
            self.take_no_more()

    def take_no_more(self) -> None:
        """The chunk gets no further batch, come what may: another one follows as soon as the stream may have one."""
        self.is_over = self.is_draining = self._takes_no_more = True

    def go_on(self) -> None:
        """No chunk may follow now: a chunk that drains takes batches again, if it may."""
        self.is_draining = self._takes_no_more

    def asks_store(self, now_ms: int) -> bool:
        """Whether to find out now that the metadata store answers."""
        is_asked = self._asked_ms is not None and now_ms - self._asked_ms < ASK_PAUSE_MS
        if not self.is_due or self.is_draining or is_asked:
            return False
        self._asked_ms = now_ms
        return True

    def store_answered(self, *, may_end: bool) -> None:
        """The metadata store answers, so it is likely to make a swap: a chunk that is due is drained, if it may end."""
        self.is_draining = self.is_draining or (self.is_due and may_end)
