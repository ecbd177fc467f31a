"""Runs of benchmarks, mostly tiny ones: each as its user starts it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.disks import UNSETTLED
from tests.support.limits import PROGRAM_S
from tests.support.programs import PYTHON_PATH

ROOT = Path(__file__).parents[2]


def start_benchmark(name: str, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a benchmark to its end, with these options."""
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, UNSETTLED: "1"},
    )


def run_benchmark(name: str, results: Path, *options: str | Path) -> tuple[dict[str, Any], str]:
    """Run a benchmark that is to succeed; returns its result and what it printed. Its plot must be there too."""
    done = start_benchmark(name, "--results", results, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    found: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
    return found, done.stdout


def run_smoke(name: str, results: Path, *options: str | Path) -> dict[str, Any]:
    """Run a benchmark with `--smoke`; returns its result. Its plot must be there too."""
    found, _ = run_benchmark(name, results, "--smoke", *options)
    assert found["mode"] == "smoke"
    return found
