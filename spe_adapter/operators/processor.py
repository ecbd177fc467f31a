"""Runs an operator over batches: keys, windows, state, late rows, replays, expiry, and error messages.

Invariants:
* A call of the operator that raises leaves the store's windows as they were.
* Each distinct window of a batch is looked up once; nothing here loops over rows in Python.
* The order of results depends only on the rows: results of `process` in the operator's order, results of `expire` by
  time; the order of results with the same time is fixed, without a meaning.
* A replay gives no results: the log has the results of a replayed epoch.

Source: CEC paper, section II.B (a window ignores replayed tuples that its footprint has seen); Spark's order of an
epoch (late rows dropped by the watermark before, rows, then what is due by the new one).
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import CairnError
from spe_adapter.codec.columns import keys_of
from spe_adapter.codec.identity_hash import hashes_of
from spe_adapter.codec.kernels import MICROSECONDS, Int64s
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.base import (
    Assignment,
    Emitted,
    Operator,
    Overlapping,
    Results,
    Rows,
    State,
    Times,
    WindowIdentities,
)
from spe_adapter.operators.blame import blamed, failed
from spe_adapter.operators.clock import CallTimes
from spe_adapter.operators.combining import take_apart
from spe_adapter.operators.formats import FormattedResults, ResultFormat, formatted
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import Output, is_raw, output_schema
from spe_adapter.operators.replay import Replay
from spe_adapter.operators.results import check_columns, normal
from spe_adapter.state.columns import distinct
from spe_adapter.state.store import StateStore

_T = TypeVar("_T")

_ORDER_SEED: Final = 0
"""The same everywhere, unlike a table's."""


class _Assigned(NamedTuple):
    """Rows with their windows: position in the batch (None: all, in order), identity of each, the identities."""

    positions: Int64s | None
    window: Int64s
    keys: pa.BinaryArray
    numbers: Int64s


class Processor:
    """One state partition of an operator. Raises SchemaRefused for an input that does not suit the operator.

    `codec` is over the schema that the operator's `prepare` gives (without steps in front: the input's).
    `sequence` and `seen` count rows and input records of the partition; `max_events_ms` is the newest event time of
    each of the operator's inputs since this object was made, late rows included (None: no row yet); `late` counts rows
    dropped because they came too late; `suppressed` counts results of replays, which are in the log already; `windows`
    adds up the distinct windows of each call; `epoch` and `batch` (Spark's number of it, None: there is none) are named
    in errors. `clock` has the times of the epoch, for operators that keep entries: set it before the epoch's rows. With
    `keeps_late`, rows that no window took because they were late are kept for `take_late`.
    """

    def __init__(
        self,
        operator: Operator,
        codec: KeyCodec,
        schema: pa.Schema,
        store: StateStore,
        sequence: int = 0,
        seen: int = 0,
        epoch: int = 0,
    ) -> None:
        self._operator = operator
        self._codec = codec
        self._store = store
        self._schema = schema
        self.inner = operator.output(schema)
        """The operator's own output columns, without the key's."""
        self._prepared = operator.prepared(schema)
        self._needed = list(operator.columns(self._prepared))
        self.schema = output_schema(codec.fields, self.inner)
        self.sequence = sequence
        self.seen = seen
        self.epoch = epoch
        self.batch: int | None = None
        self.clock = CallTimes()
        self.max_events_ms: list[int | None] = [None] * len(operator.inputs())
        self.late = 0
        self.keeps_late = False
        self._late_rows: list[Output] = []
        self.suppressed = 0
        self.windows = 0

    @property
    def max_event_ms(self) -> int | None:
        """The newest event time of the slowest input (delays counted), None as long as any of them had no row."""
        delays = [given.delay_ms for given in self._operator.inputs()]
        known = [newest - delay for newest, delay in zip(self.max_events_ms, delays, strict=True) if newest is not None]
        return None if not known or len(known) < len(delays) else min(known) + self._operator.delay_ms

    def process(
        self,
        batch: pa.RecordBatch,
        *,
        late_watermark_ms: int = 0,
        replay: Replay | None = None,
        keys: pa.BinaryArray | None = None,
    ) -> Output | None:
        """Process rows; the results, or None. Rows that are late by `late_watermark_ms` are dropped; in a replay, rows
        that their window has seen are dropped too. `keys` are the rows' keys (None: in their columns). Raises
        OperatorFailed.
        """
        self.seen += batch.num_rows
        batch = self._guarded(lambda: self._operator.prepare(batch))
        sequence = np.arange(self.sequence, self.sequence + batch.num_rows, dtype=np.int64)
        self.sequence += batch.num_rows
        if not batch.num_rows:
            return None
        times = self._guarded(lambda: self._operator.times(batch))
        self._note_times(batch, times)
        keys = self._codec.encode(batch) if keys is None else keys
        assigned = self._assign(batch, keys, times, sequence, late_watermark_ms)
        if replay is not None:
            assigned = _unseen(assigned, replay)
        if not len(assigned.window):
            return None
        rows = self._rows(batch, assigned, times, sequence)
        state = self._state(assigned)
        results = self._call(
            "handle_rows" if self._operator.keeps_entries else "process",
            state,
            lambda: self._operator.process(rows, state),
            lambda part, which: self._operator.process(_part(rows, which, state.size), part),
        )
        state.commit(is_replay=replay is not None)
        return self._output(results, state, replay)

    def start(self, batch: pa.RecordBatch, codec: KeyCodec) -> None:
        """Take rows of the initial state, whose key `codec` reads. Raises OperatorFailed."""
        if not batch.num_rows:
            return
        assigned = _Assigned(None, *self._distinct(codec.encode(batch), np.zeros(batch.num_rows, np.int64)))
        rows = Rows(batch, assigned.window, None, np.arange(batch.num_rows))
        state = self._state(assigned)
        self._call(
            "handle_initial",
            state,
            lambda: self._operator.start(rows, state),
            lambda part, which: self._operator.start(_part(rows, which, state.size), part),
        )
        state.commit()

    @property
    def next_wall_ms(self) -> int | None:
        """The processing time from which on the next timer is due, in ms since 1970; None: no such timer."""
        return self._operator.next_wall_ms(self._store)

    def process_combined(self, batch: pa.RecordBatch, *, late_watermark_ms: int = 0) -> Output | None:
        """Take rows in that were combined (see combining). Raises OperatorFailed, and SchemaRefused for an operator
        whose rows cannot be.
        """
        combining = self._operator.combining(self._schema)
        if combining is None:
            raise SchemaRefused(f"combined rows for operator {self._operator.name}, which takes none")
        given = take_apart(batch, len(self._codec.fields))
        self.seen += int(given.records.sum())
        self.sequence += int(given.rows.sum())
        if self.max_events_ms and given.newest_us.null_count < len(given.newest_us):
            self._note_newest(0, pc.max(given.newest_us).as_py())
        keys, number, weights, cells = self._codec.encode(given.keys), given.number, given.rows, given.cells
        if number.null_count:
            kept = number.is_valid()
            keys, number, cells = keys.filter(kept), number.filter(kept), cells.filter(kept)
            weights = weights[kept.to_numpy(zero_copy_only=False)]
        assigned = self._located(combining.placed(number.to_numpy()), keys, late_watermark_ms, weights)
        if not len(assigned.window):
            return None
        positions = np.arange(len(keys)) if assigned.positions is None else assigned.positions
        rows = Rows(cells.take(pa.array(positions)), assigned.window, None, positions)
        state = self._state(assigned)
        results = self._call(
            "process",
            state,
            lambda: combining.merge(rows, state),
            lambda part, which: combining.merge(_part(rows, which, state.size), part),
        )
        state.commit()
        return self._output(results, state, None)

    def expire(self, watermark_ms: int, *, replay: Replay | None = None) -> Output | None:
        """Close the windows that are due at this watermark. Raises OperatorFailed."""
        if self._operator.keeps_entries:
            return self._expire_entries(watermark_ms, replay)
        ids = self._store.due(watermark_ms)
        if not len(ids):
            return None
        ids = self._ordered(ids)
        identity = WindowIdentities(self._store.keys(ids), self._store.numbers(ids), self._codec, self._prepared)
        state = State(self._store, ids, np.zeros(len(ids), np.bool_), identity)
        results = self._call(
            "expire",
            state,
            lambda: self._operator.expire(state, watermark_ms),
            lambda part, _: self._operator.expire(part, watermark_ms),
        )
        # Keys are read before the windows are gone.
        output = self._output(results, state, replay)
        state.close(~state.open_until(watermark_ms))
        state.commit(is_replay=replay is not None)
        return output

    def _expire_entries(self, watermark_ms: int, replay: Replay | None) -> Output | None:
        """Timers first, then what is out of its TTL."""
        self.clock = clock = self.clock._replace(watermark_ms=watermark_ms)
        identity = WindowIdentities(None, None, self._codec, self._prepared)
        state, output = self._operator.due_entries(self._store, identity, clock), None
        if state is not None:
            results = self._call(
                "handle_expired",
                state,
                lambda: self._operator.expire(state, watermark_ms),
                lambda part, _: self._operator.expire(part, watermark_ms),
            )
            state.commit(is_replay=replay is not None)
            output = self._output(results, state, replay)
        self._operator.remove_due(self._store, identity, clock)
        return output

    # ---- rows and their windows

    def _note_times(self, batch: pa.RecordBatch, times: Times | None) -> None:
        if times is None:
            return
        sources = self._operator.sources(batch)
        for index in range(len(self.max_events_ms)):
            here = times.valid
            if sources is not None:
                here = sources == index if here is None else here & (sources == index)
            us = times.us if here is None else times.us[here]
            if len(us):
                self._note_newest(index, int(us.max()))

    def _note_newest(self, index: int, us: int) -> None:
        newest, before = us // MICROSECONDS, self.max_events_ms[index]
        self.max_events_ms[index] = newest if before is None else max(before, newest)

    def _assign(
        self,
        batch: pa.RecordBatch,
        keys: pa.BinaryArray,
        times: Times | None,
        sequence: Int64s,
        late_watermark_ms: int,
    ) -> _Assigned:
        given = self._guarded(lambda: self._operator.assign(batch, times, sequence))
        before = self.late
        assigned = self._located(given, keys, late_watermark_ms, None)
        if self.keeps_late and self.late > before and times is not None and assigned.positions is not None:
            placed = np.arange(batch.num_rows) if given.rows is None else given.rows
            dropped = np.setdiff1d(placed, assigned.positions)
            which = pa.array(dropped)
            self._late_rows.append(Output(keys.take(which), batch.take(which), times.us[dropped] // MICROSECONDS))
        return assigned

    def take_late(self) -> list[Output]:
        """Rows, as the operator would have got them, that were dropped since the last call: those that every window
        that they are in had ended for.
        """
        rows, self._late_rows = self._late_rows, []
        return rows

    def _located(
        self, given: Assignment | Overlapping, keys: pa.BinaryArray, late_watermark_ms: int, weights: Int64s | None
    ) -> _Assigned:
        """The windows of rows that are not late. `weights`: how many rows each stands for (None: itself)."""
        if isinstance(given, Overlapping):
            return self._spread(given, keys, late_watermark_ms, weights)
        numbers, positions, late_from_ms = given
        on_time = None if late_from_ms is None else late_from_ms > late_watermark_ms
        if on_time is not None and not on_time.all():
            self.late += int(len(on_time) - on_time.sum() if weights is None else weights[~on_time].sum())
            positions = np.flatnonzero(on_time) if positions is None else positions[on_time]
            numbers = numbers[on_time]
        return _Assigned(positions, *self._distinct(_taken(keys, positions), numbers))

    def _spread(
        self, given: Overlapping, keys: pa.BinaryArray, late_watermark_ms: int, weights: Int64s | None
    ) -> _Assigned:
        """Rows in several windows each: groups of rows in the same windows first, then their windows."""
        positions = np.arange(len(keys)) if given.rows is None else given.rows
        group, group_keys, group_numbers = self._distinct(_taken(keys, given.rows), given.numbers)
        counts, (numbers, _, late_from_ms) = given.spread(group_numbers)
        owner = np.repeat(np.arange(len(counts)), counts)
        on_time = None if late_from_ms is None else late_from_ms > late_watermark_ms
        if on_time is not None and not on_time.all():
            before = counts
            owner, numbers = owner[on_time], numbers[on_time]
            counts = np.bincount(owner, minlength=len(counts))
            dropped = (before - counts)[group]
            self.late += int((dropped if weights is None else dropped * weights).sum())
        window, window_keys, numbers = self._distinct(group_keys.take(pa.array(owner)), numbers)
        repeats = counts[group]
        ends = np.cumsum(repeats)
        # Of each row's windows the first, and how far behind it.
        first = np.repeat((np.cumsum(counts) - counts)[group] - (ends - repeats), repeats)
        places = first + np.arange(len(first))
        return _Assigned(np.repeat(positions, repeats), window[places], window_keys, numbers)

    def _distinct(self, keys: pa.BinaryArray, numbers: Int64s) -> tuple[Int64s, pa.BinaryArray, Int64s]:
        """The identity of each row, and keys and numbers of the identities."""
        index, first = distinct(keys, numbers, self._store.seed)
        if len(first) == len(numbers):
            return index, keys, numbers
        return index, keys.take(pa.array(first)), numbers[first]

    def _rows(self, batch: pa.RecordBatch, assigned: _Assigned, times: Times | None, sequence: Int64s) -> Rows:
        taken = batch.select(self._needed)
        times_ms = None if times is None else times.us // MICROSECONDS
        positions = assigned.positions
        if positions is not None:
            taken = taken.take(pa.array(positions))
            times_ms = None if times_ms is None else times_ms[positions]
            sequence = sequence[positions]
        return Rows(taken, assigned.window, times_ms, sequence)

    def _state(self, assigned: _Assigned) -> State:
        self.windows += len(assigned.numbers)
        identity = WindowIdentities(assigned.keys, assigned.numbers, self._codec, self._prepared)
        if self._operator.stateless:
            no_state = np.zeros(len(assigned.numbers), np.int64)
            return State(self._store, no_state, no_state == 0, identity)
        if self._operator.keeps_entries:
            return self._operator.open_entries(self._store, identity, self.clock)
        return State(self._store, *self._store.ensure(assigned.keys, assigned.numbers), identity)

    def _ordered(self, ids: Int64s) -> Int64s:
        """Windows by time, those of one time in an order that their identities fix: wherever they lie in the store."""
        hashes = hashes_of(keys_of(self._store.keys(ids)), self._store.numbers(ids), _ORDER_SEED)
        ids = ids[np.argsort(hashes)]
        return ids[np.argsort(self._store.expires(ids), kind="stable")]

    # ---- calls and results

    @property
    def _when(self) -> str:
        """The epoch, by the number that its reader knows it by."""
        return f"epoch {self.epoch}" if self.batch is None else f"batch {self.batch} (epoch {self.epoch} in the log)"

    def _call(
        self,
        method: str,
        state: State,
        call: Callable[[], Emitted],
        again: Callable[[State, Int64s], Emitted],
    ) -> Results | None:
        try:
            return self._whole(call(), state.size)
        except Exception as error:
            raise blamed(
                self._operator,
                self._when,
                method,
                state,
                lambda part, which: self._whole(again(part, which), part.size),
                error,
            ) from error

    def _guarded(self, call: Callable[[], _T]) -> _T:
        """A step of the operator that knows no keys yet."""
        try:
            return call()
        except CairnError:
            raise
        except Exception as error:
            raise failed(self._operator, self._when, "prepare", error) from error

    def _whole(self, emitted: Emitted, windows: int) -> Results | None:
        """What a call gave, if it has the declared columns and a window for each result. Raises BadResults."""
        results = normal(emitted, windows)
        if results is None:
            return None
        results = self._operator.conclude(results)
        check_columns(results.rows, self.inner)
        return results

    def records(self, output: Output, wanted: ResultFormat = "json") -> FormattedResults:
        """Results as keys and values of records, in a format. Raises OperatorFailed where a value cannot be written."""
        try:
            return formatted(output, wanted)
        except Exception as error:
            raise failed(self._operator, self._when, "output", error) from error

    def _output(self, results: Results | None, state: State, replay: Replay | None) -> Output | None:
        if results is None or not results.rows.num_rows:
            return None
        if replay is not None:
            self.suppressed += results.rows.num_rows
            return None
        columns = list(results.rows.columns)
        keys = state.keys.take(pa.array(results.window))
        if len(self.schema) > len(columns):
            columns = [*self._codec.decode(keys), *columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return Output(keys, rows, results.times_ms, is_raw(self.inner))


def _taken(keys: pa.BinaryArray, positions: Int64s | None) -> pa.BinaryArray:
    return keys if positions is None else keys.take(pa.array(positions))


def _unseen(assigned: _Assigned, replay: Replay) -> _Assigned:
    """The rows that their windows have not seen."""
    fresh = replay.covered(assigned.keys, assigned.numbers) < replay.epoch
    if fresh.all():
        return assigned
    kept = np.flatnonzero(fresh[assigned.window])
    window = (np.cumsum(fresh) - 1)[assigned.window[kept]]
    positions = kept if assigned.positions is None else assigned.positions[kept]
    return _Assigned(positions, window, assigned.keys.filter(pa.array(fresh)), assigned.numbers[fresh])


def _part(rows: Rows, which: Int64s, windows: int) -> Rows:
    """The rows of some windows, which are renumbered."""
    place = np.full(windows, -1, np.int64)
    place[which] = np.arange(len(which))
    kept = np.flatnonzero(place[rows.window] >= 0)
    return Rows(
        rows.batch.take(pa.array(kept)),
        place[rows.window[kept]],
        None if rows.times_ms is None else rows.times_ms[kept],
        rows.sequence[kept],
    )
