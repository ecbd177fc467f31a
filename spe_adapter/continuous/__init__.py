"""A fragment without micro-batches: stream in, operator, stream out, with continuous eventual checkpoints.

`fragment` says what to run (`joining` helps with two sources), `core` is one instance of it without I/O, `loop` drives
it through a `port`, `runner` is the process around that, `spark` runs one per partition as long tasks.

What always holds in here: what a beat emits, its footprints and its positions are one atomic append to the output
stream, and a runner that starts anew repeats exactly the beats that its state does not cover.

Source: CEC paper, sections II and III.
"""

from spe_adapter.continuous.fragment import Fragment, Limits, Source
from spe_adapter.continuous.joining import join_sources
from spe_adapter.continuous.loop import Progress, Recovered
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.continuous.spark import SparkQuery, on_spark
from spe_adapter.continuous.steps import FromJson

__all__ = [
    "Fragment",
    "FromJson",
    "Limits",
    "Options",
    "Progress",
    "Recovered",
    "Runner",
    "Source",
    "SparkQuery",
    "join_sources",
    "on_spark",
]
