"""What `cairn topics describe` makes of the answers of an owner that does not know all of its partitions."""

from __future__ import annotations

import argparse
import socket
import struct
import threading
from contextlib import ExitStack

import pytest

from logstore.base.addresses import Address
from logstore.client import wire
from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import LEADER_NOT_AVAILABLE
from logstore.commands.connection import add_connection_arguments
from logstore.commands.describe_topic import _known, _known_by_owners, _print_unknown
from logstore.format.host_summaries import PlaceSummary
from logstore.format.operator_api import DESCRIBE_TIER, encode_reply_body
from logstore.format.tier_summaries import TieredPartition, TierReply
from tests.client.test_cluster import A, ScriptedCluster, text
from tests.support.limits import PATIENCE_S

PARTITIONS = 3
HIDDEN = 1


class HidingOwner(ScriptedCluster):
    """Host a, which serves the readers of one partition and does not know where it ends. Another host is silent."""

    def _answer(self, address: Address, api_key: int, frame: bytes) -> bytes:
        assert address == A
        if api_key == DESCRIBE_TIER:
            known = (TieredPartition(number, 0, -1, 0, 0) for number in range(PARTITIONS))
            return b"".join(map(bytes, encode_reply_body(TierReply(tuple(known)))))
        if api_key == wire.DESCRIBE_LOG_DIRS:
            sizes = b"".join(struct.pack(">iqqb", number, 100, 0, 0) for number in range(PARTITIONS))
            dirs = struct.pack(">h", 0) + text("/data") + struct.pack(">i", 1) + text("t")
            return struct.pack(">ii", 0, 1) + dirs + struct.pack(">i", PARTITIONS) + sizes
        assert api_key == wire.LIST_OFFSETS
        is_end = struct.pack(">iq", 0, wire.LATEST) in frame
        found = b"".join(
            struct.pack(">ihqq", number, LEADER_NOT_AVAILABLE if is_end and number == HIDDEN else 0, -1, 7)
            for number in range(PARTITIONS)
        )
        return struct.pack(">ii", 0, 1) + text("t") + struct.pack(">i", PARTITIONS) + found


def test_an_end_that_is_hidden_is_that_partitions_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The offsets and sizes of the owner's other partitions are shown, and why this one's end is not; no other host is
    asked, and nothing is waited for.
    """
    cluster = HidingOwner()
    with Client([A], cluster, limit_s=10) as client:
        found = _known(client, [TopicPartition("t", number) for number in range(PARTITIONS)])
    cluster.close()
    assert [entry["latest"] for entry in found] == [7, None, 7]
    assert [entry["earliest"] for entry in found] == [7] * PARTITIONS
    assert [entry["bytes"] for entry in found] == [100] * PARTITIONS
    assert [entry["offsets_error"] for entry in found] == [None, "LEADER_NOT_AVAILABLE", None]
    assert cluster.now_s == 0
    _print_unknown(found)
    assert capsys.readouterr().out.startswith("partition 1: its latest offset is unknown (LEADER_NOT_AVAILABLE).")


class WaitingOwner(HidingOwner):
    """An owner at a real address, which answers nobody before all owners have been asked."""

    def __init__(self, all_asked: threading.Barrier) -> None:
        super().__init__()
        self._all_asked = all_asked
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname()[:2])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._all_asked.wait(PATIENCE_S)
        self._serve(A, connection)

    def close(self) -> None:
        """End it."""
        self._listener.close()
        super().close()


def test_owners_are_asked_together() -> None:
    """Three owners of which none answers before the others have been asked: what all of them know is shown."""
    all_asked = threading.Barrier(PARTITIONS)
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    arguments = parser.parse_args(["--timeout", str(PATIENCE_S)])
    with ExitStack() as stack:
        owners = [WaitingOwner(all_asked) for _ in range(PARTITIONS)]
        for owner in owners:
            stack.callback(owner.close)
        places = [
            PlaceSummary(partition, "a", owner.address, 1, 1, ("a",), (), 1, 0)
            for partition, owner in enumerate(owners)
        ]
        found = _known_by_owners("t", places, arguments)
    assert {partition: entry["earliest"] for partition, entry in found.items()} == dict.fromkeys(range(PARTITIONS), 7)
