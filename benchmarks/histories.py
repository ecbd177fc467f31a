"""Checked histories: clients of many kinds on a cluster of real processes, faults from a seed, and every answer judged.

`python -m benchmarks.histories [--minutes 60] [--quick] [--smoke] [--seed N] [--hosts 3]` starts sidecars and an etcd
with relays between them (`logstore.testing`), and clients (`benchmarks/checked`): producers of three libraries,
idempotent and not, readers, members of a group, a committer, and topics that come and go. One fault after another is
chosen by the seed, which is printed. Every call's begin, end and answer is written to a history, which a checker judges
at the end; results/histories.json has the counts, the violations, and the time without an acknowledgement by the kind
of fault.

Invariants:
* The goals are about promises and about having looked: each kind of fault and of call must have happened.
* A history that breaks a promise is kept, and its place is printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.checked import epochs, producers, readers, topics
from benchmarks.checked.checker import Checker
from benchmarks.checked.faults import NO_FAULT, Disk, Faults, NotHealed, silences_s
from benchmarks.checked.history import Recorder, read_history
from benchmarks.checked.work import Work, stream_name
from benchmarks.harness import results
from benchmarks.harness.meter import median
from benchmarks.harness.report import (
    Goal,
    Rows,
    at_least,
    at_most,
    machine,
    print_goals,
    print_rows,
    versions,
    write_json,
)
from benchmarks.harness.signals import ended_in_order
from logstore.testing.cluster import Cluster, NotStarted
from logstore.testing.network import RelayedNetwork

JOIN_S = 90.0
"""For all clients to end."""
GROUPS = ("readers",)


@dataclass(frozen=True)
class Plan:
    """How long, over how many hosts, from which seed."""

    mode: str
    minutes: float
    hosts: int
    seed: int
    with_client_logs: bool = False


class Run:
    """One history, from the start of the cluster to its last reading."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        self.plan, self._directory, self._console = plan, directory, console
        self.history = directory / "history.jsonl"
        self.rows = Rows()
        self.trouble: list[str] = []
        """What is wrong without being in the history: nothing heals, a client does not end, a host died by itself."""
        self.notes: Counter[str] = Counter()

    def run(self) -> None:
        """See the module."""
        names = [chr(ord("a") + number) for number in range(self.plan.hosts)]
        cluster = Cluster(self._directory / "cluster", names, network=RelayedNetwork())
        disks = {host.name: Disk(host) for host in cluster}
        mounted = [disk.mount() for disk in disks.values()]
        if not all(mounted):
            self._console.print("no rights to mount small file systems: no full disks")
            disks = {}
        try:
            with cluster, Recorder(self.history, time.monotonic) as recorder:
                work = Work(cluster.bootstrap.split(","), recorder)
                if self.plan.with_client_logs:
                    work.librdkafka_logs = {"debug": "broker,eos,msg,metadata,cgrp"}
                self._work(cluster, work, disks)
                self.notes = work.notes
        finally:
            for disk in disks.values():
                disk.unmount()

    def _work(self, cluster: Cluster, work: Work, disks: dict[str, Disk]) -> None:
        chance = Random(self.plan.seed)
        topics.create_main(work)
        threads = producers.begin_all(work)
        for client, arguments in _clients(chance):
            thread = threading.Thread(target=self._guarded, args=(client, work, *arguments), daemon=True)
            thread.name = getattr(client, "__name__", "client")
            thread.start()
            threads.append(thread)
        faults = Faults(cluster, work, chance, disks)
        try:
            faults.wait_service()
            self._inject(faults, work, chance)
            faults.heal()
            faults.wait_service()
        except (NotHealed, NotStarted) as error:
            self.trouble.append(str(error))
        work.ended.set()
        deadline_s = time.monotonic() + JOIN_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                self.trouble.append(f"a client has not ended: {thread.name}")
        try:
            faults.heal()
            faults.wait_copies()
        except (NotHealed, NotStarted) as error:
            self.trouble.append(str(error))
        self._look_at_the_end(work)
        self.trouble += [f"host {host.name} wrote a traceback" for host in cluster if "Traceback" in host.log]

    def _inject(self, faults: Faults, work: Work, chance: Random) -> None:
        ends_s = time.monotonic() + self.plan.minutes * 60
        kinds: list[str] = []
        while time.monotonic() < ends_s:
            if not kinds:
                kinds = list(faults.kinds)
                chance.shuffle(kinds)
            kind = kinds.pop()
            begun_s = work.recorder.at_s
            name = faults.run_one(kind)
            if name == NO_FAULT:
                continue
            silence_s = max(silences_s(work, begun_s, work.recorder.at_s).values())
            self.rows.add(kind=kind, name=name, begun_s=begun_s, silence_s=silence_s)
            self._console.print(f"{begun_s:7.1f} s  {name}: no acknowledgement for {silence_s:.2f} s")

    def _look_at_the_end(self, work: Work) -> None:
        if not topics.list_topics(work):
            self.trouble.append("no host lists the topics at the end")
        readers.ask_commits(work, GROUPS)
        for partition, stream in enumerate(epochs.STREAMS):
            if not readers.read_log(work, epochs.TOPIC, partition, stream):
                self.trouble.append(f"stream {stream} could not be read at the end")
        for partition in range(work.partitions):
            stream = stream_name(work.topic, partition)
            if not readers.read_log(work, work.topic, partition, stream):
                self.trouble.append(f"stream {stream} could not be read at the end")

    def _guarded(self, client: Callable[..., None], work: Work, *arguments: object) -> None:
        try:
            client(work, *arguments)
        except Exception as error:  # noqa: BLE001  a client that ends early is told, whatever ended it
            self.trouble.append(f"{getattr(client, '__name__', 'a client')} ended early: {error!r}")


def _clients(chance: Random) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
    """All clients but the producers."""
    return [
        (readers.read_confluent, ()),
        (readers.read_kafka_python, ()),
        *((readers.be_member, (group, Random(chance.random()))) for group in GROUPS for _ in range(2)),
        (readers.commit_alone, ()),
        (topics.make_topics, (Random(chance.random()),)),
        (epochs.commit_epochs, (Random(chance.random()),)),
    ]


def find_goals(rows: Rows, checker: Checker, trouble: Sequence[str], kinds: int) -> list[Goal]:
    """No promise is broken, everything healed, and all of it happened."""
    goals = [
        at_most("broken promises", checker.violation_count, "", 0),
        at_most("what did not heal, end or stay up", len(trouble), "", 0),
        at_least("kinds of faults", len({row["kind"] for row in rows.all}), "", kinds),
    ]
    wanted = ("produce", "read", "deliver", "commit", "committed", "create", "grow", "delete", "log", "epoch")
    goals += [
        at_least(f"calls: {call}", checker.counts[call] - checker.counts[f"{call}, failed"], "", 1) for call in wanted
    ]
    killed = rows.values("silence_s", name="kill")
    if killed:
        goals.append(at_most("kill -9 of a host, median time without an acknowledgement", median(killed), "s", 3.0))
    return goals


def tables(rows: Rows, checker: Checker, console: Console) -> None:
    """Faults and calls."""
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows.all:
        by_kind[row["name"] if "+" not in row["name"] else "two at a time"].append(row["silence_s"])
    lines = [
        [kind, "", f"{len(found)}", f"{median(found):.2f}", f"{max(found):.2f}"]
        for kind, found in sorted(by_kind.items())
    ]
    print_rows(console, "Time without an acknowledgement", ("fault", "", "times", "median s", "longest s"), lines)
    calls = [[call, "", f"{count:,}"] for call, count in sorted(checker.counts.items())]
    print_rows(console, "Calls", ("call", "", "times"), calls)


def draw(rows: Rows, path: Path) -> None:
    """The time without an acknowledgement of each fault, by its kind."""
    mpl.use("Agg")
    kinds = sorted({row["kind"] for row in rows.all})
    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    axis.plot([row["silence_s"] for row in rows.all], [kinds.index(row["kind"]) for row in rows.all], "o", alpha=0.5)
    axis.set_yticks(range(len(kinds)), kinds)
    axis.set_xlabel("longest time without an acknowledgement of a stream, s")
    axis.set_xlim(left=0)
    figure.suptitle("A cluster of sidecars under faults, until all streams acknowledge again")
    figure.savefig(path, dpi=90)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, judge, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of faults (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="three minutes")
    parser.add_argument("--smoke", action="store_true", help="half a minute: does it work at all")
    parser.add_argument("--hosts", type=int, default=3, choices=(3, 4, 5), help="sidecars (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the faults; without it another one each time")
    parser.add_argument("--client-logs", action="store_true", help="what librdkafka says, on standard error")
    parser.add_argument("--results", type=Path, help="where the results go")
    parser.add_argument("--data", type=Path, help="a folder for the data")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else Random().randrange(1 << 31)
    mode, minutes = results.FULL if given.minutes >= 60 else "shorter", given.minutes
    if given.quick or given.smoke:
        mode, minutes = ("smoke", 0.5) if given.smoke else ("quick", 3.0)
    plan = Plan(mode, minutes, given.hosts, seed, given.client_logs)
    folder = results.directory(parser, given.results, plan.mode)
    console = Console(width=160)
    console.print(f"seed {plan.seed}, {plan.hosts} hosts, {plan.minutes:g} minutes of faults")
    directory = Path(tempfile.mkdtemp(prefix="cairn-histories-", dir=given.data))
    before, run = machine(directory), Run(plan, directory, console)
    is_clean = False
    with ended_in_order():
        try:
            run.run()
            is_clean = report(plan, run, before, folder, console)
        finally:
            if is_clean:
                shutil.rmtree(directory, ignore_errors=True)
            else:
                console.print(f"kept: {directory}")
    if not is_clean:
        sys.exit(1)


def report(plan: Plan, run: Run, before: dict[str, Any], folder: Path, console: Console) -> bool:
    """Judge and keep; whether nothing was wrong."""
    checker = Checker()
    checker.feed(read_history(run.history))
    violations = checker.violations()
    for violation in violations:
        console.print(f"[red]{violation.promise}:[/] {violation.seen}")
    for line in run.trouble:
        console.print(f"[red]trouble:[/] {line}")
    goals = find_goals(run.rows, checker, run.trouble, kinds=8 if plan.minutes >= 3 else 1)
    tables(run.rows, checker, console)
    print_goals(console, goals)
    content: dict[str, Any] = {
        "mode": plan.mode,
        "machine": before,
        "versions": versions(),
        "plan": asdict(plan),
        "load_average_after": [round(load, 2) for load in os.getloadavg()],
        "calls": dict(sorted(checker.counts.items())),
        "notes": dict(sorted(run.notes.items())),
        "violations": [violation._asdict() for violation in violations],
        "trouble": run.trouble,
        "goals": [goal._asdict() for goal in goals],
        "rows": run.rows.all,
    }
    write_json(folder / "histories.json", content)
    draw(run.rows, folder / "histories.png")
    console.print(f"written: {folder / 'histories.json'}")
    return not violations and not run.trouble


if __name__ == "__main__":
    main()
