"""A cluster of three sidecars with 10,000 partitions of three copies each.

`python -m benchmarks.cluster_partitions [--quick] [--smoke]` measures, in this order: creating the partitions until
each has an owner, a first record in each, metadata of all beside a client that produces, a planned stop of a host and
its start, `kill -9` of a host until the others own its partitions and its start, and the deletion of the topic until
nothing is left on any disk. It writes results/cluster_partitions.json with a plot.

Each row has the seconds that a step takes; the processor seconds of the hosts that run then; what etcd is asked
(transactions and reads) and writes; and of a client that produces to one partition meanwhile the longest time that it
waited for an answer.

Invariants:
* Real processes over loopback on one machine, and one etcd. The client that produces has a leader that is not the host
  which stops.
* A step ends when the cluster says so (`cairn hosts`: no stream without an owner), which is counted once a second.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from confluent_kafka import Producer
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.meter import median, percentiles, process_clock_s, resident_memory_mb
from benchmarks.harness.program import content_of, keep, options, scratch
from benchmarks.harness.raw import RawConnection, RawFailed
from benchmarks.harness.report import Goal, Rows, at_most, machine, print_goals, print_rows
from benchmarks.many_partitions import Beside, metadata_frame
from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.format.host_summaries import HostsReply
from logstore.testing.cluster import Cluster, ClusterHostProcess
from logstore.testing.processes import Etcd

TOPIC = "wide"
COPIES = 3
TIMEOUT_S = 600.0
LOOK_S = 0.1
ASKED = 20
"""Times that all metadata are asked for."""
METADATA_MS = 100.0
"""What is wanted of an answer with all of them, and of who produces beside it."""


class StepFailed(RuntimeError):
    """What a step waits for has not come."""


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    mode: str
    partitions: int


FULL, QUICK, SMOKE = Plan(results.FULL, 10_000), Plan("quick", 1_000), Plan("smoke", 12)


def etcd_figures(etcd: Etcd) -> dict[str, float]:
    """What etcd counts since its start, and the size of its file."""
    names = {
        "etcd_mvcc_txn_total": "transactions",
        "etcd_mvcc_range_total": "reads",
        "etcd_mvcc_put_total": "puts",
        "etcd_mvcc_db_total_size_in_bytes": "file_bytes",
    }
    with urllib.request.urlopen(f"http://{etcd.endpoint}/metrics", timeout=TIMEOUT_S) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {names[line[0]]: float(line[1]) for line in lines if line[0] in names}


def is_replaced(host: str, found: HostsReply) -> bool:
    """Whether other hosts own all that a host did which is gone."""
    return not found.ownerless and all(each.streams == 0 for each in found.hosts if each.host == host)


class Benchmark:
    """One run: its cluster, its rows."""

    def __init__(self, plan: Plan, cluster: Cluster, console: Console) -> None:
        self.plan = plan
        self.rows = Rows()
        self._cluster = cluster
        self._console = console
        assert isinstance(cluster.etcd, Etcd)
        self._etcd: Etcd = cluster.etcd

    def run(self) -> None:
        """All steps."""
        with self._step("create"):
            with RawConnection(self._cluster["a"].port, TIMEOUT_S) as link:
                link.create_topic(TOPIC, self.plan.partitions, replicas=COPIES)
            self._until("every partition has an owner", lambda found: found.streams > 0 and not found.ownerless)
        with self._step("a first record in each"):
            self._write()
        self._metadata()
        self._lose("stop", lambda host: host.stop())
        self._lose("kill -9", lambda host: host.kill())
        if not all(map(self._replicas, self._cluster)):
            raise StepFailed("there are hosts without a copy of any chunk, so a deletion shows nothing")
        with self._step("delete"), self._admin() as admin:
            admin.delete_topic(TOPIC)
            self._wait("nothing is left on any disk", lambda: not any(map(self._replicas, self._cluster)))

    # ---- steps

    @contextmanager
    def _step(self, what: str, without: str = "") -> Iterator[None]:
        """Measure what is done in the context."""
        hosts = [host for host in self._cluster if host.is_running and host.name != without]
        before, began_s = etcd_figures(self._etcd), time.perf_counter()
        used_s = {host.pid: process_clock_s(host.pid) for host in hosts}
        yield
        seconds, after = time.perf_counter() - began_s, etcd_figures(self._etcd)
        row: dict[str, Any] = {
            "what": what,
            "seconds": seconds,
            "processor_seconds": sum(process_clock_s(pid) - spent_s for pid, spent_s in used_s.items()),
            **{f"etcd_{name}": after[name] - before[name] for name in ("transactions", "reads", "puts")},
            "etcd_file_mb": after["file_bytes"] / 1e6,
            "memory_mb": max(resident_memory_mb(pid) for pid in used_s),
        }
        self.rows.add(**row)
        self._console.print(
            ", ".join(f"{name} {value:,.2f}" if name != "what" else value for name, value in row.items())
        )

    def _lose(self, what: str, lose: Callable[[ClusterHostProcess], object]) -> None:
        """A host ends, the others take over what it owned, and it starts again and gets the copies that it lacks."""
        host = self._cluster["c"]
        owner, port = self._partition_of_another(host.name)
        client = Beside(
            port, TOPIC, owner, may_fail=True
        )  # its partition may get another leader, as when a host is back
        with client as beside, self._step(f"{what} of a host", without=host.name):
            lose(host)
            self._until("the others own its partitions", partial(is_replaced, host.name))
        self.rows.all[-1]["beside_longest_ms"] = max(beside.latencies_s, default=0.0) * 1000
        self.rows.all[-1]["beside_to_its_end"] = not beside.has_failed
        with self._step(f"start after {what}"):
            host.start()
            self._cluster.wait_members()
        self.rows.all[-1]["started_processor_seconds"] = process_clock_s(host.pid)
        with self._step(f"copies after {what}"):
            self._until("every copy is there", lambda found: not (found.ownerless or found.under_replicated))

    def _metadata(self) -> None:
        """Metadata of all, and what a client that produces feels of it."""
        partition, port = self._partition_of_another("c")
        took_s: list[float] = []
        with RawConnection(port, TIMEOUT_S) as link, Beside(port, TOPIC, partition) as beside:
            link.call(metadata_frame())
            for _ in range(ASKED):
                began_s = time.perf_counter()
                size = len(link.call(metadata_frame()))
                took_s.append(time.perf_counter() - began_s)
                time.sleep(0.05)
        if size < 20 * self.plan.partitions:
            raise RawFailed(f"metadata of {self.plan.partitions} partitions in {size} bytes")
        self.rows.add(
            what="metadata of all",
            median_ms=median(took_s) * 1000,
            beside_p99_ms=percentiles(beside.latencies_s).p99_ms,
            beside_longest_ms=max(beside.latencies_s) * 1000,
        )

    def _write(self) -> None:
        """A record in each partition."""
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap, "message.timeout.ms": int(TIMEOUT_S * 1000)})
        failed: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(str(error))

        for partition in range(self.plan.partitions):
            producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=delivered)
            producer.poll(0)
        left = producer.flush(TIMEOUT_S)
        if left or failed:
            raise StepFailed(f"{left} records were not acknowledged: {failed[:3]}")

    # ---- the cluster

    @contextmanager
    def _admin(self) -> Iterator[Admin]:
        with Client(
            parse_addresses(f"{self._cluster['a'].address},{self._cluster['b'].address}"), limit_s=TIMEOUT_S
        ) as client:
            yield Admin(client)

    def _partition_of_another(self, host: str) -> tuple[int, int]:
        """A partition that another host owns, and where that listens."""
        with self._admin() as admin:
            found = admin.places(TOPIC)
        for place in found.places if found is not None else ():
            if place.owner not in ("", host):
                return place.partition, self._cluster[place.owner].port
        raise StepFailed(f"every partition is owned by {host}")

    def _until(self, what: str, is_so: Callable[[HostsReply], bool]) -> None:
        with self._admin() as admin:
            self._wait(what, lambda: is_so(admin.hosts()))

    @staticmethod
    def _wait(what: str, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + TIMEOUT_S
        while not is_so():
            if time.monotonic() > end_s:
                raise StepFailed(f"not within {TIMEOUT_S:g} s: {what}")
            time.sleep(LOOK_S)

    @staticmethod
    def _replicas(host: ClusterHostProcess) -> int:
        """Copies of chunks on a host's disk: each has a directory."""
        return sum(1 for _ in (host.data_dir / "replicas").glob("*"))


def find_goals(rows: Rows, plan: Plan) -> list[Goal]:
    """What is wanted of what was measured."""
    goals: list[Goal] = []
    for row in rows.select(what="metadata of all"):
        name = f"metadata of {plan.partitions:,} partitions of a cluster"
        goals.append(at_most(name, row["median_ms"], "ms", METADATA_MS))
        goals.append(at_most("longest produce beside it", row["beside_longest_ms"], "ms", METADATA_MS))
    return goals


def draw(rows: Rows, plan: Plan, path: Path) -> None:
    """How long each step takes, and its part of the hosts' processors."""
    mpl.use("Agg")
    figure = Figure(figsize=(8, 4), layout="constrained")
    axis = figure.subplots()
    steps = [row for row in rows.all if "seconds" in row]
    places = range(len(steps))
    axis.barh([place - 0.2 for place in places], [row["seconds"] for row in steps], 0.4, label="seconds")
    axis.barh([place + 0.2 for place in places], [row["processor_seconds"] for row in steps], 0.4, label="processors'")
    axis.set_yticks(list(places), [row["what"] for row in steps])
    axis.invert_yaxis()
    axis.legend()
    axis.set_title(f"Three sidecars with {plan.partitions:,} partitions of {COPIES} copies")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measure, print, keep."""
    parser = options(
        __doc__, quick="a tenth of the partitions", smoke="does it work at all", data="a folder for the data"
    )
    given = parser.parse_args()
    plan = SMOKE if given.smoke else QUICK if given.quick else FULL
    folder = results.directory(parser, given.results, plan.mode)
    console = Console(width=160)
    with scratch("wide", given.data) as data:
        before = machine(data)
        with Cluster(data / "cluster") as cluster:
            benchmark = Benchmark(plan, cluster, console)
            benchmark.run()
    goals = find_goals(benchmark.rows, plan)
    lines = [
        [row["what"], json.dumps({name: round(value, 2) for name, value in row.items() if name != "what"})]
        for row in benchmark.rows.all
    ]
    print_rows(console, "Steps", ("what", "figures"), lines)
    print_goals(console, goals)
    content = content_of(plan.mode, before, goals, benchmark.rows.all, plan=asdict(plan))
    keep(folder, "cluster_partitions", content, partial(draw, benchmark.rows, plan), console)


if __name__ == "__main__":
    main()
