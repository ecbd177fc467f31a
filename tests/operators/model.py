"""Naive operators, one row at a time in plain Python: what the vectorised ones must equal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregation import Aggregation

Row = dict[str, Any]

US = 1_000_000
EXACT = Context(prec=60, rounding=ROUND_HALF_UP)
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("m", pa.decimal128(12, 2)),
        ("w", pa.decimal128(38, 20)),
        ("t", pa.list_(pa.struct([("a", pa.string())]))),
    ]
)
KEYS = st.sampled_from(["a", "b", "", "ü", None])
SECONDS = st.integers(-200, 400)
DOUBLES = st.sampled_from([0.0, 1.5, -2.25, 1e300, -1e300, 0.1, 7.0, math.inf, math.nan])


def rows_of(keys: st.SearchStrategy[str | None] = KEYS, times: st.SearchStrategy[int] = SECONDS) -> Any:
    """Rows, with nulls in every column."""
    none = st.none()
    return st.fixed_dictionaries(
        {
            "key": keys,
            "ts": none | times.map(lambda second: second * US),
            "x": none | DOUBLES,
            "f": none | st.sampled_from([0.5, -3.0, math.nan]),
            "i": none | st.integers(-(2**31), 2**31 - 1),
            "l": none | st.integers(-(2**40), 2**40),
            "s": none | st.sampled_from(["", "a", "b", "ab", "é", "z", "𝄞"]),
            "b": none | st.booleans(),
            "d": none | st.integers(-5, 5),
            "m": none | st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: EXACT.scaleb(Decimal(n), -2)),
            "w": none | st.integers(-(10**35), 10**35).map(lambda n: EXACT.scaleb(Decimal(n), -20)),
            "t": none | st.lists(none | st.fixed_dictionaries({"a": none | st.sampled_from(["x", ""])}), max_size=2),
        }
    )


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as a batch: timestamps are µs, dates days."""
    columns = []
    for field in SCHEMA:
        values = [row[field.name] for row in rows]
        width = {"ts": pa.int64(), "d": pa.int32()}.get(field.name)
        columns.append(pa.array(values, field.type) if width is None else pa.array(values, width).view(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def plain(rows: pa.RecordBatch) -> list[Row]:
    """Results with timestamps as µs and dates as days."""
    columns = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_struct(field.type):
            columns[field.name] = pa.StructArray.from_arrays(
                [part.cast(pa.int64()) for part in column.flatten()], names=[one.name for one in field.type]
            )
        elif pa.types.is_timestamp(field.type):
            columns[field.name] = column.cast(pa.int64())
        elif pa.types.is_date32(field.type):
            columns[field.name] = column.cast(pa.int32())
        else:
            columns[field.name] = column
    return pa.RecordBatch.from_pydict(columns).to_pylist() if columns else []


def _total(values: list[Any], start: float) -> Any:
    total = start
    for value in values:
        total += value
    return total if values else None


def _decimal_sum(values: list[Any]) -> Decimal | None:
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
    return total if values else None


def _decimal_avg(scale: int) -> Callable[[list[Any]], Decimal | None]:
    def avg(values: list[Any]) -> Decimal | None:
        total = _decimal_sum(values)
        if total is None:
            return None
        # More digits than are rounded to: a tie must be seen as such.
        return EXACT.quantize(Context(prec=200).divide(total, Decimal(len(values))), Decimal(1).scaleb(-scale))

    return avg


def percentile(part: float) -> Callable[[list[Any]], float | None]:
    """The exact percentile."""

    def of(values: list[Any]) -> float | None:
        ordered = sorted(values, key=_rank)
        return float(ordered[max(math.ceil(part * len(values)), 1) - 1]) if values else None

    return of


def _avg(values: list[Any]) -> float | None:
    return _total([float(value) for value in values], 0.0) / len(values) if values else None


def _stddev(values: list[Any]) -> float | None:
    if len(values) < 2:
        return None
    if any(math.isnan(value) or math.isinf(value) for value in values):
        return math.nan
    try:
        return statistics.stdev(map(float, values))
    except OverflowError:
        return math.inf


def _rank(value: Any) -> Any:
    """NaN is the greatest; strings are by their bytes."""
    if isinstance(value, str):
        return value.encode()
    return (isinstance(value, float) and math.isnan(value), value)


Naive = tuple[Aggregation, Callable[[list[Row]], Any]]


def _of(column: str, function: Callable[[list[Any]], Any]) -> Callable[[list[Row]], Any]:
    return lambda rows: function([row[column] for row in rows if row[column] is not None])


def _at(column: str, place: int) -> Callable[[list[Row]], Any]:
    return lambda rows: rows[place][column]


AGGREGATES: dict[str, Naive] = {
    "n": (agg.count(), len),
    "nx": (agg.count("x"), _of("x", len)),
    "sum_x": (agg.sum("x"), _of("x", lambda values: _total(values, 0.0))),
    "sum_f": (agg.sum("f"), _of("f", lambda values: _total(values, 0.0))),
    "sum_i": (agg.sum("i"), _of("i", lambda values: _total(values, 0))),
    "sum_l": (agg.sum("l"), _of("l", lambda values: _total(values, 0))),
    "avg_x": (agg.avg("x"), _of("x", _avg)),
    "avg_i": (agg.avg("i"), _of("i", _avg)),
    "stddev_i": (agg.stddev("i"), _of("i", _stddev)),
    "stddev_f": (agg.stddev("f"), _of("f", _stddev)),
    "sum_m": (agg.sum("m"), _of("m", _decimal_sum)),
    "sum_w": (agg.sum("w"), _of("w", _decimal_sum)),
    "avg_m": (agg.avg("m"), _of("m", _decimal_avg(6))),
    "stddev_m": (agg.stddev("m"), _of("m", _stddev)),
    "list_s": (agg.collect_list("s"), _of("s", list)),
    "list_m": (agg.collect_list("m"), _of("m", list)),
    "list_t": (agg.collect_list("t"), _of("t", list)),
    "first_t": (agg.first("t"), _at("t", 0)),
    "last_t": (agg.last("t", ignore_nulls=True), _of("t", lambda values: values[-1] if values else None)),
    "set_s": (agg.collect_set("s"), _of("s", lambda values: list(dict.fromkeys(values)))),
    "set_b": (agg.collect_set("b"), _of("b", lambda values: list(dict.fromkeys(values)))),
    "distinct_x": (agg.approx_count_distinct("x"), _of("x", lambda values: len(set(map(repr, values))))),
    "distinct_s": (agg.approx_count_distinct("s"), _of("s", lambda values: len(set(values)))),
    "near_median_x": (agg.percentile_approx("x", 0.5), _of("x", percentile(0.5))),
    "near_most_i": (agg.percentile_approx("i", 0.9, 0.001), _of("i", percentile(0.9))),
    "near_median_m": (agg.percentile_approx("m", 0.5), _of("m", percentile(0.5))),
}
for _column in ("x", "f", "i", "l", "s", "b", "d", "ts", "m", "w"):
    AGGREGATES[f"min_{_column}"] = (agg.min(_column), _of(_column, lambda values: min(values, key=_rank, default=None)))
    AGGREGATES[f"max_{_column}"] = (agg.max(_column), _of(_column, lambda values: max(values, key=_rank, default=None)))
    AGGREGATES[f"first_{_column}"] = (agg.first(_column), _at(_column, 0))
    AGGREGATES[f"last_{_column}"] = (agg.last(_column), _at(_column, -1))
    AGGREGATES[f"first_known_{_column}"] = (
        agg.first(_column, ignore_nulls=True),
        _of(_column, lambda values: values[0] if values else None),
    )
    AGGREGATES[f"last_known_{_column}"] = (
        agg.last(_column, ignore_nulls=True),
        _of(_column, lambda values: values[-1] if values else None),
    )
FUNCTIONS = {name: function for name, (function, _) in AGGREGATES.items()}


def aggregated(rows: list[Row]) -> Row:
    """All aggregates of some rows."""
    return {name: naive(rows) for name, (_, naive) in AGGREGATES.items()}


def assert_same(found: list[Row], wanted: list[Row]) -> None:
    """Equal in everything, NaN to NaN; stddev, which the oracle computes otherwise, nearly."""
    assert len(found) == len(wanted), (found, wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            if name.startswith("stddev") and value is not None and mine[name] is not None:
                assert math.isclose(mine[name], value, rel_tol=1e-9, abs_tol=1e-9) or math.isnan(mine[name] + value)
            elif name.startswith("near") and value is not None and not math.isnan(value):
                assert math.isclose(mine[name], value, rel_tol=0.0101), (name, mine, theirs)
            else:
                assert repr(mine[name]) == repr(value), (name, mine, theirs)


class NaiveWindows:
    """Tumbling and sliding windows by event time, epoch by epoch, as Spark runs them."""

    def __init__(self, length_s: int, slide_s: int, start_s: int, delay_s: int, *, update: bool = False) -> None:
        self.update = update
        self.length, self.slide, self.start, self.delay_ms = length_s * US, slide_s * US, start_s * US, delay_s * 1000
        self.open: dict[tuple[str | None, int], list[Row]] = {}
        self.watermark_ms = 0
        self.newest_ms: int | None = None

    def epoch(self, rows: Sequence[Row]) -> list[Row]:
        """One epoch's results."""
        late_ms = self.watermark_ms
        changed = []
        if self.newest_ms is not None:
            self.watermark_ms = max(self.watermark_ms, self.newest_ms - self.delay_ms)
        for row in rows:
            if row["ts"] is None:
                continue
            newest = row["ts"] // 1000
            self.newest_ms = newest if self.newest_ms is None else max(self.newest_ms, newest)
            first = (row["ts"] - self.length - self.start) // self.slide
            for number in range(first, first + self.length // self.slide + 3):
                start = number * self.slide + self.start
                if start <= row["ts"] < start + self.length and start + self.length > late_ms * 1000:
                    self.open.setdefault((row["key"], start), []).append(row)
                    changed.append((row["key"], start))
        due = [one for one in self.open if one[1] + self.length <= self.watermark_ms * 1000]
        due.sort(key=lambda one: (one[1], one[0] is None, (one[0] or "").encode()))
        results = [
            {"key": key, "window": {"start": start, "end": start + self.length}, **aggregated(self.open[key, start])}
            for key, start in (dict.fromkeys(changed) if self.update else due)
        ]
        for one in due:
            del self.open[one]
        return results


class NaiveSessions:
    """Sessions by event time, epoch by epoch, as Spark runs them: each row joins all that it overlaps or touches."""

    def __init__(self, gap_s: int, delay_s: int) -> None:
        self.gap, self.delay_ms = gap_s * US, delay_s * 1000
        self.open: dict[str | None, list[tuple[int, int, list[Row]]]] = {}
        self.watermark_ms = 0
        self.newest_ms: int | None = None

    def epoch(self, rows: Sequence[Row]) -> list[Row]:
        """One epoch's results."""
        late_ms = self.watermark_ms
        if self.newest_ms is not None:
            self.watermark_ms = max(self.watermark_ms, self.newest_ms - self.delay_ms)
        for row in rows:
            if row["ts"] is None:
                continue
            self.newest_ms = max(row["ts"] // 1000, row["ts"] // 1000 if self.newest_ms is None else self.newest_ms)
            if row["ts"] + self.gap > late_ms * 1000:
                self._add(row)
        due = []
        for key, sessions in self.open.items():
            due += [(end, key, start, held) for start, end, held in sessions if end <= self.watermark_ms * 1000]
            self.open[key] = [session for session in sessions if session[1] > self.watermark_ms * 1000]
        due.sort(key=lambda one: (one[0], one[1] is None, (one[1] or "").encode()))
        return [
            {"key": key, "session_window": {"start": start, "end": end}, **aggregated(held)}
            for end, key, start, held in due
        ]

    def _add(self, row: Row) -> None:
        start, end, held = row["ts"], row["ts"] + self.gap, [row]
        apart = []
        for session in self.open.get(row["key"], []):
            if session[0] <= end and start <= session[1]:
                start, end, held = min(start, session[0]), max(end, session[1]), [*session[2], *held]
            else:
                apart.append(session)
        self.open[row["key"]] = [*apart, (start, end, held)]


class NaiveCounting:
    """Windows of `size` rows of a key, every `advance` rows."""

    def __init__(self, size: int, advance: int) -> None:
        self.size, self.advance = size, advance
        self.rows: dict[str | None, list[Row]] = {}

    def epoch(self, rows: Sequence[Row]) -> list[Row]:
        """One epoch's results."""
        results = []
        for row in rows:
            mine = self.rows.setdefault(row["key"], [])
            mine.append(row)
            if len(mine) >= self.size and (len(mine) - self.size) % self.advance == 0:
                results.append({"key": row["key"], **aggregated(mine[-self.size :])})
        return results


class NaiveRunning:
    """One state per key for ever; after each batch the aggregates of the keys in it."""

    def __init__(self) -> None:
        self.rows: dict[str | None, list[Row]] = {}

    def batch(self, rows: Sequence[Row]) -> list[Row]:
        """One batch's results, by the first appearance of their keys in it."""
        for row in rows:
            self.rows.setdefault(row["key"], []).append(row)
        return [{"key": key, **aggregated(self.rows[key])} for key in dict.fromkeys(row["key"] for row in rows)]
