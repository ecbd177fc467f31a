"""`cairn topics list` of a cluster: all hosts are asked at the same time, and who has gone is looked for again."""

from __future__ import annotations

import argparse
import json
import socket
import struct
import threading
from contextlib import ExitStack

import pytest

from logstore.base.addresses import Address
from logstore.client import wire
from logstore.commands.connection import add_connection_arguments
from logstore.commands.topics import _topics
from tests.client.test_cluster import ScriptedCluster, text
from tests.support.limits import PATIENCE_S

HOSTS = 3


class SizedHost(ScriptedCluster):
    """A host at a real address, which says its size of each topic when all hosts have been asked for theirs."""

    def __init__(self, number: int, hosts: list[Address], all_asked: threading.Barrier) -> None:
        super().__init__()
        self._number, self._hosts, self._all_asked = number, hosts, all_asked
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listener.getsockname()[:2])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(self.address, connection), daemon=True).start()

    def _answer(self, address: Address, api_key: int, frame: bytes) -> bytes:
        if api_key == wire.METADATA:
            return self._metadata()
        assert api_key == wire.DESCRIBE_LOG_DIRS
        self._all_asked.wait(PATIENCE_S)
        sizes = struct.pack(">iqqb", self._number, 100 + self._number, 0, 0) + struct.pack(">iqqb", HOSTS, 1, 0, 0)
        dirs = struct.pack(">h", 0) + text("/data") + struct.pack(">i", 1) + text("t")
        return struct.pack(">ii", 0, 1) + dirs + struct.pack(">i", 2) + sizes

    def _metadata(self) -> bytes:
        """All hosts, and one topic; the first answer is as old as its host."""
        count, hosts = (
            len(self._hosts),
            b"".join(
                struct.pack(">i", number) + text(host.host) + struct.pack(">ih", host.port, -1)
                for number, host in enumerate(self._hosts)
            ),
        )
        if len(self._hosts) > HOSTS:
            del self._hosts[HOSTS:]
        partitions = b"".join(struct.pack(">hiiii", 0, number, 0, 0, 0) for number in range(HOSTS + 1))
        topic = struct.pack(">h", 0) + text("t") + struct.pack(">bi", 0, HOSTS + 1) + partitions
        return struct.pack(">ii", 0, count) + hosts + text("cluster") + struct.pack(">ii", 0, 1) + topic

    def close(self) -> None:
        """End it."""
        self._listener.close()
        super().close()


@pytest.mark.parametrize("is_one_gone", [False, True], ids=["all", "gone"])
def test_hosts_are_asked_together(capsys: pytest.CaptureFixture[str], *, is_one_gone: bool) -> None:
    """No host answers before all have been asked. Each partition counts once, by the host that has most of it; where a
    host is named that is gone, the hosts are looked up again.
    """
    all_asked = threading.Barrier(HOSTS)
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    hosts: list[Address] = []
    with ExitStack() as stack:
        for number in range(HOSTS):
            host = SizedHost(number, hosts, all_asked)
            stack.callback(host.close)
            hosts.append(host.address)
        if is_one_gone:
            with socket.create_server(("127.0.0.1", 0)) as gone:
                hosts.append(Address(*gone.getsockname()[:2]))
        servers = str(hosts[0])
        arguments = parser.parse_args(["--servers", servers, "--timeout", str(PATIENCE_S), "--json"])
        arguments.action = "list"
        assert _topics(arguments) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed == {"topics": [{"topic": "t", "partitions": HOSTS + 1, "bytes": 100 + 101 + 102 + 1}]}
