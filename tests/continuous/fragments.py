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
from spe_adapter.operators.base import Emitted, Operator, Results, Rows, State
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.states.declared import ListState, MapState, ValueState
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import ExpiredTimers, Timers
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


class Trails(StatefulOperator):
    """Per key a list, a map and a value, some with a TTL, told of when a timer is due that rows put off."""

    states = {  # noqa: RUF012  as users write it
        "rows": ValueState(pa.int64()),
        "trail": ListState({"v": pa.int64()}, ttl="150 milliseconds", ttl_by="event"),
        "kinds": MapState(pa.int64(), pa.int64()),
    }
    event_time = "t"
    delay_ms = 20

    def output(self, schema: pa.Schema) -> pa.Schema:
        """How much there is."""
        return pa.schema([("at", pa.int64()), ("rows", pa.int64()), ("trail", pa.int64()), ("kinds", pa.int64())])

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Add up, and be called later than before."""
        values = pc.fill_null(rows.batch.column("v"), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        states.rows.set(states.rows.get() + np.bincount(rows.window, minlength=states.count))
        states.trail.append(rows.window, values)
        states.kinds.put(rows.window, values % 10, values)
        odd = np.flatnonzero(values % 7 == 3)
        states.kinds.remove(rows.window[odd], values[odd] % 10)
        assert rows.times_ms is not None
        newest = np.zeros(states.count, np.int64)
        np.maximum.at(newest, rows.window, rows.times_ms)
        before = timers.registered()
        timers.delete(before.owner, before.at_ms)
        np.maximum.at(newest, before.owner, before.at_ms - 60)
        timers.register(None, newest + 60)
        return None

    def handle_expired(self, expired: ExpiredTimers, states: States, timers: Timers) -> Emitted:
        """Tell, and forget every other key."""
        owner = expired.owner
        trail = np.zeros(states.count, np.int64)
        found = states.trail.read()
        np.add.at(trail, found.owner, found.values.column(0).to_numpy() + 1)
        kinds = np.bincount(states.kinds.entries().owner, minlength=states.count)
        columns = [pa.array(expired.at_ms), states.rows.column(owner), pa.array(trail[owner]), pa.array(kinds[owner])]
        done = np.unique(owner[expired.at_ms % 2 == 0])
        for name in self.states:
            states[name].clear(done)
        return Results(pa.RecordBatch.from_arrays(columns, schema=self.output(pa.schema([]))), owner)


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
    "trails": lambda random: Trails(),
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
