"""Python's garbage collector in Spark's workers: kept from walking through modules after each task.

PySpark's daemon collects garbage behind every task, and a worker that is asked for the next one answers only then. With
the modules of this package loaded that takes 75 ms of processor time, in each task of each batch; what a task itself
leaves is next to nothing.

Invariant: an object is taken out of the collector's sight once at most, and only as part of very many: those that come
from loading modules and compiled code, which stay as long as the process.

Source: Python's `gc.freeze`; `pyspark/daemon.py`.
"""

import gc
from typing import Final

from pyspark import TaskContext

_MIN_OBJECTS: Final = 20_000
"""A collection of so many objects takes about 5 ms. Loading this package makes ten times as many."""
_OLDEST: Final = 2


def spare_loaded_code() -> None:
    """Exempt loaded modules and compiled code from garbage collection. To be called at the start of a task, after the
    daemon's collection: the objects that are old by then last as long as the process. Outside a task nothing happens.
    """
    if TaskContext.get() is not None and len(gc.get_objects(_OLDEST)) > _MIN_OBJECTS:
        gc.freeze()
