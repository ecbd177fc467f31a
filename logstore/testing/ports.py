"""Ports for servers whose address must be known before they start, or that come back at the same one.

Invariants:
* The ports lie below those that Linux gives to connections and to servers that ask for any port
  (`ip_local_port_range` begins at 32768 unless it is set): no connection takes one before its server listens.
* Each is held, without listening, by the process that has chosen it, until it has chosen HELD others: other processes
  that choose ports here choose different ones. Servers that bind with SO_REUSEADDR, as nearly all do, may use it.
"""

import os
import socket
from collections import deque
from random import SystemRandom
from typing import Final

FIRST: Final = 10_000
LAST: Final = 32_767
HELD: Final = 256
MAX_TRIES: Final = 10_000
_held: Final[deque[int]] = deque()
"""Open files; they end with the process."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port of a loopback address that nobody listens on, chosen at random. Raises OSError if there is none."""
    family, chance = socket.AF_INET6 if ":" in host else socket.AF_INET, SystemRandom()
    for _ in range(MAX_TRIES):
        holder = socket.socket(family)
        port = chance.randint(FIRST, LAST)
        try:
            holder.bind((host, port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(holder.detach())
        if len(_held) > HELD:
            os.close(_held.popleft())
        return port
    raise OSError(f"of the ports {FIRST} to {LAST} of {host} none of {MAX_TRIES} tried is free")


def free_ports(number: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports; see `free_port`."""
    return [free_port(host) for _ in range(number)]
