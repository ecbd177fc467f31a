"""Loads state from the log, for a host without a copy of it, and for a new number of partitions.

Invariants:
* State is loaded as of the epoch that the driver names; later epochs in the log are ignored.
* No window is returned before a scan has found all windows: an incomplete state is an error, not a smaller state.

Source: CEC paper, section II.B ("Constructing an EC").
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition
from spe_adapter.cec.changes_since import ChangesSince
from spe_adapter.cec.reconstruct import EventualCheckpoint, Windows
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.epochs.retention import how_lost
from spe_adapter.epochs.scan import ControlScan, reconstruct
from spe_adapter.errors import StateInconsistent, StateTrimmed
from spe_adapter.microbatch.epoch import EpochPlan, QueryDefinition, reader_name
from spe_adapter.operators.combining import NULL_PARTITION
from spe_adapter.state.delta import VersionStep, window_version_of
from spe_adapter.state.segment import Tag

CATCH_UP_TUPLES: Final = 1 << 20
"""With more changes than this, the whole state is loaded instead; it may be smaller."""


class LogLoader:
    """The `state.versions.StateSource` of one stream, as of an epoch."""

    def __init__(self, client: Client, stream: TopicPartition, query: str, epoch: int | None) -> None:
        self._client = client
        self._stream = stream
        self._query = query
        self._epoch = epoch
        self._expected = 0
        self.limit_tuples = CATCH_UP_TUPLES
        """With more changes than this, `since` finds no way: everything may be less."""
        self.log_bytes = 0
        """Bytes of control batches that were read."""

    def since(self, tag: Tag) -> Sequence[VersionStep] | None:
        """The changes after a version, oldest first; None if the log does not have them, or has too many."""
        way = ChangesSince(self._query, tag.epoch, tag.attempt, as_of=self._epoch, limit_tuples=self.limit_tuples)
        with ControlScan(self._client, self._stream) as scan:
            for piece in scan:
                if way.feed(piece):
                    break
            else:
                way.finish()
        self.log_bytes += way.scanned.control_bytes
        deltas = way.result
        if deltas is None:
            return None
        return [
            VersionStep(
                Tag(delta.mark.epoch, delta.mark.attempt),
                delta.footprints,
                delta.tombstones,
                window_version_of(delta.mark),
            )
            for delta in deltas
        ]

    def everything(self) -> Sequence[Windows]:
        """All open windows, by the epoch of their newest footprint."""
        eventual = committed_state(self._client, self._stream, self._query, self._epoch)
        self._expected = sum(windows.rows for windows in eventual.windows)
        self.log_bytes += eventual.scanned.control_bytes
        return eventual.windows

    def expected(self) -> int:
        """The number of windows that `everything` found."""
        return self._expected

    def note(self) -> bytes:
        """Empty: the driver has the counters."""
        return b""


def committed_state(client: Client, stream: TopicPartition, query: str, epoch: int | None) -> EventualCheckpoint:
    """The eventual checkpoint of a query in a stream, as of an epoch that the query's driver found committed.

    Raises StateTrimmed or StateInconsistent.
    """
    try:
        eventual = reconstruct(client, stream, query, epoch)
    except StateTrimmed as error:
        raise StateTrimmed(f"{error}. {how_lost(client, reader_name(query), stream)}") from error
    if not eventual.found:
        raise StateInconsistent(
            f"query {query}: stream {stream} holds no epoch {epoch}, which the query's driver found committed"
        )
    return eventual


def moved_windows(client: Client, fixed: QueryDefinition, plan: EpochPlan, partition: int) -> Iterator[pa.RecordBatch]:
    """The windows that belong to a partition in the new layout, from all streams of the former one."""
    if plan.rebase is None:
        return
    for former in range(plan.rebase.partitions):
        stream = TopicPartition(fixed.options.topic, former)
        for windows in committed_state(client, stream, plan.query, plan.parent_epoch).windows:
            for batch in windows.batches:
                targets = partitions_of(batch.column(0), batch.num_rows, fixed.partitions, NULL_PARTITION)
                mine = np.flatnonzero(targets == partition)
                if len(mine):
                    yield batch.take(pa.array(mine))
