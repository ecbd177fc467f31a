"""Cleans up after a program that died: kills the processes it started and removes its directory.

Runs as a process of its own, by path (`keeper.py DIRECTORY`), with nothing but the standard library. Its standard input
is a pipe whose other end only the program holds: when the program ends, however it ends, the pipe closes.

Invariants:
* It acts once, when its input ends, on every process in whose environment MARK says DIRECTORY: also on one that was
  being started when the program died, and never on one that only has the number of one that is gone.
* It belongs to no terminal and ignores the signals that end programs in order: it must outlive its program.
"""

import os
import shutil
import signal
import sys
import time
from threading import Event

MARK = "CAIRN_HDFS_DIRECTORY"
WAIT_S = 120.0
"""How long it waits for killed processes to be gone before their directory is removed."""
PAUSE_S = 0.02
"""Between two looks; a process that was just forked has its environment by then."""


def main(directory: str) -> None:
    """Wait for the program's end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while sys.stdin.read(1 << 10):
        pass
    deadline = time.monotonic() + WAIT_S
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline:
        found = marked(directory)
        for pid in found:
            kill(pid)
        quiet = 0 if found else quiet + 1
        Event().wait(PAUSE_S)
    shutil.rmtree(directory, ignore_errors=True)


def marked(directory: str) -> list[int]:
    """The processes that belong to a directory; ended ones that nobody waited for are none."""
    wanted = f"{MARK}={directory}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environment = file.read()
            except OSError:  # it is gone, or somebody else's
                continue
            if wanted in environment.split(b"\0"):
                found.append(int(name))
    return found


def kill(pid: int) -> None:
    """Kill a process, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main(sys.argv[1])
