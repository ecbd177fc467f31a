"""Spark on top of the log store: the `cairn` data source, and stateful Python operators.

Every public name can be had from here: `from spe_adapter import Aggregate, agg, stateful`. A name loads the room that
it lives in when it is asked for, and no other: most of this package does without Spark.

Invariant: `PUBLIC` is the list of public names; the stub beside this file says the same with types.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

PUBLIC: Final[Mapping[str, Mapping[str, str]]] = {
    "Stateful queries in Spark": {
        "stateful": "spe_adapter.microbatch.query",
        "stateful_join": "spe_adapter.microbatch.query",
        "Stateful": "spe_adapter.microbatch.query",
        "StatefulQuery": "spe_adapter.microbatch.query",
        "EpochProgress": "spe_adapter.microbatch.committed",
        "reset": "spe_adapter.tools.reset",
        "Reset": "spe_adapter.tools.reset",
        "fork": "spe_adapter.tools.fork",
        "Fork": "spe_adapter.tools.fork",
    },
    "Operators": {
        "Aggregate": "spe_adapter.operators.aggregates",
        "agg": "spe_adapter.operators.functions",
        "Tumbling": "spe_adapter.operators.windows",
        "Sliding": "spe_adapter.operators.windows",
        "Session": "spe_adapter.operators.windows",
        "Counting": "spe_adapter.operators.windows",
        "Running": "spe_adapter.operators.windows",
        "WindowJoin": "spe_adapter.operators.join",
        "Chain": "spe_adapter.operators.chain",
        "Filter": "spe_adapter.operators.stateless",
        "Map": "spe_adapter.operators.stateless",
        "Pipeline": "spe_adapter.operators.stateless",
        "union": "spe_adapter.operators.stateless",
    },
    "Operators of your own": {
        "Operator": "spe_adapter.operators.base",
        "Aggregation": "spe_adapter.operators.aggregation",
        "Slot": "spe_adapter.operators.cells",
        "Fixed": "spe_adapter.operators.cells",
        "Rows": "spe_adapter.operators.base",
        "State": "spe_adapter.operators.base",
        "Results": "spe_adapter.operators.base",
        "OperatorHarness": "spe_adapter.testing.harness",
        "check_any_batches": "spe_adapter.testing.harness",
    },
    "Named states per key": {
        "StatefulOperator": "spe_adapter.operators.states.operator",
        "ValueState": "spe_adapter.operators.states.declared",
        "ListState": "spe_adapter.operators.states.declared",
        "MapState": "spe_adapter.operators.states.declared",
        "States": "spe_adapter.operators.states.operator",
        "ValueAccess": "spe_adapter.operators.states.value",
        "ListAccess": "spe_adapter.operators.states.lists",
        "MapAccess": "spe_adapter.operators.states.maps",
        "Timers": "spe_adapter.operators.states.timers",
        "ExpiredTimers": "spe_adapter.operators.states.timers",
    },
    "Without micro-batches": {
        "Fragment": "spe_adapter.continuous.fragment",
        "TopicSource": "spe_adapter.continuous.fragment",
        "EpochLimits": "spe_adapter.continuous.fragment",
        "FromJson": "spe_adapter.continuous.steps",
        "join_sources": "spe_adapter.continuous.steps",
        "Runner": "spe_adapter.continuous.runner",
        "Options": "spe_adapter.continuous.runner",
        "on_spark": "spe_adapter.continuous.spark",
        "SparkQuery": "spe_adapter.continuous.spark",
    },
    "Checkpoints of state": {
        "CheckpointSettings": "spe_adapter.checkpoint.settings",
        "PolicySettings": "spe_adapter.checkpoint.policy",
    },
    "Policies: what a recovery may cost": {
        "NoChecks": "spe_adapter.cec.policy",
        "Targets": "spe_adapter.cec.policy",
        "Budget": "spe_adapter.cec.policy",
        "CostBenefit": "spe_adapter.cec.policy",
        "Costs": "spe_adapter.cec.policy",
    },
    "Errors": {
        "SchemaRefused": "spe_adapter.errors",
        "CheckpointDiffers": "spe_adapter.errors",
        "CheckpointRefused": "spe_adapter.errors",
        "TopicTaken": "spe_adapter.errors",
        "QueryNotFound": "spe_adapter.errors",
        "EpochNotFound": "spe_adapter.errors",
        "OperatorFailed": "spe_adapter.operators.errors",
        "StateTooLarge": "spe_adapter.state.errors",
        "StateSchemaRefused": "spe_adapter.state.errors",
        "StateValueRefused": "spe_adapter.state.errors",
        "StateTrimmed": "spe_adapter.errors",
        "StateAway": "spe_adapter.errors",
        "StateCleaned": "spe_adapter.errors",
        "StateInconsistent": "spe_adapter.errors",
        "OperatorChanged": "spe_adapter.operators.errors",
        "BatchesMissing": "spe_adapter.microbatch.errors",
        "TasksFailed": "spe_adapter.microbatch.errors",
        "ResetRefused": "spe_adapter.microbatch.errors",
        "ForkRefused": "spe_adapter.microbatch.errors",
        "FragmentRefused": "spe_adapter.continuous.errors",
        "InputTrimmed": "spe_adapter.continuous.errors",
    },
}
"""Public names by topic, each with the module that it lives in."""

_MODULE_OF: Final = {name: module for group in PUBLIC.values() for name, module in group.items()}
_MODULES: Final = frozenset(("agg",))
"""Names that are modules themselves."""


def __getattr__(name: str) -> Any:
    """A public name, loaded now."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = import_module(module)
    return room if name in _MODULES else getattr(room, name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(_MODULE_OF)
