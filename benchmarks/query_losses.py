"""What a lost host costs a running Spark query: a cluster of three processes on one machine, `kill -9` of a host.

`python -m benchmarks.query_losses [--quick] [--smoke]` prints a table, and writes results/query_losses.json. A query
copies a topic of one partition into another by Cairn's source and sink, exactly once, one epoch after the other; there
is always more input. The host that is killed owns the source's stream, or the sink's, or has the epochs of all queries;
each of them several times, in turn. `gap_s` is the longest time between two epochs from the kill on, until EPOCHS more
are committed; `usual_s` the longest of the EPOCHS before the kill. Then the host starts again, and the next kill waits
until no chunk lacks a copy.

Invariants:
* The query runs all the time: it is never started anew, and an error of it ends the run.
* Who owns what is asked before each kill; `roles` has all that the host had.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from matplotlib.figure import Figure
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.meter import median
from benchmarks.harness.report import Goal, Rows, at_most, machine, print_goals, print_rows, versions, write_json
from benchmarks.harness.signals import ended_in_order
from benchmarks.spark_throughput import start_spark
from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.testing.cluster import Cluster

SOURCE, SINK, EPOCHS_TOPIC = "taken", "copied", "__cairn_epochs"
ROLES = {SOURCE: "owner of the source", SINK: "owner of the sink", EPOCHS_TOPIC: "home of epochs"}
PATIENCE_S = 120.0
LOOK_S = 0.01
EPOCHS = 5
EPOCH_ROWS = 20
AHEAD_ROWS = 10_000
"""Input that the query has always before it."""
WANTED_S = 5.0


class QueryStopped(RuntimeError):
    """The query has ended, or commits nothing."""


@dataclass(frozen=True)
class Plan:
    """How much is measured: kills of each role."""

    mode: str
    losses: int


FULL, QUICK, SMOKE = Plan(results.FULL, 5), Plan("quick", 2), Plan("smoke", 1)


class Watched:
    """A query that runs, its input, and when it has committed epochs."""

    def __init__(self, query: StreamingQuery, servers: str) -> None:
        self._query = query
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        self._fed_rows = 0
        self._last = -1
        self.ends_s: list[float] = []
        """Of epochs, as they are seen."""

    def feed(self) -> None:
        """Let the query have AHEAD_ROWS more than it has taken."""
        count = AHEAD_ROWS + (self._last + 1) * EPOCH_ROWS - self._fed_rows
        for number in range(max(0, count)):
            self._producer.produce(SOURCE, b"%d" % number, partition=0)
            self._producer.poll(0)
        if self._producer.flush(PATIENCE_S):
            raise QueryStopped("the cluster takes no input")
        self._fed_rows += max(0, count)

    def go_on(self, epochs: int) -> None:
        """Wait for so many more epochs. Raises QueryStopped."""
        wanted, deadline_s = len(self.ends_s) + epochs, time.monotonic() + PATIENCE_S
        while len(self.ends_s) < wanted:
            if not self._query.isActive or time.monotonic() > deadline_s:
                raise QueryStopped(f"the query commits no epoch: {self._query.exception() or self._query.status}")
            progress = self._query.lastProgress
            if progress is not None and progress["batchId"] != self._last:
                self._last = progress["batchId"]
                self.ends_s.append(time.monotonic())
            time.sleep(LOOK_S)

    def gap_s(self, first: int) -> float:
        """The longest time between two epochs, from the one of a number on."""
        ends_s = self.ends_s[first:]
        return max(after - before for before, after in pairwise(ends_s))


def owner(servers: str, topic: str) -> str:
    """Who owns the stream of a topic."""
    with Client(parse_addresses(servers), limit_s=PATIENCE_S) as client:
        found = Admin(client).places(topic)
    return found.places[0].owner if found is not None and found.places else ""


def wait_whole(servers: str) -> None:
    """Until every stream has an owner and every chunk its copies. Raises QueryStopped."""
    deadline_s = time.monotonic() + PATIENCE_S
    with Client(parse_addresses(servers), limit_s=PATIENCE_S) as client:
        while True:
            found = Admin(client).hosts()
            if found.is_complete and found.ownerless == found.under_replicated == 0:
                return
            if time.monotonic() > deadline_s:
                raise QueryStopped(f"chunks lack copies still: {found}")
            time.sleep(0.2)


def lose(cluster: Cluster, watched: Watched, topic: str) -> dict[str, Any]:
    """Kill the host that owns a topic's stream, and start it again; what it cost."""
    watched.feed()
    watched.go_on(EPOCHS + 1)
    usual_s = watched.gap_s(-EPOCHS - 1)
    owners = {each: owner(cluster.bootstrap, each) for each in ROLES}
    host = owners[topic]
    watched.go_on(1)
    first = len(watched.ends_s) - 1
    cluster[host].kill()
    watched.go_on(EPOCHS)
    row = {
        "gap_s": watched.gap_s(first),
        "usual_s": usual_s,
        "roles": ", ".join(ROLES[each] for each, name in owners.items() if name == host),
    }
    cluster[host].start()
    cluster.wait_members()
    wait_whole(cluster.bootstrap)
    return row


def run(plan: Plan, data: Path, spark: SparkSession, console: Console) -> Rows:
    """All kills."""
    rows = Rows()
    with Cluster(data / "hosts") as cluster:
        servers = cluster.bootstrap
        with Client(parse_addresses(servers), limit_s=PATIENCE_S) as client:
            for topic in (SOURCE, SINK):
                client.create_topic(topic, 1)
        options = {"kafka.bootstrap.servers": servers}
        given = {**options, "subscribe": SOURCE, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(EPOCH_ROWS)}
        frame = spark.readStream.format("cairn").options(**given).load().selectExpr("value")
        written = frame.writeStream.format("cairn").options(**options, topic=SINK)
        query = written.option("checkpointLocation", str(data / "checkpoint")).start()
        try:
            watched = Watched(query, servers)
            watched.feed()
            watched.go_on(EPOCHS)
            for number in range(1, plan.losses + 1):
                for topic, role in ROLES.items():
                    row = lose(cluster, watched, topic)
                    rows.add(round=number, lost=role, **row)
                    console.print(f"{role}: {row}", markup=False)
        finally:
            query.stop()
    return rows


def find_goals(rows: Rows) -> list[Goal]:
    """The longest time without an epoch, for each role."""
    goals = []
    for role in ROLES.values():
        gaps_s = [row["gap_s"] for row in rows.select(lost=role)]
        goals.append(at_most(f"no epoch after kill -9: {role}", median(gaps_s), "s", WANTED_S, gaps_s))
    return goals


def draw(rows: Rows, path: Path) -> None:
    """Each kill as a point."""
    figure = Figure(figsize=(7, 3))
    axes = figure.subplots()
    for at, role in enumerate(ROLES.values()):
        gaps_s = [row["gap_s"] for row in rows.select(lost=role)]
        axes.plot(gaps_s, [at] * len(gaps_s), "o")
    axes.set_yticks(range(len(ROLES)), list(ROLES.values()))
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds without an epoch")
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two kills of each role")
    parser.add_argument("--smoke", action="store_true", help="does it work at all")
    parser.add_argument("--results", type=Path, help="where the results go")
    given = parser.parse_args(arguments)
    plan = SMOKE if given.smoke else QUICK if given.quick else FULL
    folder = results.directory(parser, given.results, plan.mode)
    console = Console(width=140)
    data = Path(tempfile.mkdtemp(prefix="cairn-bench-queries-"))
    before = machine(data)
    with ended_in_order():
        spark = start_spark(data, ())
        try:
            rows = run(plan, data, spark, console)
        finally:
            spark.stop()
            shutil.rmtree(data, ignore_errors=True)
    goals = find_goals(rows)
    lines = []
    for role in ROLES.values():
        found = rows.select(lost=role)
        gaps_s, usual_s = [row["gap_s"] for row in found], [row["usual_s"] for row in found]
        span = f"{min(gaps_s):.2f} to {max(gaps_s):.2f}"
        lines.append([role, span, f"{median(gaps_s):.2f}", f"{median(usual_s):.2f}"])
    print_rows(console, "seconds without an epoch", ("lost", "from, to", "median", "usual"), lines)
    print_goals(console, goals)
    content: dict[str, Any] = {
        "mode": plan.mode,
        "machine": before,
        "versions": versions(),
        "plan": asdict(plan),
        "goals": [goal._asdict() for goal in goals],
        "rows": rows.all,
    }
    write_json(folder / "query_losses.json", content)
    draw(rows, folder / "query_losses.png")
    console.print(f"written: {folder / 'query_losses.json'}")


if __name__ == "__main__":
    main()
