"""Nothing of a merge that stopped half way is left in a text of the project."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXTS = ("*.md", "*.py", "*.toml", "*.json", "*.yaml", "*.yml", "*.java", "*.go", "*.txt", "*.service", "*.html")
MARKS = ("<" * 7 + " ", ">" * 7 + " ")
"""Git's; the line between them is also a heading's underline."""


def test_no_marks_of_a_conflict() -> None:
    """A text in which both sides of a merge stand says two things."""
    tops = [each for each in ROOT.iterdir() if not each.name.startswith(".") and each.name != "build"]
    paths = [path for top in tops for kind in TEXTS for path in ([top] if top.match(kind) else top.rglob(kind))]
    assert len(paths) > 1000
    marked = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if line.startswith(MARKS)
    ]
    assert marked == []
