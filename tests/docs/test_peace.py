"""The page on Peace says what is so: its example prints what it shows."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "peace.md").read_text(encoding="utf-8")


def test_the_worked_example_prints_what_the_page_shows() -> None:
    """The page's Python code, run, prints the text block behind it."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}, text=True, timeout=PATIENCE_S, check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert ran.stdout == shown
