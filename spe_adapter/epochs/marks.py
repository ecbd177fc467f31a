"""The mark of an epoch, and the control batches that an epoch has in a stream after its results.

Invariants:
* The marks of all engines are made here, so that one recovery reads them all.
* Footprints come first, then tombstones, then the mark. Read backwards, the mark tells the number of windows to find.
* This module does no I/O.

Source: CEC paper, section II.B; docs/format.md, "State".
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from logstore.interfaces import Buffer
from spe_adapter.cec.control import Mark, encode_footprints, encode_mark, encode_tombstones
from spe_adapter.cec.extent import Counters
from spe_adapter.operators.processor import Processor
from spe_adapter.state.store import WindowChanges


class StatePartition(NamedTuple):
    """Identifies one partition of a query's state and the attempt that wrote it. `operator` is the fingerprint."""

    query: str
    attempt: str
    partition: int
    partitions: int
    layout: int
    operator: str


class OpenWindows(NamedTuple):
    """The open windows at the end of an epoch: their number (N), and the epoch of their oldest footprint."""

    open_windows: int
    oldest_epoch: int


def epoch_mark(
    owner: StatePartition,
    epoch: int,
    counters: Counters,
    windows: OpenWindows,
    processor: Processor,
    *,
    watermark_ms: int,
    max_events_ms: tuple[int | None, ...] = (),
    positions: Mapping[str, Mapping[int, int]] | None = None,
    runs: tuple[tuple[int, int, int], ...] = (),
    rebase: bool = False,
) -> Mark:
    """The mark of an epoch after the processor has processed its rows; the other fields are as in `Mark`."""
    return Mark(
        **owner._asdict(),
        epoch=epoch,
        open_windows=windows.open_windows,
        oldest_epoch=windows.oldest_epoch,
        emitted=counters.emitted,
        seen=counters.seen,
        sequence=processor.sequence,
        max_event_ms=processor.max_event_ms,
        watermark_ms=watermark_ms,
        max_events_ms=max_events_ms,
        positions=positions or {},
        runs=runs,
        rebase=rebase,
    )


def control_batches(mark: Mark, changes: WindowChanges, timestamp_ms: int) -> Iterator[Buffer]:
    """The control batches of an epoch, in the order of the stream."""
    query, epoch = mark.query, mark.epoch
    if changes.footprints.num_rows:
        yield from encode_footprints(query, epoch, changes.footprints, changes.opened, timestamp_ms)
    if changes.closed.num_rows:
        yield from encode_tombstones(query, epoch, changes.closed, timestamp_ms)
    yield encode_mark(mark, timestamp_ms)
