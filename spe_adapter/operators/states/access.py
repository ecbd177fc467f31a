"""What values, lists and maps share: the owners of a call, the values that a user hands over, and due times.

Invariants:
* An owner is the place of a key among the keys of the call, 0 to `count` − 1.
* Values are taken without loss or refused by the name of the state and the column (see `spe_adapter.state.exact`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators.clock import WALL, CallTimes
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.states.declared import HIGH, LOW, StateSpec
from spe_adapter.operators.states.identity import numbers_at
from spe_adapter.operators.states.section import Section
from spe_adapter.state import exact
from spe_adapter.state.columns import fixed_array
from spe_adapter.state.errors import StateValueRefused
from spe_adapter.state.layout import NEVER
from spe_adapter.state.store import StateStore

_INDEX: Final = pa.int64()
_HEAD: Final = (pa.field(LOW, pa.int64()), pa.field(HIGH, pa.int64()))


@dataclass(frozen=True, slots=True)
class Owners:
    """The keys of a call, its store and its times. `newest_ms`: the newest event time of each key's rows (None: no
    rows).
    """

    store: StateStore
    keys: pa.BinaryArray
    clock: CallTimes
    newest_ms: Int64s | None
    codec: KeyCodec

    @property
    def count(self) -> int:
        """The number of owners."""
        return len(self.keys)

    def checked(self, what: str, owner: Any) -> Int64s:
        """Owners as given: indices, or None for all. Raises StateValueRefused."""
        if owner is None:
            return np.arange(self.count, dtype=np.int64)
        given = np.asarray(owner)
        if given.dtype == np.bool_:
            raise StateValueRefused(f"{what}: the owners are booleans; give indices: np.flatnonzero(where)")
        taken, _ = exact.fixed(f"{what}: the owners", _INDEX, given, None, len(given) if given.ndim else 0)
        outside = (taken < 0) | (taken >= self.count)
        if outside.any():
            raise StateValueRefused(
                f"{what}: owner {int(taken[int(np.argmax(outside))])}; the call's keys are 0 to {self.count - 1}"
            )
        return taken

    def distinct(self, what: str, owner: Any) -> Int64s:
        """As `checked`, each owner once. Raises StateValueRefused."""
        taken = self.checked(what, owner)
        if owner is not None and len(np.unique(taken)) < len(taken):
            raise StateValueRefused(f"{what}: an owner is named twice; name each once")
        return taken

    def keys_of(self, owner: Int64s) -> pa.BinaryArray:
        """The routing keys of owners."""
        return self.keys.take(pa.array(owner))

    def expires(self, spec: StateSpec, owner: Int64s) -> Int64s | int:
        """When what these owners write now is due, as the store has it."""
        if spec.ttl_ms is None:
            return NEVER
        if spec.declared.ttl_by == "processing":
            return WALL + self.clock.wall_ms + spec.ttl_ms
        if self.newest_ms is None:
            return self.clock.watermark_ms + spec.ttl_ms
        return np.maximum(self.newest_ms[owner], self.clock.watermark_ms) + spec.ttl_ms


def taken(what: str, fields: tuple[pa.Field, ...], names: list[str], given: Any, rows: int) -> list[pa.Array]:
    """Values as columns of these fields: `given` is one column, or a mapping or record batch with the columns `names`.

    Raises StateValueRefused.
    """
    if isinstance(given, pa.RecordBatch | pa.Table):
        given = {name: given.column(name) for name in given.schema.names}
    if not isinstance(given, Mapping):
        if len(fields) != 1:
            raise StateValueRefused(f"{what}: give its columns by name: {', '.join(names)}")
        given = {names[0]: given}
    if set(given) != set(names):
        raise StateValueRefused(f"{what}: columns {', '.join(map(str, given))} were given; it has {', '.join(names)}")
    return [
        _column(f"{what}, column {name!r}," if len(fields) > 1 else what, field.type, given[name], rows)
        for name, field in zip(names, fields, strict=True)
    ]


def _column(what: str, kind: pa.DataType, values: Any, rows: int) -> pa.Array:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        column = exact.column(what, kind, values)
    elif isinstance(values, np.ndarray) and values.dtype.kind in "biufmM" and exact.has_numbers(kind):
        numbers, _ = exact.fixed(what, kind, values, None, len(values))
        column = fixed_array(kind, numbers, np.zeros(len(numbers), np.bool_))
    else:
        try:
            column = exact.column(what, kind, pa.array(values, kind))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise StateValueRefused(f"{what} is {kind}: {str(error).splitlines()[0]}") from None
    if len(column) != rows:
        raise StateValueRefused(f"{what}: {len(column)} values; {rows} are needed")
    return column


class Heads:
    """The heads of a list or map: the bounds of each owner's slots."""

    def __init__(self, owners: Owners, spec: StateSpec) -> None:
        self._owners = owners
        self._section = Section(owners.store, _HEAD, None)
        self._number = int(numbers_at(spec.state_id, 0))
        self._rows: Int64s | None = None

    def rows(self, owner: Int64s) -> Int64s:
        """The row of each owner's head."""
        if self._rows is None:
            self._rows = self._section.rows(self._owners.keys, np.full(self._owners.count, self._number))
        return self._rows[owner]

    def bounds(self, owner: Int64s) -> tuple[Int64s, Int64s]:
        """Low and high of each owner; both what the next slot is where it has nothing."""
        rows = self.rows(owner)
        high = self._section.stored(HIGH, rows)
        return np.where(self._section.alive(rows), self._section.stored(LOW, rows), high), high

    def set(self, owner: Int64s, low: Int64s, high: Int64s) -> None:
        """Write the bounds of these (distinct) owners; nobody has a head who has nothing."""
        rows = self.rows(owner)
        self._section.set(LOW, rows, low)
        self._section.set(HIGH, rows, high)
        empty = low >= high
        self._section.write(rows[~empty])
        self._section.drop(rows[empty])

    def commit(self) -> None:
        """Hand on what was written."""
        self._section.commit()


class Spread(NamedTuple):
    """All slots of some owners in a row: the place among these owners and the slot of each."""

    place: Int64s
    slots: Int64s


def spread(low: Int64s, high: Int64s) -> Spread:
    """The slots low to high − 1 of each owner."""
    counts = high - low
    index = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return Spread(index, np.arange(len(index)) - first[index] + low[index])
