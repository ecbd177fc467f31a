"""A host comes back with an empty disk: what is copied to it, and what a producer at a steady rate feels of it.

Invariants:
* The host that is lost does not lead the producer's partition: what is measured is copies, not a failover. Once it is
  back the cluster may give it this partition too, as its share (`logstore.cluster.members.deal`). Requests that such a
  move disturbs are none that copies delay, and are told by themselves.
* Whether another host leads that partition at the end is told (`has_moved`).
* One producer (`benchmarks.harness.steady`) goes on through the whole round. What is compared are the requests that
  were due when all was well, and those that were due from the moment at which the host serves again until it has what
  another host has, and never for less time than when all was well.
* Who measures looks at the hosts and their files as often when all is well as beside copies: looks take processor time.
* The first part of the second is told by itself: until all partitions have the host as a member again. It is no copy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from benchmarks.harness.disks import settle_disks
from benchmarks.harness.leaders import view
from benchmarks.harness.load import payload
from benchmarks.harness.meter import percentiles
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.raw import RawConnection, RawFailed, produce_frame, produced_error
from benchmarks.harness.report import Row
from benchmarks.harness.steady import SteadyOrders, SteadyProducer
from benchmarks.harness.trios import NODES, Trio
from benchmarks.hosts.topics import HELD, HELD_PARTITIONS, PATIENCE_S, STEADY, Measured, note_memory, wait_whole

RATE_S = 200.0
"""Requests of 1 KB a second, whether answered or not; latency counts from when each was due."""
LOOK_S = 0.25
"""Between two looks at what has been copied."""
WARM_S = 1.0
"""Of the steady load, before what is measured."""
ATTEMPTS, PAUSE_S = 5, 1.0
"""To fill the topic."""
FILL_BYTES = 64 * 1024
FILL_IN_FLIGHT = 4
ENOUGH = 0.98
"""Of what another host holds: what is written meanwhile may be on its way."""


def run(measured: Measured, trios: Sequence[Trio], chance: Random) -> None:
    """All rounds: in each, both clusters lose a host's disk. Before the first, the topic that is lost is filled."""
    for trio in trios:
        fill(trio, measured.plan.held_mb)
    for number in range(1, measured.plan.losses + 1):
        for trio in chance.sample(trios, len(trios)):
            row = _lose_disk(trio, measured.plan.steady_s)
            measured.rows.add(part="copies", round=number, peer=trio.name, **row)
            note_memory(measured, trio, "copies")
            measured.console.print(f"  {trio.name}: {row}", markup=False)


def fill(trio: Trio, megabytes: int, partitions: int = HELD_PARTITIONS) -> None:
    """So much into all partitions of a topic, evenly."""
    load = payload(1000, batch_bytes=FILL_BYTES)
    each = -(-megabytes * 1_000_000 // (partitions * len(load.batch)))
    lacking = dict.fromkeys(range(partitions), each)
    for attempt in range(1, ATTEMPTS + 1):
        for port, led in wait_whole(trio, HELD, partitions, replicas=1).leaders():
            orders = [partition for partition in led for _ in range(lacking[partition])]
            with RawConnection(port, PATIENCE_S) as connection:
                for at in range(len(orders) + FILL_IN_FLIGHT):
                    if at < len(orders):
                        connection.send(produce_frame(HELD, orders[at], load.batch))
                    if at >= FILL_IN_FLIGHT:
                        error = produced_error(connection.receive(), HELD)
                        lacking[orders[at - FILL_IN_FLIGHT]] -= not error
        if not any(lacking.values()):
            return
        if attempt < ATTEMPTS:
            time.sleep(PAUSE_S)  # a host that is shown as the leader may not serve yet, or another one leads
    raise RawFailed(f"producing to {HELD}: error {error}")


def _lose_disk(trio: Trio, steady_s: float) -> Row:
    """Measure the producer when all is well, lose a host's disk, and measure it again while the disk is filled."""
    leader = wait_whole(trio, STEADY).partitions[0].leader
    wait_whole(trio, HELD, HELD_PARTITIONS)
    lost = next(node for node in NODES if node != leader)
    settle_disks()
    with SteadyProducer(SteadyOrders(trio.ports(), STEADY, RATE_S)) as producer:
        time.sleep(WARM_S)
        calm_s = time.monotonic()
        while time.monotonic() < calm_s + steady_s:
            _look(trio, leader, lost)
        gone_s = time.monotonic()
        held = trio.kept_bytes(lost, HELD)
        trio.kill(lost)
        trio.wipe(lost)
        wait_without(trio, lost)
        trio.begin(lost)
        trio.wait_ready(lost)
        ready_s = time.monotonic()
        member_s, done_s = _wait_copied(trio, leader, lost, ready_s)
        while time.monotonic() < ready_s + steady_s:
            _look(trio, leader, lost)
        end_s = time.monotonic()
        found = producer.stop()
        led_by = wait_whole(trio, STEADY).partitions[0].leader
    calm, everything = percentiles(found.between(calm_s, gone_s)), percentiles(found.between(ready_s, end_s))
    beside = percentiles(found.between(ready_s, end_s, disturbed=False))
    joining = found.between(ready_s, member_s, disturbed=False)
    copying = found.between(member_s, end_s, disturbed=False)
    moved = found.between(ready_s, end_s, disturbed=True)
    return {
        "held_bytes": held,
        "copied_bytes": trio.kept_bytes(lost, HELD),
        "copies_s": done_s - ready_s,
        "member_s": member_s - ready_s,
        "calm_p50_ms": calm.p50_ms,
        "calm_p99_ms": calm.p99_ms,
        "beside_p50_ms": beside.p50_ms,
        "beside_p99_ms": beside.p99_ms,
        "joining_p99_ms": percentiles(joining or [0.0]).p99_ms,
        "copying_p99_ms": percentiles(copying or [0.0]).p99_ms,
        "p99_ratio": beside.p99_ms / calm.p99_ms,
        "calm_requests": len(found.between(calm_s, gone_s)),
        "beside_requests": len(found.between(ready_s, end_s)),
        "all_p99_ms": everything.p99_ms,
        "moves": found.moves(ready_s, end_s),
        "moved_requests": len(moved),
        "moved_max_ms": 1000 * max(moved, default=0.0),
        "has_moved": led_by != leader,
        "calm_failures": found.failures(calm_s, gone_s),
        "beside_failures": found.failures(ready_s, end_s),
    }


def _wait_copied(trio: Trio, leader: int, lost: int, ready_s: float) -> tuple[float, float]:
    """Wait until a host that came back has what the leader has. Returns when all partitions had it as a member again,
    or the wait was over, and when it had everything. Raises PeerFailed when patience ends.
    """
    member_s = 0.0
    while True:
        is_whole, there, wanted = _look(trio, leader, lost)
        now_s = time.monotonic()
        if now_s - ready_s > PATIENCE_S:
            raise PeerFailed(f"{trio.name}: not copied after {PATIENCE_S:g} s: {there:,} bytes")
        if not member_s and is_whole:
            member_s = now_s
        if there >= ENOUGH * wanted:
            return member_s or now_s, now_s


def _look(trio: Trio, leader: int, lost: int) -> tuple[bool, int, int]:
    """A pause, and a look: whether all partitions have all members, and the bytes of a host and of the leader."""
    time.sleep(LOOK_S)
    return _is_whole(trio), trio.kept_bytes(lost, HELD), trio.kept_bytes(leader, HELD)


def _is_whole(trio: Trio) -> bool:
    with suppress(RawFailed, OSError):  # a host may be too busy to answer: the next look asks again
        return view(trio.ports()[0], HELD).is_whole(len(NODES), partitions=HELD_PARTITIONS)
    return False


def wait_without(trio: Trio, lost: int, held: int = HELD_PARTITIONS) -> None:
    """Until no partition waits for a host that is gone. Raises PeerFailed when patience ends."""
    for topic, partitions in ((STEADY, 1), (HELD, held)):
        found = wait_whole(trio, topic, partitions, replicas=len(NODES) - 1)
        deadline_s = time.monotonic() + PATIENCE_S
        while any(lost in each.in_sync or each.leader == lost for each in found.partitions):
            if time.monotonic() > deadline_s:
                raise PeerFailed(f"{trio.name}: {topic} still counts on host {lost} after {PATIENCE_S:g} s")
            time.sleep(LOOK_S)
            found = wait_whole(trio, topic, partitions, replicas=len(NODES) - 1)
