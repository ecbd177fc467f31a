"""Cleans up after a program that died: kills the process groups it named and removes its directories.

Runs as a process of its own, by path, with nothing but the standard library. Its standard input is a pipe whose other
end only the program holds: when the program ends, however it ends, the pipe closes. Lines: `+group N`, `-group N`,
`+directory PATH`, `-directory PATH`.

Invariants:
* It acts once, when its input ends, on what is named by then and not taken back.
* It belongs to no terminal and ignores the signals that end programs in order: it must outlive its program.
"""

import os
import shutil
import signal
import sys
import time

WAIT_S = 10.0
"""How long it waits for killed processes to be gone before their directories are removed."""


def main() -> None:
    """Read what to keep an eye on, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kept: dict[str, set[str]] = {"group": set(), "directory": set()}
    for line in sys.stdin:
        kind, _, value = line.rstrip("\n").partition(" ")
        if kind.startswith("+"):
            kept[kind[1:]].add(value)
        else:
            kept[kind[1:]].discard(value)
    groups = {int(group) for group in kept["group"]}
    deadline = time.monotonic() + WAIT_S
    while groups and time.monotonic() < deadline:
        groups = {group for group in groups if kill(group)}
        time.sleep(0.02)
    for directory in kept["directory"]:
        shutil.rmtree(directory, ignore_errors=True)


def kill(group: int) -> bool:
    """Kill a process group; whether there was still something of it."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
