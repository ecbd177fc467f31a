"""The symmetric window join of two inputs: rows of equal keys whose event times are at most `within` apart.

Input rows have the key's columns, `side` (int8: 0 left, 1 right), and `left` and `right`, structs of which only that of
the row's side is set. Each row waits in a window of its own, numbered by arrival, until the watermark says that nothing
can match it any more (in an outer join, that it is not needed any more). A result has both structs; it comes with the
later row to arrive, once.

Invariants:
* A waiting row never changes, so its first footprint is its last and no recovery has to replay anything for it.
* A row without key or event time matches nothing, as in SQL. A row not newer than the watermark is late and dropped.
* Results come in the order of the rows that complete them, for each in the order in which its partners arrived.

Source: CEC paper, section II (windows as units of state); Kang, Naughton, Viglas, "Evaluating window joins over
unbounded streams" (ICDE 2003); Spark's StreamingSymmetricHashJoinExec.
"""

from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore.errors import InvalidConfig
from spe_adapter.codec.columns import keys_of
from spe_adapter.codec.identity_hash import hashes_of
from spe_adapter.codec.kernels import MICROSECONDS, Bools, Int64s, compiled
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.base import (
    Assignment,
    Emitted,
    Input,
    Operator,
    Results,
    Rows,
    State,
    Times,
    ceiling_ms,
    time_index,
    times_in,
)
from spe_adapter.operators.cells import steady
from spe_adapter.operators.windows import Duration, duration_us
from spe_adapter.state.layout import columns_of

How = Literal["inner", "left", "right"]

SIDE: Final = "side"
SIDES: Final = ("left", "right")

_TIME: Final = "time"
_HASH: Final = "hash"
"""Of the key: waiting rows are found by it, without reading their keys. Pairs are compared by the keys themselves."""
_PAIRS: Final = 1024
"""The number of pairs that there is room for at first."""
_HASH_SEED: Final = 0
"""State outlives a table's seed. Keys made to collide cost time, no more."""


class WindowJoin(Operator):
    """Pairs of a row of the left and a row of the right side with |left.time − right.time| <= within.

    `left_time` and `right_time` name the event-time columns inside the two structs; `left_delay` and `right_delay` are
    the allowed lateness of rows of each side. With `how` left or right, a row of that side without a partner is paired
    with null, once the watermark excludes a partner. Raises InvalidConfig.
    """

    windows_never_change = True

    def __init__(
        self,
        within: Duration,
        *,
        left_time: str,
        right_time: str,
        left_delay: Duration = "0 seconds",
        right_delay: Duration = "0 seconds",
        how: How = "inner",
    ) -> None:
        self._within_us = duration_us(within)
        if self._within_us < 0:
            raise InvalidConfig(f"a join within {within!r}; it must not be negative")
        if how not in ("inner", *SIDES):
            raise InvalidConfig(f"a join {how!r}; it is inner, left or right")
        self._outer = None if how == "inner" else SIDES.index(how)
        self._times = (left_time, right_time)
        self._delays_ms = (duration_us(left_delay) // 1000, duration_us(right_delay) // 1000)
        self.event_time = f"left.{left_time}"
        self.delay_ms = max(self._delays_ms)

    @property
    def description(self) -> str:
        """A description of the join."""
        how = "inner" if self._outer is None else SIDES[self._outer]
        return f"WindowJoin({self._within_us} µs, left.{self._times[0]}, right.{self._times[1]}, {how})"

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The two structs."""
        self._check(schema)
        return pa.schema([pa.field(side, schema.field(side).type) for side in SIDES])

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a waiting row: side, time in µs, hash of the key, and the fields of both structs."""
        self._check(schema)
        fields = [pa.field(SIDE, pa.int8()), pa.field(_TIME, pa.int64()), pa.field(_HASH, pa.int64())]
        for side in SIDES:
            kind = schema.field(side).type
            fields += [pa.field(f"{side}.{kind.field(at).name}", kind.field(at).type) for at in range(kind.num_fields)]
        columns_of(pa.schema(fields))
        return pa.schema(fields)

    def inputs(self) -> tuple[Input, ...]:
        """The left and the right input, each with its own delay."""
        return tuple(
            Input(f"{side}.{column}", delay)
            for side, column, delay in zip(SIDES, self._times, self._delays_ms, strict=True)
        )

    def sources(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The side of each row."""
        sides: NDArray[np.int64] = batch.column(SIDE).to_numpy(zero_copy_only=False).astype(np.int64)
        return sides

    def times(self, batch: pa.RecordBatch) -> Times:
        """The event time of each row, from the column of its side."""
        left, right = (
            times_in(_field(batch.column(side), name)) for side, name in zip(SIDES, self._times, strict=True)
        )
        is_left = self.sources(batch) == 0
        everywhere = np.ones(batch.num_rows, np.bool_)
        valid = np.where(
            is_left,
            everywhere if left.valid is None else left.valid,
            everywhere if right.valid is None else right.valid,
        )
        return Times(np.where(is_left, left.us, right.us), None if valid.all() else valid)

    def assign(self, batch: pa.RecordBatch, times: Times | None, sequence: Int64s) -> Assignment:
        """A window for each row that can still match another row."""
        if times is None:
            return Assignment(sequence)
        rows = None if times.valid is None else np.flatnonzero(times.valid)
        return Assignment(
            sequence if rows is None else sequence[rows],
            rows,
            ceiling_ms(times.us if rows is None else times.us[rows]),
        )

    def process(self, rows: Rows, state: State) -> Emitted:
        """Store the rows, and pair each row with the earlier rows of the other side."""
        batch = rows.batch
        place = np.empty(state.size, np.int64)
        place[rows.window] = np.arange(state.size)  # each row is a window of its own
        sides = self.sources(batch)
        us = np.asarray(self.times(batch).us, np.int64)
        state.set(SIDE, sides[place].astype(np.int8))
        state.set(_TIME, us[place])
        hashes = hashes_of(keys_of(state.keys), np.zeros(state.size, np.int64), _HASH_SEED)
        state.set(_HASH, hashes)
        for side in SIDES:
            struct = batch.column(side)
            for at, values in enumerate(struct.flatten()):
                state.set_column(f"{side}.{struct.type.field(at).name}", values.take(pa.array(place)))
        # An outer row that becomes due asks whether it ever had a partner: partners wait for it.
        waits = np.where(sides[place] == self._outer, 1, 1 if self._outer is None else 2) * self._within_us
        state.expire_at(ceiling_ms(us[place] + waits))
        if state.keys.null_count:
            state.close(state.keys.is_null().to_numpy(zero_copy_only=False) & (sides[place] != self._outer))
        return self._paired(rows, state, sides, us, hashes[rows.window])

    def _paired(self, rows: Rows, state: State, sides: Int64s, us: Int64s, hashes: Int64s) -> Emitted:
        waiting = _alike(state.all_open(), hashes)
        numbers = waiting.numbers
        old = np.flatnonzero(numbers < rows.sequence.min())
        waiting = waiting.part(old[np.argsort(numbers[old])])
        # Waiting rows first, in their order of arrival, then the batch's: positions say who came before whom.
        all_sides = np.concatenate((waiting.get(SIDE).astype(np.int64), sides))
        times = np.concatenate((waiting.get(_TIME).astype(np.int64), us))
        keys = pa.concat_arrays([waiting.keys, state.keys.take(pa.array(rows.window))])
        hashes = np.concatenate((waiting.get(_HASH).astype(np.int64), hashes))
        later, earlier = _pairs(keys, hashes, all_sides, times, (waiting.size, self._within_us))
        if not len(later):
            return None
        is_left = all_sides[later] == 0
        columns = [
            self._structs(waiting, rows.batch, side, np.where(is_left == (side == SIDES[0]), later, earlier))
            for side in SIDES
        ]
        newest = np.maximum(times[later], times[earlier]) // MICROSECONDS
        batch = pa.RecordBatch.from_arrays(columns, schema=self.output(state.schema))
        return Results(batch, rows.window[later - waiting.size], newest)

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """The rows of the outer side of an outer join that found no partner."""
        if self._outer is None:
            return None
        due = np.flatnonzero(state.get(SIDE) == self._outer)
        if not len(due):
            return None
        alone = state.part(due)
        partners = _alike(state.all_open(), alone.get(_HASH))
        partners = partners.part(np.flatnonzero(partners.get(SIDE) != self._outer))
        hashes, sides, times = (
            np.concatenate((partners.get(name), alone.get(name))).astype(np.int64) for name in (_HASH, SIDE, _TIME)
        )
        keys = pa.concat_arrays([partners.keys, alone.keys])
        found, _ = _pairs(keys, hashes, sides, times, (partners.size, self._within_us))
        lonely = np.ones(len(due), np.bool_)
        lonely[found - partners.size] = False
        alone = state.part(due[lonely])
        columns = []
        for at, side in enumerate(SIDES):
            kind = state.schema.field(side).type
            fields = [kind.field(index) for index in range(kind.num_fields)]
            parts = [alone.column(f"{side}.{field.name}") for field in fields]
            mask = None if at == self._outer else pa.array(np.ones(alone.size, np.bool_))
            columns.append(pa.StructArray.from_arrays(parts, fields=fields, mask=mask))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.output(state.schema))
        return Results(batch, due[lonely], alone.get(_TIME).astype(np.int64) // MICROSECONDS)

    def _structs(self, waiting: State, batch: pa.RecordBatch, side: str, which: Int64s) -> pa.StructArray:
        """The structs of a side at some positions among waiting rows and batch."""
        kind = batch.schema.field(side).type
        fields = [kind.field(at) for at in range(kind.num_fields)]
        parts = [
            pa.concat_arrays([waiting.column(f"{side}.{field.name}"), fresh]).take(pa.array(which))
            for field, fresh in zip(fields, batch.column(side).flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=fields)

    def _check(self, schema: pa.Schema) -> None:
        for name in (SIDE, *SIDES):
            if schema.get_field_index(name) < 0:
                raise SchemaRefused(
                    f"a join's input has the columns side, left and right; there is {', '.join(schema.names)}"
                )
        if schema.field(SIDE).type != pa.int8():
            raise SchemaRefused(f"column 'side' is {schema.field(SIDE).type}; it must be int8: 0 left, 1 right")
        for side, column in zip(SIDES, self._times, strict=True):
            kind = schema.field(side).type
            if not pa.types.is_struct(kind):
                raise SchemaRefused(f"column {side!r} is {kind}; it must be a struct of the {side} input's columns")
            time_index(pa.schema([kind.field(at) for at in range(kind.num_fields)]), column)


def _alike(windows: State, hashes: Int64s) -> State:
    """The windows whose keys have one of these hashes."""
    slots = np.zeros(1 << (2 * len(hashes)).bit_length(), np.int64)
    found = np.zeros(windows.size, np.bool_)
    mark_among(steady(windows.get(_HASH), np.int64), steady(hashes, np.int64), slots, found)
    return windows.part(np.flatnonzero(found))


def _pairs(
    keys: pa.Array, hashes: Int64s, sides: Int64s, times: Int64s, reach: tuple[int, int]
) -> tuple[Int64s, Int64s]:
    """Pairs (later, earlier) of positions: equal keys, other side, times within `reach[1]` µs, the later one from
    `reach[0]` on; by the later one's position, then the earlier one's.
    """
    order = np.lexsort((times, sides, hashes))
    arrays = [steady(array, np.int64) for array in (hashes, sides, times, order)]
    later, earlier = np.empty(_PAIRS, np.int64), np.empty(_PAIRS, np.int64)
    while True:
        count = find_pairs(*arrays, *reach, later, earlier)
        if count <= len(later):
            break
        later, earlier = np.empty(count, np.int64), np.empty(count, np.int64)
    later, earlier = later[:count], earlier[:count]
    by_arrival = np.lexsort((earlier, later))
    later, earlier = later[by_arrival], earlier[by_arrival]
    same = pc.equal(keys.take(pa.array(later)), keys.take(pa.array(earlier))).fill_null(False)
    kept = same.to_numpy(zero_copy_only=False)
    return (later, earlier) if kept.all() else (later[kept], earlier[kept])


@compiled
def find_pairs(
    groups: Int64s,
    sides: Int64s,
    times: Int64s,
    order: Int64s,
    first: int,
    within_us: int,
    later: Int64s,
    earlier: Int64s,
) -> int:
    """Store the pairs that fit; returns the number of all pairs. `order` sorts by group, side and time."""
    count = 0
    rows = order.shape[0]
    start = 0
    while start < rows:
        group = groups[order[start]]
        middle = start
        while middle < rows and groups[order[middle]] == group and sides[order[middle]] == 0:
            middle += 1
        end = middle
        while end < rows and groups[order[end]] == group:
            end += 1
        low = middle
        for at in range(start, middle):
            left = order[at]
            while low < end and times[order[low]] < times[left] - within_us:
                low += 1
            probe = low
            while probe < end and times[order[probe]] <= times[left] + within_us:
                right = order[probe]
                if left >= first or right >= first:
                    if count < later.shape[0]:
                        later[count] = max(left, right)
                        earlier[count] = min(left, right)
                    count += 1
                probe += 1
        start = end
    return count


def _field(struct: pa.StructArray, name: str) -> pa.Array:
    return struct.flatten()[struct.type.get_field_index(name)]


@compiled
def mark_among(hashes: Int64s, wanted: Int64s, slots: Int64s, found: Bools) -> None:
    """Which of the hashes are wanted. `slots` is zeroed, a power of two, at least twice as many as are wanted."""
    mask = slots.shape[0] - 1
    zero = False
    for row in range(wanted.shape[0]):
        value = wanted[row]
        if value == 0:
            zero = True
            continue
        slot = value & mask
        while slots[slot] != 0 and slots[slot] != value:
            slot = (slot + 1) & mask
        slots[slot] = value
    for row in range(hashes.shape[0]):
        value = hashes[row]
        slot = value & mask
        while slots[slot] != 0 and slots[slot] != value:
            slot = (slot + 1) & mask
        found[row] = slots[slot] == value if value != 0 else zero
