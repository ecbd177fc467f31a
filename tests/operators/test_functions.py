"""What aggregates promise beyond the model of all of them: errors of sketches, decimals that do not fit, one's own."""

from __future__ import annotations

import decimal
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidConfig
from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.aggregation import Aggregation
from spe_adapter.operators.cells import Cells, Fixed, Slot
from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.operators.sketches import ApproxCountDistinct, ApproxPercentile
from spe_adapter.operators.windows import Running
from spe_adapter.state.errors import StateTooLarge
from spe_adapter.testing.harness import OperatorHarness, check_any_batches
from tests.operators.model import percentile
from tests.support.examples import examples

NUMBERS = pa.schema([("key", pa.string()), ("x", pa.float64())])
AMOUNTS = pa.schema([("key", pa.string()), ("m", pa.decimal128(38, 2))])
MOST = decimal.Decimal("9" * 36 + ".99")


def folded(aggregation: Aggregation, schema: pa.Schema, columns: list[pa.Array]) -> list[Cells]:
    """One window's cells after some batches."""
    cells: list[Cells] = [
        pa.nulls(1, slot.type) if slot.arrow else Fixed(np.zeros(1, np.int64), None)
        for slot in aggregation.slots(schema)
    ]
    for column in columns:
        batch = pa.RecordBatch.from_arrays([column], names=[str(aggregation.column)])
        cells = aggregation.fold(cells, batch, np.zeros(len(column), np.int64))
    return cells


FINITE = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)


@given(st.lists(FINITE, min_size=1, max_size=60), st.sampled_from([0.5, 0.1, 0.01, 0.001]), st.data())
@settings(max_examples=examples(50, long=150), deadline=None)
def test_percentiles_are_within_their_error(values: list[float], error: float, data: st.DataObject) -> None:
    """Of any numbers, of both signs and all sizes; and the state does not depend on order, batches and merging."""
    parts = [0.0, 0.25, 0.5, 0.9, 1.0]
    aggregation = ApproxPercentile("x", tuple(parts), error, single=False)
    cells = folded(aggregation, NUMBERS, [pa.array(values)])
    (found,) = aggregation.result(cells, aggregation.result_type(NUMBERS)).to_pylist()
    for part, near in zip(parts, found, strict=True):
        exact = percentile(part)(values)
        assert exact is not None
        assert math.isclose(near, exact, rel_tol=0) or abs(near - exact) <= error * (1 + 1e-6) * abs(exact)
    shuffled = data.draw(st.permutations(values))
    cut = data.draw(st.integers(0, len(values)))
    other = folded(aggregation, NUMBERS, [pa.array(shuffled[:cut], pa.float64())])
    rest = folded(aggregation, NUMBERS, [pa.array(shuffled[cut:], pa.float64())])
    merged = aggregation.merge(other, [cell for cell in rest if isinstance(cell, pa.Array)], np.zeros(1, np.int64))
    assert [cell.to_pylist() for cell in merged] == [cell.to_pylist() for cell in cells]  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 10, 300, 5_000, 200_000])
@pytest.mark.parametrize("rsd", [0.05, 0.02])
def test_distinct_counts_are_near(count: int, rsd: float) -> None:
    """Within four standard deviations, of numbers and of texts, seen twice."""
    numbers = pa.array(np.random.default_rng(count).permutation(10 * count)[:count].astype(np.float64))
    aggregation = ApproxCountDistinct("x", rsd)
    for column in (numbers, numbers.cast(pa.string())):
        cells = folded(aggregation, NUMBERS, [column, column.slice(count // 2)])
        (found,) = aggregation.result(cells, pa.int64()).to_pylist()
        assert abs(found - count) <= 4 * rsd * count


def test_zeros_and_nan_are_one_value_each() -> None:
    """As in Spark, however they are written."""
    column = pa.array([0.0, -0.0, math.nan, -math.nan, 1.0, None])
    cells = folded(ApproxCountDistinct("x", 0.05), NUMBERS, [column])
    assert ApproxCountDistinct("x", 0.05).result(cells, pa.int64()).to_pylist() == [3]
    (collected,) = folded(agg.collect_set("x"), NUMBERS, [column, column])[0].to_pylist()  # type: ignore[union-attr]
    assert [str(value) for value in collected] == ["0.0", "nan", "1.0"]


def test_registers_beyond_what_a_column_holds_are_an_error_that_says_what_to_do() -> None:
    """Before memory is taken for them."""
    distinct = ApproxCountDistinct("x", 0.003)
    batch = pa.RecordBatch.from_arrays([pa.array([1.0])], names=["x"])
    with pytest.raises(StateTooLarge, match=r"rsd=0.003 takes 262144 bytes .* has 8192 windows: .* a greater rsd"):
        distinct.fold([pa.nulls(8192, pa.binary())], batch, np.zeros(1, np.int64))


def test_a_sum_of_decimals_beyond_38_digits_is_an_error_that_names_the_key() -> None:
    """As in Spark's ANSI mode; a sum that comes back in time is none."""
    harness = OperatorHarness(Aggregate(Running(), total=agg.sum("m")), key="key", schema=AMOUNTS)
    cent = decimal.Decimal("0.01")
    for most, least, one in ((MOST, MOST.copy_negate(), cent), (MOST.copy_negate(), MOST, -cent)):
        harness.send([{"key": "a", "m": most}])
        with pytest.raises(OperatorFailed, match=r"key 'a'.*sum of column 'm' exceeds 38 digits with -?0\.01"):
            harness.send([{"key": "a", "m": one}])
        with pytest.raises(OperatorFailed, match="38 digits"):
            harness.send([{"key": "a", "m": most}])
        assert harness.send([{"key": "a", "m": least}]) == [{"key": "a", "total": decimal.Decimal("0.00")}]


def test_a_mean_that_does_not_fit_is_an_error() -> None:
    """Its type has four digits more behind the point, and none more in all."""
    harness = OperatorHarness(Aggregate(Running(), mean=agg.avg("m")), key="key", schema=AMOUNTS)
    assert harness.send([{"key": "a", "m": decimal.Decimal("0.99")}]) == [
        {"key": "a", "mean": decimal.Decimal("0.990000")}
    ]
    with pytest.raises(OperatorFailed, match=r"the mean of column 'm'.*does not fit into decimal128\(38, 6\)"):
        harness.send([{"key": "b", "m": MOST}])


@given(st.lists(st.integers(-(10**33), 10**33), min_size=1, max_size=6))
@settings(max_examples=examples(70, long=200), deadline=None)
def test_means_of_decimals_are_rounded_half_up(unscaled: list[int]) -> None:
    """Away from zero at a tie, by exact arithmetic."""
    values = [decimal.Context(prec=60).scaleb(decimal.Decimal(one), -2) for one in unscaled]
    harness = OperatorHarness(Aggregate(Running(), mean=agg.avg("m")), key="key", schema=AMOUNTS)
    ((row),) = harness.send([{"key": "a", "m": value} for value in values])
    ten_thousandths = abs(sum(unscaled)) * 10_000
    rounded = (2 * ten_thousandths + len(values)) // (2 * len(values))
    assert int(row["mean"].scaleb(6, decimal.Context(prec=60))) == (rounded if sum(unscaled) >= 0 else -rounded)


@dataclass(frozen=True)
class GeometricMean(Aggregation):
    """An aggregate of a user's own."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """Sum of logarithms, and count."""
        return Slot(".logs", pa.float64(), nullable=False), Slot(".n", pa.int64(), nullable=False)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Add up."""
        logs, counts = (cell.values for cell in cells)
        np.add.at(logs, windows, np.log2(batch.column(self.column).to_numpy()))
        np.add.at(counts, windows, 1)
        return [Fixed(logs, None), Fixed(counts, None)]

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """A double."""
        return pa.float64()

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """Back from logarithms."""
        logs, counts = (cell.values for cell in cells)
        return pa.array(np.exp2(logs / counts))


def test_an_aggregate_of_ones_own_runs_like_the_others() -> None:
    """Beside others, through crashes, in any batches; without `merge` rows are not combined."""
    operator = Aggregate(Running(), mean=GeometricMean("x"), n=agg.count())
    harness = OperatorHarness(operator, key="key", schema=NUMBERS)
    rows: list[dict[str, Any]] = [{"key": "a", "x": 2.0}, {"key": "b", "x": 1.0}, {"key": "a", "x": 8.0}]
    assert harness.send(rows) == [{"key": "a", "mean": 4.0, "n": 2}, {"key": "b", "mean": 1.0, "n": 1}]
    harness.crash_and_recover()
    assert harness.send([{"key": "a", "x": 4.0}]) == [{"key": "a", "mean": 4.0, "n": 3}]
    assert operator.combining(NUMBERS) is None
    check_any_batches(
        lambda: OperatorHarness(operator, key="key", schema=NUMBERS), [rows, rows], random.Random(3), results=False
    )


def test_sketches_that_cannot_be_are_refused() -> None:
    """With what was asked for, and what is allowed."""
    with pytest.raises(InvalidConfig, match=r"rsd=0.5; it must be from 0.0022 to 0.39"):
        agg.approx_count_distinct("x", 0.5)
    with pytest.raises(InvalidConfig, match=r"rsd=0.001"):
        agg.approx_count_distinct("x", 0.001)
    with pytest.raises(InvalidConfig, match=r"percentages \(1.5,\)"):
        agg.percentile_approx("x", 1.5)
    with pytest.raises(InvalidConfig, match=r"relative error of 0\.0;"):
        agg.percentile_approx("x", [0.5], 0)
