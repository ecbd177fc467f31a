"""An epoch's mark, and the control batches that an epoch leaves in a stream behind its results.

Invariants:
* Marks of all engines are filled here, so that any of them can be read by the same recovery.
* Footprints come first, then closes, then the mark. Read backwards, the mark says how many windows are to be found.
* Nothing here does I/O.

Source: CEC paper, section II.B; docs/format.md, "State".
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from logstore.interfaces import Buffer
from spe_adapter.cec.control import Mark, encode_footprints, encode_mark, encode_tombstones
from spe_adapter.cec.extent import Counters
from spe_adapter.operators.processor import Processor
from spe_adapter.state.store import Changes


class StatePartition(NamedTuple):
    """Whose state it is: one partition of a query's state, as an attempt leaves it. `operator` is the fingerprint."""

    query: str
    attempt: str
    partition: int
    partitions: int
    layout: int
    operator: str


class OpenWindows(NamedTuple):
    """The open windows at the end of an epoch: how many (N), and the epoch of their oldest footprint."""

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
    """The mark of an epoch whose rows the processor has taken; the other fields are as in `Mark`."""
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


def control_batches(mark: Mark, changes: Changes, timestamp_ms: int) -> Iterator[Buffer]:
    """The control batches of an epoch, in the order in which they stand in the stream."""
    query, epoch = mark.query, mark.epoch
    if changes.footprints.num_rows:
        yield from encode_footprints(query, epoch, changes.footprints, changes.opened, timestamp_ms)
    if changes.closed.num_rows:
        yield from encode_tombstones(query, epoch, changes.closed, timestamp_ms)
    yield encode_mark(mark, timestamp_ms)
