"""The benchmark of TLS still works: two small rounds over both listeners."""

from pathlib import Path

import pytest

from benchmarks.tls import PROTOCOLS, Round
from tests.benchmarks.smoke import run_benchmark


@pytest.mark.clients
def test_two_small_rounds(tmp_path: Path) -> None:
    """They leave JSON with every figure of both listeners, and a goal for each way."""
    found, _ = run_benchmark("tls", tmp_path, "--quick", "--megabytes", "1")
    assert found["mode"] == "quick"
    assert [row["listener"] for row in found["rows"]] == [*reversed(PROTOCOLS), *PROTOCOLS]
    assert all(row[figure] > 0 for row in found["rows"] for figure in Round._fields if "cpu" not in figure)
    assert len(found["goals"]) == 3
    assert all(goal["n"] == 2 and goal["low"] <= goal["value"] <= goal["high"] for goal in found["goals"])
