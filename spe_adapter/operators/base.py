"""The base class of stateful operators, which get batches of rows with the state of their windows and give results.

A user subclasses `Operator`, declares the state as names and Arrow types, and writes `process`. State is columnar: one
entry per distinct window of the call. The example raises an alarm when a customer pays more than ten times the mean of
what they paid before; `tests/operators/test_examples.py` runs it.

    class Alarm(Operator):
        state = {"payments": pa.int64(), "paid_cents": pa.int64()}

        def output(self, schema):
            return pa.schema([("cents", pa.int64()), ("mean_cents", pa.float64())])

        def process(self, rows, state):
            cents = rows.batch.column("cents").to_pandas()
            customer = cents.groupby(rows.window)
            payments, paid = state.get("payments"), state.get("paid_cents")
            payments_before = payments[rows.window] + customer.cumcount()
            mean_before = (paid[rows.window] + customer.cumsum() - cents) / payments_before.clip(lower=1)
            odd = np.flatnonzero((payments_before > 0) & (cents > 10 * mean_before))
            np.add.at(payments, rows.window, 1)
            np.add.at(paid, rows.window, cents)
            state.set("payments", payments)
            state.set("paid_cents", paid)
            alarms = {"cents": cents[odd], "mean_cents": mean_before[odd]}
            return Results(pa.RecordBatch.from_pydict(alarms), rows.window[odd])

Invariants:
* Writes of an operator are applied after its call has returned, so that a call that raises changes nothing.
* A window is the unit of state: (key, number). Its state after an epoch depends on its own rows alone, in their order.
* An operator holds no state of its own. It is pickled and sent to the worker that processes its partition.

Source: CEC paper, sections II.B and III (windows as independent parts of an operator's state).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spe_adapter.codec.kernels import MICROSECONDS, Bools, Int64s
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.clock import CallTimes
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.state import exact
from spe_adapter.state.columns import fixed_array, fixed_values
from spe_adapter.state.errors import StateSchemaRefused, StateValueRefused
from spe_adapter.state.evolution import Evolution
from spe_adapter.state.layout import NEVER as _NEVER
from spe_adapter.state.store import StateStore

Numbers = NDArray[Any]


class Rows(NamedTuple):
    """The rows of a call, in their order of arrival. With sliding windows, a row is repeated for each of its windows.

    `window` is the index of each row's window in the State. `times_ms` are the event times, 0 if null; None without
    event time. `sequence` numbers the rows of a state partition from 0; repetitions of a row have the same number.
    """

    batch: pa.RecordBatch
    window: Int64s
    times_ms: Int64s | None
    sequence: Int64s


class Results(NamedTuple):
    """Results. Each has the index of a window in the State, whose key it gets, and a timestamp (None: now)."""

    rows: pa.RecordBatch
    window: Int64s
    times_ms: Int64s | None = None


Emitted: TypeAlias = Results | pa.RecordBatch | None
"""The return value of a call. A plain record batch has one row per window of the State, in its order."""


class Times(NamedTuple):
    """Event times in µs since 1970, and the validity of each time (None: all times are valid)."""

    us: Int64s
    valid: Bools | None


class Input(NamedTuple):
    """An input with event time: its column (for a join, the column of its side), and the allowed lateness in ms."""

    column: str
    delay_ms: int


class Assignment(NamedTuple):
    """The windows of rows. `rows` are positions in the batch (None: each row once, in order), `numbers` are the window
    numbers of these rows. A row is late if the watermark has reached its `late_from_ms`.
    """

    numbers: Int64s
    rows: Int64s | None = None
    late_from_ms: Int64s | None = None


class Overlapping(NamedTuple):
    """Rows that are in several windows each. Rows with the same key and the same number in `numbers` are in the same
    windows, so the windows are looked up once. `spread` maps such numbers to the number of windows of each, and to all
    these windows in one array.
    """

    numbers: Int64s
    rows: Int64s | None
    spread: Callable[[Int64s], tuple[Int64s, Assignment]]


class State:
    """The state of some windows, with an entry for each window.

    Reads return the writes of the same call. `commit`, which the Processor calls, moves the writes to the store.
    """

    def __init__(self, store: StateStore, rows: Int64s, is_new: Bools, identity: "WindowIdentities") -> None:
        self._store = store
        self._rows = rows
        self._identity = identity
        self._columns: dict[str, pa.Array | tuple[Numbers, Bools | None]] = {}
        self._expires: Int64s | None = None
        self._closed: Bools | None = None
        self._renewed: Bools | None = None
        self.is_new = is_new
        """True for windows that this call has opened: their state is null."""

    @property
    def size(self) -> int:
        """The number of windows."""
        return len(self._rows)

    @property
    def keys(self) -> pa.BinaryArray:
        """The key bytes of each window, null for the null key."""
        keys = self._identity.keys
        return self._store.keys(self._rows) if keys is None else keys

    @property
    def numbers(self) -> Int64s:
        """The number of each window: the start of an event-time window in µs, 0 for state per key without windows."""
        numbers = self._identity.numbers
        return self._store.numbers(self._rows) if numbers is None else numbers

    @property
    def schema(self) -> pa.Schema:
        """All columns of the operator's input rows."""
        return self._identity.schema

    def key_columns(self) -> list[pa.Array]:
        """The key columns of each window."""
        return self._identity.codec.decode(self.keys)

    def get(self, name: str) -> Numbers:
        """The values of a numeric column, 0 for null; timestamps are int64 in their unit. Raises StateValueRefused for
        a column of another type; use `column` for such a column.
        """
        kind = self._type_of(name)
        if not exact.has_numbers(kind):
            raise StateValueRefused(f"state column {name!r} is {kind}: read it with column, as a pyarrow.Array")
        pending = self._columns.get(name)
        if pending is None:
            return self._store.get(name, self._rows)
        if isinstance(pending, tuple):
            return pending[0].copy()
        return fixed_values(pending, exact.dtype_of(pending.type))[0].copy()

    def nulls(self, name: str) -> Bools:
        """Whether a column is null, for each window. All columns of a new window are null."""
        pending = self._columns.get(name)
        if pending is None:
            return self._store.nulls(name, self._rows)
        if isinstance(pending, tuple):
            return np.zeros(self.size, np.bool_) if pending[1] is None else pending[1].copy()
        return pending.is_null().to_numpy(zero_copy_only=False)

    def set(self, name: str, values: Numbers, nulls: Bools | None = None) -> None:
        """Write a fixed-width column, one value per window; `nulls` (booleans) marks null values.

        Values of another type are converted if the conversion is exact (see `spe_adapter.state.exact`). Otherwise
        raises StateValueRefused, which names the column and the value. The values are copied.
        """
        if nulls is None and isinstance(values, pa.Array | pa.ChunkedArray):
            self.set_column(name, values)
            return
        kind = self._type_of(name)
        if not exact.has_numbers(kind):
            raise StateValueRefused(f"state column {name!r} is {kind}: write it with set_column, as a pyarrow.Array")
        self._columns[name] = exact.fixed(f"state column {name!r}", kind, values, nulls, self.size)

    def column(self, name: str) -> pa.Array:
        """A column of any type, as an Arrow array."""
        pending = self._columns.get(name)
        if pending is None:
            return self._store.get_arrow(name, self._rows)
        if not isinstance(pending, tuple):
            return pending
        values, nulls = pending
        return fixed_array(self._type_of(name), values, np.zeros(self.size, np.bool_) if nulls is None else nulls)

    def set_column(self, name: str, values: pa.Array) -> None:
        """Write a column of any type, one value per window. Raises StateValueRefused if the declared type cannot hold a
        value exactly.
        """
        taken = exact.column(f"state column {name!r}", self._type_of(name), values)
        if len(taken) != self.size:
            raise StateValueRefused(f"state column {name!r}: {len(taken)} values; {self.size} are needed")
        self._columns[name] = taken

    def expires(self) -> Int64s:
        """The event time in ms at which each window is due, or NEVER."""
        return self._store.expires(self._rows) if self._expires is None else self._expires.copy()

    def expire_at(self, ms: int | Int64s, where: Bools | None = None) -> None:
        """Set the time at which `expire` is called: when the watermark reaches `ms` (one time for all windows, or one
        for each window); NEVER: no call.

        Times are whole milliseconds since 1970, or datetime64 values of whole milliseconds. Raises StateValueRefused.
        """
        given = ms if np.ndim(ms) else np.broadcast_to(np.asarray(ms), (self.size,))
        wanted, _ = exact.fixed("expire_at, the time in ms,", _MILLISECOND, given, None, self.size)
        if where is not None:
            wanted = np.where(exact.flags("expire_at, the places", where, self.size), wanted, self.expires())
        self._expires = wanted

    def close(self, where: Bools | None = None) -> None:
        """Close these windows (booleans; None: all) at the end of the call. The next row of the same key opens a new
        window. Raises StateValueRefused.
        """
        closed = np.ones(self.size, np.bool_) if where is None else exact.flags("close, the places", where, self.size)
        self._closed = closed if self._closed is None else self._closed | closed

    def renew(self, where: Bools) -> None:
        """Declare that a window ended in this call, and that a new window began in the same entry of the state. This
        is not needed for a window that the call opened. The log then gets the state as that of a new window, so that
        no recovery begins before the first row of the new window.
        """
        self._renewed = np.asarray(where, np.bool_)

    def all_open(self) -> "State":
        """All open windows of the partition, including the windows of this call, for reading only."""
        rows = self._store.all_rows()
        identity = self._identity._replace(keys=None, numbers=None)
        return State(self._store, rows, np.zeros(len(rows), np.bool_), identity)

    # ---- for the Processor

    def part(self, which: Int64s) -> "State":
        """Some of the windows as they were before the call. Writes to them are discarded."""
        keys, numbers = self._identity.keys, self._identity.numbers
        identity = self._identity._replace(
            keys=None if keys is None else keys.take(pa.array(which)),
            numbers=None if numbers is None else numbers[which],
        )
        return State(self._store, self._rows[which], self.is_new[which], identity)

    def commit(self, *, is_replay: bool = False) -> None:
        """Move the writes to the store. A replay declares no new windows: the log has the declared windows, or the
        version of Cairn that ran then never wrote them, and the older footprint is used.
        """
        rows, keep = self._rows, None
        if self._closed is not None and self._closed.any():
            keep = np.flatnonzero(~self._closed)
            rows = rows[keep]
        if len(rows):
            for name, pending in self._columns.items():
                if isinstance(pending, tuple):
                    values, nulls = pending
                    if keep is not None:
                        values, nulls = values[keep], None if nulls is None else nulls[keep]
                    self._store.set(name, rows, values, nulls)
                else:
                    self._store.set_arrow(name, rows, pending if keep is None else pending.take(pa.array(keep)))
            if self._expires is not None:
                self._store.set_expires(rows, self._expires if keep is None else self._expires[keep])
        if self._renewed is not None and not is_replay:
            begun = self._renewed & ~self.is_new
            if self._closed is not None:
                begun &= ~self._closed
            if begun.any():
                self._store.renew(self._rows[begun])
        if self._closed is not None and keep is not None:
            self._store.close(self._rows[self._closed])

    def open_until(self, watermark_ms: int) -> Bools:
        """Whether each window is neither closed by the call nor due at this watermark."""
        still = self.expires() > watermark_ms
        return still if self._closed is None else still & ~self._closed

    def _type_of(self, name: str) -> pa.DataType:
        if self._store.schema.get_field_index(name) < 0:
            raise SchemaRefused(f"state {name!r} was not declared; there is {', '.join(self._store.schema.names)}")
        return self._store.schema.field(name).type


class WindowIdentities(NamedTuple):
    """The identities of windows that are already known, with the key codec and the schema of the rows."""

    keys: pa.BinaryArray | None
    numbers: Int64s | None
    codec: KeyCodec
    schema: pa.Schema


class Combining(ABC):
    """Combines the rows of a window into one row before a shuffle.

    `cells` are the columns of a combined row with the state that was folded from its rows.
    """

    cells: pa.Schema

    @abstractmethod
    def fold(self, batch: pa.RecordBatch, groups: Int64s, count: int) -> list[pa.Array]:
        """The cells of `count` groups of (prepared) rows; `groups` has the group of each row."""

    @abstractmethod
    def placed(self, numbers: Int64s) -> Assignment | Overlapping:
        """The windows of groups, from the numbers that the operator's `assign` gave their rows."""

    @abstractmethod
    def merge(self, rows: Rows, state: "State") -> Emitted:
        """Process combined rows, as the operator's `process` does; their batch has the columns `cells`."""


class Operator(ABC):
    """The base class of stateful operators over Arrow batches; the module has an example.

    `state` has the names and types of the state's columns: integers, floats, bool, date32, timestamp, duration,
    decimal128, string, binary, and lists and structs of these types. `event_time` is a column of timestamps; as in
    Spark, a row that is not newer than the watermark is dropped. The watermark is the newest event time minus
    `delay_ms`.
    """

    state: Mapping[str, pa.DataType] = {}
    event_time: str | None = None
    delay_ms: int = 0
    windows_never_change: bool = False
    """True if the state of a window is final once the window is open, so that recovery replays nothing for it."""

    stateless: bool = False
    """True if the operator has no state at all, not even the keys seen."""

    evolution: Evolution = Evolution()
    """The changes of the state's columns since an earlier version of the operator."""

    keeps_entries: bool = False
    """True if the operator keeps its own entries for each key (named states, timers) in place of windows. Each epoch
    then writes all changed entries to the log, and recovery replays nothing.
    """

    NEVER: ClassVar[int] = _NEVER
    """For `State.expire_at`: no time."""

    @property
    def name(self) -> str:
        """The name of this operator in messages and checkpoints."""
        return type(self).__name__

    @property
    def description(self) -> str:
        """A description for people, which also tells whether the operator of a query has changed."""
        return self.name

    @property
    def inner(self) -> "Operator":
        """The operator without surrounding steps; messages point to its code."""
        return self

    @abstractmethod
    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the results without the key columns, for an input of this schema.

        Raises SchemaRefused for an unsuitable input; the error names the column and the allowed types.
        """

    @abstractmethod
    def process(self, rows: Rows, state: State) -> Emitted:
        """Update the state of the rows' windows; returns results."""

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """Process the windows that are due at this watermark; returns results. The windows are closed after this call,
        unless the call sets a later time with `expire_at`.
        """
        return None

    # ---- what fewer operators change

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """The state's columns for an input of this schema (the same schema as for `output`, before `prepare`). Raises
        StateSchemaRefused.
        """
        for name, kind in self.state.items():
            if not isinstance(kind, pa.DataType):
                raise StateSchemaRefused(
                    f"state column {name!r} is declared as {kind!r}; give an Arrow type: pa.int64()"
                )
        return pa.schema(list(self.state.items()))

    def evolving(
        self,
        *,
        renamed: Mapping[str, str] | None = None,
        dropped: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        formerly: Sequence[str] = (),
    ) -> Self:
        """This operator with declared changes of its state; see `spe_adapter.state.evolution.Evolution`."""
        changed = copy(self)
        changed.evolution = Evolution(
            renamed=renamed or {}, dropped=tuple(dropped), defaults=defaults or {}, formerly=tuple(formerly)
        )
        return changed

    def follows(self, former: str) -> str | None:
        """The reason why this operator cannot use the state of an operator with that description; None if it can."""
        if former == self.description or former in self.evolution.formerly:
            return None
        return f"it was {former}, which is not declared as what {self.name} was formerly"

    def state_evolution(self, schema: pa.Schema, former: pa.Schema) -> Evolution:
        """The declared changes, by the names of the state's columns. `former` has the state columns in the log;
        `schema` is the schema of the input.
        """
        return self.evolution

    def inputs(self) -> tuple[Input, ...]:
        """The inputs with event time; the watermark is the lowest watermark of these inputs."""
        return () if self.event_time is None else (Input(self.event_time, self.delay_ms),)

    def times(self, batch: pa.RecordBatch) -> Times | None:
        """The event times of the rows."""
        return None if self.event_time is None else times_of(batch, self.event_time)

    def sources(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        """The index in `inputs` of each row's input; None if there is only one input."""
        return None

    def assign(self, batch: pa.RecordBatch, times: Times | None, sequence: Int64s) -> Assignment | Overlapping:
        """The windows of the rows. By default one per key, with number 0; late if not newer than the watermark."""
        numbers = np.zeros(batch.num_rows, np.int64)
        if times is None:
            return Assignment(numbers)
        us = times.us if times.valid is None else np.where(times.valid, times.us, _FAR_US)
        return Assignment(numbers, late_from_ms=ceiling_ms(us))

    def columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that `process` reads; other columns are not copied."""
        return tuple(schema.names)

    def prepared(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the batches that `prepare` returns."""
        return schema

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Transform rows before they get keys and windows."""
        return batch

    def combining(self, schema: pa.Schema) -> Combining | None:
        """How to combine rows before the shuffle, for an input of this schema; None if rows cannot be combined."""
        return None

    def changes(self, column: str) -> bool:
        """Whether `prepare` may change the values of a column. Columns that decide the partition must not change."""
        return False

    def conclude(self, results: Results) -> Results:
        """Transform the results of `process` and `expire`."""
        return results

    # ---- operators that keep entries (see `operators.states`)

    @property
    def has_wall_time(self) -> bool:
        """Whether the operator uses processing time."""
        return False

    def routing_keys(self, keys: pa.BinaryArray, numbers: Int64s) -> pa.BinaryArray:
        """The keys that decided the partition of windows or entries."""
        return keys

    def start(self, rows: Rows, state: State) -> Emitted:
        """Process rows of the initial state. Raises SchemaRefused."""
        raise SchemaRefused(f"operator {self.name} takes no initial state; a StatefulOperator does")

    def open_entries(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> State:
        """The entries of the keys of a call. Raises SchemaRefused."""
        raise SchemaRefused(f"operator {self.name} keeps windows, not entries")

    def due_entries(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> State | None:
        """The entries of the keys for which `expire` must be called; None if there are none."""
        return None

    def remove_due(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> None:
        """Remove expired entries. By default none: windows are closed after `expire`."""
        return

    def next_wall_ms(self, store: StateStore) -> int | None:
        """The processing time of the next work of `expire`, in ms since 1970; None if no such time is known."""
        return None


_MILLISECOND: Final = pa.timestamp("ms")
_FAR_US: Final = 2**62
"""Later than any watermark: a row without event time is never late, as in Spark."""


def times_of(batch: pa.RecordBatch, column: str) -> Times:
    """A column of timestamps as event times. Raises SchemaRefused."""
    return times_in(batch.column(time_index(batch.schema, column)))


def time_index(schema: pa.Schema, column: str) -> int:
    """The position of an event-time column. Raises SchemaRefused."""
    index = schema.get_field_index(column)
    if index < 0:
        raise SchemaRefused(f"the event time, column {column!r}, is missing; there is {', '.join(schema.names)}")
    if not pa.types.is_timestamp(schema.field(index).type):
        raise SchemaRefused(f"the event time, column {column!r}, is {schema.field(index).type}; it must be a timestamp")
    return index


def times_in(moments: pa.Array) -> Times:
    """Timestamps of any unit in µs (finer units are rounded down)."""
    unit = moments.type.unit
    plain = moments.cast(pa.int64())
    valid = None if not moments.null_count else moments.is_valid().to_numpy(zero_copy_only=False)
    us = plain.fill_null(0).to_numpy(zero_copy_only=False)
    if unit == "ns":
        us = us // 1000
    elif unit != "us":
        us = us * (1_000_000 if unit == "s" else 1000)
    return Times(us, valid)


def ceiling_ms(us: Int64s) -> Int64s:
    """µs in ms, rounded up: the result is <= `watermark_ms` exactly if `us <= watermark_ms * 1000`."""
    return -(-us // MICROSECONDS)


def next_watermark(operator: Operator, previous_ms: int, max_events_ms: list[int | None]) -> int:
    """The watermark after an epoch: for each input the newest event time minus its delay, then the lowest of these, and
    never lower than before. While an input has had no row, the watermark does not move.

    Source: Spark's WatermarkTracker with `spark.sql.streaming.multipleWatermarkPolicy=min`.
    """
    seen = [
        None if newest is None else newest - given.delay_ms
        for given, newest in zip(operator.inputs(), max_events_ms, strict=True)
    ]
    known = [one for one in seen if one is not None]
    return previous_ms if len(known) < len(seen) or not known else max(previous_ms, min(known))
