"""Spark's Python daemon, with what our workers need loaded in front of the fork: all workers of a host share it.

    SparkSession.builder.config("spark.python.daemon.module", "spe_adapter.daemon")

Spark forks a worker per running Python function from a daemon that has loaded next to nothing, so that each of them
loads numpy, Arrow, pandas and numba for itself: more than 100 MB that belong to it alone, and seconds of processor time
before its first row. Forked from this daemon they have all of it, compiled code included, in memory that is there once.

Invariants:
* No thread is started in front of the fork but that of Arrow's allocator, which knows of forks: only modules are
  imported, and code of a single thread is run.
* A daemon for anything but tasks (Spark has one each for finding, making and planning data sources) loads nothing.
* What cannot be loaded is left out: a worker loads it itself, and says so where its user looks.
"""

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final

from pyspark import daemon

_TASKS: Final = "pyspark.worker"
_MODULES: Final = (
    _TASKS,
    "pandas",
    "spe_adapter.datasource.source",
    "spe_adapter.microbatch.task",
    "spe_adapter.workers.warm",
)


def preload(arguments: Sequence[str]) -> bool:
    """Load what tasks need, if these arguments are a task daemon's; whether they are."""
    if list(arguments) != [_TASKS]:
        return False
    for name in _MODULES:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    # Nothing of this is ever garbage; looking at it would copy its pages into each worker.
    gc.freeze()
    return True


if __name__ == "__main__":
    preload(sys.argv[1:])
    daemon.manager()
