"""Whole hosts and their clients under random faults: no promise is broken, everything goes on, and bugs are found."""

from __future__ import annotations

import pytest

from tests.replica.history import PromiseBroken
from tests.support.other_processes import printed_with_other_hashes
from tests.support.virtual_time import Trace
from tests.whole.planted import PLANTED, planted
from tests.whole.random_runs import run_one

FEW = 3
"""Faults of a short run."""
MOST_SEEDS = 40
"""Random runs in which each bug is found, at most."""
WITH_WIPES = ("wipe", "wipe", "wipe", "kill", "start", "heal", "lost answers", "slow disk")
"""Kinds of faults that leave every chunk with all its copies now and then: only then a disk may be lost."""
FOUND_AT = {"nothing is synced": 1}
"""The seed to try first, where it is not 0. Seeds change their meaning when the product does; then all are tried."""


@pytest.mark.parametrize("seed", [4, 8])
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """Hosts are killed and lose power, links and connections are cut, the metadata store comes and goes: each
    acknowledged record is there once, in order, whichever hosts are left, and epochs are there whole or not at all.
    When all is healed, producers, readers and epochs go on.
    """
    run = run_one(seed)
    assert all(history.acked for history in run.histories.values())


def test_a_disk_that_is_lost_costs_nothing() -> None:
    """A machine gets an empty disk, beside kills and power cuts: all promises hold, and every chunk has its copies
    again. Among all kinds of faults a disk is lost in few runs.
    """
    runs = (run_one(seed, kinds=WITH_WIPES) for seed in (1, *range(MOST_SEEDS)))
    run = next(run for run in runs if run.faults["wiped"])
    assert all(history.acked for history in run.histories.values())


def traced(order: int) -> str:
    """The digest of a short run, which is made anew."""
    trace = Trace()
    run_one(0, order=order, actions=FEW, trace=trace)
    return str(trace)


def test_a_seed_repeats_its_run() -> None:
    """Same seed, same trace, in processes that hash strings in other ways too."""
    program = "from tests.whole.test_whole_hosts import traced; print(traced(0))"
    assert printed_with_other_hashes(program) == {traced(0) + "\n"}


def breaks_a_promise(seed: int, name: str) -> bool:
    """Whether a check of a random run finds a planted bug."""
    is_found = False
    try:
        with planted(name):
            run_one(seed)
    except* PromiseBroken:
        is_found = True
    return is_found


@pytest.mark.parametrize("name", PLANTED)
def test_checks_find_a_planted_bug(name: str) -> None:
    """Nobody has to know the bug: a history with it breaks a promise, in one of the first runs."""
    first = FOUND_AT.get(name, 0)
    assert any(breaks_a_promise(seed, name) for seed in (first, *range(MOST_SEEDS)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_of_them(seed: int) -> None:
    """The same with other seeds."""
    run_one(seed)


@pytest.mark.slow
@pytest.mark.parametrize("order", range(30))
def test_many_orders_of_tasks(order: int) -> None:
    """The same faults, while tasks that can run at the same moment run in other orders."""
    run_one(0, order=order)
