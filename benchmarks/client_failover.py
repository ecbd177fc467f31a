"""For how long producers of other people's clients have no answer when the host that leads is killed, stops, or is
drained.

`python -m benchmarks.client_failover [--quick] [--smoke] [--client NAME]` prints a table, and writes
results/client_failover.json. Four hosts and an etcd, a topic of one partition with three copies for each client, and
one producer after the other, at the settings that it comes with (benchmarks/clients/producers.py). In each round the
host that leads is lost by `kill -9`, then the one that leads then by SIGTERM, and then one is drained as by
`cairn hosts drain`; before each of them all hosts are there, and no chunk lacks a copy. The producer runs through all
rounds. Of Spark's sink only micro-batches are seen: its figures are the longest times between two.

Invariants:
* A silence is the longest time without an acknowledgement from the moment of the loss on, until AFTER_S behind the
  first acknowledgement that came after it; a silence of the time before is beside it (`usual_s`).
* How long all is well before a loss differs from round to round, over CALM_S (`calm_s`): a client that asks for
  metadata at most so often is as fast as the time since it asked last lets it be.
* A goal is held against the longest of all rounds, not their median. Behind `kill -9` each client has its own bound.
* Whatever was acknowledged is in the topic, and no record twice: lost and doubled ones are counted over the whole topic
  at the end.
* A client that cannot be had is left out by name, and the run is no full one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from kafka import TopicPartition
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.clients.load import PATIENCE_S, ClientLoad, producing
from benchmarks.clients.producers import Run, clients
from benchmarks.harness import results
from benchmarks.harness.jars import KafkaUnavailable, spark_kafka_jars
from benchmarks.harness.leaders import wait_view
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.program import content_of, keep, options, scratch
from benchmarks.harness.report import Goal, Rows, at_most, machine, print_goals, print_rows
from benchmarks.harness.signals import ended_in_order
from benchmarks.spark_throughput import start_spark
from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.format.host_summaries import DRAIN, UNDRAIN, HostsReply
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.cluster_processes.clients import read

HOSTS: Final = ("a", "b", "c", "d")
REPLICAS: Final = 3
AFTER_S: Final = 2.0
CALM_S: Final = (0.0, 5.0)
"""The longest is franz-go's `MetadataMinAge`: after 2 s each time, it would never be silent for more than 3 s."""
LOOK_S: Final = 0.1
KILL, STOP, DRAINED, BACK = "kill_silence_s", "stop_silence_s", "drain_silence_s", "back_silence_s"
LIMITS_S: Final = {KILL: 3.0, STOP: 1.0, DRAINED: 1.0}
KILL_LIMITS_S: Final = {
    "franz-go": 6.0,
    "librdkafka": 1.5,
    "Java": 1.5,
    "kafka-python": 1.5,
    "aiokafka": 1.5,
    "Spark": 1.5,
}
"""Behind `kill -9`, the bound of a client that has its own: what its settings make it wait (docs/cluster.md), and half
a second for hosts that take over. franz-go's is `MetadataMinAge`, and two tries that reach the lost host.
"""
TITLES: Final = {KILL: "kill -9", STOP: "SIGTERM", DRAINED: "hosts drain", BACK: "a host back"}


@dataclass(frozen=True)
class Plan:
    """How much is measured: rounds of each client."""

    mode: str
    rounds: int


FULL, QUICK, SMOKE = Plan(results.FULL, 3), Plan("quick", 1), Plan("smoke", 1)


class Losses:
    """A cluster that loses the host that leads a topic, in each of the ways."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic

    def wait_whole(self) -> ClusterHostProcess:
        """Until all hosts are there and no chunk lacks a copy; the host that leads. Raises PeerFailed."""
        self._cluster.wait_members()
        self._wait_hosts(lambda found: found.ownerless == found.under_replicated == 0, "chunks lack copies still")
        seen = wait_view(
            lambda: [host.port for host in self._cluster if host.is_running],
            self._topic,
            lambda view: view.is_whole(REPLICAS) and len(view.ports) == len(HOSTS),
            PATIENCE_S,
        )
        if seen is None:
            raise PeerFailed(f"{self._topic} has not {REPLICAS} members in sync")
        return self._cluster.by_node(seen.partitions[0].leader)

    def kill(self, host: ClusterHostProcess) -> None:
        """kill -9."""
        host.kill()

    def stop(self, host: ClusterHostProcess) -> None:
        """SIGTERM, and wait for its end."""
        host.stop()

    def drain(self, host: ClusterHostProcess) -> None:
        """What `cairn hosts drain` asks for, until the host holds nothing. Raises PeerFailed."""
        self._asked(lambda admin: admin.change_host(host.name, DRAIN))
        self._wait_hosts(
            lambda found: any(each.host == host.name and each.is_empty for each in found.hosts),
            f"host {host.name} is not drained",
        )

    def back(self, host: ClusterHostProcess) -> None:
        """Start it again, or keep it after all."""
        if host.is_running:
            self._asked(lambda admin: admin.change_host(host.name, UNDRAIN))
        else:
            host.start()
        self.wait_whole()

    def _wait_hosts(self, is_so: Callable[[HostsReply], bool], failure: str) -> None:
        """Until all that is known of the hosts is told, and something is so of it. Raises PeerFailed."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not ((found := self._asked(Admin.hosts)).is_complete and is_so(found)):
            if time.monotonic() > deadline_s:
                raise PeerFailed(f"{failure}: {found}")
            time.sleep(LOOK_S)

    def _asked(self, ask: Callable[[Admin], Any]) -> Any:
        servers = ",".join(host.address for host in self._cluster if host.is_running)
        with Client(parse_addresses(servers), limit_s=PATIENCE_S) as client:
            return ask(Admin(client))


def measure(cluster: Cluster, client: str, topic: str, run: Run, plan: Plan, rows: Rows) -> None:
    """All rounds of a client, a row for each, and one for what is in the topic. Raises PeerFailed."""
    with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as asking:
        asking.create_topic(topic, 1)
    losses = Losses(cluster, topic)
    losses.wait_whole()
    ways = {KILL: losses.kill, STOP: losses.stop, DRAINED: losses.drain}
    calms_s = {way: calm_times_s(plan.rounds, Random(seed)) for seed, way in enumerate(ways)}
    with producing(cluster, run) as load:
        for number in range(1, plan.rounds + 1):
            row: dict[str, float] = {}
            for way, lose in ways.items():
                row |= _lose(load, losses, way, lose, calms_s[way][number - 1])
            rows.add(part="silence", client=client, round=number, **row)
    found = [int(value) for _, value in read(cluster.bootstrap, TopicPartition(topic, 0))]
    lost, doubled = load.lost_and_doubled(found)
    counts = {"acknowledged": len(load.numbers), "lost": lost, "doubled": doubled, "failed": len(load.errors)}
    rows.add(part="records", client=client, errors=load.errors[:3], **counts)


def calm_times_s(rounds: int, chance: Random) -> list[float]:
    """How long all is well before the loss of each round: one time out of each of so many equal parts of CALM_S, in an
    order that chance chooses.
    """
    low_s, high_s = CALM_S
    part_s = (high_s - low_s) / rounds
    times_s = [low_s + part_s * (number + chance.random()) for number in range(rounds)]
    chance.shuffle(times_s)
    return times_s


def _lose(
    load: ClientLoad, losses: Losses, way: str, lose: Callable[[ClusterHostProcess], None], calm_s: float
) -> dict[str, float]:
    host = losses.wait_whole()
    begun_s = time.monotonic()
    _go_on(load, begun_s, calm_s)
    lost_s = time.monotonic()
    lose(host)
    _go_on(load, time.monotonic(), AFTER_S)
    back_s = time.monotonic()
    losses.back(host)
    _go_on(load, time.monotonic(), AFTER_S)
    end_s = time.monotonic()
    usual, back, calm = (way.replace("silence", name) for name in ("usual", "back", "calm"))
    found = {calm: calm_s, usual: load.silence_s(begun_s, lost_s), way: load.silence_s(lost_s, back_s)}
    return found | {back: load.silence_s(back_s, end_s)}


def _go_on(load: ClientLoad, since_s: float, seconds: float) -> None:
    load.wait_answered(since_s)
    time.sleep(seconds)


def run(plan: Plan, wanted: Mapping[str, Callable[[str], Run]], data: Path, console: Console) -> tuple[Rows, list[str]]:
    """All clients; what had to be left out."""
    rows, left_out = Rows(), list[str]()
    with Cluster(data / "hosts", HOSTS) as cluster:
        for number, (client, runner) in enumerate(wanted.items()):
            try:
                measure(cluster, client, f"client-{number}", runner(f"client-{number}"), plan, rows)
            except PeerFailed as error:
                left_out.append(f"{client}: {error}")
                console.print(f"left out: {left_out[-1]}", markup=False)
                for host in cluster:
                    if not host.is_running:
                        host.start()
            for row in rows.select(client=client):
                console.print(row, markup=False)
    return rows, left_out


def named(rows: Rows) -> list[str]:
    """The clients that were measured, in their order."""
    return list(dict.fromkeys(row["client"] for row in rows.select(part="silence")))


def find_goals(rows: Rows) -> list[Goal]:
    """The longest silence of each client, and no record that is lost or twice."""
    goals = []
    for client in named(rows):
        for way, promised_s in LIMITS_S.items():
            limit_s = KILL_LIMITS_S.get(client, promised_s) if way == KILL else promised_s
            silences_s = rows.values(way, part="silence", client=client)
            name = f"{client}: longest time without an acknowledgement, {TITLES[way]}"
            goals.append(at_most(name, max(silences_s), "s", limit_s, silences_s))
        for count in ("lost", "doubled", "failed"):
            found = sum(rows.values(count, part="records", client=client))
            goals.append(at_most(f"{client}: records {count}", found, "", 0))
    return goals


def table(rows: Rows) -> list[list[str]]:
    """A line for each client."""
    lines = []
    for client in named(rows):
        line = [client, str(len(rows.select(part="silence", client=client)))]
        for way in LIMITS_S:
            found = rows.values(way, part="silence", client=client)
            line.append(f"{min(found):.2f} to {max(found):.2f}")
        for moment in ("usual", "back"):
            each = [rows.values(way.replace("silence", moment), part="silence", client=client) for way in LIMITS_S]
            line.append(f"{max(map(max, each)):.2f}")
        counts = rows.select(part="records", client=client)
        line += [str(sum(row[count] for row in counts)) for count in ("acknowledged", "lost", "doubled", "failed")]
        lines.append(line)
    return lines


def draw(rows: Rows, path: Path) -> None:
    """Each loss as a point."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for colour, (way, limit_s) in enumerate(LIMITS_S.items()):
        for at, client in enumerate(named(rows)):
            found = rows.values(way, part="silence", client=client)
            label = f"{TITLES[way]} (promised: {limit_s:g} s)" if not at else None
            axes.plot(found, [at + 0.2 * (colour - 1)] * len(found), "o", color=f"C{colour}", label=label)
    axes.set_yticks(range(len(named(rows))), named(rows))
    axes.set_xlim(left=0)
    axes.set_xlabel("longest time without an acknowledgement, s")
    if named(rows):
        axes.legend()
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = options(__doc__, quick="one round", smoke="does it work at all; Python's clients only", data="a folder")
    parser.add_argument("--client", action="append", default=[], help="only clients whose names begin so")
    given = parser.parse_args(arguments)
    plan = SMOKE if given.smoke else QUICK if given.quick else FULL
    mode = results.PARTIAL if plan.mode == results.FULL and given.client else plan.mode
    folder = results.directory(parser, given.results, mode)
    console = Console(width=160)
    left_out: list[str] = []
    with ended_in_order(), scratch("clients", given.data) as data, ExitStack() as stack:
        before = machine(data)
        chosen = tuple(given.client) or (("librdkafka", "aiokafka") if given.smoke else ("",))
        spark = None
        if "Spark".startswith(chosen) or "" in chosen:
            try:
                spark = start_spark(data, spark_kafka_jars())
                stack.callback(spark.stop)
            except KafkaUnavailable as reason:
                left_out.append(f"Spark: {reason}")
        wanted = {name: run for name, run in clients(spark, data).items() if name.startswith(chosen)}
        rows, more = run(plan, wanted, data, console)
        left_out += more
    after = [round(load, 2) for load in os.getloadavg()]
    if left_out and mode == results.FULL:
        mode, folder = results.PARTIAL, results.partial(folder)
    columns: tuple[str, ...] = ("client", "rounds", "kill -9, s", "SIGTERM, s", "drain, s", "usual, s", "back, s")
    columns += ("acknowledged", "lost", "doubled", "failed")
    print_rows(console, "Longest time without an acknowledgement", columns, table(rows))
    goals = find_goals(rows)
    print_goals(console, goals)
    more_said = {"plan": asdict(plan), "left_out": left_out, "load_average_after": after}
    keep(
        folder, "client_failover", content_of(mode, before, goals, rows.all, **more_said), partial(draw, rows), console
    )


if __name__ == "__main__":
    main()
