"""Ports that tests choose for servers before these start."""

from __future__ import annotations

import socket
import subprocess
import sys
from itertools import pairwise

import pytest

from logstore.testing import ports
from logstore.testing.ports import FIRST, LAST, free_port, free_ports
from tests.support.limits import PATIENCE_S

BIND = "import socket, sys; socket.socket().bind(('127.0.0.1', int(sys.argv[1])))"


def test_a_chosen_port_is_kept_for_its_server() -> None:
    """Nobody is given it who binds without knowing of it; nobody answers there before its server does; its server
    listens, ends, and listens again.
    """
    port = free_port()
    assert FIRST <= port <= LAST
    taken = subprocess.run([sys.executable, "-c", BIND, str(port)], check=False, capture_output=True, text=True)
    assert "Address already in use" in taken.stderr
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S),
        ):
            server.accept()[0].close()


def test_so_many_ports_are_held_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports are different, and the oldest is given back when a process has chosen many."""
    monkeypatch.setattr(ports, "HELD", len(ports._held) + 3)
    found = free_ports(3)
    assert all(one != other for one, other in pairwise(sorted(found)))
    held = len(ports._held)
    free_ports(5)
    assert len(ports._held) == held
