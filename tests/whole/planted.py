"""Bugs that lie between the front, the streams of a cluster and the disk, put back one at a time.

Invariant: a bug changes as little as it can; everything else is the product's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.format.batch import BatchHeader
from logstore.interfaces import FileSystem
from logstore.log.jobs import Sync, SyncDirectory
from logstore.log.producers import ProducerTable
from logstore.log.stream_state import AppendResult, AppendTicket


class PlantedPatch(NamedTuple):
    """A method of the product, and what is in its place."""

    kind: type
    name: str
    instead: Callable[..., Any]


_APPEND: Final = ReplicatedStream._append
_ACKED: Final = ReplicatedStream.acked
_FOUNDING: Final = ReplicatedStream.founding
_ADMIT: Final = ProducerTable.admit


def _answers_early(stream: ReplicatedStream, records: bytearray | memoryview, header: BatchHeader) -> AppendTicket:
    """A client is answered when its batch has an offset, durable or not."""
    ticket = _APPEND(stream, records, header)
    for batch in stream._in_flight:
        if batch.ticket is ticket:
            return AppendTicket.succeeded(AppendResult(batch.base_offset, stream.log_start_offset, False))
    return ticket


def _shows_what_is_appended(stream: ReplicatedStream, high_watermark: int) -> None:
    """Readers are told the end of what was appended, as soon as something of it is acknowledged."""
    _ACKED(stream, high_watermark)
    stream.high_watermark = stream.end_offset


def _founding_all_the_same(stream: ReplicatedStream, base_offset: int) -> bytes:
    """What a chunk is founded on, which the bug above must not change."""
    stream.high_watermark = base_offset
    return _FOUNDING(stream, base_offset)


async def _forgets_producers(*_: Any) -> ProducerTable[AppendTicket]:
    """Whoever takes over a stream, or starts again, knows no producer of it."""
    return ProducerTable()


def _takes_again(table: ProducerTable[Any], header: BatchHeader, ticket: Any) -> Any:
    """A batch that comes again is appended again, if it is not under way."""
    found = _ADMIT(table, header, ticket)
    return None if found is not None and found.ticket is None else found


def _does_not_sync(_: object, __: FileSystem) -> None:
    """What is written counts as durable."""


PLANTED: Final = {
    "answered before it is durable": (PlantedPatch(ReplicatedStream, "_append", _answers_early),),
    "high watermark beyond what is acknowledged": (
        PlantedPatch(ReplicatedStream, "acked", _shows_what_is_appended),
        PlantedPatch(ReplicatedStream, "founding", _founding_all_the_same),
    ),
    "producers are forgotten": (PlantedPatch(ChunkReads, "load_producers", _forgets_producers),),
    "sequence is taken twice": (PlantedPatch(ProducerTable, "admit", _takes_again),),
    "nothing is synced": (
        PlantedPatch(Sync, "run", _does_not_sync),
        PlantedPatch(SyncDirectory, "run", _does_not_sync),
    ),
}
"""By name."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The product has the bug in the block."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, method, instead in PLANTED[name]:
            assert hasattr(kind, method)
            patch.setattr(kind, method, instead)
        yield
