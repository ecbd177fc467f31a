"""benchmarks/peace.py runs, and leaves what it says it does."""

import json
from pathlib import Path

import pytest

from benchmarks import peace
from benchmarks.simulation.setups import NAMES


@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with goals that hold, the paper's numbers, all setups, seeds and two pictures."""
    peace.main(["--smoke", "--results", str(tmp_path)])
    left = json.loads((tmp_path / "peace.json").read_text())
    assert len(left["goals"]) == 5
    assert all(goal["holds"] for goal in left["goals"])
    assert {row["setup"] for row in left["rows"]} == set(NAMES)
    assert left["paper"]["comp_s"]["HDFS default"] == 55.0
    assert left["seeds"] == [1, 2]
    for picture in ("peace.png", "peace_gantt.png"):
        assert (tmp_path / picture).stat().st_size > 20_000
