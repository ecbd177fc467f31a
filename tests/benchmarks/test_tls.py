"""The benchmark of TLS still works: two small rounds over both listeners."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tls import PROTOCOLS, Round
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


@pytest.mark.clients
def test_two_small_rounds(tmp_path: Path) -> None:
    """They leave JSON with every figure of both listeners, and a goal for each way."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tls", "--quick", "--megabytes", "1", "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "tls.json").read_text())
    assert found["mode"] == "quick"
    assert [row["listener"] for row in found["rows"]] == [*reversed(PROTOCOLS), *PROTOCOLS]
    assert all(row[figure] > 0 for row in found["rows"] for figure in Round._fields if "cpu" not in figure)
    assert len(found["goals"]) == 3
    assert all(goal["n"] == 2 and goal["low"] <= goal["value"] <= goal["high"] for goal in found["goals"])
    assert (tmp_path / "tls.png").read_bytes().startswith(b"\x89PNG")
