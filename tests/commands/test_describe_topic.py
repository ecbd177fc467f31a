"""What `cairn topics describe` makes of the answers of an owner that does not know all of its partitions."""

from __future__ import annotations

import struct

import pytest

from logstore.base.addresses import Address
from logstore.client import wire
from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import LEADER_NOT_AVAILABLE
from logstore.commands.describe_topic import _known, _print_unknown
from logstore.format.operator_api import DESCRIBE_TIER, encode_reply_body
from logstore.format.tier_summaries import TieredPartition, TierReply
from tests.client.test_cluster import A, ScriptedCluster, text

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
