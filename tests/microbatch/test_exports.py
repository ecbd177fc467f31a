"""What `spe_adapter` offers by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spe_adapter

STUB = Path(__file__).resolve().parents[2] / "spe_adapter/__init__.pyi"
LIGHT = """
import sys
from spe_adapter import Aggregate, OperatorHarness, Tumbling, agg
assert not [name for name in sys.modules if name.split(".")[0] == "pyspark"], "Spark"
"""
NAMES = sorted(name for group in spe_adapter.PUBLIC.values() for name in group)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    """All that is listed can be had from the package."""
    assert getattr(spe_adapter, name) is not None


def test_nothing_else_is_made_up() -> None:
    """Another name is an error, as with any module."""
    assert not hasattr(spe_adapter, "nothing")


def test_the_stub_has_the_same_names() -> None:
    """Type checkers see what users get."""
    imports = [node for node in ast.parse(STUB.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("spe_adapter")]
    assert sorted(alias.asname or alias.name for node in ours for alias in node.names) == NAMES


def test_operators_do_without_spark() -> None:
    """Whoever tests an operator need not load Spark, nor have it."""
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
