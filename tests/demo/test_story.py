"""The demonstration itself, small: one kill of Spark in the middle, and the exact result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
def test_the_demonstration_ends_exact(tmp_path: Path) -> None:
    """`cairn demo` with a kill ends with status 0, an exact result and a page."""
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "logstore.cli", "demo", "--records", "60000", "--batch", "20000", "--kills", "1"]
    done = subprocess.run(
        [*command, "--heap", "512m", "--report", str(page)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text(encoding="utf-8")
    assert "exact" in text
    assert "windows: " in text.partition("Starts of the stateful query")[2]
    assert not list(tmp_path.glob("cairn-demo-*")), "an exact run leaves nothing behind"
