"""Named states equal plain Python, key by key: any commands, cut, clock, TTL, crash and way of writing footprints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe_adapter.operators.states.declared import TimeSource
from spe_adapter.testing import OperatorHarness
from tests.operators.states.commands import KINDS, SCHEMA, Commands, Naive, Row
from tests.support.examples import examples

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["a", "", None]),
            "ts": st.integers(1, 60),
            "kind": st.sampled_from(KINDS),
            "n": st.sampled_from([-3, 0, 1, 9, 30]),
            "s": st.sampled_from(["", "x"]),
        }
    ),
    max_size=14,
)
EPOCHS = st.lists(st.tuples(st.lists(ROWS, max_size=3), st.integers(0, 15)), min_size=1, max_size=8)


def in_order(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Results in an order of their own: timers of one time come in no promised order."""
    return sorted((row["what"], row["key"] is None, row["key"] or "", row["json"]) for row in rows)


@pytest.mark.parametrize("ttl_by", [None, "processing", "event"])
@given(epochs=EPOCHS, checks=st.sampled_from([None, 0, 2]), data=st.data())
@settings(max_examples=examples(15, long=1000))
def test_states_equal_plain_python(
    ttl_by: TimeSource | None, epochs: list[tuple[list[list[Row]], int]], checks: int | None, data: st.DataObject
) -> None:
    """After every call the states of its keys are the model's; so are due timers; a crash changes nothing."""
    harness = OperatorHarness(Commands(ttl_by), key="key", schema=SCHEMA, checks=checks)
    naive = Naive(ttl_by)
    wall_ms = 0
    for calls, passed_ms in epochs:
        wall_ms += passed_ms
        rows = [row for call in calls for row in call]
        cuts = [sum(map(len, calls[: at + 1])) for at in range(len(calls) - 1)]
        found = harness.send(rows, cuts=cuts, now_ms=wall_ms)
        assert in_order(found) == in_order(naive.epoch(calls, wall_ms))
        if data.draw(st.booleans()):
            harness.crash_and_recover()
