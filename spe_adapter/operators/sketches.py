"""Aggregates whose state does not grow with the rows: distinct counts and percentiles, nearly right.

| | state | error |
|---|---|---|
| ApproxCountDistinct | 2^p registers of a byte, HyperLogLog | relative standard deviation 1.04 / √(2^p) |
| ApproxPercentile | a count for each bucket with values, DDSketch | relative, at most `error` |

Invariants:
* State and result depend on the multiset of values alone: not on order, batches, merging, nor the machine. Buckets are
  found by exact arithmetic, hashes have a fixed seed.
* An exact percentile q of n values is the one with rank ⌈q·n⌉ (at least 1) in ascending order, as in Spark. NaN is
  greater than any other number.

Source: Flajolet et al., "HyperLogLog" (2007), with the estimator of Ertl, "New cardinality estimation algorithms for
HyperLogLog sketches" (2017), which needs no tables of biases; Masson, Rim, Lee, "DDSketch" (VLDB 2019).
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logstore.errors import InvalidConfig
from spe_adapter.codec import nested
from spe_adapter.codec.columns import BytesColumn, keys_of
from spe_adapter.codec.identity_hash import hashes_of
from spe_adapter.codec.kernels import Bytes, Int64s, compiled
from spe_adapter.operators.aggregation import NUMBERS, Aggregation, arrow, check, is_number, ordered
from spe_adapter.operators.cells import Cells, Slot, column_values, steady
from spe_adapter.operators.collecting import lists_of, owners_of
from spe_adapter.state.errors import StateTooLarge

_HASH_SEED: Final = 0
"""State outlives every process. Values made to collide cost accuracy, no more."""
_MIN_BITS: Final = 4
_MAX_BITS: Final = 18
_MAX_RSD: Final = 0.39
_MAX_CALL_BYTES: Final = 2**31 - 1
"""What an Arrow column of bytes can hold."""
_SPREAD: Final = 1.106
"""Spark's constant, so that the same rsd gives as many registers."""

_MIN_ERROR: Final = 0.001
_LOWEST_EXPONENT: Final = -1075
_NAN: Final = 2**31 - 1
_INFINITE: Final = 2**31 - 2


@dataclass(frozen=True)
class ApproxCountDistinct(Aggregation):
    """How many distinct values there are, nulls left out."""

    rsd: float

    def __post_init__(self) -> None:
        """Check. Raises InvalidConfig."""
        if not 0 < self.rsd <= _MAX_RSD or self._bits > _MAX_BITS:
            raise InvalidConfig(f"approx_count_distinct with rsd={self.rsd}; it must be from 0.0022 to {_MAX_RSD}")

    @property
    def name(self) -> str:
        """How messages call it."""
        return "approx_count_distinct"

    @property
    def _bits(self) -> int:
        return max(math.ceil(2 * math.log2(_SPREAD / self.rsd)), _MIN_BITS)

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The registers."""
        ordered(self, self.type_of_input(schema))
        return (Slot("", pa.binary(), arrow=True),)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Raise registers."""
        values = batch.column(self.column)
        if values.null_count:
            valid = values.is_valid()
            values, windows = values.filter(valid), windows[valid.to_numpy(zero_copy_only=False)]
        registers = self._registers(arrow(cells[0]))
        _raise_registers(_hashes(values), steady(windows, np.int64), self._bits, registers)
        return [_as_binary(registers)]

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """The higher of each pair of registers."""
        registers = self._registers(arrow(cells[0]))
        np.maximum.at(registers, windows, self._registers(combined[0]))
        return [_as_binary(registers)]

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """A number of values."""
        return pa.int64()

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """The estimate, never null."""
        registers = self._registers(arrow(cells[0]))
        out = np.empty(len(registers), np.int64)
        _estimate(registers, self._bits, out)
        return pa.array(out)

    def _registers(self, held: pa.Array) -> Bytes:
        """The registers of each window in a row of their own, zeros for windows without. Raises StateTooLarge."""
        if len(held) << self._bits > _MAX_CALL_BYTES:
            raise StateTooLarge(
                f"{self.name} of column {self.column!r} with rsd={self.rsd} takes {1 << self._bits} bytes for each "
                f"window, and a call has {len(held)} windows: more than {_MAX_CALL_BYTES} bytes. Give a greater "
                "rsd, or smaller batches (maxOffsetsPerTrigger)"
            )
        registers = np.zeros((len(held), 1 << self._bits), np.uint8)
        valid = held.is_valid().to_numpy(zero_copy_only=False)
        if valid.any():
            parts = BytesColumn.of(held.filter(pa.array(valid)))
            registers[valid] = parts.data[parts.offsets[0] : parts.offsets[-1]].reshape(-1, 1 << self._bits)
        return registers


def _as_binary(registers: Bytes) -> pa.Array:
    offsets = np.arange(len(registers) + 1, dtype=np.int64) * registers.shape[1]
    wide = pa.Array.from_buffers(
        pa.large_binary(), len(registers), [None, pa.py_buffer(offsets), pa.py_buffer(registers)]
    )
    return wide.cast(pa.binary())


def _hashes(values: pa.Array) -> Int64s:
    """64 bits of each value; equal values have the same, zeros of both signs too, and all NaN."""
    kind = values.type
    if nested.is_decimal(kind):
        values = values.view(pa.binary(kind.byte_width))
    elif not (pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        if pa.types.is_large_string(kind):
            return hashes_of(keys_of(values), np.zeros(len(values), np.int64), _HASH_SEED)
        numbers = column_values(values, np.float64 if pa.types.is_floating(kind) else np.int64)[0]
        if pa.types.is_floating(kind):
            numbers = np.where(np.isnan(numbers), np.nan, numbers + 0.0).view(np.int64)
        nothing = pa.py_buffer(np.zeros(len(values) + 1, np.int32))
        empty = pa.BinaryArray.from_buffers(pa.binary(), len(values), [None, nothing, pa.py_buffer(b"")])
        return hashes_of(keys_of(empty), numbers, _HASH_SEED)
    return hashes_of(keys_of(values), np.zeros(len(values), np.int64), _HASH_SEED)


@compiled
def _raise_registers(hashes: Int64s, windows: Int64s, bits: int, registers: Bytes) -> None:
    """The position of the first one among the bits behind the register's number, if it is higher."""
    for row in range(hashes.shape[0]):
        value = np.uint64(hashes[row])
        register = np.int64(value >> np.uint64(64 - bits))
        left = (value << np.uint64(bits)) | np.uint64(1 << (bits - 1))
        rank = 1
        while left >> np.uint64(63) == 0:
            left = left << np.uint64(1)
            rank += 1
        if rank > registers[windows[row], register]:
            registers[windows[row], register] = rank


@compiled
def _estimate(registers: Bytes, bits: int, out: Int64s) -> None:
    """Ertl's improved estimator."""
    size = float(1 << bits)
    highest = 64 - bits
    for row in range(registers.shape[0]):
        counts = np.zeros(highest + 2, np.float64)
        for at in range(registers.shape[1]):
            counts[registers[row, at]] += 1.0
        if counts[0] == size:
            out[row] = 0
            continue
        # tau
        x = 1.0 - counts[highest + 1] / size
        total = 0.0
        if 0.0 < x < 1.0:
            y, total, before = 1.0, 1.0 - x, -1.0
            while total != before:
                x = math.sqrt(x)
                before = total
                y *= 0.5
                total -= (1.0 - x) * (1.0 - x) * y
            total /= 3.0
        total *= size
        for rank in range(highest, 0, -1):
            total = 0.5 * (total + counts[rank])
        # sigma
        x = counts[0] / size
        y, sigma, before = 1.0, x, -1.0
        while sigma != before:
            x *= x
            before = sigma
            sigma += x * y
            y += y
        total += size * sigma
        out[row] = np.int64(np.rint(size * size / (2.0 * math.log(2.0)) / total))


@dataclass(frozen=True)
class ApproxPercentile(Aggregation):
    """Percentiles of numbers, nulls left out."""

    percentages: tuple[float, ...]
    error: float
    single: bool

    def __post_init__(self) -> None:
        """Check. Raises InvalidConfig."""
        wrong = [one for one in self.percentages if not 0 <= one <= 1]
        if wrong or not self.percentages:
            raise InvalidConfig(f"percentages {self.percentages}; give one or several from 0 to 1")
        if not _MIN_ERROR <= self.error < 1:
            raise InvalidConfig(f"a relative error of {self.error}; it must be from {_MIN_ERROR} to 1")

    @property
    def name(self) -> str:
        """How messages call it."""
        return "percentile_approx"

    @property
    def _per_octave(self) -> float:
        """Buckets per power of two: so many that no bucket's bounds differ by more than twice the error allows.

        Within [2^e, 2^(e+1)) buckets are equally wide: the relatively widest is the first, from 1 to 1 + 1 / this.
        """
        return 1.0 / math.log1p(2 * self.error / (1 - self.error))

    @property
    def _offset(self) -> int:
        """Behind the lowest bucket of positive numbers, so that all of these are positive."""
        return math.ceil(-_LOWEST_EXPONENT * self._per_octave) + 1

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """Buckets in ascending order, and how many values each has."""
        kind = self.type_of_input(schema)
        check(self, kind, NUMBERS, is_number(kind))
        return Slot(".at", pa.list_(pa.int32()), arrow=True), Slot(".n", pa.list_(pa.int64()), arrow=True)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Count."""
        column = batch.column(self.column)
        values, nulls = column_values(
            column.cast(pa.float64()) if nested.is_decimal(column.type) else column, np.float64
        )
        if len(nulls):
            values, windows = values[~nulls], windows[~nulls]
        return self._added(cells, windows, self._buckets(values), np.ones(len(values), np.int64))

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """Add counts."""
        at, counts = combined
        return self._added(cells, windows[owners_of(at)], at.flatten().to_numpy(), counts.flatten().to_numpy())

    def _added(self, cells: list[Cells], windows: Int64s, at: NDArray[np.int32], counts: Int64s) -> list[Cells]:
        held, held_counts = arrow(cells[0]), arrow(cells[1])
        owners = np.concatenate((owners_of(held), windows))
        buckets = np.concatenate((held.flatten().to_numpy(), at))
        counts = np.concatenate((held_counts.flatten().to_numpy(), counts))
        order = np.lexsort((buckets, owners))
        owners, buckets, counts = owners[order], buckets[order], counts[order]
        first = np.ones(len(owners), np.bool_)
        first[1:] = (owners[1:] != owners[:-1]) | (buckets[1:] != buckets[:-1])
        starts = np.flatnonzero(first)
        sums = np.add.reduceat(counts, starts) if len(starts) else counts
        owners = owners[starts]
        return [
            lists_of(held.type, owners, pa.array(buckets[starts]), len(held)),
            lists_of(held_counts.type, owners, pa.array(sums), len(held)),
        ]

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """A double, or a list of them."""
        return pa.float64() if self.single else pa.list_(pa.float64())

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """The percentiles, null where no value came."""
        at, counts = arrow(cells[0]), arrow(cells[1]).flatten().to_numpy()
        owners, buckets = owners_of(at), at.flatten().to_numpy()
        totals = np.bincount(owners, weights=counts, minlength=len(at)).astype(np.int64)
        before = np.cumsum(totals) - totals
        ranks = np.maximum(np.ceil(np.outer(totals, self.percentages)), 1).astype(np.int64)
        found = np.searchsorted(np.cumsum(counts), before[:, None] + ranks)
        empty = totals == 0
        found = np.where(empty[:, None], 0, found)
        values = self._values(buckets)[found] if len(buckets) else np.zeros(found.shape)
        if self.single:
            return pa.array(values[:, 0], mask=empty)
        each = np.repeat(np.arange(len(at)), np.where(empty, 0, len(self.percentages)))
        lists = lists_of(kind, each, pa.array(values[~empty].reshape(-1)), len(at))
        return lists if not empty.any() else pa.array(lists.to_pylist(), kind, mask=empty)

    def _buckets(self, values: NDArray[np.float64]) -> NDArray[np.int32]:
        """The bucket of each value: a line between powers of two in place of the logarithm, so that it is exact."""
        fraction, exponent = np.frexp(np.abs(values))
        with np.errstate(invalid="ignore"):
            place = np.floor((exponent - 2 + 2 * fraction) * self._per_octave) + self._offset
        place = np.where(values == 0, 0, np.where(np.isinf(values), _INFINITE, place))
        return np.where(np.isnan(values), _NAN, np.copysign(place, values)).astype(np.int32)

    def _values(self, buckets: NDArray[np.int32]) -> NDArray[np.float64]:
        """A value of each bucket, which is within the error of all of its values."""
        place = np.abs(buckets.astype(np.int64)) - self._offset
        (low, low_power), (high, high_power) = (self._bound(place + step) for step in (0, 1))
        # Twice the product of the bounds by their sum, without numbers that are greater than the result.
        ratio = low / np.ldexp(high, high_power - low_power)
        with np.errstate(over="ignore"):
            values = np.minimum(np.ldexp(low * (2 / (1 + ratio)), low_power), np.finfo(np.float64).max)
        values = np.where(buckets == 0, 0.0, np.where(np.abs(buckets) == _INFINITE, np.inf, values))
        return np.where(buckets == _NAN, np.nan, np.copysign(values, buckets))

    def _bound(self, place: Int64s) -> tuple[NDArray[np.float64], Int64s]:
        """The lower bound of buckets: from 1 to 2, and the power of two by which it is multiplied."""
        line = place / self._per_octave
        exponent = np.floor(line)
        return 1 + (line - exponent), np.clip(exponent, -1100, 1100).astype(np.int64)
