"""`python -m spe_adapter.checkpoint STATE_DIRECTORY`: the I/O service of a state directory.

Tasks start it when they need it; it ends by itself. Log lines go to standard error.

Invariant: exit status 0 for every orderly end, 2 if another service runs or the directory cannot be used.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from logstore.base.report import Reporter
from logstore.base.system import SystemClock
from spe_adapter.checkpoint.bases import freezing
from spe_adapter.checkpoint.errors import ServiceRefused
from spe_adapter.checkpoint.service import IDLE_S, IoService
from spe_adapter.checkpoint.service_place import LOCK_OPTION, hold_lock

PROGRAM = "python -m spe_adapter.checkpoint"
NICENESS = 10


def main(words: Sequence[str] | None = None) -> int:
    """Serve until the service is idle, a signal ends it, or its directory is gone; the exit status."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Writes checkpoints of the state in a directory.")
    parser.add_argument("state_directory", type=Path, help="the option stateDirectory of the queries")
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="exit after this time without a note from a task")
    parser.add_argument(LOCK_OPTION, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    try:
        lock = hold_lock(arguments.state_directory, arguments.lock_descriptor)
    except (ServiceRefused, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)  # noqa: T201 - a program's message
        return 2
    try:
        os.nice(NICENESS)
        clock = SystemClock()
        report = Reporter(clock)
        service = IoService(
            arguments.state_directory, freezing(arguments.state_directory), report, clock, arguments.idle_s
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: service.stop())
        service.run()
        report.flush(is_end=True)
    finally:
        os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
