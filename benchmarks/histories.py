"""Checked histories: clients of many kinds on a cluster of real processes, faults from a seed, and every answer judged.

`python -m benchmarks.histories [--minutes 60] [--quick] [--smoke] [--seed N] [--hosts 3]` starts sidecars and an etcd
with relays between them (`logstore.testing`), and clients (`benchmarks/checked`): producers of three libraries,
idempotent and not, readers, members of groups, a committer, exactly-once queries, topics that come and go, settings
that change, records that are deleted. One fault after another is chosen by the seed, which is printed. Every call's
begin, end and answer is written to a history, which a checker judges at the end, together with what lies on the disks;
results/histories.json has the counts, the violations, and the time without an acknowledgement by the kind of fault.
`--merge FILE …` makes one result of the results of several runs.

Invariants:
* The goals are about promises and about having looked: each kind of fault and of call must have happened.
* A history that breaks a promise is kept with the logs of all hosts, and its place is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from benchmarks.checked import epochs, producers, readers, report, topics
from benchmarks.checked.checker import Checker
from benchmarks.checked.disks import survey
from benchmarks.checked.faults import Faults, NotHealed, silences_s
from benchmarks.checked.history import Recorder, read_history
from benchmarks.checked.work import CLEARED, KEPT, ORDERS, RESULTS, TOPICS, Work, place_of
from benchmarks.harness import results
from benchmarks.harness.program import options
from benchmarks.harness.report import Goal, Rows, machine, print_goals, versions, write_json
from benchmarks.harness.signals import ended_in_order
from logstore.testing.cluster import Cluster, NotStarted
from logstore.testing.disks import Disk
from logstore.testing.network import RelayedNetwork
from logstore.testing.processes import NotEnded

JOIN_S = 600.0
"""For all clients that write, and then for all others, to end."""
CAUGHT_UP_S = 300.0
FULL_MINUTES = 45
"""Of faults."""
POLL_S = 0.2
LEASE_S = "10"
"""Longer than the setting's default: hosts on a machine that is busy with other work are slow, and not gone."""
MEMBERS = {"readers": (ORDERS,), "auditors": (ORDERS, KEPT)}
"""Two of each group."""
Clients = list[tuple[Callable[..., None], tuple[Any, ...]]]


@dataclass(frozen=True)
class Plan:
    """How long, over how many hosts, from which seed."""

    mode: str
    minutes: float
    hosts: int
    seed: int
    with_client_logs: bool = False


class Run:
    """One history, from the start of the cluster to what lies on its disks."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        self.plan, self._directory, self._console = plan, directory, console
        self.history = directory / "history.jsonl"
        self.rows = Rows()
        self.trouble: list[str] = []
        """What is wrong without being in the history: nothing heals, a client does not end, a traceback."""
        self.notes: dict[str, int] = {}
        self.kinds: Sequence[str] = ()
        self.minutes = 0.0
        """Of faults, so far."""
        self.file_system = ""
        """Of the disks; empty: they are not small ones of their own."""

    def run(self) -> None:
        """See the module."""
        names = [chr(ord("a") + number) for number in range(self.plan.hosts)]
        network = RelayedNetwork()
        cluster = Cluster(self._directory / "cluster", names, "--lease-s", LEASE_S, network=network)
        disks = {host.name: Disk(host.data_dir) for host in cluster}
        try:
            if all(disk.mount() for disk in disks.values()):
                self.file_system = next(iter(disks.values())).kind
            else:
                self._console.print("no rights to mount small file systems: no full disks")
            with cluster, Recorder(self.history, time.monotonic) as recorder:
                work = Work(cluster.bootstrap.split(","), recorder)
                if self.plan.with_client_logs:
                    work.librdkafka_logs = {"debug": "broker,eos,msg,metadata,cgrp"}
                chance = Random(self.plan.seed)
                faults = Faults(cluster, network, work, chance, disks if self.file_system else {})
                self.kinds = faults.kinds
                self._work(work, faults, chance)
                self._finish(work, faults, cluster)
                self.notes = dict(sorted(work.notes.items()))
        finally:
            for disk in disks.values():
                disk.unmount()

    def _work(self, work: Work, faults: Faults, chance: Random) -> None:
        topics.create_main(work)
        writing = producers.begin_all(work) + self._begin(work, _writers(work, chance))
        reading = self._begin(work, _readers(chance))
        with self._troubled():
            faults.wait_service()
            self._inject(faults, work, chance)
            faults.heal()
            faults.wait_service()
        work.writing_ended.set()
        self._join(writing)
        with self._troubled():
            faults.heal()
            faults.wait_copies()
        self._catch_up(work)
        work.ended.set()
        self._join(reading)

    def _begin(self, work: Work, clients: Clients) -> list[threading.Thread]:
        threads = []
        for client, arguments in clients:
            thread = threading.Thread(target=self._guarded, args=(client, work, *arguments), daemon=True)
            thread.name = getattr(client, "__name__", "client")
            thread.start()
            threads.append(thread)
        return threads

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        deadline_s = time.monotonic() + JOIN_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                self.trouble.append(f"a client has not ended: {thread.name}")

    def _inject(self, faults: Faults, work: Work, chance: Random) -> None:
        begun_s = time.monotonic()
        kinds: list[str] = []
        while self.minutes < self.plan.minutes:
            if not kinds:
                kinds = list(faults.kinds)
                chance.shuffle(kinds)
            kind = kinds.pop()
            done = faults.run_one(kind)
            self.minutes = (time.monotonic() - begun_s) / 60
            if done is None:
                continue
            silence_s = max(silences_s(work, done.begun_s, work.recorder.at_s).values())
            row = {"kind": kind, "name": done.name, "begun_s": done.begun_s, "silence_s": silence_s}
            self.rows.add(**row, service_s=done.service_s, seen=done.seen, seed=self.plan.seed)
            said = f"no acknowledgement for {silence_s:.2f} s, all went on {done.service_s:.2f} s after it"
            unseen = "".join(f"; nobody saw {kind}" for kind, seen in done.seen.items() if not seen)
            self._console.print(f"{done.begun_s:7.1f} s  {done.name}: {said}{unseen}")

    def _catch_up(self, work: Work) -> None:
        """Read all logs, and wait until readers and groups have read them, too."""
        for topic in TOPICS:
            for stream in topic.streams:
                if not readers.read_log(work, place_of(stream), stream):
                    self.trouble.append(f"stream {stream} could not be read at the end")
        deadline_s = time.monotonic() + CAUGHT_UP_S
        while late := [key for key, position in tuple(work.positions.items()) if position <= work.last_offset(key[1])]:
            if time.monotonic() > deadline_s:
                self.trouble += [f"{who} has not got to the end of {stream}" for who, stream in late]
                return
            time.sleep(POLL_S)

    def _finish(self, work: Work, faults: Faults, cluster: Cluster) -> None:
        """Ask for everything that clients were told, and look at the disks."""
        readers.ask_commits(work)
        if not topics.describe_at_end(work):
            self.trouble.append("no host describes a topic's settings at the end")
        listed = topics.list_topics(work)
        if listed is None:
            self.trouble.append("no host lists the topics at the end")
        for stream, (topic, partition) in work.filled.items():
            if topic in (listed or {}):
                readers.read_log(work, (topic, partition), stream)
        ids = topics.find_ids(work, TOPICS)
        with self._troubled():
            faults.stop_all()
        for host in cluster:
            self.trouble += [f"host {host.name} wrote a traceback"] if "Traceback" in host.log else []
            for event in re.findall(r" level=error event=(\w+)", host.log):
                work.noted(f"errors that hosts reported: {event}")
        if not ids:
            self.trouble.append("no host describes the topics at the end")
            return
        for host in cluster:
            for copies in survey(host.data_dir, ids):
                work.recorder.add(what="copies", host=host.name, **copies._asdict())
            work.recorder.add(what="disk", host=host.name)

    @contextmanager
    def _troubled(self) -> Iterator[None]:
        try:
            yield
        except (NotHealed, NotStarted, NotEnded) as error:
            self.trouble.append(str(error))

    def _guarded(self, client: Callable[..., None], work: Work, *arguments: object) -> None:
        try:
            client(work, *arguments)
        except Exception as error:  # noqa: BLE001  a client that ends early is told, whatever ended it
            self.trouble.append(f"{getattr(client, '__name__', 'a client')} ended early: {error!r}")


def _writers(work: Work, chance: Random) -> Clients:
    """Whoever changes anything, but the producers."""
    return [
        (readers.commit_alone, ()),
        (topics.make_topics, (Random(chance.random()),)),
        (topics.change_settings, (Random(chance.random()),)),
        *((epochs.commit_epochs, (*query, Random(chance.random()))) for query in epochs.expect_queries(work)),
    ]


def _readers(chance: Random) -> Clients:
    """Whoever reads to the end."""
    return [
        (readers.read_confluent, ((ORDERS,), "error")),
        (readers.read_confluent, ((KEPT, CLEARED, RESULTS), "earliest")),
        (readers.read_kafka_python, ()),
        *(
            (readers.be_member, (group, some, Random(chance.random())))
            for group, some in MEMBERS.items()
            for _ in range(2)
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, judge, print, keep."""
    parser = options(
        __doc__, quick="three minutes", smoke="half a minute: does it work at all", data="a folder for the data"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of faults (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=3, choices=(3, 4, 5), help="sidecars (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the faults; without it another one each time")
    parser.add_argument("--client-logs", action="store_true", help="what librdkafka says, on standard error")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="run nothing: make one result of these")
    given = parser.parse_args(arguments)
    console = Console(width=180)
    if given.merge:
        parts = [json.loads(path.read_text(encoding="utf-8")) for path in given.merge]
        content = report.merge(parts)
        content["mode"] = mode_of(sum(each["minutes"] for each in content["slices"]))
        keep(content, results.directory(parser, given.results, content["mode"]), console)
        return
    seed = given.seed if given.seed is not None else Random().randrange(1 << 31)
    minutes = 0.5 if given.smoke else 3.0 if given.quick else given.minutes
    mode = "smoke" if given.smoke else "quick" if given.quick else mode_of(minutes)
    plan = Plan(mode, minutes, given.hosts, seed, given.client_logs)
    folder = results.directory(parser, given.results, plan.mode)
    console.print(f"seed {plan.seed}, {plan.hosts} hosts, {plan.minutes:g} minutes of faults")
    directory = Path(tempfile.mkdtemp(prefix="cairn-histories-", dir=given.data))
    before, run = machine(directory), Run(plan, directory, console)
    is_clean = False
    with ended_in_order():
        try:
            run.run()
            content = judge(plan, run, before)
            keep(content, folder, console)
            is_clean = not content["violations"] and not content["trouble"]
        finally:
            if is_clean:
                shutil.rmtree(directory, ignore_errors=True)
            else:
                console.print(f"kept: {directory}")
    if not is_clean:
        sys.exit(1)


def mode_of(minutes: float) -> str:
    """A full run is an hour, with all that comes before and after its faults."""
    return results.FULL if minutes >= FULL_MINUTES else "shorter"


def judge(plan: Plan, run: Run, before: dict[str, Any]) -> report.Content:
    """The result of a run."""
    checker = Checker()
    checker.feed(read_history(run.history))
    violations = checker.violations()
    slice_ = {
        "plan": asdict(plan),
        "minutes": round(run.minutes, 2),
        **results.commit(),
        "disks": run.file_system,
        "load_average_after": [round(load, 2) for load in os.getloadavg()],
    }
    return report.conclude(
        {
            "mode": plan.mode,
            "machine": before,
            "versions": versions(),
            "slices": [slice_],
            "kinds": sorted(run.kinds),
            "calls": dict(sorted(checker.counts.items())),
            "notes": run.notes,
            "violation_count": checker.violation_count,
            "violations": [violation._asdict() for violation in violations],
            "trouble": run.trouble,
            "rows": run.rows.all,
        }
    )


def keep(content: report.Content, folder: Path, console: Console) -> None:
    """Print a result, and write it."""
    for violation in content["violations"]:
        console.print(f"[red]{violation['promise']}:[/] {violation['seen']}", markup=True)
    for line in content["trouble"]:
        console.print(f"[red]trouble:[/] {line}")
    report.tables(content, console)
    print_goals(console, [Goal(**goal) for goal in content["goals"]])
    write_json(folder / "histories.json", content)
    report.draw(content["rows"], folder / "histories.png")
    console.print(f"written: {folder / 'histories.json'}")


if __name__ == "__main__":
    main()
