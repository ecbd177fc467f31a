"""The benchmark of many partitions still works: a tiny run measures every part and decides every goal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.report import Rows
from benchmarks.many_partitions import SMOKE, find_goals
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with every figure and nothing left out."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.many_partitions", "--smoke", "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "many_partitions.json").read_text())
    assert results["mode"] == "smoke"
    assert not results["left_out"]
    rows = Rows()
    rows.all = results["rows"]
    assert len(find_goals(rows, SMOKE)) == len(results["goals"]) == 11
    rounds = {goal["name"].partition(" ")[0]: goal["n"] for goal in results["goals"] if "partitions" in goal["name"]}
    assert rounds["start"] == rounds["stop"] == SMOKE.rounds
    assert (tmp_path / "many_partitions.png").read_bytes().startswith(b"\x89PNG")
