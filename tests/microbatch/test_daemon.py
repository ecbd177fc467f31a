"""Workers forked from a daemon that has loaded what they need."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.limits import PATIENCE_S

TASKS = """
import os, sys, time
from spe_adapter.daemon import preload

def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{task}/comm").read().strip())
        except OSError:  # it has ended meanwhile
            pass
    return [name for name in names if name != "jemalloc_bg_thd"]

assert preload(["pyspark.worker"])
end_s = time.monotonic() + PATIENCE_S
while len(threads()) != 1:  # jemalloc's thread gets its name after its start
    assert time.monotonic() < end_s, threads()
    time.sleep(0.01)
before = set(sys.modules)
child = os.fork()
if child == 0:
    from spe_adapter.workers.warm import warm
    warm()
    loaded = sorted(set(sys.modules) - before)
    print(*loaded, flush=True)
    os._exit(bool(loaded))
assert os.waitpid(child, 0)[1] == 0, "a worker fails, or loads modules of its own"
"""
OTHERS = """
import sys
from spe_adapter.daemon import preload
assert not preload(["pyspark.sql.worker.lookup_data_sources"])
assert not {"numpy", "pyarrow", "numba", "pandas"} & set(sys.modules)
"""
TASK_ONLY = """
import sys
import spe_adapter.microbatch.task, spe_adapter.microbatch.shuffle
assert not {f"spe_adapter.microbatch.{name}" for name in ("driver", "query", "joining", "resetting")} & set(sys.modules)
"""


def run(program: str) -> None:
    """A program of its own: what it loads must not be here already."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    told = f"PATIENCE_S = {PATIENCE_S}\n{program}"
    subprocess.run([sys.executable, "-c", told], check=True, env=environment)


def test_a_worker_finds_all_it_needs() -> None:
    """In front of the fork runs no thread that a worker would miss; behind it, rows are processed without an import."""
    run(TASKS)


def test_other_daemons_load_nothing() -> None:
    """Those that look for data sources need none of it."""
    run(OTHERS)


def test_tasks_do_without_the_drivers_side() -> None:
    """A worker need not load the modules that plan and commit epochs."""
    run(TASK_ONLY)
