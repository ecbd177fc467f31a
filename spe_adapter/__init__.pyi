"""The public names with their types; see the module."""

from collections.abc import Mapping
from typing import Final

from spe_adapter.cec.policy import Budget, CostBenefit, Costs, NoChecks, Targets
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.settings import CheckpointSettings
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
    StateAway,
    StateCleaned,
    StateInconsistent,
    StateTrimmed,
    TopicTaken,
)
from spe_adapter.microbatch.committed import EpochProgress
from spe_adapter.microbatch.errors import BatchesMissing, ForkRefused, ResetRefused, TasksFailed
from spe_adapter.microbatch.query import Stateful, StatefulQuery, stateful, stateful_join
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.aggregation import Aggregation
from spe_adapter.operators.base import Operator, Results, Rows, State
from spe_adapter.operators.cells import Fixed, Slot
from spe_adapter.operators.chain import Chain
from spe_adapter.operators.errors import OperatorChanged, OperatorFailed
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.stateless import Filter, Map, Pipeline, union
from spe_adapter.operators.states.declared import ListState, MapState, ValueState
from spe_adapter.operators.states.lists import ListAccess
from spe_adapter.operators.states.maps import MapAccess
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import ExpiredTimers, Timers
from spe_adapter.operators.states.value import ValueAccess
from spe_adapter.operators.windows import Counting, Running, Session, Sliding, Tumbling
from spe_adapter.state.errors import StateSchemaRefused, StateTooLarge, StateValueRefused
from spe_adapter.testing.harness import OperatorHarness, check_any_batches
from spe_adapter.tools.fork import Fork, fork
from spe_adapter.tools.reset import Reset, reset

PUBLIC: Final[Mapping[str, Mapping[str, str]]]

__all__ = [
    "PUBLIC",
    "Aggregate",
    "Aggregation",
    "BatchesMissing",
    "Budget",
    "Chain",
    "CheckpointDiffers",
    "CheckpointRefused",
    "CheckpointSettings",
    "CostBenefit",
    "Costs",
    "Counting",
    "EpochLimits",
    "EpochNotFound",
    "EpochProgress",
    "ExpiredTimers",
    "Filter",
    "Fixed",
    "Fork",
    "ForkRefused",
    "Fragment",
    "FragmentRefused",
    "FromJson",
    "InputTrimmed",
    "ListAccess",
    "ListState",
    "Map",
    "MapAccess",
    "MapState",
    "NoChecks",
    "Operator",
    "OperatorChanged",
    "OperatorFailed",
    "OperatorHarness",
    "Options",
    "Pipeline",
    "PolicySettings",
    "QueryNotFound",
    "Reset",
    "ResetRefused",
    "Results",
    "Rows",
    "Runner",
    "Running",
    "SchemaRefused",
    "Session",
    "Sliding",
    "Slot",
    "SparkQuery",
    "State",
    "StateAway",
    "StateCleaned",
    "StateInconsistent",
    "StateSchemaRefused",
    "StateTooLarge",
    "StateTrimmed",
    "StateValueRefused",
    "Stateful",
    "StatefulOperator",
    "StatefulQuery",
    "States",
    "Targets",
    "TasksFailed",
    "Timers",
    "TopicSource",
    "TopicTaken",
    "Tumbling",
    "ValueAccess",
    "ValueState",
    "WindowJoin",
    "agg",
    "check_any_batches",
    "fork",
    "join_sources",
    "on_spark",
    "reset",
    "stateful",
    "stateful_join",
    "union",
]
