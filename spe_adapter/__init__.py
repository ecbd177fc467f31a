"""Spark on top of the log store: the `cairn` data source, and stateful Python operators (`spe_adapter.stateful`)."""

import importlib
from types import ModuleType

__all__ = ["stateful"]


def __getattr__(name: str) -> ModuleType:
    """`spe_adapter.stateful`, loaded when it is asked for: most of this package does without Spark."""
    if name == "stateful":
        return importlib.import_module("spe_adapter.stateful")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
