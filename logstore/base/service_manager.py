"""Tells systemd that the service is ready, alive or stopping (sd_notify), without a library.

Invariants: without a service manager that listens (`NOTIFY_SOCKET`), nothing happens; a message that cannot be sent
stops nothing. Source: sd_notify(3), "Standalone Implementations".
"""

import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


def notify(state: str) -> None:
    """Tell the service manager a state, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall(state.encode())


def watchdog_s() -> float | None:
    """How often the service manager wants a sign of life at least, in seconds; None: never."""
    wanted = os.environ.get("WATCHDOG_USEC", "")
    is_for_others = os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid())
    return int(wanted) / 1_000_000 if wanted.isdigit() and int(wanted) and not is_for_others else None


async def run_watchdog(sleep: Callable[[float], Awaitable[object]]) -> None:
    """Give signs of life, twice as often as wanted, until cancelled; returns if none are wanted."""
    interval_s = watchdog_s()
    while interval_s is not None:
        notify(ALIVE)
        await sleep(interval_s / 2)
