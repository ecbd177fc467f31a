"""What the programs of all benchmarks have in common: their options, a folder for data meanwhile, what they keep.

Invariants: an option that several benchmarks have is called the same and means the same. A kept result says what was
planned, measured and concluded, on which machine, with which versions.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness.report import Goal, Row, versions, write_json


def options(
    document: str | None, *, quick: str, smoke: str | None = None, data: str | None = None
) -> argparse.ArgumentParser:
    """The parser of a program whose module has this docstring. `quick`, `smoke`, `data`: what its options of these
    names mean; a program without `smoke` or `data` has no such option.
    """
    parser = argparse.ArgumentParser(description=(document or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    if smoke is not None:
        parser.add_argument("--smoke", action="store_true", help=smoke)
    if data is not None:
        parser.add_argument("--data", type=Path, help=data)
    parser.add_argument(
        "--results", type=Path, help="where results go (default: benchmarks/results; shorter runs: build/benchmarks)"
    )
    return parser


@contextmanager
def scratch(name: str, within: Path | None) -> Iterator[Path]:
    """A new folder for the data of a run, removed behind it. `within`: None for the system's temporary folder."""
    with tempfile.TemporaryDirectory(prefix=f"cairn-bench-{name}-", dir=within, ignore_cleanup_errors=True) as path:
        yield Path(path)


def content_of(
    mode: str, before: dict[str, Any], goals: Sequence[Goal], rows: Sequence[Row], **more: Any
) -> dict[str, Any]:
    """What a result says. `before`: the machine, as it was before the run; `more` stands between versions and goals."""
    return {
        "mode": mode,
        "machine": before,
        "versions": versions(),
        **more,
        "goals": [goal._asdict() for goal in goals],
        "rows": rows,
    }


def keep(folder: Path, name: str, content: dict[str, Any], draw: Callable[[Path], None], console: Console) -> None:
    """Write a result and its picture, and say where."""
    write_json(folder / f"{name}.json", content)
    draw(folder / f"{name}.png")
    console.print(f"written: {folder / f'{name}.json'}")
