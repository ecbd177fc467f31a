"""Clusters in memory under random faults: no promise is broken, and in the end everything goes on."""

from __future__ import annotations

import pytest

from tests.cluster.random_runs import run_one
from tests.support.other_processes import printed_with_other_hashes
from tests.support.virtual_time import Trace

FEW = 4
"""Faults of a short run."""


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """Kills, stops, cut links, a metadata store that comes and goes: what was acknowledged is there once, in order, for
    every reader; when all is healed, appends go on and all copies are made.
    """
    run = run_one(seed)
    assert all(history.acked > 100 for history in run.histories.values())


def traced(order: int) -> str:
    """The digest of a short run, which is made anew."""
    trace = Trace()
    run_one(0, order=order, actions=FEW, trace=trace)
    return str(trace)


@pytest.fixture(scope="module")
def first() -> str:
    """The digest of one run, with which others are compared."""
    return traced(0)


def test_a_seed_repeats_its_run(first: str) -> None:
    """Same seed, same trace: each step of each task at the same time. Other orders of tasks are other runs."""
    assert traced(0) == first
    assert traced(1) != first


def test_a_seed_repeats_its_run_in_another_process(first: str) -> None:
    """Nothing depends on how Python hashes strings, which differs between processes."""
    program = "from tests.cluster.test_random_runs import traced; print(traced(0))"
    assert printed_with_other_hashes(program) == {first + "\n"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_of_them(seed: int) -> None:
    """The same with other seeds."""
    run_one(seed)


@pytest.mark.slow
@pytest.mark.parametrize("order", range(100))
def test_many_orders_of_tasks(order: int) -> None:
    """The same faults, while tasks that can run at the same moment run in other orders."""
    run_one(0, order=order)
