"""What named states promise one by one: identities, refusals, order, TTLs, failures, new states, the initial state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CairnError, InvalidConfig
from spe_adapter.operators.base import Emitted, Rows
from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.operators.states.declared import Declared, ListState, MapState, ValueState
from spe_adapter.operators.states.identity import (
    JOINED,
    ids_of,
    joined_keys,
    joined_number,
    numbers_at,
    routing_keys,
    slots_of,
    split_keys,
    timer_numbers,
    timer_times_ms,
)
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import Timers
from spe_adapter.state.errors import StateSchemaRefused, StateValueRefused
from spe_adapter.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("s", pa.string())])
Act = Callable[[Rows, States, Timers], Emitted]

BYTES = st.one_of(st.none(), st.binary(max_size=6))


class Doing(StatefulOperator):
    """Does what it is given to do."""

    processing_time = True

    def __init__(self, act: Act, **states: Declared) -> None:
        self.act = act
        self.states = states

    def output(self, schema: pa.Schema) -> pa.Schema:
        """Text."""
        return pa.schema([("told", pa.string())])

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """As given."""
        return self.act(rows, states, timers)

    def handle_initial(self, rows: Rows, states: States, timers: Timers) -> None:
        """As given."""
        self.act(rows, states, timers)


def harness_of(act: Act, **states: Declared) -> OperatorHarness:
    """A harness of an operator that does this."""
    return OperatorHarness(Doing(act, **states), key="k", schema=SCHEMA)


def told(texts: list[str]) -> pa.RecordBatch:
    """Results, one for each owner."""
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["told"])


# ---- identities


@given(st.lists(st.tuples(BYTES, st.binary(max_size=6)), max_size=8, unique=True))
def test_joined_keys_come_apart(pairs: list[tuple[bytes | None, bytes]]) -> None:
    """Routing key and suffix come back, null as null; different pairs have different keys, in a slice as well."""
    routing = pa.array([first for first, _ in pairs], pa.binary())
    suffix = pa.array([second for _, second in pairs], pa.binary())
    joined = joined_keys(routing, suffix)
    assert len(set(joined.to_pylist())) == len(pairs)
    for part in (slice(0, None), slice(1, None)):
        found = split_keys(joined[part])
        assert (found.routing.to_pylist(), found.suffix.to_pylist()) == (
            routing[part].to_pylist(),
            suffix[part].to_pylist(),
        )


def test_the_routing_key_of_any_entry_is_found() -> None:
    """Of joined and plain entries among each other; ids, slots and times come back from numbers."""
    plain, joined = pa.array([b"a", None], pa.binary()), joined_keys(pa.array([b"b", None]), pa.array([b"x", b"y"]))
    keys = pa.concat_arrays([plain, joined]).take(pa.array([2, 0, 3, 1]))
    numbers = np.array([joined_number(3), numbers_at(1, 0), joined_number(3), numbers_at(2, 9)])
    assert routing_keys(keys, numbers).to_pylist() == [b"b", b"a", None, None]
    assert ids_of(numbers).tolist() == [3, 1, 3, 2]
    assert slots_of(numbers).tolist() == [0, 0, 0, 9]
    assert (numbers & JOINED != 0).tolist() == [True, False, True, False]
    times = np.array([-(2**47), -1, 0, 1_700_000_000_000, 2**47 - 1])
    assert timer_times_ms(timer_numbers(254, times)).tolist() == times.tolist()
    with pytest.raises(StateValueRefused, match="a timer at 140737488355328 ms"):
        timer_numbers(254, np.array([2**47]))


# ---- refusals


@pytest.mark.parametrize(
    ("declared", "error", "message"),
    [
        (pa.int64(), StateSchemaRefused, "declare a ValueState|give a ValueState"),
        (ValueState("int"), StateSchemaRefused, "state 'x' holds 'int'"),
        (ValueState({"a": 7}), StateSchemaRefused, "column 'a' is 7"),
        (MapState(pa.float64(), pa.int64()), CairnError, "key column 'key' is double"),
        (ListState(pa.int64(), ttl="0 seconds"), InvalidConfig, "at least 1 ms"),
        (ValueState(pa.int64(), ttl="1000000000 weeks"), InvalidConfig, "ms at most"),
        (ListState(pa.int64(), ttl="1 hour", ttl_by="wall"), InvalidConfig, "processing or event"),  # type: ignore[arg-type]
        (ListState(pa.int64(), ttl="1 hour", ttl_by="event"), InvalidConfig, "has no event_time"),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(declared: Any, error: type[CairnError], message: str) -> None:
    """Before anything runs."""
    with pytest.raises(error, match=message):
        harness_of(lambda *_: None, x=declared)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda r, s, t: s.nothing.get(), "state 'nothing' was not declared; there is v, l, m, d"),
        (lambda r, s, t: s.list("v"), "state 'v' is declared as a ValueState"),
        (lambda r, s, t: s.v.set(np.array([1.5])), "state 'v'.*1.5"),
        (lambda r, s, t: s.v.set(np.array([1, 2])), "1 are needed"),
        (lambda r, s, t: s.d.get(), r"state 'd' is decimal128\(9, 2\): read it with column"),
        (lambda r, s, t: s.d.set(np.array([1])), "state 'd' is decimal128"),
        (lambda r, s, t: s.v.get([3]), "owner 3; the call's keys are 0 to 0"),
        (lambda r, s, t: s.v.get(np.array([True])), "give indices"),
        (lambda r, s, t: s.l.append([0], {"a": ["x"]}), "it has a, b"),
        (lambda r, s, t: s.l.read([0, 0]), "named twice"),
        (lambda r, s, t: s.m.put([0], pa.array([None], pa.string()), [1]), "a map key is null"),
        (lambda r, s, t: t.register(None, 5, clock="event"), "the operator has processing time"),
        (lambda r, s, t: t.register(None, [1.5]), "1.5"),
    ],
)
def test_a_wrong_use_is_refused_by_name(act: Act, message: str) -> None:
    """With the operator, the key and the state in one line."""
    harness = harness_of(
        act,
        v=ValueState(pa.int64()),
        l=ListState({"a": pa.string(), "b": pa.int64()}),
        m=MapState(pa.string(), pa.int64()),
        d=ValueState(pa.decimal128(9, 2)),
    )
    with pytest.raises(CairnError, match=message):
        harness.send([{"k": "a", "n": 1}])


# ---- what a call does


def test_a_call_that_raises_changes_nothing() -> None:
    """What it wrote to any state and timer is gone, and the key that provokes it is named."""

    def act(rows: Rows, states: States, timers: Timers) -> Emitted:
        states.v.set(states.v.get() + 1)
        states.l.append(rows.window, rows.batch.column("n"))
        states.m.put(rows.window, rows.batch.column("s"), rows.batch.column("n"))
        timers.register(None, 99)
        if 13 in rows.batch.column("n").to_pylist():
            raise ValueError("thirteen")
        return None

    harness = harness_of(act, v=ValueState(pa.int64()), l=ListState(pa.int64()), m=MapState(pa.string(), pa.int64()))
    harness.send([{"k": "a", "n": 1, "s": "x"}])
    before = harness.state()
    with pytest.raises(OperatorFailed, match="at key 'b': ValueError: thirteen"):
        harness.send([{"k": "a", "n": 2, "s": "y"}, {"k": "b", "n": 13, "s": "y"}, {"k": "c", "n": 3, "s": "y"}])
    assert harness.state() == before


def test_an_entry_put_again_behind_its_ttl_comes_behind_the_others() -> None:
    """It is a new one; an entry put again within its TTL keeps its place."""

    def act(rows: Rows, states: States, timers: Timers) -> Emitted:
        states.m.put(rows.window, rows.batch.column("s"), rows.batch.column("n"))
        return told(["".join(states.m.entries().keys.column(0).to_pylist())])

    harness = harness_of(act, m=MapState(pa.string(), pa.int64(), ttl="10 milliseconds"))
    found = [
        harness.send([{"k": "a", "n": 1, "s": key} for key in keys], now_ms=now_ms)[0]["told"]
        for keys, now_ms in (("xy", 0), ("z", 3), ("y", 5), ("x", 11), ("z", 12))
    ]
    assert found == ["xy", "xyz", "xyz", "yzx", "yzx"]
    harness.crash_and_recover()
    assert harness.advance_time(100) == []
    assert harness.state() == []


def test_a_map_that_shrinks_numbers_its_places_anew() -> None:
    """A map through which many keys pass takes room for those that are in it."""

    def act(rows: Rows, states: States, timers: Timers) -> Emitted:
        owner, text = rows.window, rows.batch.column("s")
        there = states.m.contains(owner, text)
        states.m.remove(owner[there], text.filter(pa.array(there)))
        states.m.put(owner[~there], text.filter(pa.array(~there)), rows.batch.column("n").filter(pa.array(~there)))
        return told([" ".join(states.m.entries().keys.column(0).to_pylist())])

    harness = harness_of(act, m=MapState(pa.string(), pa.int64()))
    for turn in range(40):
        harness.send([{"k": "a", "n": at, "s": f"{turn}-{at}"} for at in range(5)])
        harness.send([{"k": "a", "n": at, "s": f"{turn}-{at}"} for at in range(5) if at or turn % 10])
        harness.crash_and_recover()
    (last,) = harness.send([{"k": "a", "n": 1, "s": "last"}])
    assert last["told"] == "0-0 10-0 20-0 30-0 last"
    slots = [row["number"] & (2**48 - 1) for row in harness.state()]
    assert max(slots) < 50


def test_a_list_that_is_emptied_and_filled_in_one_call_has_what_came_last() -> None:
    """In the same call, and in later ones."""

    def act(rows: Rows, states: States, timers: Timers) -> Emitted:
        states.l.append(rows.window, rows.batch.column("n"))
        states.l.replace(rows.window[:1], rows.batch.column("n")[:1])
        states.l.append([0], [7])
        states.v.set([5, 6], [0, 0])
        return told([f"{states.l.read().values.column(0).to_pylist()} {states.v.get().tolist()}"])

    harness = harness_of(act, l=ListState(pa.int64()), v=ValueState(pa.int64()))
    for n in (1, 2):
        assert harness.send([{"k": "a", "n": n}, {"k": "a", "n": 9}]) == [{"k": "a", "told": f"[{n}, 7] [6]"}]
        harness.crash_and_recover()


def test_the_initial_state_is_there_for_the_first_rows() -> None:
    """Also of keys that get no rows."""

    def act(rows: Rows, states: States, timers: Timers) -> Emitted:
        if "start" in rows.batch.schema.names:
            states.v.set(rows.batch.column("start"), rows.window)
            return None
        return told([str(value) for value in states.v.column().to_pylist()])

    harness = harness_of(act, v=ValueState(pa.int64()))
    harness.start(pa.RecordBatch.from_pydict({"k": ["a", "b"], "start": [7, 8]}))
    harness.crash_and_recover()
    assert harness.send([{"k": "a"}, {"k": "c"}]) == [{"k": "a", "told": "7"}, {"k": "c", "told": "None"}]
    assert len(harness.state()) == 2


def test_the_timers_of_a_key_are_listed_among_those_of_many() -> None:
    """Those of the store and of the call, without those that the call has deleted; other keys' are not there."""

    def act(rows: Rows, states: States, timers: Timers) -> Emitted:
        n = rows.batch.column("n").to_numpy()
        if n[0] >= 0:
            timers.register(rows.window, 1_000 + n)
            return None
        timers.register([0], 2_000)
        timers.delete([1], 1_001)
        found = timers.registered()
        both = timers.registered([1])
        assert both.owner.tolist() == [1] * len(both.at_ms)
        return told([str(found.at_ms[found.owner == owner].tolist()) for owner in range(states.count)])

    harness = harness_of(act, v=ValueState(pa.int64()))
    harness.send([{"k": f"k{at}", "n": at % 3} for at in range(300)])
    harness.crash_and_recover()
    rows = [{"k": key, "n": -1} for key in ("k0", "k1", "new")]
    assert [row["told"] for row in harness.send(rows)] == ["[1000, 2000]", "[]", "[]"]
    harness.crash_and_recover()


# ---- another operator on the same state


def test_states_may_be_added_behind_the_others() -> None:
    """The former states are there, the new one is empty; other order, kind or name is refused by a sentence."""
    value, items = ValueState(pa.int64()), ListState(pa.int64())

    def first(rows: Rows, states: States, timers: Timers) -> Emitted:
        states.v.set(rows.batch.column("n"), rows.window)
        return None

    def second(rows: Rows, states: States, timers: Timers) -> Emitted:
        states.l.append(rows.window, rows.batch.column("n"))
        return told([f"{states.v.get()[0]} {states.l.read().values.column(0).to_pylist()}"])

    harness = harness_of(first, v=value)
    harness.send([{"k": "a", "n": 4}])
    harness.evolve(Doing(second, v=value, l=items))
    assert harness.send([{"k": "a", "n": 5}]) == [{"k": "a", "told": "4 [5]"}]
    harness.crash_and_recover()
    former = Doing(first, v=value).description
    assert Doing(second, v=value, l=items).follows(former) is None
    for other in (Doing(first, l=items, v=value), Doing(first, v=items), Doing(first, w=value)):
        assert "its states were v ValueState" in str(other.follows(former))
