"""What a NameNode's and DataNodes' logs say about where blocks went: the proof that a plan was followed.

The NameNode names a new block's DataNodes in pipeline order (`BLOCK* allocate`); a DataNode names from where each block
reached it (`Receiving … src … dest`) and how many bytes it stored (`op: HDFS_WRITE`). Neither knows the other's line.

Invariants:
* Only whole lines count: the last one of a log that is being written may be torn and is left out.
* Addresses are IP:port, as Hadoop prints them; callers give them names.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ALLOCATE = re.compile(r"BLOCK\* allocate (blk_\d+)_\d+, replicas=([0-9.:, ]+) for (.+)$")
_RECEIVING = re.compile(r"Receiving \S+:(blk_\d+)_\d+ src: /([0-9.]+):(\d+) dest: /([0-9.]+):(\d+)$")
_STORED = re.compile(
    r"src: /[0-9.]+:\d+, dest: /([0-9.]+):\d+, .*bytes: (\d+), op: HDFS_WRITE,.* blockid: \S+:(blk_\d+)_\d+,"
)


class Allocation(NamedTuple):
    """A block the NameNode gave to a file, and its DataNodes (IP:port) in pipeline order."""

    block: str
    replicas: tuple[str, ...]
    path: str


class Receipt(NamedTuple):
    """A block that reached the DataNode at the IP address `target` from the IP address `source`."""

    block: str
    source: str
    target: str


class Stored(NamedTuple):
    """A block that the DataNode at `target` took to its end, and its bytes there."""

    block: str
    target: str
    size_bytes: int


def whole_lines(log: str) -> Iterator[str]:
    """A log's lines, without a last one that is not ended."""
    return (line[:-1] for line in log.splitlines(keepends=True) if line.endswith("\n"))


def allocations(log: str) -> Iterator[Allocation]:
    """Every block that a NameNode's log says it allocated, in order."""
    for line in whole_lines(log):
        if "BLOCK* allocate " in line and (found := _ALLOCATE.search(line)):
            block, replicas, path = found.groups()
            yield Allocation(block, tuple(replica.strip() for replica in replicas.split(",")), path)


def receipts(log: str) -> Iterator[Receipt]:
    """Every block that a DataNode's log says it received, and from where, in order."""
    for line in whole_lines(log):
        if "Receiving " in line and (found := _RECEIVING.search(line)):
            yield Receipt(found[1], found[2], found[4])


def stored(log: str) -> Iterator[Stored]:
    """Every block that a DataNode's log says it wrote to the end, in order."""
    for line in whole_lines(log):
        if "op: HDFS_WRITE" in line and (found := _STORED.search(line)):
            yield Stored(found[3], found[1], int(found[2]))


def travelled(block: str, arrivals: Iterable[Receipt]) -> tuple[str, ...]:
    """The chain of IP addresses a block travelled, from what DataNodes received; empty if they contradict each other.

    The first DataNode has the block from itself (WebHDFS: the client speaks HTTP to it, and it writes to itself) or
    from an address that is no DataNode's.
    """
    came_from: dict[str, str] = {}
    for arrival in arrivals:
        if arrival.block == block:
            if arrival.target in came_from:
                return ()  # a second pipeline for the same block
            came_from[arrival.target] = arrival.source
    first = [target for target, source in came_from.items() if source == target or source not in came_from]
    if len(first) != 1:
        return ()
    chain = [first[0]]
    while len(chain) < len(came_from):
        following = [target for target, source in came_from.items() if source == chain[-1] and target not in chain]
        if len(following) != 1:
            return ()
        chain.append(following[0])
    return tuple(chain)
