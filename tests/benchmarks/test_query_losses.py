"""The benchmark of lost hosts still works: a tiny run kills a host in each of its roles."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.query_losses import ROLES
from tests.metadata.support import needs_etcd
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


@needs_etcd
@pytest.mark.spark
@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A query that runs on commits epochs after each kill; JSON has a row for each role, and a plot is beside it."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.query_losses", "--smoke", "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "query_losses.json").read_text())
    assert found["mode"] == "smoke"
    assert [row["lost"] for row in found["rows"]] == list(ROLES.values())
    assert all(row["lost"] in row["roles"] and row["gap_s"] > 0 for row in found["rows"])
    assert (tmp_path / "query_losses.png").exists()
