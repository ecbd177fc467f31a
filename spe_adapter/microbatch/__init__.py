"""Stateful Python operators on Spark: state in the host's memory, checkpointed in the query's own output topic.

    stateful(payments, key="customer", operator=Alarm()).start(topic="alarms", checkpointLocation=…)

`query` is the front, `driver` decides epochs, `task` runs them, `loading` finds state in the log, `resetting` goes
back.

What always holds in here: an epoch's results, its changes of state and its progress are one decision.
"""

from spe_adapter.microbatch.joining import stateful_join
from spe_adapter.microbatch.options import StatefulOptions
from spe_adapter.microbatch.progress import EpochProgress
from spe_adapter.microbatch.query import Stateful, StatefulQuery, stateful
from spe_adapter.microbatch.resetting import Reset, reset

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
