"""What comments and docstrings name of the project's code exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("logstore", "scheduler", "spe_adapter", "benchmarks", "tests")
NAMED = re.compile(rf"`((?:{'|'.join(ROOMS)})(?:\.\w+)+)`")


def exists(name: str) -> bool:
    """Whether there is such a module or package, or a module with such a name in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        for file in (path.with_suffix(".py"), path / "__init__.py", path):
            if file.is_dir():
                return length == len(parts)
            if file.exists():
                text = file.read_text(encoding="utf-8")
                if all(re.search(rf"\b{part}\b", text) for part in parts[length:]):
                    return True
    return False


def test_modules_that_are_named_exist() -> None:
    """A reader who follows a name in code quotes finds a module, or a name in it: a module that moved takes its name
    along.
    """
    named = {
        (str(path.relative_to(ROOT)), name)
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert sorted(each for each in named if not exists(each[1])) == []
