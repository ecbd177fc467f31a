"""Loads state from the log, for a host without a copy of it, and for a new number of partitions; where the log begins
behind a checkpoint, from both.

Invariants:
* State is loaded as of the epoch that the driver names; later epochs in the log are ignored.
* No window is returned before a scan has found all windows: an incomplete state is an error, not a smaller state.

Source: CEC paper, section II.B ("Constructing an EC").
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition
from spe_adapter.cec.changes_since import DEFAULT_LIMIT_TUPLES, ChangesSince
from spe_adapter.cec.reconstruct import EventualCheckpoint, Windows
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.checkpoint.whole_state import WholeState, whole_state
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.epochs.lookup import state_columns
from spe_adapter.epochs.retention import how_lost
from spe_adapter.epochs.scan import ControlScan, find_head, reconstruct
from spe_adapter.errors import StateCleaned, StateInconsistent, StateTrimmed
from spe_adapter.host import ThisHost, new_seed
from spe_adapter.microbatch.checkpoints import OfferedCheckpoints, entered
from spe_adapter.microbatch.epoch import EpochPlan, QueryDefinition, reader_name
from spe_adapter.microbatch.options import StatefulOptions
from spe_adapter.operators.combining import NULL_PARTITION
from spe_adapter.pages.resident import lies_in_memory
from spe_adapter.state.delta import VersionStep, window_version_of
from spe_adapter.state.errors import StateDirectoryRefused
from spe_adapter.state.evolution import Conversion, state_columns_of
from spe_adapter.state.segment import Tag
from spe_adapter.state.versions import StateDirectory

_ROWS_AT_ONCE: Final = 1 << 16
CATCH_UP_TUPLES: Final = 1 << 20
"""With more changes than this, the whole state is loaded instead; it may be smaller."""


def state_directory(options: StatefulOptions, query: str) -> StateDirectory:
    """The state of a query on this host. Raises StateDirectoryRefused if memory is bounded and there is no disk."""
    directory = StateDirectory(
        options.state_root,
        query,
        options.state_limit_bytes,
        seed=new_seed(),
        memory_bytes=options.state_memory_bytes,
    )
    if options.state_memory_bytes is not None and lies_in_memory(directory.root):
        raise StateDirectoryRefused(
            f"option 'stateMemory' is {options.state_memory_bytes} bytes, and 'stateDirectory' {str(directory.root)!r} "
            "is in memory (tmpfs), so nothing can be dropped; name a directory on a disk, or omit 'stateMemory'"
        )
    return directory


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
    except StateCleaned:
        raise
    except StateTrimmed as error:
        raise StateTrimmed(f"{error}. {how_lost(client, reader_name(query), stream)}") from error
    if not eventual.found:
        raise StateInconsistent(
            f"query {query}: stream {stream} holds no epoch {epoch}, which the query's driver found committed"
        )
    return eventual


def committed_windows(
    client: Client, stream: TopicPartition, query: str, epoch: int, checkpoints: CheckpointSettings | None
) -> WholeState:
    """All open windows as of an epoch that the log has: from the log, or from a checkpoint and the log behind it.

    Raises StateTrimmed or StateInconsistent.
    """
    try:
        state = whole_state(client, stream, query, epoch, checkpoints)
    except StateCleaned:
        raise
    except StateTrimmed as error:
        raise StateTrimmed(f"{error}. {how_lost(client, reader_name(query), stream)}") from error
    if not state.eventual.found:
        raise StateInconsistent(f"query {query}: stream {stream} holds no epoch {epoch}")
    return state


def moved_windows(client: Client, fixed: QueryDefinition, plan: EpochPlan, partition: int) -> Iterator[pa.RecordBatch]:
    """The windows that belong to a partition in the new layout, from all streams of the former one, in the columns of
    the operator's state. Raises StateTrimmed, StateInconsistent and StateSchemaChanged.
    """
    if plan.rebase is None:
        return
    is_moved = plan.rebase.partitions != fixed.partitions
    for former in range(plan.rebase.partitions) if is_moved else (partition,):
        for batch in _former_windows(client, fixed, plan, former):
            kept = batch
            if is_moved:
                keys = fixed.operator.routing_keys(batch.column(0), batch.column(1).to_numpy())
                targets = partitions_of(keys, batch.num_rows, fixed.partitions, NULL_PARTITION)
                kept = batch.take(pa.array(np.flatnonzero(targets == partition)))
            if kept.num_rows:
                yield _in_columns_of(fixed, kept)


def _former_windows(client: Client, fixed: QueryDefinition, plan: EpochPlan, former: int) -> Iterator[pa.RecordBatch]:
    """All windows of a partition of the former layout, from the log, or from a checkpoint and the log behind it."""
    stream = TopicPartition(fixed.options.topic, former)
    try:
        eventual = committed_state(client, stream, plan.query, plan.parent_epoch)
    except StateTrimmed:
        if fixed.options.checkpoints is None:
            raise
        yield from _checkpointed_windows(client, fixed, plan, former)
        return
    for windows in eventual.windows:
        yield from windows.batches


def _checkpointed_windows(
    client: Client, fixed: QueryDefinition, plan: EpochPlan, former: int
) -> Iterator[pa.RecordBatch]:
    """All windows of a partition of the former layout whose log begins behind a checkpoint.

    They are loaded into a state directory of their own, which all tasks of this host share and the last one removes.
    """
    options, stream = fixed.options, TopicPartition(fixed.options.topic, former)
    head = find_head(client, stream, plan.query, epoch=plan.parent_epoch)
    if options.checkpoints is None or plan.parent_epoch is None or head is None or head.mark is None:
        raise StateInconsistent(f"query {plan.query}: stream {stream} holds no mark of epoch {plan.parent_epoch}")
    operator, schema = head.mark.operator, fixed.operator.state_schema(fixed.schema)
    if operator != fixed.fingerprint:
        schema = state_columns(client, stream, plan.query, plan.parent_epoch) or schema
    tag = Tag(plan.parent_epoch, plan.parents[former].attempt)
    loader = LogLoader(client, stream, plan.query, plan.parent_epoch)
    loader.limit_tuples = DEFAULT_LIMIT_TUPLES
    offered = OfferedCheckpoints(options.checkpoints, Unit(plan.query, former), plan.parent_epoch)
    directory = state_directory(options, f"{plan.query}.before-{plan.layout}")
    with ExitStack() as stack:
        network = ThisHost().network
        state = entered(stack, lambda: directory.open(former, schema, operator, tag, loader, offered), offered, network)
        rows = state.base.live_rows()
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            yield state.base.take(rows[start : start + _ROWS_AT_ONCE])
    directory.remove()


def _in_columns_of(fixed: QueryDefinition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Windows of the operator, or of the operator that it follows, in the columns of the operator's state."""
    former, now = state_columns_of(batch), fixed.operator.state_schema(fixed.schema)
    return Conversion(former, now, fixed.operator.state_evolution(fixed.schema, former)).converted(batch)
