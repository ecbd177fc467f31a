"""Spark on top of the log store: the `cairn` data source, and stateful Python operators.

The names below are what users need, each loaded when it is asked for: a Spark worker that only reads a stream loads no
operators, and a test of an operator no Spark.
"""

import importlib
from typing import Any, Final

_WHERE: Final = {
    "Aggregate": "spe_adapter.operators.aggregates",
    "Chain": "spe_adapter.operators.stateless",
    "Counting": "spe_adapter.operators.windows",
    "Filter": "spe_adapter.operators.stateless",
    "Map": "spe_adapter.operators.stateless",
    "Operator": "spe_adapter.operators.base",
    "OperatorHarness": "spe_adapter.testing",
    "Results": "spe_adapter.operators.base",
    "Rows": "spe_adapter.operators.base",
    "Running": "spe_adapter.operators.windows",
    "Sliding": "spe_adapter.operators.windows",
    "State": "spe_adapter.operators.base",
    "StatefulQuery": "spe_adapter.stateful",
    "Tumbling": "spe_adapter.operators.windows",
    "WindowJoin": "spe_adapter.operators.join",
    "reset": "spe_adapter.stateful",
    "stateful_join": "spe_adapter.stateful",
}
"""Names and the modules that have them."""
_MODULES: Final = {"agg": "spe_adapter.operators.functions", "stateful": "spe_adapter.stateful"}
"""Names that are modules; `stateful` can be called like the function of that name in it."""

__all__ = sorted((*_WHERE, *_MODULES))  # noqa: PLE0605 - a list of what the tables above have


def __getattr__(name: str) -> Any:
    """One of the names above."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
