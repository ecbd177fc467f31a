"""The benchmark of many partitions still works: a tiny run measures every part and decides every goal."""

from pathlib import Path

import pytest

from benchmarks.harness.report import Rows
from benchmarks.many_partitions import SMOKE, find_goals
from tests.benchmarks.smoke import run_smoke


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with every figure and nothing left out."""
    results = run_smoke("many_partitions", tmp_path)
    assert not results["left_out"]
    rows = Rows()
    rows.all = results["rows"]
    assert len(find_goals(rows, SMOKE)) == len(results["goals"]) == 11
    rounds = {goal["name"].partition(" ")[0]: goal["n"] for goal in results["goals"] if "partitions" in goal["name"]}
    assert rounds["start"] == rounds["stop"] == SMOKE.rounds
