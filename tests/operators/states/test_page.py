"""The page for people who know transformWithState does what it shows."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "transform-with-state.md"


def test_the_page_runs() -> None:
    """All its code, block by block, in one module, with the assertions in it."""
    names: dict[str, object] = {"__name__": "guide"}
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(GUIDE), "exec"), names)
    assert len(blocks) > 1
