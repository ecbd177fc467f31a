"""A fragment without micro-batches: stream in, operator, stream out, with continuous eventual checkpoints.

`fragment` describes a query (`steps` has common steps and the two sources of a join), `core` is one instance of a
fragment without I/O, `loop` drives a core through a `port`, `client_port` is the port to a sidecar, `runner` is the
process around a loop, `spark` runs a runner per partition as long tasks.

Invariant: the results of an epoch, its footprints and its positions are one atomic append to the output stream, and a
runner that starts again repeats exactly the epochs that its state does not cover.

Source: CEC paper, sections II and III.
"""

from spe_adapter.continuous.fragment import Fragment, EpochLimits, TopicSource
from spe_adapter.continuous.loop import FragmentProgress, Recovered
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.continuous.spark import SparkQuery, on_spark
from spe_adapter.continuous.steps import FromJson, join_sources

__all__ = [
    "Fragment",
    "FromJson",
    "EpochLimits",
    "Options",
    "FragmentProgress",
    "Recovered",
    "Runner",
    "TopicSource",
    "SparkQuery",
    "join_sources",
    "on_spark",
]
