"""Session windows: rows of a key with no pause longer than the gap, merged as they grow together.

All open sessions of a key are one unit of state, as a row may join two of them: lists of their starts and ends, and one
list for each slot of the aggregates, all in the order of starts.

Invariants:
* A session is [first row, last row + gap); sessions that overlap or touch are one. Those of a key in the state do
  neither.
* A unit is due when the first of its sessions ends; the others stay, and it is closed with the last.
* A unit in which a session began is renewed, so that its footprint is never older than the first row of its newest one.

Source: Spark's MergingSessionsIterator and SessionWindowing rule; Akidau et al., "The Dataflow Model" (VLDB 2015).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s, compiled
from spe_adapter.operators.aggregation import Aggregation
from spe_adapter.operators.base import Rows, State, ceiling_ms, times_of
from spe_adapter.operators.cells import Cells, Fixed, Slot, arrow_of, fresh, gather, joined
from spe_adapter.operators.collecting import lists_of, owners_of
from spe_adapter.operators.windows import Session
from spe_adapter.state.columns import fixed_values
from spe_adapter.state.exact import dtype_of

START: Final = "#start"
END: Final = "#end"
_TIMES: Final = pa.list_(pa.int64())


class Sessions(NamedTuple):
    """Sessions in the order of their entries of the State, then of their starts: the entry, bounds in µs, and the cells
    of each aggregate.
    """

    owner: Int64s
    start_us: Int64s
    end_us: Int64s
    cells: dict[str, list[Cells]]

    def part(self, which: Int64s) -> "Sessions":
        """Some of the sessions."""
        cells = {name: [gather(cell, which) for cell in each] for name, each in self.cells.items()}
        return Sessions(self.owner[which], self.start_us[which], self.end_us[which], cells)


def state_schema(slots: list[pa.Field]) -> pa.Schema:
    """The state of a key: bounds and aggregates of its sessions."""
    lists = [pa.field(slot.name, pa.list_(slot.type)) for slot in slots]
    return pa.schema([pa.field(START, _TIMES), pa.field(END, _TIMES), *lists])


def fold(window: Session, aggregations: Mapping[str, Aggregation], rows: Rows, state: State) -> None:
    """Rows into the sessions of their keys."""
    held = _load(aggregations, state)
    us = times_of(rows.batch, window.time).us
    owner = np.concatenate((held.owner, rows.window))
    start = np.concatenate((held.start_us, us))
    end = np.concatenate((held.end_us, us + window.gap_us))
    order = np.lexsort((start, owner))
    index = np.empty(len(order), np.int64)
    bounds = np.empty((3, len(order)), np.int64)
    count = _grow_together(owner[order], start[order], end[order], order, index, bounds)
    grown = Sessions(bounds[0, :count], bounds[1, :count], bounds[2, :count], {})
    of_held, of_rows = index[: len(held.owner)], index[len(held.owner) :]
    first, others = _first_of_each(of_held, count)
    for name, one in aggregations.items():
        slots = one.slots(state.schema)
        cells = [
            gather(joined([cell, fresh(slot, 1)]), np.where(first >= 0, first, len(of_held)))
            for cell, slot in zip(held.cells[name], slots, strict=True)
        ]
        if len(others):
            parts = [
                arrow_of(gather(cell, others), slot.type) for cell, slot in zip(held.cells[name], slots, strict=True)
            ]
            cells = one.merge(cells, parts, of_held[others])
        grown.cells[name] = one.fold(cells, rows.batch, of_rows)
    began = np.zeros(state.size, np.bool_)
    began[grown.owner[first < 0]] = True
    state.renew(began & ~state.is_new)
    _store(aggregations, grown, state, np.ones(state.size, np.bool_))


def ended(aggregations: Mapping[str, Aggregation], state: State, watermark_ms: int) -> Sessions:
    """The sessions that end at the watermark or before it, by their ends; they leave the state."""
    held = _load(aggregations, state)
    is_due = ceiling_ms(held.end_us) <= watermark_ms
    left = held.part(np.flatnonzero(~is_due))
    stays = np.zeros(state.size, np.bool_)
    stays[left.owner] = True
    _store(aggregations, left, state, stays)
    due = np.flatnonzero(is_due)
    return held.part(due[np.argsort(held.end_us[due], kind="stable")])


def _load(aggregations: Mapping[str, Aggregation], state: State) -> Sessions:
    starts = state.column(START)
    start, end = (column.flatten().to_numpy().astype(np.int64) for column in (starts, state.column(END)))
    owner = owners_of(starts)
    cells = {
        name: [_cells_of_all(state.column(name + slot.suffix), slot, owner) for slot in one.slots(state.schema)]
        for name, one in aggregations.items()
    }
    return Sessions(owner, start, end, cells)


def _cells_of_all(lists: pa.Array, slot: Slot, owner: Int64s) -> Cells:
    """The cells of all sessions: fresh where an entry has none, as it was written before the aggregate was added."""
    cells = _cells(lists.flatten(), slot)
    has_cells = lists.is_valid().to_numpy(zero_copy_only=False)[owner]
    if has_cells.all():
        return cells
    place = np.where(has_cells, np.cumsum(has_cells) - 1, int(has_cells.sum()))
    return gather(joined([cells, fresh(slot, 1)]), place)


def _cells(column: pa.Array, slot: Slot) -> Cells:
    if slot.is_arrow:
        return column
    values, nulls = fixed_values(column, dtype_of(slot.type))
    no_nulls = np.zeros(len(column), np.bool_) if nulls is None else nulls
    return Fixed(values.copy(), no_nulls if slot.nullable else None)


def _store(aggregations: Mapping[str, Aggregation], sessions: Sessions, state: State, where: Bools) -> None:
    """Sessions as the state of their entries, which are due when the first of them ends; elsewhere the state is left
    to be closed.
    """
    owner, start, end, cells = sessions
    state.set_column(START, lists_of(_TIMES, owner, pa.array(start), state.size))
    state.set_column(END, lists_of(_TIMES, owner, pa.array(end), state.size))
    for name, one in aggregations.items():
        for slot, cell in zip(one.slots(state.schema), cells[name], strict=True):
            values = arrow_of(cell, slot.type)
            state.set_column(name + slot.suffix, lists_of(pa.list_(slot.type), owner, values, state.size))
    first_end = np.full(state.size, np.iinfo(np.int64).max)
    np.minimum.at(first_end, owner, end)
    state.expire_at(ceiling_ms(np.where(where, first_end, 0)), where)


def _first_of_each(groups: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """The first member of each group (-1: none), and the other members."""
    first = np.full(count, -1, np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    return first, np.flatnonzero(first[groups] != np.arange(len(groups)))


@compiled
def _grow_together(owner: Int64s, start: Int64s, end: Int64s, order: Int64s, index: Int64s, bounds: Int64s) -> int:
    """Number the sessions that intervals, sorted by owner and start, make up: that of interval `order[i]` goes to
    `index`, owner, start and end of each session to `bounds`. The number of sessions.
    """
    session = -1
    for at in range(owner.shape[0]):
        if session < 0 or owner[at] != bounds[0, session] or start[at] > bounds[2, session]:
            session += 1
            bounds[0, session] = owner[at]
            bounds[1, session] = start[at]
            bounds[2, session] = end[at]
        elif end[at] > bounds[2, session]:
            bounds[2, session] = end[at]
        index[order[at]] = session
    return session + 1
