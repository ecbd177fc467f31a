"""The room that the state of a coordinator has in its store: new requests are refused before it is used up.

A request is small when it is accepted, and grows with each go and each end of its chunks; what is accepted is written
on. So a request is accepted only if all of it has room beside all of those that have not ended.

Invariants: a store that takes what its disk takes refuses nothing here. What is promised is an estimate: chunks that
are planned again and again take more than it.
"""

from math import inf
from typing import Final

from scheduler.coordinator.errors import ApiError
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.registry import RequestRegistry

BAD_REQUEST: Final = 400
INSUFFICIENT_STORAGE: Final = 507
RETRY_S: Final = 10
"""What a client is told that asks for more than is free: requests end, and are forgotten, meanwhile."""
CHUNK_BYTES: Final = 600
"""Of a chunk from its first go to its end, and of a second attempt, without names
(`test_what_the_store_has_of_a_chunk_and_of_a_checkpoint`)."""
NAMES_IN_CHUNK: Final = 4
"""How often they have the name of the request."""


class StateRoom:
    """See the module."""

    def __init__(self, journal: MetadataJournal, registry: RequestRegistry) -> None:
        self._journal = journal
        self._registry = registry
        self.promised_bytes = 0
        """For what is still to be stored of requests that have not ended, as of the last look."""

    @property
    def left_bytes(self) -> float:
        """What is free beside what is stored and promised."""
        return self._journal.left_bytes - self.promised_bytes

    def look(self) -> None:
        """Count anew what is promised: chunks have ended, and requests."""
        if self._journal.limit_bytes != inf:
            self.promised_bytes = sum(
                _bytes(name, entry.record.chunks - len(entry.done))
                for name, entry in self._registry.requests.items()
                if entry.ended_ms is None and entry.record is not None
            )

    def admit(self, name: str, chunks: int, beside_bytes: int = 0) -> None:
        """Keep room for so many more chunks of a request, and for other bytes of it. Raises ApiError without room."""
        limit_bytes, needed_bytes = self._journal.limit_bytes, beside_bytes + _bytes(name, chunks)
        if needed_bytes <= self.left_bytes:
            self.promised_bytes += 0 if limit_bytes == inf else needed_bytes
            return
        if needed_bytes > limit_bytes:
            raise ApiError(
                BAD_REQUEST,
                f"chunks={chunks}: they may take {needed_bytes} bytes of state, and there is never room for more than "
                f"{int(limit_bytes)}: submit requests of fewer chunks, one after the other",
                "chunks",
            )
        raise ApiError(
            INSUFFICIENT_STORAGE,
            f"the state is full: {chunks} chunks of request {name[:100]!r} may take {needed_bytes} bytes, and "
            f"{max(0, int(self.left_bytes))} of {int(limit_bytes)} are free beside {self._registry.live} requests that "
            "have not ended: try again when some of them have, with fewer chunks, or remove old checkpoints",
            headers={"Retry-After": str(RETRY_S)},
        )


def _bytes(name: str, chunks: int) -> int:
    return max(0, chunks) * (CHUNK_BYTES + NAMES_IN_CHUNK * len(name.encode()))
