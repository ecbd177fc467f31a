"""Three sidecars with an etcd against a real Kafka of three brokers, every record on all three, on one machine.

`python -m benchmarks.cluster [--quick] [--smoke] [--part PART]` starts both, prints tables, and writes
results/cluster.json. Topics have three replicas, and `min.insync.replicas=2`; every request wants `acks=all`. Kafka has
each topic twice: as it comes, and with `flush.messages=1`, which syncs before the answer as Cairn does. Parts:

* `produce`: requests of 1 KB and 16 KB to 1 and 100 partitions, with 1, 5 and 20 in flight on a connection to each
  host that leads some of them.
* `failover`: kill -9 of the host that leads a partition, its return, and SIGTERM of the one that leads then; for how
  long a producer (librdkafka) has no answer.
* `copies`: kill -9 of a host, and its return with an empty disk; the bytes that are copied to it, and the p99 of a
  producer at a steady rate meanwhile, against the p99 when all is well.

Invariants:
* Both clusters run all the time, and one is loaded at a time: within a round they take turns, in an order that changes
  from round to round.
* Each part has topics of its own, which are deleted at its end: none feels what another has written.
* Before each measurement of `produce` the file systems are synced: nobody pays for what another left in the page cache.
* A run that had to leave something out is no full run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.disks import settle_disks
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.program import content_of, keep, options, scratch
from benchmarks.harness.raw import RawFailed
from benchmarks.harness.report import machine, print_goals, print_rows
from benchmarks.harness.signals import ended_in_order
from benchmarks.harness.trios import CairnTrio, KafkaTrio, Trio
from benchmarks.hosts import copies, failover, produce
from benchmarks.hosts.plan import FULL, PARTS, PLANS, Plan
from benchmarks.hosts.report import draw, find_goals, tables
from benchmarks.hosts.topics import Measured, create, delete, note_memory
from logstore.testing.cluster import NotStarted


def run(plan: Plan, chosen: Sequence[str], data: Path, console: Console) -> Measured:
    """All parts that are wanted."""
    measured = Measured(plan, console)
    chance = random.Random(1)
    with ExitStack() as stack:
        trios: list[Trio] = [CairnTrio(data), *([KafkaTrio(data)] if plan.with_kafka else [])]
        for trio in trios:
            trio.start(stack)
            note_memory(measured, trio, "fresh")
        parts = {"produce": produce.run, "failover": failover.run, "copies": copies.run}
        for name in PARTS:
            if chosen and name not in chosen:
                continue
            console.print(f"part: {name}")
            try:
                for trio in trios:
                    create(trio, name)
                parts[name](measured, trios, chance)
                for trio in trios:
                    delete(trio, name)
            except (PeerFailed, RawFailed, NotStarted, OSError) as error:
                measured.leave_out(f"{name}: {error}")
                break  # who knows in which state the clusters are
    return measured


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = options(
        __doc__,
        quick="one short round",
        smoke="does it work at all; without Kafka",
        data="a folder for the data, on the disk to measure",
    )
    parser.add_argument("--part", action="append", default=[], choices=PARTS, help="only this part")
    given = parser.parse_args(arguments)
    plan = PLANS["smoke" if given.smoke else "quick" if given.quick else FULL]
    mode = results.PARTIAL if plan.mode == FULL and given.part else plan.mode
    folder = results.directory(parser, given.results, mode)
    console = Console(width=160)
    with ended_in_order(), scratch("cluster", given.data) as data:
        before = machine(data)
        settle_disks()
        measured = run(plan, given.part, data, console)
    if measured.left_out and mode == results.FULL:
        mode, folder = results.PARTIAL, results.partial(folder)
    goals = find_goals(measured.rows)
    for title, columns, lines in tables(measured.rows):
        print_rows(console, title, columns, lines)
    print_goals(console, goals)
    content = content_of(mode, before, goals, measured.rows.all, plan=asdict(plan), left_out=measured.left_out)
    keep(folder, "cluster", content, partial(draw, measured.rows), console)


if __name__ == "__main__":
    main()
