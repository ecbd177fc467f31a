"""Windows of a number of rows per key: many of them in one batch, several open at once where they overlap.

All windows of a key are one unit of state, as which rows a window gets follows from how many the key had before: the
number of rows, and `overlaps` places for open windows, window i in place i modulo `overlaps`. Windows that do not
overlap leave nothing behind when they are full. Where they do overlap, a key always has an open window, so its unit is
never closed.

Invariants:
* Results come in the order of the rows that filled their windows; a window is folded from left to right.
* A unit in which a window began that is still open is renewed, so that its footprint is never older than the first row
  of its newest window.

Source: CEC paper, section II (overlapping windows as separate windows that both take tuples during the overlap).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.operators import kernels
from spe_adapter.operators.aggregation import Aggregation
from spe_adapter.operators.base import Rows, State
from spe_adapter.operators.cells import Cells, Slot, fresh, gather, joined, read, steady, write
from spe_adapter.operators.windows import Counting

ROWS: Final = "#rows"
"""State column: rows of the key so far, of its open window where windows do not overlap."""


class Filled(NamedTuple):
    """Windows that became full: the cells of each aggregate, and the index of the State's entry that owns them."""

    cells: dict[str, list[Cells]]
    owner: Int64s


class _TouchedWindows(NamedTuple):
    """The windows that a batch touches, in a row: `group` (entry of the State) and `number` of each, the rows that had
    come before, whether it is full now; rows (positions, repeated where windows overlap) with their window.
    """

    group: Int64s
    number: Int64s
    started: Bools
    full: Bools
    positions: Int64s
    window: Int64s


def state_schema(window: Counting, slots: list[pa.Field]) -> pa.Schema:
    """The state of a key: the number of rows, and each aggregate's state once per place."""
    fields = [pa.field(ROWS, pa.int64())]
    for place in range(window.overlaps):
        fields += [pa.field(_name(slot.name, place), slot.type) for slot in slots]
    return pa.schema(fields)


def fold(window: Counting, aggregations: Mapping[str, Aggregation], rows: Rows, state: State) -> Filled:
    """Rows into their windows; those that are full leave the state."""
    before = state.get(ROWS).astype(np.int64)
    counters = before.copy()
    ordinals = np.empty(len(rows.window), np.int64)
    kernels.number_rows(steady(rows.window, np.int64), counters, ordinals)
    touched = _touched(window, rows.window, ordinals, before, counters)
    batch = rows.batch
    if window.overlaps > 1:
        batch = batch.take(pa.array(touched.positions))
    last_row = np.zeros(len(touched.group), np.int64)
    last_row[touched.window] = touched.positions
    full = np.flatnonzero(touched.full)
    full = full[np.argsort(last_row[full], kind="stable")]
    filled: dict[str, list[Cells]] = {}
    for name, one in aggregations.items():
        slots = one.slots(state.schema)
        cells = [_load(state, name + slot.suffix, slot, touched, window.overlaps) for slot in slots]
        cells = one.fold(cells, batch, touched.window)
        filled[name] = [gather(cell, full) for cell in cells]
        for slot, cell in zip(slots, cells, strict=True):
            _store(state, name + slot.suffix, slot, cell, touched, window.overlaps)
    begun = np.zeros(state.size, np.bool_)
    begun[touched.group[~touched.started & ~touched.full]] = True
    state.renew(begun)
    if window.overlaps == 1:
        counters %= window.size
        state.close(counters == 0)
    state.set(ROWS, counters)
    return Filled(filled, touched.group[full])


def _touched(window: Counting, groups: Int64s, ordinals: Int64s, before: Int64s, after: Int64s) -> _TouchedWindows:
    size, step = window.size, window.step
    lowest = np.maximum((before - size) // step + 1, 0)
    highest = (after - 1) // step
    base = np.cumsum(highest - lowest + 1) - (highest - lowest + 1)
    total = int(base[-1] + highest[-1] - lowest[-1] + 1)
    group = np.repeat(np.arange(len(before)), highest - lowest + 1)
    number = np.arange(total) - base[group] + lowest[group]
    last = ordinals // step
    # A window's rows all lie at the same or later overlaps the later they come: behind each other they are in order.
    parts = []
    for overlap in range(window.overlaps):
        wanted = last - overlap
        inside = (wanted >= 0) & (ordinals < wanted * step + size)
        rows = np.flatnonzero(inside)
        parts.append((rows, base[groups[rows]] + wanted[rows] - lowest[groups[rows]]))
    return _TouchedWindows(
        group,
        number,
        number * step < before[group],
        number * step + size <= after[group],
        np.concatenate([rows for rows, _ in parts]),
        np.concatenate([at for _, at in parts]),
    )


def _load(state: State, name: str, slot: Slot, touched: _TouchedWindows, overlaps: int) -> Cells:
    """The cells of the touched windows: those that had rows before from their place, the others fresh."""
    places: list[Cells] = [read(state, _name(name, place), slot) for place in range(overlaps)]
    places.append(fresh(slot, 1))
    stored = touched.number % overlaps * state.size + touched.group
    return gather(joined(places), np.where(touched.started, stored, overlaps * state.size))


def _store(state: State, name: str, slot: Slot, cells: Cells, touched: _TouchedWindows, overlaps: int) -> None:
    """Open windows back to their places; other places are empty."""
    everything = joined([cells, fresh(slot, 1)])
    place = touched.number % overlaps
    for index in range(overlaps):
        source = np.full(state.size, len(touched.group), np.int64)
        here = np.flatnonzero(~touched.full & (place == index))
        source[touched.group[here]] = here
        write(state, _name(name, index), gather(everything, source))


def _name(name: str, place: int) -> str:
    return f"{name}#{place}"
