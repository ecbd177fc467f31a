"""Values: one entry per key.

Invariant: an entry is there if a value was set and neither cleared since nor out of its TTL.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.operators.states.access import Owners, taken
from spe_adapter.operators.states.declared import StateSpec
from spe_adapter.operators.states.identity import numbers_at
from spe_adapter.operators.states.section import Section
from spe_adapter.state import exact
from spe_adapter.state.columns import Values
from spe_adapter.state.errors import StateValueRefused


class ValueAccess:
    """The values of the keys of a call. `owner`: indices of keys (None: all, in order); reads may repeat owners."""

    def __init__(self, owners: Owners, spec: StateSpec) -> None:
        self._owners = owners
        self._spec = spec
        self._what = f"state {spec.name!r}"
        self._section = Section(owners.store, spec.fields, owners.clock)
        self._rows: Int64s | None = None

    def exists(self, owner: Any = None) -> Bools:
        """Whether each key has a value."""
        return self._section.alive(self._at(owner))

    def get(self, owner: Any = None, *, column: str | None = None) -> Values:
        """Values of a fixed-width type, 0 for a key without a value; timestamps are int64 in their unit. `column` names
        one of several columns. Raises StateValueRefused.
        """
        field = self._field(column)
        if not exact.has_numbers(field.type):
            raise StateValueRefused(f"{self._what} is {field.type}: read it with column()")
        return self._section.get(field.name, self._at(owner))

    def column(self, owner: Any = None, *, column: str | None = None) -> pa.Array:
        """Values of any type, null for a key without a value. Raises StateValueRefused."""
        return self._section.column(self._field(column).name, self._at(owner))

    def set(self, values: Any, owner: Any = None) -> None:
        """Set the values of keys: an array, or for several columns a mapping or record batch of arrays. If an owner
        repeats, its last value counts. Raises StateValueRefused.
        """
        at = self._owners.checked(self._what, owner)
        columns = taken(self._what, self._spec.fields, self._spec.value_names, values, len(at))
        if owner is not None:
            last = np.full(self._owners.count, -1, np.int64)
            last[at] = np.arange(len(at))
            chosen = last[last >= 0]
            if len(chosen) < len(at):
                at, columns = at[chosen], [column.take(pa.array(chosen)) for column in columns]
        rows = self._at(at)
        for field, column in zip(self._spec.fields, columns, strict=True):
            self._section.set_column(field.name, rows, column)
        expires = self._owners.expires(self._spec, at)
        if self._spec.ttl_ms is not None and self._spec.declared.ttl_by == "event":
            # Rows may come out of order: a value never lives shorter because an older row came later.
            before = np.where(self._section.alive(rows), self._section.expires(rows), 0)
            expires = np.maximum(expires, before)
        self._section.write(rows, expires)

    def clear(self, owner: Any = None) -> None:
        """Remove the values of keys."""
        rows = self._at(owner)
        self._section.drop(rows[self._section.is_kept(rows)])

    def commit(self) -> None:
        """Move the writes to the store."""
        self._section.commit()

    def _at(self, owner: Any) -> Int64s:
        if self._rows is None:
            numbers = np.full(self._owners.count, int(numbers_at(self._spec.state_id, 0)))
            self._rows = self._section.rows(self._owners.keys, numbers)
        return self._rows if owner is None else self._rows[self._owners.checked(self._what, owner)]

    def _field(self, column: str | None) -> pa.Field:
        names, fields = self._spec.value_names, self._spec.fields
        if column is None and len(fields) == 1:
            return fields[0]
        if column not in names:
            raise StateValueRefused(f"{self._what} has the columns {', '.join(names)}; {column!r} was asked for")
        return fields[names.index(column)]
