"""Has a planner's code compiled by a process of its own, which ends behind it.

Invariant: nothing that plans is loaded here: a host that stands by may lead without delay, and holds none of the
compiler's memory.
"""

import os
import subprocess
import sys
from typing import Final

import trio

NOT_KEPT: Final = 3
"""The exit status of a process that compiled, and found no directory that it may keep the code in."""
ROOM: Final = "scheduler.coordinator.warm_up"


async def compile_ahead(planner: str) -> bool:
    """Have the code of a planner (a name of `PLANNERS`) compiled, unless that was done before; whether it is kept.

    A cancellation ends the process. What the process says of a failure goes to stderr.
    """
    try:
        finished = await trio.run_process(
            [sys.executable, "-P", "-m", ROOM, planner],
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": _own_path()},
        )
    except OSError:  # no process can be started: the caller compiles by itself
        return False
    return finished.returncode == 0


def _own_path() -> str:
    """Where this process finds its modules."""
    return os.pathsep.join(os.path.abspath(path) for path in sys.path)
