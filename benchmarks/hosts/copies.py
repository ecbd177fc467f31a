"""A host comes back with an empty disk: what is copied to it, and what a producer at a steady rate feels of it.

Invariants:
* The host that is lost does not lead the producer's partition: what is measured is copies, not a failover.
* The producer is measured from the moment at which the host serves again until it has what another host has, and never
  for less time than when all was well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from random import Random

from benchmarks.harness.load import payload, produce_paced
from benchmarks.harness.meter import percentiles
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.raw import RawConnection, RawFailed, produce_frame, produced_error
from benchmarks.harness.report import Row
from benchmarks.harness.trios import NODES, Trio
from benchmarks.hosts.topics import HELD, HELD_PARTITIONS, PATIENCE_S, STEADY, Measured, note_memory, wait_whole

RATE_S = 200.0
"""Requests of 1 KB a second, whether answered or not; latency counts from when each was due."""
PIECE_S = 0.25
"""Of the steady load, between two looks at what has been copied."""
FILL_BYTES = 64 * 1024
FILL_IN_FLIGHT = 4
ENOUGH = 0.98
"""Of what another host holds: what is written meanwhile may be on its way."""
STEADY_LOAD = payload(1024 - 61 - 10, batch_bytes=1024)


def run(measured: Measured, trios: Sequence[Trio], chance: Random) -> None:
    """All rounds: in each, both clusters lose a host's disk. Before the first, the topic that is lost is filled."""
    for trio in trios:
        _fill(trio, measured.plan.held_mb)
    for number in range(1, measured.plan.losses + 1):
        for trio in chance.sample(trios, len(trios)):
            row = _lose_disk(trio, measured.plan.steady_s)
            measured.rows.add(part="copies", round=number, peer=trio.name, **row)
            note_memory(measured, trio, "copies")
            measured.console.print(f"  {trio.name}: {row}", markup=False)


def _fill(trio: Trio, megabytes: int) -> None:
    """So much into all partitions of a topic, evenly."""
    load = payload(1000, batch_bytes=FILL_BYTES)
    each = -(-megabytes * 1_000_000 // (HELD_PARTITIONS * len(load.batch)))
    for port, partitions in wait_whole(trio, HELD, HELD_PARTITIONS, replicas=1).leaders():
        frames = [produce_frame(HELD, partition, load.batch) for partition in partitions for _ in range(each)]
        with RawConnection(port, PATIENCE_S) as connection:
            for at in range(len(frames) + FILL_IN_FLIGHT):
                if at < len(frames):
                    connection.send(frames[at])
                if at >= FILL_IN_FLIGHT and (error := produced_error(connection.receive(), HELD)):
                    raise RawFailed(f"producing to {HELD}: error {error}")


def _lose_disk(trio: Trio, steady_s: float) -> Row:
    """Measure the producer when all is well, lose a host's disk, and measure it again while the disk is filled."""
    leader = wait_whole(trio, STEADY).partitions[0].leader
    wait_whole(trio, HELD, HELD_PARTITIONS)
    lost = next(node for node in NODES if node != leader)
    os.sync()
    begun_s = time.monotonic()
    calm_s, calm_failures = _paced(trio, lambda: time.monotonic() - begun_s >= steady_s)
    held = trio.kept_bytes(lost, HELD)
    trio.kill(lost)
    trio.wipe(lost)
    _wait_without(trio, lost)
    trio.begin(lost)
    trio.wait_ready(lost)
    ready_s = time.monotonic()
    done_s: list[float] = []

    def is_over() -> bool:
        now_s = time.monotonic()
        if now_s - ready_s > PATIENCE_S:
            raise PeerFailed(f"{trio.name}: not copied after {PATIENCE_S:g} s: {trio.kept_bytes(lost, HELD):,} bytes")
        if not done_s and trio.kept_bytes(lost, HELD) >= ENOUGH * trio.kept_bytes(leader, HELD):
            done_s.append(now_s)
        return bool(done_s) and now_s - ready_s >= steady_s

    beside_s, beside_failures = _paced(trio, is_over)
    calm, beside = percentiles(calm_s), percentiles(beside_s)
    return {
        "held_bytes": held,
        "copied_bytes": trio.kept_bytes(lost, HELD),
        "copies_s": done_s[0] - ready_s,
        "calm_p50_ms": calm.p50_ms,
        "calm_p99_ms": calm.p99_ms,
        "beside_p50_ms": beside.p50_ms,
        "beside_p99_ms": beside.p99_ms,
        "p99_ratio": beside.p99_ms / calm.p99_ms,
        "calm_requests": len(calm_s),
        "beside_requests": len(beside_s),
        "calm_failures": calm_failures,
        "beside_failures": beside_failures,
    }


def _paced(trio: Trio, is_over: Callable[[], bool]) -> tuple[list[float], int]:
    """The latencies of the steady producer until something is over, and how often it failed: its partition has moved,
    say. A piece that failed counts as one request, which took until the next piece began.
    """
    latencies_s: list[float] = []
    failures = 0
    while not is_over():
        begun_s = time.monotonic()
        try:
            port = wait_whole(trio, STEADY, replicas=1).leaders()[0][0]
            latencies_s += produce_paced(port, STEADY, STEADY_LOAD, per_second=RATE_S, seconds=PIECE_S).latencies_s
        except (RawFailed, OSError):
            time.sleep(PIECE_S)
            latencies_s.append(time.monotonic() - begun_s)
            failures += 1
    return latencies_s, failures


def _wait_without(trio: Trio, lost: int) -> None:
    """Until no partition waits for a host that is gone. Raises PeerFailed when patience ends."""
    for topic, partitions in ((STEADY, 1), (HELD, HELD_PARTITIONS)):
        found = wait_whole(trio, topic, partitions, replicas=len(NODES) - 1)
        deadline_s = time.monotonic() + PATIENCE_S
        while any(lost in each.in_sync or each.leader == lost for each in found.partitions):
            if time.monotonic() > deadline_s:
                raise PeerFailed(f"{trio.name}: {topic} still counts on host {lost} after {PATIENCE_S:g} s")
            time.sleep(PIECE_S)
            found = wait_whole(trio, topic, partitions, replicas=len(NODES) - 1)
