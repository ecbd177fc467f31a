"""All open windows of a query in one stream, for who has no state directory: from the log alone, or, where the log
begins behind a checkpoint, from that checkpoint and the log behind it.

Invariants:
* All windows that are open at the epoch come, each once, or an error: never fewer.
* A checkpoint is used only if the log has its version, and the fingerprint of operator and columns is the log's.
* All pages of a checkpoint are checked before the first window is returned.
* Nothing is changed. Memory is bounded by the state of the stream.

Source: CEC paper, section II.B ("Constructing an EC"); SGuard, section 4.4; docs/decisions/0026.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition
from logstore.errors import CairnError
from spe_adapter.cec.control import Mark
from spe_adapter.cec.reconstruct import EventualCheckpoint, Floor
from spe_adapter.checkpoint.bases import StoredBase
from spe_adapter.checkpoint.errors import CheckpointFailed
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.refusals import Refusals, newer_than_log
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink_to_read
from spe_adapter.checkpoint.sinks import Sink
from spe_adapter.codec.kernels import Int64s
from spe_adapter.epochs.lookup import state_columns
from spe_adapter.epochs.scan import reconstruct
from spe_adapter.errors import StateTrimmed
from spe_adapter.state.layout import fingerprint_of
from spe_adapter.state.storage import load_table
from spe_adapter.state.table import Table, anonymous

PATIENCE_S: Final = 10.0
"""How long a sink that is away is waited for."""
_ROWS_AT_ONCE: Final = 1 << 16


class GroupMark(NamedTuple):
    """The epoch of the newest footprint of some windows, and the counters of records at the end of that epoch."""

    epoch: int
    emitted: int
    seen: int


class WindowsOfEpoch(NamedTuple):
    """Open windows with their newest footprint in one epoch; batches as `state.table.Table.take` gives them, with or
    without a column `kind`.
    """

    mark: GroupMark
    batches: tuple[pa.RecordBatch, ...]

    @property
    def rows(self) -> int:
        """Number of windows."""
        return sum(batch.num_rows for batch in self.batches)


class WholeState(NamedTuple):
    """The state of a query in a stream as of an epoch. `eventual`: what the log has; `groups`: all open windows, newest
    epoch first; `checkpoint`: the checkpoint that windows were loaded from, None where the log has all.
    """

    eventual: EventualCheckpoint
    groups: tuple[WindowsOfEpoch, ...]
    checkpoint: Manifest | None = None

    @property
    def oldest_epoch(self) -> int:
        """The epoch of the oldest footprint of an open window; without windows, that of the mark."""
        return self.groups[-1].mark.epoch if self.groups else self.eventual.oldest_epoch


def whole_state(
    client: Client,
    stream: TopicPartition,
    query: str,
    as_of: int | None = None,
    checkpoints: CheckpointSettings | None = None,
) -> WholeState:
    """All open windows of a query in a stream, as of an epoch (None: the newest). `checkpoints`: where those of the
    query are, for a log that begins behind one of them.

    Raises StateTrimmed if the log alone has not all, and no checkpoint has the rest; StateAway if the checkpoints
    cannot be read; StateInconsistent, CorruptBatch and the client's errors.
    """
    try:
        eventual = reconstruct(client, stream, query, as_of)
    except StateTrimmed as error:
        if checkpoints is None:
            raise type(error)(
                f"{error}. If the query writes checkpoints, name their place with the option 'checkpoints' "
                "(--checkpoints URL of a command)"
            ) from error
        return _Search(client, stream, query, as_of, checkpoints).found(error)
    return WholeState(eventual, _logged(eventual))


def _logged(eventual: EventualCheckpoint) -> tuple[WindowsOfEpoch, ...]:
    return tuple(
        WindowsOfEpoch(GroupMark(windows.mark.epoch, windows.mark.emitted, windows.mark.seen), windows.batches)
        for windows in eventual.windows
    )


class _Search:
    """The search for a checkpoint from which the log leads to the epoch."""

    def __init__(
        self, client: Client, stream: TopicPartition, query: str, as_of: int | None, settings: CheckpointSettings
    ) -> None:
        self._client = client
        self._stream = stream
        self._query = query
        self._as_of = as_of
        self._settings = settings
        self._refusals = Refusals(settings, Unit(query, stream.partition))

    def found(self, lost: StateTrimmed) -> WholeState:
        """The state from the newest checkpoint that serves. Raises StateTrimmed, and StateAway if the checkpoints
        cannot be read.
        """
        refusals = self._refusals
        with (
            suppress(CheckpointFailed),
            refusals.looking(),
            closing(open_sink_to_read(self._settings, refusals, PATIENCE_S)) as sink,
        ):
            for stored in self._stored(sink):
                state = self._tried(stored)
                if state is not None:
                    return state
        raise refusals.explained(lost) from lost

    def _stored(self, sink: Sink) -> Iterator[StoredBase]:
        """The checkpoints of the stream's unit, newest first. The log of a continuous query has its instance's name."""
        finder = Finder(sink, report=self._refusals)
        partition = self._stream.partition
        for query in dict.fromkeys((self._query, self._query.removesuffix(f".{partition}"))):
            for manifest in finder.checkpoints(Unit(query, partition)):
                if self._as_of is None or manifest.header.epoch <= self._as_of:
                    yield StoredBase(finder, manifest)
                else:
                    self._refusals.note(manifest.name, newer_than_log(manifest.header.epoch, self._as_of))

    def _tried(self, stored: StoredBase) -> WholeState | None:
        """The state by way of a checkpoint, None if it does not serve."""
        name, header = stored.manifest.name, stored.manifest.header
        try:
            eventual = reconstruct(
                self._client, self._stream, self._query, self._as_of, Floor(header.epoch, header.attempt)
            )
            if eventual.mark is None or not eventual.floor_reached:
                return WholeState(eventual, _logged(eventual))
            schema = self._columns(eventual.mark)
            if fingerprint_of(schema, eventual.mark.operator).hex() != header.fingerprint:
                self._refusals.note(name, "is of another operator, or of other columns")
                return None
            table = load_table(schema, stored.described, stored.runs(), anonymous)
        except StateTrimmed:
            self._refusals.note(name, f"the log does not lead on from its epoch {header.epoch}")
            return None
        except (CairnError, OSError) as error:
            self._refusals.note(name, error)
            return None
        return WholeState(eventual, _joined(eventual, table, stored.manifest), stored.manifest)

    def _columns(self, mark: Mark) -> pa.Schema:
        """The state's columns as a footprint has them, in this stream or another of the query. Raises StateTrimmed."""
        own = self._stream.partition
        others = [partition for partition in range(mark.partitions) if partition != own]
        lost: StateTrimmed | None = None
        for partition in (own, *others):
            stream = self._stream._replace(partition=partition)
            try:
                columns = state_columns(self._client, stream, self._query, mark.epoch)
            except StateTrimmed as error:
                lost = lost or error
            else:
                if columns is not None:
                    return columns
        raise lost or StateTrimmed(f"query {self._query}: no footprint is left in topic {self._stream.topic!r}")


def _joined(eventual: EventualCheckpoint, table: Table, manifest: Manifest) -> tuple[WindowsOfEpoch, ...]:
    """The windows of the log, and behind them those of the checkpoint that are open and have no newer footprint."""
    skips = eventual.skips
    _remove(table, skips.keys, skips.numbers)
    for windows in eventual.windows:
        for batch in windows.batches:
            _remove(table, batch.column("key"), batch.column("number").to_numpy())
    if manifest.header.extra:
        # A continuous query's windows change without a footprint: those of a checkpoint are as of its epoch.
        floor = eventual.marks[0]
        table.set_window_versions(table.live_rows(), floor.epoch, floor.emitted, floor.seen)
    return (*_logged(eventual), *_groups(table))


def _remove(table: Table, keys: pa.Array, numbers: Int64s) -> None:
    rows = table.find(keys, numbers)
    table.remove(rows[rows >= 0])


def _groups(table: Table) -> Iterator[WindowsOfEpoch]:
    """The windows of a table by the epoch of their newest footprint, newest first."""
    rows = table.live_rows()
    epochs, ordinals, seens = table.window_versions(rows)
    order = np.argsort(epochs, kind="stable")[::-1]
    bounds = np.flatnonzero(np.diff(epochs[order])) + 1
    for part in np.split(order, bounds) if len(order) else ():
        first = part[0]
        mark = GroupMark(int(epochs[first]), int(ordinals[first]), int(seens[first]))
        own = np.sort(rows[part])
        starts = range(0, len(own), _ROWS_AT_ONCE)
        yield WindowsOfEpoch(mark, tuple(table.take(own[start : start + _ROWS_AT_ONCE]) for start in starts))


def place_of(url: str | None, user: str | None = None) -> CheckpointSettings | None:
    """Settings to read the checkpoints at a URL as HDFS's `user`; None without a URL. Raises CheckpointUrlRefused."""
    if url is None:
        return None
    settings = CheckpointSettings(url)
    return settings if user is None else replace(settings, user=user)
