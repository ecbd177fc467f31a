"""What `spe_adapter` offers by name."""

from __future__ import annotations

import subprocess
import sys

import spe_adapter

LIGHT = """
import sys
from spe_adapter import Aggregate, OperatorHarness, Tumbling, agg
assert not [name for name in sys.modules if name.split(".")[0] == "pyspark"], "Spark"
"""


def test_every_name_is_there() -> None:
    """All that is listed can be had, the module `stateful` can be called, and nothing else is made up."""
    assert all(getattr(spe_adapter, name) is not None for name in spe_adapter.__all__)
    assert callable(spe_adapter.stateful)
    assert not hasattr(spe_adapter, "nothing")


def test_operators_do_without_spark() -> None:
    """Whoever tests an operator need not load Spark, nor have it."""
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
