"""The benchmark of epochs still works: a tiny run without Kafka measures every number of partitions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.epoch_commits import CAIRN, ONE_BY_ONE, PARTITIONS
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with a row for each server and number of partitions, their syncs counted, and a plot."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.epoch_commits", "--smoke", "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "epoch_commits.json").read_text())
    assert found["mode"] == "smoke"
    measured = {(row["peer"], row["partitions"]) for row in found["rows"]}
    assert measured == {(peer, partitions) for peer in (CAIRN, ONE_BY_ONE) for partitions in PARTITIONS}
    assert all(row["syncs"] >= 1 for row in found["rows"])
    assert [goal["name"] for goal in found["goals"]] == [
        f"syncs of an epoch, {count} partitions" for count in PARTITIONS
    ]
    assert (tmp_path / "epoch_commits.png").exists()
