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
    """The rows of a call, in their order of arrival; a sliding window's operator gets a row once for each window.

    `window` is the index of a row's window in the State; `times_ms` the event time (0 where it is null), None without
    one; `sequence` numbers the rows of a state partition from 0, repeated rows alike.
    """

    batch: pa.RecordBatch
    window: Int64s
    times_ms: Int64s | None
    sequence: Int64s


class Results(NamedTuple):
    """Results, each with the index of the State's window whose key it carries, and its timestamp (None: now)."""

    rows: pa.RecordBatch
    window: Int64s
    times_ms: Int64s | None = None


Emitted: TypeAlias = Results | pa.RecordBatch | None
"""The return value of a call. A plain record batch has one row per window of the State, in its order."""


class Times(NamedTuple):
    """Event times in µs since 1970, and whether each is valid (None: all are)."""

    us: Int64s
    valid: Bools | None


class Input(NamedTuple):
    """An input with event time: its column (for a join, the column of its side), and the allowed lateness in ms."""

    column: str
    delay_ms: int


class Assignment(NamedTuple):
    """The windows of rows. `rows` are positions in the batch (None: each row once, in order), `numbers` the window
    number of each; a row is late if the watermark has reached its `late_from_ms`.
    """

    numbers: Int64s
    rows: Int64s | None = None
    late_from_ms: Int64s | None = None


class Overlapping(NamedTuple):
    """Rows that are in several windows each. Rows with the same key and the same number in `numbers` are in the same
    windows, so that these are looked up once. `spread` takes such numbers and gives the count of windows of each, and
    the windows of all in a row.
    """

    numbers: Int64s
    rows: Int64s | None
    spread: Callable[[Int64s], tuple[Int64s, Assignment]]


class State:
    """The state of some windows, one entry per window.

    Reads see the writes of the same call. Writes reach the store in `commit`, which the Processor calls.
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
        """True where the window has been opened by this call: its state is null."""

    @property
    def size(self) -> int:
        """The number of windows."""
        return len(self._rows)

    @property
    def keys(self) -> pa.BinaryArray:
        """Key bytes of each window, null for the null key."""
        keys = self._identity.keys
        return self._store.keys(self._rows) if keys is None else keys

    @property
    def numbers(self) -> Int64s:
        """Window number of each window: an event-time window's start in µs, 0 for plain state per key."""
        numbers = self._identity.numbers
        return self._store.numbers(self._rows) if numbers is None else numbers

    @property
    def schema(self) -> pa.Schema:
        """The columns of the operator's input rows, all of them."""
        return self._identity.schema

    def key_columns(self) -> list[pa.Array]:
        """The key columns of each window."""
        return self._identity.codec.decode(self.keys)

    def get(self, name: str) -> Numbers:
        """The values of a column of numbers, 0 where null; timestamps are int64 in their unit. Raises
        StateValueRefused for columns of other types, which `column` reads.
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
        """Whether a column is null; in a new window it is."""
        pending = self._columns.get(name)
        if pending is None:
            return self._store.nulls(name, self._rows)
        if isinstance(pending, tuple):
            return np.zeros(self.size, np.bool_) if pending[1] is None else pending[1].copy()
        return pending.is_null().to_numpy(zero_copy_only=False)

    def set(self, name: str, values: Numbers, nulls: Bools | None = None) -> None:
        """Write a fixed-width column, one value per window, null where `nulls` (booleans).

        Values of another type are converted if nothing is lost (see `spe_adapter.state.exact`). Otherwise raises
        StateValueRefused, which names the column and the value. The values are copied.
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
        """Write a column of any type, one value per window. Raises StateValueRefused where the declared type cannot
        hold it without loss.
        """
        taken = exact.column(f"state column {name!r}", self._type_of(name), values)
        if len(taken) != self.size:
            raise StateValueRefused(f"state column {name!r}: {len(taken)} values; {self.size} are needed")
        self._columns[name] = taken

    def expires(self) -> Int64s:
        """The event time in ms at which each window is due, or NEVER."""
        return self._store.expires(self._rows) if self._expires is None else self._expires.copy()

    def expire_at(self, ms: int | Int64s, where: Bools | None = None) -> None:
        """Have `expire` called when the watermark reaches `ms` (one time for all windows, or one each); NEVER: no call.

        Whole milliseconds since 1970, or datetime64 that are whole in them. Raises StateValueRefused.
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
        """Say that a window ended in this call and its successor, in the same entry of the state, began. A window that
        was just opened need not be named. The state is then written to the log as that of a window that opened, so that
        no recovery has to begin before its first row.
        """
        self._renewed = np.asarray(where, np.bool_)

    def all_open(self) -> "State":
        """All open windows of the partition, those of this call included, for reading only."""
        rows = self._store.all_rows()
        identity = self._identity._replace(keys=None, numbers=None)
        return State(self._store, rows, np.zeros(len(rows), np.bool_), identity)

    # ---- for the Processor

    def part(self, which: Int64s) -> "State":
        """Some of the windows as they were before the call. Writes to them are never kept."""
        keys, numbers = self._identity.keys, self._identity.numbers
        identity = self._identity._replace(
            keys=None if keys is None else keys.take(pa.array(which)),
            numbers=None if numbers is None else numbers[which],
        )
        return State(self._store, self._rows[which], self.is_new[which], identity)

    def commit(self, *, is_replay: bool = False) -> None:
        """Hand what was written on to the store. In a replay nothing begins: what began is in the log, or was never
        written by the version of Cairn that ran then, and the older footprint serves.
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
    """The identities of windows, as far as they are known already, with the key codec and the schema of the rows."""

    keys: pa.BinaryArray | None
    numbers: Int64s | None
    codec: KeyCodec
    schema: pa.Schema


class Combining(ABC):
    """Combines the rows of one window into one row before a shuffle.

    `cells` are the columns of a combined row that hold the state folded from its rows.
    """

    cells: pa.Schema

    @abstractmethod
    def fold(self, batch: pa.RecordBatch, groups: Int64s, count: int) -> list[pa.Array]:
        """The cells of `count` groups of rows (of the prepared input): `groups` has that of each row."""

    @abstractmethod
    def placed(self, numbers: Int64s) -> Assignment | Overlapping:
        """The windows of groups, from the number that the operator's `assign` gave their rows."""

    @abstractmethod
    def merge(self, rows: Rows, state: "State") -> Emitted:
        """Process combined rows, as the operator's `process` does; their batch has the columns `cells`."""


class Operator(ABC):
    """A stateful operator over Arrow batches; see the module's example.

    `state` names the state's columns and their types: integers, floats, bool, date32, timestamp, duration, decimal128,
    string, binary, and lists and structs of these. With `event_time`, a column of timestamps, rows not newer than the
    watermark are dropped, as Spark does; `delay_ms` is how far the watermark stays behind the newest row.
    """

    state: Mapping[str, pa.DataType] = {}
    event_time: str | None = None
    delay_ms: int = 0
    windows_never_change: bool = False
    """True where a window's state is final once it is open, so that no recovery has to replay anything for it."""

    stateless: bool = False
    """True where there is no state at all: not even which keys were seen."""

    evolution: Evolution = Evolution()
    """What became of the state's columns since an earlier version of the operator."""

    keeps_entries: bool = False
    """True where the operator keeps entries of its own kind per key (named states, timers) in place of windows. All
    that changed is then written to the log in each epoch, and nothing is replayed.
    """

    NEVER: ClassVar[int] = _NEVER
    """For `State.expire_at`: not any more."""

    @property
    def name(self) -> str:
        """How messages and checkpoints call this operator."""
        return type(self).__name__

    @property
    def description(self) -> str:
        """What it does, for people and for telling whether a query's operator has changed."""
        return self.name

    @property
    def inner(self) -> "Operator":
        """The operator without the steps around it: whose code a message points to."""
        return self

    @abstractmethod
    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the results, without the key's, for an input of this schema.

        Raises SchemaRefused, naming the column and the types allowed, for an input that does not suit.
        """

    @abstractmethod
    def process(self, rows: Rows, state: State) -> Emitted:
        """Take rows into their windows' state; give what they result in."""

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """Windows that are due at this watermark. They are closed behind this call, unless it gave them a later time
        with `expire_at`.
        """
        return None

    # ---- what fewer operators change

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """The state's columns for an input of this schema (as `output` gets it, before `prepare`). Raises
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
        """Why the state of an operator with that description cannot be this operator's; None if it can."""
        if former == self.description or former in self.evolution.formerly:
            return None
        return f"it was {former}, which is not declared as what {self.name} was formerly"

    def state_evolution(self, schema: pa.Schema, former: pa.Schema) -> Evolution:
        """The declared changes by the names of the state's columns: `former` are the columns in the log, `schema` is
        that of the input.
        """
        return self.evolution

    def inputs(self) -> tuple[Input, ...]:
        """The inputs with event time; the watermark is that of the slowest of them."""
        return () if self.event_time is None else (Input(self.event_time, self.delay_ms),)

    def times(self, batch: pa.RecordBatch) -> Times | None:
        """The rows' event times."""
        return None if self.event_time is None else times_of(batch, self.event_time)

    def sources(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        """Which of `inputs` each row belongs to; None: there is but one."""
        return None

    def assign(self, batch: pa.RecordBatch, times: Times | None, sequence: Int64s) -> Assignment | Overlapping:
        """The windows of the rows; here: one per key, number 0, late when not newer than the watermark."""
        numbers = np.zeros(batch.num_rows, np.int64)
        if times is None:
            return Assignment(numbers)
        us = times.us if times.valid is None else np.where(times.valid, times.us, _FAR_US)
        return Assignment(numbers, late_from_ms=ceiling_ms(us))

    def columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that `process` reads, so that others need not be copied."""
        return tuple(schema.names)

    def prepared(self, schema: pa.Schema) -> pa.Schema:
        """What `prepare` makes of the schema."""
        return schema

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What happens to rows before they get keys and windows."""
        return batch

    def combining(self, schema: pa.Schema) -> Combining | None:
        """How rows can be combined before they are shuffled, for an input of this schema; None: they cannot."""
        return None

    def changes(self, column: str) -> bool:
        """Whether `prepare` may give a column other values: what rows are routed by must stay as it is."""
        return False

    def conclude(self, results: Results) -> Results:
        """What happens to results behind `process` and `expire`."""
        return results

    # ---- operators that keep entries (see `operators.states`)

    @property
    def has_wall_time(self) -> bool:
        """Whether anything goes by processing time."""
        return False

    def routing_keys(self, keys: pa.BinaryArray, numbers: Int64s) -> pa.BinaryArray:
        """The keys by which windows or entries were sent to their partition."""
        return keys

    def start(self, rows: Rows, state: State) -> Emitted:
        """Take rows of the initial state. Raises SchemaRefused."""
        raise SchemaRefused(f"operator {self.name} takes no initial state; a StatefulOperator does")

    def open_entries(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> State:
        """The keys of a call, with what the operator keeps for them. Raises SchemaRefused."""
        raise SchemaRefused(f"operator {self.name} keeps windows, not entries")

    def due_entries(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> State | None:
        """The keys for which `expire` is to be called; None: for no key."""
        return None

    def remove_due(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> None:
        """Remove entries whose time has come; here: none, as windows are closed behind `expire`."""
        return

    def next_wall_ms(self, store: StateStore) -> int | None:
        """The processing time from which on `expire` has work, in ms since 1970; None: none is known."""
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
    """Timestamps of any unit as µs (finer ones rounded down)."""
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
    """µs as ms, rounded up: `us <= watermark_ms * 1000` exactly where this is `<= watermark_ms`."""
    return -(-us // MICROSECONDS)


def next_watermark(operator: Operator, previous_ms: int, max_events_ms: list[int | None]) -> int:
    """The watermark behind an epoch: per input the newest event time up to now minus its delay, the lowest of them,
    and never less than before. An input that has had no row yet holds the watermark where it is.

    Source: Spark's WatermarkTracker with `spark.sql.streaming.multipleWatermarkPolicy=min`.
    """
    seen = [
        None if newest is None else newest - given.delay_ms
        for given, newest in zip(operator.inputs(), max_events_ms, strict=True)
    ]
    known = [one for one in seen if one is not None]
    return previous_ms if len(known) < len(seen) or not known else max(previous_ms, min(known))
