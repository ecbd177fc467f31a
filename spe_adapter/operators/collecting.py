"""Aggregates that keep values: collect_list and collect_set; and lists in cells.

A window's values are one list in its state, which is written anew with each batch that adds to it, and has 16 MiB at
most. A batch costs as much as the lists that it touches are long.

Invariants: values are in their order of arrival, nulls are left out, as in Spark; no loop over rows in Python.

Source: Spark's CollectList and CollectSet.
"""

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spe_adapter.codec.kernels import Int64s
from spe_adapter.codec.nested import is_nested
from spe_adapter.operators.aggregation import Aggregation, arrow, check, kept, ordered
from spe_adapter.operators.cells import Cells, Slot

_COLLECTED = "any type that state can hold"


def owners_of(lists: pa.Array) -> Int64s:
    """Of each element of some lists, the position of its list."""
    return np.repeat(np.arange(len(lists)), lengths_of(lists))


def lengths_of(lists: pa.Array) -> Int64s:
    """The length of each list, 0 for null."""
    lengths: Int64s = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def lists_of(kind: pa.DataType, owners: Int64s, values: pa.Array, count: int) -> pa.Array:
    """`count` lists of this type from values with ascending owners."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=offsets[1:])
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets)], children=[values])


class CollectList(Aggregation):
    """All values that are not null, in their order of arrival."""

    is_ordered: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """How messages call it."""
        return "collect_list"

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The list."""
        return (Slot("", self.result_type(schema), arrow=True),)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Append."""
        lists, values = arrow(cells[0]), batch.column(self.column)
        if values.null_count:
            valid = values.is_valid()
            values, windows = values.filter(valid), windows[valid.to_numpy(zero_copy_only=False)]
        return [self._appended(lists, values.cast(lists.type.value_type), windows)]

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """Append lists."""
        lists = arrow(cells[0])
        return [self._appended(lists, combined[0].flatten(), windows[owners_of(combined[0])])]

    def _appended(self, lists: pa.Array, values: pa.Array, windows: Int64s) -> pa.Array:
        owners = np.concatenate((owners_of(lists), windows))
        order = np.argsort(owners, kind="stable")
        everything = pa.concat_arrays([lists.flatten(), values]).take(pa.array(order))
        return lists_of(lists.type, owners[order], everything, len(lists))

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """A list of the input's type."""
        kind = kept(self.type_of_input(schema))
        check(self, kind, _COLLECTED, is_nested(pa.list_(kind)))
        return pa.list_(kind)

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """The list, empty where no value came, as in Spark."""
        lists = arrow(cells[0])
        return lists if not lists.null_count else lists_of(kind, owners_of(lists), lists.flatten(), len(lists))


class CollectSet(CollectList):
    """The distinct values that are not null, each where it came first."""

    @property
    def name(self) -> str:
        """How messages call it."""
        return "collect_set"

    def _appended(self, lists: pa.Array, values: pa.Array, windows: Int64s) -> pa.Array:
        owners = np.concatenate((owners_of(lists), windows))
        everything = pa.concat_arrays([lists.flatten(), values])
        coded = pc.dictionary_encode(_with_one_form(everything))
        pairs = owners * max(len(coded.dictionary), 1) + coded.indices.to_numpy()
        first = np.sort(np.unique(pairs, return_index=True)[1])
        first = first[np.argsort(owners[first], kind="stable")]
        return lists_of(lists.type, owners[first], everything.take(pa.array(first)), len(lists))

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """A list of the input's type."""
        return pa.list_(ordered(self, self.type_of_input(schema)))


def _with_one_form(values: pa.Array) -> pa.Array:
    """Values of which equal ones have the same bits: zeros of both signs, and all NaN. Arrow tells them apart."""
    if not pa.types.is_floating(values.type):
        return values
    nan = pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), nan, pc.add(values, pa.scalar(0, values.type)))
