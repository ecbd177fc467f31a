"""Keeps Python's garbage collector in Spark's workers from scanning loaded modules after each task.

PySpark's daemon collects garbage after every task, before the worker takes the next one. With the modules of this
package loaded, that takes 75 ms of processor time in each task of each batch, though a task itself leaves almost no
garbage.

Invariant: objects are exempted only in large numbers: those of loaded modules and compiled code, which live as long as
the process.

Source: Python's `gc.freeze`; `pyspark/daemon.py`.
"""

import gc
from typing import Final

from pyspark import TaskContext

_MIN_OBJECTS: Final = 20_000
"""A collection of this many objects takes about 5 ms. Loading this package makes ten times as many."""
_OLDEST: Final = 2


def spare_loaded_code() -> None:
    """Exempt loaded modules and compiled code from garbage collection. Call it at the start of a task, after the
    daemon's collection: objects that are old by then live as long as the process. It does nothing outside a task.
    """
    if TaskContext.get() is not None and len(gc.get_objects(_OLDEST)) > _MIN_OBJECTS:
        gc.freeze()
