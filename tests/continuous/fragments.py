"""Random fragments, inputs and policies: what the tests of recovery run.

Invariant: everything follows from the seed and the drawn values; importable, so that other processes can run them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.format.records import Record
from spe_adapter.cec.policy import Budget, CostBenefit, Costs, NoChecks, Policy, Targets
from spe_adapter.continuous.fragment import Fragment, TopicSource
from spe_adapter.continuous.steps import join_sources
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.base import Operator, Results, Rows, State
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.windows import Counting, Running, Sliding, Tumbling

START_MS = 1_700_000_000_000


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A step: key, value as a number (null stays null), event time."""
    value = pc.cast(pc.cast(batch.column("value"), pa.string()), pa.int64())
    return pa.RecordBatch.from_arrays([batch.column("key"), value, batch.column("timestamp")], names=["k", "v", "t"])


def drop_odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A step: rows with a null or even value."""
    odd = pc.fill_null(pc.equal(pc.bit_wise_and(batch.column("v"), 1), 1), False)
    return batch.filter(pc.invert(odd))


def keep_most(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A step behind the operator: not the results of keys that end in 7."""
    keys = pc.fill_null(pc.cast(batch.column("k"), pa.string()), "")
    return batch.filter(pc.invert(pc.ends_with(keys, "7")))


class Sessions(Operator):
    """A user's own: per key, names and sums of values until the key has been quiet for a while; says so twice."""

    state: Mapping[str, pa.DataType] = {"sum": pa.int64(), "rows": pa.int64(), "trail": pa.string(), "told": pa.bool_()}
    event_time = "t"
    delay_ms = 20

    def output(self, schema: pa.Schema) -> pa.Schema:
        """What was seen, and whether it is the last word."""
        return pa.schema([("sum", pa.int64()), ("rows", pa.int64()), ("trail", pa.string()), ("last", pa.bool_())])

    def process(self, rows: Rows, state: State) -> Results | None:
        """Add up; a sum above 500 closes at once."""
        values = pc.fill_null(rows.batch.column("v"), 0).to_numpy(zero_copy_only=False)
        total = state.get("sum") + np.bincount(rows.window, values, minlength=state.size).astype(np.int64)
        count = state.get("rows") + np.bincount(rows.window, minlength=state.size)
        trail = pc.fill_null(state.column("trail"), "").to_pylist()
        assert rows.times_ms is not None
        newest = np.zeros(state.size, np.int64)
        np.maximum.at(newest, rows.window, rows.times_ms)
        for window, value in zip(rows.window.tolist(), values.tolist(), strict=True):
            trail[window] = f"{trail[window]}{value % 10}"[-12:]
        state.set("sum", total)
        state.set("rows", count)
        state.set_column("trail", pa.array(trail, pa.string()))
        state.set("told", np.zeros(state.size, np.bool_))
        known = np.where(state.is_new, 0, state.expires())
        state.expire_at(np.maximum(known, newest + 60))
        full = np.flatnonzero(total > 500)
        state.close(total > 500)
        return self._results(state, full, last=True)

    def expire(self, state: State, watermark_ms: int) -> Results | None:
        """The first time a warning, the second time the end."""
        told = state.get("told").astype(np.bool_)
        everything = np.arange(state.size)
        results = self._results(state, everything, last=False)
        last = pa.array(told)
        rows = results.rows.set_column(3, "last", last)
        state.set("told", np.ones(state.size, np.bool_))
        state.expire_at(state.expires() + 60, ~told & (state.expires() + 60 > watermark_ms))
        return Results(rows, everything)

    def _results(self, state: State, which: np.ndarray, *, last: bool) -> Results:
        taken = pa.array(which)
        columns = [pa.array(state.get(name)[which]) for name in ("sum", "rows")]
        columns += [state.column("trail").take(taken), pa.array(np.full(len(which), last))]
        return Results(pa.RecordBatch.from_arrays(columns, schema=self.output(pa.schema([]))), which)


OPERATORS: dict[str, Callable[[Random], Operator]] = {
    "counting": lambda random: Aggregate(
        Counting(random.randint(1, 7)), mean=agg.avg("v"), first=agg.first("v"), rows=agg.count()
    ),
    "overlapping": lambda random: Aggregate(
        Counting(random.randint(3, 6), random.randint(1, 3)), total=agg.sum("v"), last=agg.last("v")
    ),
    "tumbling": lambda random: Aggregate(
        Tumbling(f"{random.randint(1, 300)} milliseconds", "t", f"{random.randint(0, 100)} milliseconds"),
        total=agg.sum("v"), low=agg.min("v"), spread=agg.stddev("v"),
    ),
    "sliding": lambda random: Aggregate(
        Sliding("120 milliseconds", f"{random.choice([30, 50, 120])} milliseconds", "t", "10 milliseconds"),
        high=agg.max("v"), rows=agg.count(),
    ),
    "running": lambda random: Aggregate(Running(), total=agg.sum("v"), rows=agg.count()),
    "sessions": lambda random: Sessions(),
    "join": lambda random: WindowJoin(
        f"{random.randint(0, 30)} milliseconds", left_time="t", right_time="t", right_delay="20 milliseconds",
        how=random.choice(("inner", "left", "right")),
    ),
}  # fmt: skip

POLICIES: dict[str, Callable[[], Policy]] = {
    "no checks": NoChecks,
    "q": lambda: Targets(q_limit=40),
    "u": lambda: Targets(u_limit=120),
    "both": lambda: Targets(q_limit=60, u_limit=300),
    "budget": lambda: Budget(5, 10, Targets(u_limit=50), footprint_ms=1.0),
    "cost and benefit": lambda: CostBenefit(
        Costs(footprint_s=1e-6, footprint_bytes=50, byte_s=1e-8, tuple_s=1e-6, record_s=1e-6), 60.0, records_per_s=10.0
    ),
}


def fragment(operator: Operator, topics: Sequence[str] = ("in",), *, filtered: bool = False) -> Fragment:
    """Sources, the operator, and steps around it if `filtered`."""
    steps = (parse, drop_odd) if filtered else (parse,)
    sources = tuple(TopicSource(topic, steps) for topic in topics)
    if isinstance(operator, WindowJoin):
        sources = join_sources(sources[0], sources[1], ("k",))
    return Fragment(
        "story",
        sources,
        ("k",),
        operator,
        "out",
        after=(keep_most,) if filtered else (),
    )


def batches(random: Random, count: int, keys: int) -> list[list[Record]]:
    """Batches of records: few keys often and many seldom, times that come out of order, nulls among keys and values."""
    made: list[list[Record]] = []
    now_ms = START_MS
    for _ in range(count):
        records = []
        for _ in range(random.randint(1, 25)):
            now_ms += random.randint(0, 6)
            number = min(int(random.paretovariate(0.6)), keys)
            key = None if random.random() < 0.02 else b"key-%d" % number
            value = None if random.random() < 0.03 else b"%d" % random.randint(0, 200)
            records.append(Record(0, now_ms - random.choice((0, 0, 0, 5, 40, 150)), key, value))
        made.append(records)
    return made
