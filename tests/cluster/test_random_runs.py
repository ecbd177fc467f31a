"""Clusters in memory under random faults: no promise is broken, and in the end everything goes on."""

import pytest

from tests.cluster.random_runs import run_one


@pytest.mark.parametrize("seed", range(3))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """Kills, stops, cut links, a metadata store that comes and goes: what was acknowledged is there once, in order, for
    every reader; when all is healed, appends go on and all copies are made.
    """
    run = run_one(seed)
    assert all(history.acked > 100 for history in run.histories.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_of_them(seed: int) -> None:
    """The same with other seeds."""
    run_one(seed)
