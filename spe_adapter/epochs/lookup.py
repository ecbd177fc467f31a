"""Looks into a stream for people and readers: whose state it holds, which epochs stand, and the state's columns.

Invariants:
* Nothing here changes the log.
* An epoch that a reset has undone does not stand, and is never given.
* The columns are those of a footprint that belongs to the epoch's state, so they are what a reconstruction gives. A
  state without open windows has no footprint, and its columns are unknown.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition
from logstore.client.wire import EARLIEST
from spe_adapter.cec.backward_scan import BackwardScan
from spe_adapter.cec.control import STATE_PREFIX, Begin, Control, End, EndPositions, Footprints, Mark, holds_progress
from spe_adapter.cec.reconstruct import cleaned
from spe_adapter.epochs.scan import ControlScan, ends, standing_epochs
from spe_adapter.errors import EpochNotFound, QueryNotFound, StateCleaned, StateTrimmed


def queries(client: Client, stream: TopicPartition) -> dict[str, int]:
    """The queries whose state is in a stream, each with its newest epoch.

    An END without a query's progress in it (of a sink without state) does not count.
    """
    found: dict[str, int] = {}
    for end, _ in ends(client, stream):
        if end.query not in found and holds_progress(end):
            found[end.query] = end.epoch
    return found


def only_query(client: Client, topic: str, query: str | None) -> str:
    """The query whose state is meant: `query` if the topic has its state, or the topic's only query.

    Raises QueryNotFound, which names the queries that are there.
    """
    found = sorted({name for stream in _streams(client, topic) for name in queries(client, stream)})
    if query in found:
        return query
    if query is not None or not found:
        there = f"it has the state of {', '.join(found)}" if found else "no query keeps state in it"
        asked = "" if query is None else f"query {query} has no state in topic {topic!r}; "
        raise QueryNotFound(f"{asked}topic {topic!r} at {client.where}: {there}")
    if len(found) > 1:
        raise QueryNotFound(f"topic {topic!r} has the state of {', '.join(found)}; name one of these queries")
    return found[0]


def _streams(client: Client, topic: str) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, partition) for partition in range(client.partitions(topic)))


class StandingEpoch(NamedTuple):
    """An epoch that no reset has undone, with the positions in its END."""

    epoch: int
    progress: EndPositions


def standing_epoch(
    client: Client, stream: TopicPartition, query: str, *, epoch: int | None = None, batch: int | None = None
) -> StandingEpoch:
    """The newest epoch of a query, or that epoch of the log, or the last epoch of that batch of Spark's.

    Raises EpochNotFound, which names the epochs and batches that stand in the stream, and StateTrimmed where the stream
    was trimmed.
    """
    newest: StandingEpoch | None = None
    oldest: StandingEpoch | None = None
    with closing(standing_epochs(client, stream, query)) as found:
        for end, progress in found:
            oldest = StandingEpoch(end.epoch, progress)
            newest = newest or oldest
            if (epoch is None or end.epoch == epoch) and (batch is None or progress.batch == batch):
                return oldest
    asked = f"epoch {epoch}" if epoch is not None else f"batch {batch}" if batch is not None else "an epoch"
    there = "the stream has no epoch of this query"
    if newest is not None and oldest is not None:
        there = (
            f"it has the epochs {oldest.epoch} to {newest.epoch} (Spark's batches {oldest.progress.batch} to "
            f"{newest.progress.batch})"
        )
    start = client.offsets({stream: EARLIEST})[stream].offset
    if start > 0:
        raise StateTrimmed(
            f"query {query}: stream {stream}, which was trimmed to offset {start}, does not hold {asked} (any longer); "
            f"{there}"
        )
    raise EpochNotFound(f"query {query}: stream {stream} does not hold {asked}; {there}")


def state_columns(client: Client, stream: TopicPartition, query: str, epoch: int) -> pa.Schema | None:
    """The columns of a query's state in a stream as of an epoch, without their prefix; None without open windows.

    Raises StateTrimmed if no footprint of an open window is left, CorruptBatch, EpochNotFound and the client's errors.
    """
    scan = BackwardScan(query, epoch)
    open_windows: int | None = None
    has_mark = False
    with ControlScan(client, stream) as batches:
        for piece in batches:
            for record in scan.records(piece):
                if isinstance(record, Begin) and not has_mark:
                    what = "" if open_windows is None else f"{query}: no footprint of epoch {epoch} is found"
                    raise StateCleaned(cleaned(query, record.epoch, what))
                has_mark = isinstance(record, Mark) or (has_mark and not isinstance(record, End))
                if open_windows is None and isinstance(record, Mark):
                    open_windows = record.open_windows
                columns = _columns(record)
                if open_windows == 0 or columns is not None:
                    return columns if open_windows else None
        start = batches.log_start_offset
    if open_windows is None:
        raise EpochNotFound(f"query {query}: stream {stream} holds no mark of epoch {epoch}")
    raise StateTrimmed(
        f"query {query}: stream {stream} starts at offset {start} and holds no footprint of the {open_windows} windows "
        f"open at epoch {epoch}"
    )


def _columns(record: Control) -> pa.Schema | None:
    if not isinstance(record, Footprints):
        return None
    state = [field for field in record.rows.schema if field.name.startswith(STATE_PREFIX)]
    return pa.schema([field.with_name(field.name.removeprefix(STATE_PREFIX)) for field in state])
