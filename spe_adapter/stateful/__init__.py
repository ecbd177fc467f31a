"""Stateful Python operators on Spark: state in the host's memory, checkpointed in the query's own output topic.

    spe_adapter.stateful(payments, key="customer", operator=Alarm()).start(topic="alarms", checkpointLocation=…)

The module is a function too, for the line above; `from spe_adapter.stateful import stateful` is the same function, with
types. `query` is the front, `driver` decides epochs, `task` runs them, `loading` finds state in the log, `resetting`
goes back.
"""

import sys
from types import ModuleType
from typing import Any

from spe_adapter.stateful.joining import stateful_join
from spe_adapter.stateful.options import StatefulOptions
from spe_adapter.stateful.progress import EpochProgress
from spe_adapter.stateful.query import Stateful, StatefulQuery, stateful
from spe_adapter.stateful.resetting import Reset, reset

__all__ = [
    "EpochProgress",
    "Reset",
    "Stateful",
    "StatefulOptions",
    "StatefulQuery",
    "reset",
    "stateful",
    "stateful_join",
]


class _Module(ModuleType):
    """This module, which can be called."""

    def __call__(self, *given: Any, **named: Any) -> Stateful:
        """See `stateful`."""
        return stateful(*given, **named)


sys.modules[__name__].__class__ = _Module
