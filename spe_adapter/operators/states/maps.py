"""Maps: an entry per map key, found by key and map key at once; and places, by which the entries of a key are listed.

Invariants:
* Each entry has one place, and each place one entry: an entry keeps its place when it is put again.
* Entries are listed in the order of their places, that is of their first put. Where most places are empty, they are
  numbered anew when the call ends.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.operators import kernels
from spe_adapter.operators.cells import steady
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.states.access import Heads, Owners, spread, taken
from spe_adapter.operators.states.declared import HIGH, KEY, MapState, StateSpec
from spe_adapter.operators.states.identity import joined_keys, joined_number, numbers_at
from spe_adapter.operators.states.section import Section
from spe_adapter.state.columns import distinct
from spe_adapter.state.errors import StateValueRefused

_FEW_PLACES: Final = 16
"""So many places are not worth numbering anew."""
_NO_PLACE: Final = -1


class MapValues(NamedTuple):
    """The values of map keys: whether each map key exists, and the values (null if it does not)."""

    exists: Bools
    values: pa.RecordBatch


class MapEntries(NamedTuple):
    """Entries of maps: the owner, the map key and the value of each entry."""

    owner: Int64s
    keys: pa.RecordBatch
    values: pa.RecordBatch


class MapAccess:
    """The maps of the keys of a call. `owner` are indices of keys (None: all, in order). Map keys are an array, or for
    several columns a mapping or record batch of arrays.
    """

    def __init__(self, owners: Owners, spec: StateSpec) -> None:
        self._owners = owners
        self._spec = spec
        self._what = f"state {spec.name!r}"
        self._key_names = [field.name for field in spec.key_fields]
        self._codec = KeyCodec(pa.schema(spec.key_fields), self._key_names)
        self._is_named = isinstance(spec.declared, MapState) and not isinstance(spec.declared.key, pa.DataType)
        self._heads = Heads(owners, spec)
        self._entries = Section(owners.store, [*spec.fields, pa.field(HIGH, pa.int64())], owners.clock)
        self._places = Section(owners.store, [pa.field(KEY, pa.binary())], None)
        self._removed_from: list[Int64s] = []

    def get(self, owner: Any, keys: Any) -> MapValues:
        """The values of map keys; pairs of owner and key may repeat. Raises StateValueRefused."""
        rows = self._named(owner, keys)
        columns = [self._entries.column(field.name, rows) for field in self._spec.fields]
        values = pa.RecordBatch.from_arrays(columns, names=self._spec.value_names)
        return MapValues(self._entries.alive(rows), values)

    def contains(self, owner: Any, keys: Any) -> Bools:
        """Whether each map key exists."""
        return self._entries.alive(self._named(owner, keys))

    def put(self, owner: Any, keys: Any, values: Any) -> None:
        """Set the values of map keys; if a pair of owner and key repeats, the last value counts. Raises
        StateValueRefused.
        """
        at = self._owners.checked(self._what, owner)
        columns = taken(self._what, self._spec.fields, self._spec.value_names, values, len(at))
        if not len(at):
            return
        encoded = self._encoded(keys, len(at))
        index, first = self._distinct(at, encoded)
        last = np.empty(len(first), np.int64)
        last[index] = np.arange(len(at))
        rows = self._rows(at[first], encoded.take(pa.array(first)))
        expired = self._entries.is_kept(rows) & ~self._entries.alive(rows)
        if expired.any():
            # An entry whose TTL has passed is a new one when it is put again: it comes behind the others.
            self._remove(at[first[expired]], encoded.take(pa.array(first[expired])))
        new = np.flatnonzero(~self._entries.is_kept(rows))
        if len(new):
            self._give_places(rows[new], at[first[new]], encoded.take(pa.array(first[new])))
        for field, column in zip(self._spec.fields, columns, strict=True):
            self._entries.set_column(field.name, rows, column.take(pa.array(last)))
        self._entries.write(rows, self._owners.expires(self._spec, at[last]))

    def remove(self, owner: Any, keys: Any) -> None:
        """Remove map keys; missing map keys are ignored. Raises StateValueRefused."""
        at = self._owners.checked(self._what, owner)
        self._remove(at, self._encoded(keys, len(at)))

    def entries(self, owner: Any = None) -> MapEntries:
        """All entries of the maps of keys (each key once), by owner as given, in the order of their first put."""
        at, encoded, rows = self._listed(owner)
        alive = self._entries.alive(rows)
        at, encoded, rows = at[alive], encoded.filter(pa.array(alive)), rows[alive]
        columns = [self._entries.column(field.name, rows) for field in self._spec.fields]
        return MapEntries(
            at,
            pa.RecordBatch.from_arrays(self._codec.decode(encoded), names=self._key_names),
            pa.RecordBatch.from_arrays(columns, names=self._spec.value_names),
        )

    def exists(self, owner: Any = None) -> Bools:
        """Whether the map of each key has entries."""
        at = self._owners.checked(self._what, owner)
        low, high = self._heads.bounds(at)
        if self._spec.ttl_ms is None:
            return high > low
        listed, _, rows = self._listed(np.unique(at))
        having = np.zeros(self._owners.count, np.bool_)
        having[listed[self._entries.alive(rows)]] = True
        return having[at]

    def clear(self, owner: Any = None) -> None:
        """Remove all entries of the maps of keys (each key once)."""
        at, encoded, _ = self._listed(owner)
        self._remove(at, encoded)

    def remove_due(self, owner: Int64s, encoded: pa.BinaryArray) -> None:
        """Remove entries whose TTL has passed, by owner and encoded map key."""
        self._remove(owner, encoded)

    def commit(self) -> None:
        """Move the writes to the store."""
        if self._removed_from:
            self._number_anew(np.unique(np.concatenate(self._removed_from)))
        self._entries.commit()
        self._places.commit()
        self._heads.commit()

    # ---- keys

    def _encoded(self, keys: Any, count: int) -> pa.BinaryArray:
        names = self._key_names
        columns = taken(f"{self._what}, its keys,", self._spec.key_fields, names, keys, count)
        encoded = self._codec.encode(pa.RecordBatch.from_arrays(columns, names=names))
        if encoded.null_count:
            raise StateValueRefused(f"{self._what}: a map key is null (entry {encoded.is_null().index(True).as_py()})")
        return encoded.cast(pa.binary())

    def _distinct(self, owner: Int64s, encoded: pa.BinaryArray) -> tuple[Int64s, Int64s]:
        return distinct(encoded, owner, self._owners.store.seed)

    def _rows(self, owner: Int64s, encoded: pa.BinaryArray) -> Int64s:
        """The rows of distinct pairs."""
        keys = joined_keys(self._owners.keys_of(owner), encoded)
        return self._entries.rows(keys, np.full(len(owner), joined_number(self._spec.state_id)))

    def _named(self, owner: Any, keys: Any) -> Int64s:
        """The rows of pairs as a user names them."""
        at = self._owners.checked(self._what, owner)
        encoded = self._encoded(keys, len(at))
        index, first = self._distinct(at, encoded)
        return self._rows(at[first], encoded.take(pa.array(first)))[index]

    # ---- places

    def _place_rows(self, owner: Int64s, places: Int64s, *, fresh: bool = False) -> Int64s:
        return self._places.rows(self._owners.keys_of(owner), numbers_at(self._spec.state_id, places + 1), fresh=fresh)

    def _give_places(self, rows: Int64s, owner: Int64s, encoded: pa.BinaryArray) -> None:
        touched = np.flatnonzero(np.bincount(owner, minlength=self._owners.count))
        low, high = self._heads.bounds(touched)
        next_places = np.zeros(self._owners.count, np.int64)
        next_places[touched] = high
        places = np.empty(len(owner), np.int64)
        kernels.number_rows(steady(owner, np.int64), next_places, places)
        place_rows = self._place_rows(owner, places, fresh=True)
        self._places.set_column(KEY, place_rows, encoded)
        self._places.write(place_rows)
        self._entries.set(HIGH, rows, places)
        self._heads.set(touched, low, next_places[touched])

    def _listed(self, owner: Any) -> tuple[Int64s, pa.BinaryArray, Int64s]:
        """Owner, encoded key and row of all entries, those whose TTL has passed included."""
        at = self._owners.distinct(self._what, owner)
        low, high = self._heads.bounds(at)
        index, places = spread(np.where(high > low, 0, high), high)
        rows = self._place_rows(at[index], places)
        alive = self._places.alive(rows)
        listed, encoded = at[index[alive]], self._places.column(KEY, rows[alive])
        return listed, encoded, self._rows(listed, encoded)

    def _remove(self, owner: Int64s, encoded: pa.BinaryArray) -> None:
        if not len(owner):
            return
        _, first = self._distinct(owner, encoded)
        owner, encoded = owner[first], encoded.take(pa.array(first))
        rows = self._rows(owner, encoded)
        kept = self._entries.is_kept(rows)
        owner, rows = owner[kept], rows[kept]
        if not len(owner):
            return
        self._places.drop(self._place_rows(owner, self._entries.stored(HIGH, rows)))
        self._entries.drop(rows)
        counts = np.bincount(owner, minlength=self._owners.count)
        touched = np.flatnonzero(counts)
        low, high = self._heads.bounds(touched)
        self._heads.set(touched, low + counts[touched], high)
        self._removed_from.append(touched)

    def _number_anew(self, owner: Int64s) -> None:
        """Close the gaps in the places of maps with more gaps than entries."""
        low, high = self._heads.bounds(owner)
        wanted = np.flatnonzero((high > low) & (high > _FEW_PLACES) & (2 * low > high))
        if not len(wanted):
            return
        at, high = owner[wanted], high[wanted]
        index, places = spread(np.zeros(len(at), np.int64), high)
        rows = self._place_rows(at[index], places)
        alive = self._places.alive(rows)
        index, encoded = index[alive], self._places.column(KEY, rows[alive])
        self._places.drop(rows)
        entries = self._rows(at[index], encoded)
        # Entries whose TTL has passed go now: what is left of them would name places of others.
        there = self._entries.alive(entries)
        self._entries.drop(entries[~there])
        index, encoded, entries = index[there], encoded.filter(pa.array(there)), entries[there]
        counts = np.bincount(index, minlength=len(at))
        _, anew = spread(np.zeros(len(at), np.int64), counts)
        target = self._place_rows(at[index], anew)
        self._places.set_column(KEY, target, encoded)
        self._places.write(target)
        self._entries.set(HIGH, entries, anew)
        self._entries.write(entries, self._entries.expires(entries))
        self._heads.set(at, np.zeros(len(at), np.int64), counts)
