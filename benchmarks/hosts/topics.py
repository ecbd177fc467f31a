"""The topics of each part, and what all parts share.

Invariant: a topic's streams are led by whom the cluster chose; a load asks for the leaders, and sends to them.
"""

from __future__ import annotations

from rich.console import Console

from benchmarks.harness.leaders import View, wait_view
from benchmarks.harness.meter import peak_memory_mb, resident_memory_mb
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.raw import RawConnection
from benchmarks.harness.report import Rows
from benchmarks.harness.trios import Trio
from benchmarks.hosts.plan import CAIRN, KAFKA, KAFKA_FLUSH, PARTITIONS, REPLICAS, Plan

PATIENCE_S = 120.0
FAILOVER, STEADY, HELD = "failover", "steady", "held"
"""The topics of the parts other than `produce`."""
HELD_PARTITIONS = 100
IN_SYNC = {"min.insync.replicas": "2"}
FLUSH = {"flush.messages": "1"}


class Measured:
    """A run's rows, and what had to be left out."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan = plan
        self.rows = Rows()
        self.left_out: list[str] = []
        self.console = console

    def leave_out(self, why: str) -> None:
        """Say at once, and in the result, what is missing."""
        self.left_out.append(why)
        self.console.print(f"left out: {why}", markup=False)


def peers_of(trio: Trio) -> tuple[str, ...]:
    """The names under which a cluster is measured."""
    return (CAIRN,) if trio.name == CAIRN else (KAFKA, KAFKA_FLUSH)


def topic_of(peer: str, partitions: int) -> str:
    """The topic of `produce`."""
    return f"{'flush' if peer == KAFKA_FLUSH else 'plain'}-{partitions}"


def topics_of(trio: Trio, part: str) -> dict[str, tuple[int, bool]]:
    """The topics of a part: partitions, and whether Kafka flushes them."""
    if part == "produce":
        return {topic_of(peer, count): (count, peer == KAFKA_FLUSH) for peer in peers_of(trio) for count in PARTITIONS}
    return {FAILOVER: (1, False)} if part == "failover" else {STEADY: (1, False), HELD: (HELD_PARTITIONS, False)}


def create(trio: Trio, part: str) -> None:
    """Create the topics of a part, and wait until every partition has its three members."""
    for port in trio.ports():
        if wait_view(lambda port=port: [port], None, lambda found: len(found.ports) == REPLICAS, PATIENCE_S) is None:  # type: ignore[misc]
            raise PeerFailed(f"{trio.name}: not {REPLICAS} hosts after {PATIENCE_S:g} s, as port {port} says")
    wanted = topics_of(trio, part)
    with RawConnection(trio.ports()[0], PATIENCE_S) as connection:
        for topic, (partitions, is_flushed) in wanted.items():
            connection.create_topic(topic, partitions, IN_SYNC | (FLUSH if is_flushed else {}), replicas=REPLICAS)
    for topic, (partitions, _) in wanted.items():
        wait_whole(trio, topic, partitions)


def delete(trio: Trio, part: str) -> None:
    """Delete the topics of a part: no part is to feel what another has written."""
    with RawConnection(trio.ports()[0], PATIENCE_S) as connection:
        for topic in topics_of(trio, part):
            connection.delete_topic(topic)


def wait_whole(trio: Trio, topic: str, partitions: int = 1, *, replicas: int = REPLICAS) -> View:
    """Until every partition has a leader and so many members in sync. Raises PeerFailed when patience ends."""
    found = wait_view(trio.ports, topic, lambda seen: seen.is_whole(replicas, partitions=partitions), PATIENCE_S)
    if found is None:
        raise PeerFailed(f"{trio.name}: {topic} has not {replicas} members in sync after {PATIENCE_S:g} s")
    return found


def note_memory(measured: Measured, trio: Trio, moment: str) -> None:
    """A row for each host: what it has resident, and the most that it ever had."""
    for node, pid in trio.pids().items():
        measured.rows.add(
            part="memory",
            peer=trio.name,
            node=node,
            moment=moment,
            resident_mb=resident_memory_mb(pid),
            peak_mb=peak_memory_mb(pid),
        )
