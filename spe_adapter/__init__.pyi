"""The public names with their types; see the module."""

from collections.abc import Mapping
from typing import Final

from spe_adapter.cec.policy import Budget, CostBenefit, Costs, NoChecks, Targets
from spe_adapter.continuous.errors import FragmentRefused, InputTrimmed
from spe_adapter.continuous.fragment import EpochLimits, Fragment, TopicSource
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.continuous.spark import SparkQuery, on_spark
from spe_adapter.continuous.steps import FromJson, join_sources
from spe_adapter.errors import (
    CheckpointDiffers,
    CheckpointRefused,
    EpochNotFound,
    QueryNotFound,
    SchemaRefused,
    StateInconsistent,
    StateTrimmed,
    TopicTaken,
)
from spe_adapter.microbatch.committed import EpochProgress
from spe_adapter.microbatch.errors import BatchesMissing, OperatorChanged, ResetRefused, TasksFailed
from spe_adapter.microbatch.query import Stateful, StatefulQuery, stateful, stateful_join
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.base import Operator, Results, Rows, State
from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.stateless import Filter, Map, Pipeline, union
from spe_adapter.operators.windows import Counting, Running, Sliding, Tumbling
from spe_adapter.state.errors import StateSchemaRefused, StateTooLarge, StateValueRefused
from spe_adapter.testing.harness import OperatorHarness, check_any_batches
from spe_adapter.tools.reset import Reset, reset

PUBLIC: Final[Mapping[str, Mapping[str, str]]]

__all__ = [
    "PUBLIC",
    "Aggregate",
    "BatchesMissing",
    "Budget",
    "CheckpointDiffers",
    "CheckpointRefused",
    "CostBenefit",
    "Costs",
    "Counting",
    "EpochLimits",
    "EpochNotFound",
    "EpochProgress",
    "Filter",
    "Fragment",
    "FragmentRefused",
    "FromJson",
    "InputTrimmed",
    "Map",
    "NoChecks",
    "Operator",
    "OperatorChanged",
    "OperatorFailed",
    "OperatorHarness",
    "Options",
    "Pipeline",
    "QueryNotFound",
    "Reset",
    "ResetRefused",
    "Results",
    "Rows",
    "Runner",
    "Running",
    "SchemaRefused",
    "Sliding",
    "SparkQuery",
    "State",
    "StateInconsistent",
    "StateSchemaRefused",
    "StateTooLarge",
    "StateTrimmed",
    "StateValueRefused",
    "Stateful",
    "StatefulQuery",
    "Targets",
    "TasksFailed",
    "TopicSource",
    "TopicTaken",
    "Tumbling",
    "WindowJoin",
    "agg",
    "check_any_batches",
    "join_sources",
    "on_spark",
    "reset",
    "stateful",
    "stateful_join",
    "union",
]
