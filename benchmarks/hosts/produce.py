"""Throughput and latency of requests that wait for all replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from random import Random

from benchmarks.harness.disks import settle_disks
from benchmarks.harness.generator import Orders, generate_apart
from benchmarks.harness.meter import percentiles, process_clock_s
from benchmarks.harness.raw import RawFailed
from benchmarks.harness.report import Row
from benchmarks.harness.trios import Trio
from benchmarks.hosts.plan import DEPTHS, PARTITIONS, SIZES
from benchmarks.hosts.topics import Measured, note_memory, peers_of, topic_of, wait_whole

ATTEMPTS = 5
"""A leader may move between the question for it and the load, when brokers give partitions back to each other."""
PAUSE_S = 1.0


def run(measured: Measured, trios: Sequence[Trio], chance: Random) -> None:
    """All rounds; the first warms up, and is as long as the others: a third of it left the brokers cold."""
    plan = measured.plan
    for number in range(plan.first_round, plan.rounds + 1):
        measured.console.print(f"  round {number} of {plan.rounds}")
        for size, partitions, depth in product(SIZES, PARTITIONS, DEPTHS):
            pairs = [(trio, peer) for trio in trios for peer in peers_of(trio)]
            chance.shuffle(pairs)
            for trio, peer in pairs:
                orders = Orders(
                    0,
                    topic_of(peer, partitions),
                    depth=depth,
                    request_bytes=size,
                    seconds=plan.seconds,
                )
                figures = _measure(trio, orders, partitions)
                if number:
                    where = {"partitions": partitions, "in_flight": depth, "request_bytes": size}
                    measured.rows.add(part="produce", round=number, peer=peer, **where, **figures)
        for trio in trios:
            note_memory(measured, trio, "produce")


def _measure(trio: Trio, orders: Orders, partitions: int) -> Row:
    settle_disks()
    for attempt in range(1, ATTEMPTS + 1):
        before_s = sum(map(process_clock_s, trio.pids().values()))
        try:
            leaders = wait_whole(trio, orders.topic, partitions, replicas=1).leaders()
            found = generate_apart(orders._replace(leaders=leaders))
        except RawFailed:
            if attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE_S)
            continue
        used_s = sum(map(process_clock_s, trio.pids().values())) - before_s
        return {
            "leaders": len(leaders),
            "failed_attempts": attempt - 1,
            "requests_per_s": found.requests / found.seconds,
            "mb_per_s": found.requests / found.seconds * orders.request_bytes / 1e6,
            "cpu_us_per_request": used_s / max(1, found.requests) * 1e6,
            "generator_us_per_request": found.cpu_s / max(1, found.requests) * 1e6,
            **percentiles(found.latencies_s)._asdict(),
        }
    raise AssertionError("unreachable: the last attempt returns or raises")
