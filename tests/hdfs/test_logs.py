"""Reading Hadoop's logs: real lines, what a torn or foreign line does, and chains put together from arrivals."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.hdfs.logs import Allocation, Receipt, Stored, allocations, receipts, stored, travelled

NAMENODE = """\
2026-11-21 11:50:19,315 INFO PlanServer: Plan table at http://127.20.0.1:9875/v1/plans
2026-11-21 11:50:22,331 INFO BlockPlacementPolicy: Plan [127.20.0.12] for /c/a/0 is followed, 1 of its nodes
2026-11-21 11:50:22,333 INFO StateChange: BLOCK* allocate blk_1073741825_1001, \
replicas=127.20.0.12:44809, 127.20.0.10:40379, 127.20.0.13:34941 for /c/a/0
2026-11-21 11:50:22,623 INFO StateChange: BLOCK* allocate blk_1073741826_1002, \
replicas=127.20.0.12:44809 for /with blank, replicas=no for /x
2026-11-21 11:50:22,650 INFO StateChange: DIR* completeFile: /c/a/0 is closed by DFSClient_NONMAPREDUCE_1539130328_71
"""
DATANODE = """\
2026-11-21 11:50:22,394 INFO DataNode: Receiving BP-873611454-127.0.0.1-1795261814593:blk_1073741825_1001 \
src: /127.20.0.12:56187 dest: /127.20.0.10:44809
2026-11-21 11:50:22,579 INFO clienttrace: src: /127.20.0.12:56187, dest: /127.20.0.10:44809, volume: /data/2, \
bytes: 300000, op: HDFS_WRITE, cliID: DFSClient_NONMAPREDUCE_1539130328_71, offset: 0, \
srvID: b9f5de22-3a59-4731-ab0f-20311cae7ded, blockid: BP-873611454-127.0.0.1-1795261814593:blk_1073741825_1001, \
duration(ns): 43877645
2026-11-21 11:50:22,583 INFO DataNode: PacketResponder: BP-873611454-127.0.0.1-1795261814593:blk_1073741825_1001, \
type=HAS_DOWNSTREAM_IN_PIPELINE, downstreams=2:[127.20.0.10:40379, 127.20.0.13:34941] terminating
"""


def test_the_namenodes_lines_give_files_blocks_and_datanodes_in_order() -> None:
    """A block's DataNodes come in the order printed, which is the pipeline's; paths may hold anything."""
    first, second = allocations(NAMENODE)
    replicas = ("127.20.0.12:44809", "127.20.0.10:40379", "127.20.0.13:34941")
    assert first == Allocation("blk_1073741825", replicas, "/c/a/0")
    assert second == Allocation("blk_1073741826", ("127.20.0.12:44809",), "/with blank, replicas=no for /x")


def test_the_datanodes_lines_give_arrivals_and_stored_bytes() -> None:
    """From where a block came, and how much of it was written."""
    assert list(receipts(DATANODE)) == [Receipt("blk_1073741825", "127.20.0.12", "127.20.0.10")]
    assert list(stored(DATANODE)) == [Stored("blk_1073741825", "127.20.0.10", 300_000)]


def test_a_torn_last_line_is_left_out() -> None:
    """However much of a line has reached the file: no half line is taken for a whole one."""
    whole = NAMENODE[: NAMENODE.index("127.20.0.12:44809 for /with")]
    for end in range(len(whole) + 1):
        assert len(list(allocations(whole[:end]))) == (end > whole.index("/c/a/0\n2026-11-21 11:50:22,623") + 6)
    for end in range(DATANODE.index("\n") + 1):
        assert not list(receipts(DATANODE[:end]))


HOSTS = st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True)


@given(HOSTS, st.randoms(use_true_random=False))
def test_a_chain_is_found_whatever_the_order_of_the_logs(hosts: list[int], random: object) -> None:
    """Arrivals of one pipeline, shuffled and between others' blocks, give back its chain."""
    chain = tuple(f"10.0.0.{host}" for host in hosts)
    arrivals = [Receipt("b", source, target) for source, target in zip((chain[0], *chain), chain, strict=False)]
    others = [Receipt("other", "10.0.0.1", f"10.0.1.{host}") for host in hosts]
    mixed = [*others, *arrivals]
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert travelled("b", mixed) == chain


def test_a_client_that_is_no_datanode_is_not_part_of_the_chain() -> None:
    """A writer elsewhere sends to the first DataNode; the chain begins there."""
    arrivals = [Receipt("b", "10.9.9.9", "10.0.0.1"), Receipt("b", "10.0.0.1", "10.0.0.2")]
    assert travelled("b", arrivals) == ("10.0.0.1", "10.0.0.2")


def test_contradicting_arrivals_give_no_chain() -> None:
    """A second pipeline for a block, two beginnings, a fork: nothing is claimed."""
    begin, middle = Receipt("b", "1", "1"), Receipt("b", "1", "2")
    for more in (Receipt("b", "3", "2"), Receipt("b", "9", "4"), Receipt("b", "1", "3")):
        for order in permutations([begin, middle, more]):
            assert travelled("b", order) == ()
    assert travelled("b", []) == ()
