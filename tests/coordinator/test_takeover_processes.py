"""Coordinators in the hosts of a cluster, as processes: the one that leads is killed, another goes on with the plan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import NewTopic

from logstore.testing.cluster import Cluster
from logstore.testing.ports import free_ports
from scheduler.client import CoordinatorClient
from tests.cluster_processes.clients import create_topic
from tests.coordinator.support import Answer, ask, topology_file
from tests.metadata.support import needs_etcd
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = [needs_etcd, pytest.mark.slow]
NAMES = ("a", "b", "c")


class Coordinators:
    """The coordinators of a cluster's hosts, as a client with all their addresses sees them."""

    def __init__(self, cluster: Cluster, urls: dict[str, str]) -> None:
        self.cluster = cluster
        self.urls = urls

    def running(self) -> list[str]:
        """The hosts that run."""
        return [name for name in self.urls if self.cluster[name].is_running]

    def answers(self, name: str) -> bool:
        """Whether a host answers as the leader."""
        with suppress(OSError, HTTPException):
            return ask(self.urls[name], "GET", "/v1/status").status == 200
        return False

    def leader(self) -> str:
        """The host that leads; waits until one does."""
        leaders: list[str] = []

        def is_found() -> bool:
            leaders.extend(name for name in self.urls if self.answers(name))
            return bool(leaders)

        until(is_found, "a coordinator that leads")
        return leaders[-1]

    def ask(self, method: str, path: str, value: object = None) -> Answer:
        """Ask until the leader answers, at whichever host: redirects are followed, and 503 is asked again."""
        answers: list[Answer] = []

        def is_answered() -> bool:
            for url in self.urls.values():
                with suppress(OSError, HTTPException):
                    answer = ask(url, method, path, value)
                    if answer.status == 307:
                        leader, _, _ = answer.headers["Location"].partition(path)
                        assert leader in self.urls.values()
                        answer = ask(leader, method, path, value)
                    if answer.status < 500 and answer.status != 307:
                        answers.append(answer)
                        return True
            return False

        until(is_answered, f"an answer to {method} {path}")
        return answers[-1]


@contextmanager
def coordinators(directory: Path, network: str = "") -> Iterator[Coordinators]:
    """Three hosts that may all lead, with one network."""
    path, _ = topology_file(directory)
    if network:
        path.write_text(network, encoding="utf-8")
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    flags = {name: ["--coordinate", str(path), "--coordinator", f"127.0.0.1:{ports[name]}"] for name in NAMES}
    with Cluster(directory / "cluster", NAMES, host_flags=flags) as cluster:
        yield Coordinators(cluster, {name: f"http://127.0.0.1:{port}" for name, port in ports.items()})


def test_another_host_goes_on_with_the_plan(tmp_path: Path) -> None:
    """kill -9 of the host that leads, twice: chunks that were under way still are, with their attempts; what waited is
    planned; every checkpoint that was answered is there, and no number is given twice.
    """
    with coordinators(tmp_path) as found:
        for name in ("one", "two"):
            body = {"name": name, "writer": f"r1h{1 + (name == 'two')}", "chunks": 3, "replicas": 2}
            assert found.ask("POST", "/v1/requests", body).status == 201
        for round_ in (1, 2):
            before = {name: found.ask("GET", f"/v1/requests/{name}").json() for name in ("one", "two")}
            for seq in range(10 * round_, 10 * round_ + 5):
                assert found.ask("PUT", f"/v1/units/u.{seq % 2}/checkpoints/{seq}", checkpoint(seq)).status in (
                    200,
                    201,
                )
            leader = found.leader()
            found.cluster[leader].kill()
            began_s = time.monotonic()
            other = found.leader()
            print(f"without a coordinator for {time.monotonic() - began_s:.2f} s")
            assert other != leader
            for name, view in before.items():
                again = found.ask("GET", f"/v1/requests/{name}").json()
                assert again["go"] == view["go"]
                assert again["state"] == view["state"]
            registered = [
                one["seq"]
                for unit in ("u.0", "u.1")
                for one in found.ask("GET", f"/v1/units/{unit}/checkpoints").json()["checkpoints"]
            ]
            assert sorted(registered) == [
                seq for part in range(1, round_ + 1) for seq in range(10 * part, 10 * part + 5)
            ]
            found.cluster[leader].start()
        for name in ("one", "two"):
            finish(found, name)


def test_a_writer_with_all_addresses_goes_on(tmp_path: Path) -> None:
    """A client that knows the hosts writes on while one leader is killed and the next one frozen, which takes
    connections and answers nothing: without an error, and each chunk once.
    """
    with coordinators(tmp_path) as found, CoordinatorClient(",".join(found.urls.values())) as client:
        client.register("r2h4", "10.0.0.4")
        write = client.submit(writer="r1h1", chunks=12)
        done: list[int] = []
        for go in write.goes():
            if len(done) == 2:
                found.cluster[found.leader()].kill()
            if len(done) == 7:
                for host in found.cluster:
                    if not host.is_running:
                        host.start()
                frozen = found.leader()
                found.cluster[frozen].pause()
                began_s = time.monotonic()
            assert go.done()
            done.append(go.chunk)
            if len(done) == 8:
                print(f"a report reached the next leader after {time.monotonic() - began_s:.1f} s")
        assert sorted(done) == list(range(12))
        found.cluster[frozen].go_on()
        client.alive("r2h4")


def test_a_planned_stop_and_an_etcd_that_is_away(tmp_path: Path) -> None:
    """SIGTERM of the host that leads ends it with status 0, and another one leads; etcd is killed and comes back: the
    plan goes on where it was, and what is asked meanwhile is answered then.
    """
    with coordinators(tmp_path) as found:
        view = found.ask("POST", "/v1/requests", {"name": "one", "writer": "r1h1", "chunks": 3, "replicas": 2}).json()
        leader = found.leader()
        assert found.cluster[leader].stop() == 0
        began_s = time.monotonic()
        assert found.leader() != leader
        print(f"without a coordinator for {time.monotonic() - began_s:.2f} s behind the end of the host that led")
        assert found.ask("GET", "/v1/requests/one").json()["go"] == view["go"]
        found.cluster.etcd.kill()
        until(lambda: not any(found.answers(name) for name in found.running()), "nobody that leads without an etcd")
        found.cluster.etcd.start()
        assert found.ask("GET", "/v1/requests/one").json()["go"] == view["go"]
        finish(found, "one")


def test_copies_to_a_host_that_lost_its_disk_have_slots(tmp_path: Path) -> None:
    """The network has the members: what is copied to the one that comes back empty is fast in slots of the leader."""
    servers = "".join(f'[[server]]\nname = "{name}"\nrack = "rack"\n' for name in NAMES)
    with coordinators(tmp_path, f'name = "members"\n[[switch]]\nname = "rack"\n{servers}') as found:
        cluster, leader = found.cluster, found.leader()
        create_topic(cluster.bootstrap, NewTopic("held", 2, 3))
        with closing(KafkaProducer(bootstrap_servers=cluster.bootstrap)) as producer:
            for number in range(64):
                producer.send("held", b"x" * 500_000, partition=number % 2)
            producer.flush(PATIENCE_S)
        lost = next(name for name in NAMES if name != leader)
        cluster[lost].kill()
        cluster[lost].wipe()
        cluster[lost].start()
        told = "cairn_coordinator_copy_slots_total "

        def are_told() -> bool:
            text = ask(found.urls[leader], "GET", "/metrics").text
            return any(line.startswith(told) and float(line.split()[1]) > 0 for line in text.splitlines())

        until(are_told, "a slot for copies")


def finish(found: Coordinators, name: str) -> None:
    """Write a request's chunks as they are planned, and see it end."""
    after, is_over = 0, False
    while not is_over:
        for event in found.ask("GET", f"/v1/requests/{name}/go?after={after}&wait_s=5").json()["events"]:
            after = event["number"]
            is_over = event["event"] == "finished"
            if event["event"] == "go":
                path = f"/v1/requests/{name}/chunks/{event['chunk']}/done"
                assert found.ask("POST", path, {"attempt": event["attempt"]}).status == 200


def checkpoint(seq: int) -> dict[str, Any]:
    """What is registered of a checkpoint."""
    return {
        "sink": "hdfs://nn:9870/c", "epoch": seq, "attempt": f"a{seq}", "state_bytes": 1000, "bases": [],
        "written_ms": 1, "files": [{"name": f"f{seq}", "bytes": 10, "crc32c": 1, "hosts": ["r1h1"]}],
    }  # fmt: skip
