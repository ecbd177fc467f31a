"""The continuous runner: an operator between streams without micro-batches, with continuous eventual checkpoints.

`fragment` describes a query; `steps` has common stateless steps, and the two sources of a join. `core` processes one
partition of a fragment, without I/O. `loop` drives a core through a `port`; `client_port` is the port to a sidecar.
`runner` is the process around a loop. `spark` runs one runner for each partition, as long Spark tasks.

Invariant: the results of an epoch, its footprints and its positions are one atomic append to the output stream. A
runner that starts again repeats exactly the epochs that its eventual checkpoint does not cover.

Source: CEC paper, sections II and III.
"""

from spe_adapter.continuous.fragment import EpochLimits, Fragment, TopicSource
from spe_adapter.continuous.loop import FragmentProgress, Recovered
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.continuous.spark import SparkQuery, on_spark
from spe_adapter.continuous.steps import FromJson, join_sources

__all__ = [
    "EpochLimits",
    "Fragment",
    "FragmentProgress",
    "FromJson",
    "Options",
    "Recovered",
    "Runner",
    "SparkQuery",
    "TopicSource",
    "join_sources",
    "on_spark",
]
