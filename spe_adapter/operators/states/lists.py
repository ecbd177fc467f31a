"""Lists: a head per key with the bounds of its slots, and one entry per element.

Invariants:
* Elements are read in the order in which they were appended. A slot is used once as long as the list is not empty.
* All elements lie in slots from low to high − 1; some of these may be empty, where a TTL has passed.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.operators import kernels
from spe_adapter.operators.cells import steady
from spe_adapter.operators.states.access import Heads, Owners, spread, taken
from spe_adapter.operators.states.declared import StateSpec
from spe_adapter.operators.states.identity import numbers_at
from spe_adapter.operators.states.section import Section


class Elements(NamedTuple):
    """Elements of lists: the owner of each element, and the values (one column for each column of the state)."""

    owner: Int64s
    values: pa.RecordBatch


class ListAccess:
    """The lists of the keys of a call. `owner` are indices of keys (None: all, in order)."""

    def __init__(self, owners: Owners, spec: StateSpec) -> None:
        self._owners = owners
        self._spec = spec
        self._what = f"state {spec.name!r}"
        self._heads = Heads(owners, spec)
        self._elements = Section(owners.store, spec.fields, owners.clock)

    def append(self, owner: Any, values: Any) -> None:
        """Append elements, in this order, to the lists of these owners, who may repeat. Raises StateValueRefused."""
        at = self._owners.checked(self._what, owner)
        columns = taken(self._what, self._spec.fields, self._spec.value_names, values, len(at))
        if not len(at):
            return
        touched = np.flatnonzero(np.bincount(at, minlength=self._owners.count))
        low, high = self._heads.bounds(touched)
        next_slots = np.zeros(self._owners.count, np.int64)
        next_slots[touched] = high
        slots = np.empty(len(at), np.int64)
        kernels.number_rows(steady(at, np.int64), next_slots, slots)
        rows = self._elements.rows(self._owners.keys_of(at), self._numbers(slots), fresh=True)
        for field, column in zip(self._spec.fields, columns, strict=True):
            self._elements.set_column(field.name, rows, column)
        self._elements.write(rows, self._owners.expires(self._spec, at))
        self._heads.set(touched, low, next_slots[touched])

    def replace(self, owner: Any, values: Any) -> None:
        """Replace the lists of these owners, who may repeat, with these elements. Raises StateValueRefused."""
        at = self._owners.checked(self._what, owner)
        self.clear(np.unique(at))
        self.append(at, values)

    def read(self, owner: Any = None) -> Elements:
        """The elements of the lists of keys (each key once), by owner as given, in the order of their appends."""
        at = self._owners.distinct(self._what, owner)
        low, high = self._heads.bounds(at)
        index, slots = spread(low, high)
        rows = self._rows(at[index], slots)
        alive = self._elements.alive(rows)
        if not alive.all():
            index, rows = index[alive], rows[alive]
        columns = [self._elements.column(field.name, rows) for field in self._spec.fields]
        return Elements(at[index], pa.RecordBatch.from_arrays(columns, names=self._spec.value_names))

    def exists(self, owner: Any = None) -> Bools:
        """Whether each key has elements."""
        at = self._owners.checked(self._what, owner)
        low, high = self._heads.bounds(at)
        if self._spec.ttl_ms is None:
            return high > low
        having = np.zeros(self._owners.count, np.bool_)
        having[self.read(np.unique(at)).owner] = True
        return having[at]

    def clear(self, owner: Any = None) -> None:
        """Remove all elements of the lists of keys (each key once)."""
        at = self._owners.distinct(self._what, owner)
        low, high = self._heads.bounds(at)
        some = np.flatnonzero(high > low)
        at, low, high = at[some], low[some], high[some]
        index, slots = spread(low, high)
        rows = self._rows(at[index], slots)
        self._elements.drop(rows[self._elements.is_kept(rows)])
        self._heads.set(at, high, high)

    def remove_due(self, owner: Int64s, numbers: Int64s, slots: Int64s) -> None:
        """Remove elements whose TTL has passed, and move the bounds of their lists."""
        rows = self._elements.rows(self._owners.keys_of(owner), numbers)
        self._elements.drop(rows)
        at = np.unique(owner)
        low, high = self._heads.bounds(at)
        index, all_slots = spread(low, high)
        kept = self._elements.is_kept(self._rows(at[index], all_slots))
        first = high.copy()
        np.minimum.at(first, index[kept], all_slots[kept])
        self._heads.set(at, first, high)

    def commit(self) -> None:
        """Move the writes to the store."""
        self._elements.commit()
        self._heads.commit()

    def _numbers(self, slots: Int64s) -> Int64s:
        return numbers_at(self._spec.state_id, slots + 1)

    def _rows(self, owner: Int64s, slots: Int64s) -> Int64s:
        return self._elements.rows(self._owners.keys_of(owner), self._numbers(slots))
