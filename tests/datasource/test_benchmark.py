"""The benchmark of Spark's throughput still works; what it measures in a hurry means nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.slow
def test_the_benchmark_leaves_its_table_figures_and_picture(tmp_path: Path) -> None:
    """A few thousand records each way: JSON with both goals, and a plot."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark_throughput", "--smoke", "--results", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PROGRAM_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "spark_throughput.json").read_text())
    assert [set(goal) for goal in found["goals"]] == [{"name", "value", "low", "high", "unit", "goal", "holds"}] * 2
    assert all(goal["value"] > 0 for goal in found["goals"])
    assert (tmp_path / "spark_throughput.png").stat().st_size > 10_000
