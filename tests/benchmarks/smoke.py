"""Tiny runs of benchmarks: each as its user starts it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


def run_smoke(name: str, results: Path) -> dict[str, Any]:
    """Run a benchmark with `--smoke`; returns its result. Its plot must be there too."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--smoke", "--results", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
    assert found["mode"] == "smoke"
    assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    return found
