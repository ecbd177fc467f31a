"""A start: what prevents it is said before anything is compiled, and a signal ends it while that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
import trio

from logstore.base.addresses import Address
from logstore.base.events import ignore
from logstore.base.system import SystemClock
from logstore.testing.ports import free_port
from scheduler.coordinator import embedded, running
from scheduler.coordinator.errors import StoreDamaged
from scheduler.coordinator.planners import PLANNERS, make_planner
from scheduler.coordinator.running import ServeSettings, opened, serve
from scheduler.coordinator.service import CoordinatorEnvironment
from scheduler.coordinator.testing import CoordinatorProcess, in_thread
from scheduler.errors import TopologyError
from scheduler.peace.plan import Planner, Request, Residual, TransferPlan
from scheduler.peace.tree import TreePlanner
from scheduler.topology import Server, Topology, both_ways, racks
from tests.coordinator.support import ask, topology_file
from tests.kafka.wire_client import WireClient
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT

COMPILING = "compiling"
PROGRAM = f"""
import sys

import numba

from logstore.cli import main
from scheduler.coordinator.planners import PLANNERS
from scheduler.peace.tree import TreePlanner


class Endless(TreePlanner):
    def plan(self, requests, residual, random):
        while True:
            numba.njit(lambda number: number + 1)(1)
            print({COMPILING!r}, file=sys.stderr, flush=True)


PLANNERS["repaired"] = ("__main__", "Endless")
sys.exit(main(sys.argv[1:]))
"""
"""`cairn` with a planner whose compiled code never gets ready."""
SERVE = ServeSettings(Address("127.0.0.1", 0))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["coordinate", "serve"])
def test_a_signal_ends_a_start_that_compiles(tmp_path: Path, command: str, number: signal.Signals) -> None:
    """Alone and inside a sidecar: exit status 0, and nothing was said to be ready; the sidecar's Kafka clients are
    served meanwhile.
    """
    path, _ = topology_file(tmp_path)
    port = free_port()
    flags = {
        "coordinate": ["--topology", str(path), "--listen", "127.0.0.1:0"],
        "serve": ["--coordinate", str(path), "--coordinator", "127.0.0.1:0", "--kafka", f"127.0.0.1:{port}"],
    }
    words = [sys.executable, "-c", PROGRAM, command, "--data-dir", str(tmp_path / "data"), *flags[command]]
    lines: list[str] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line.strip())
                if lines[-1] == COMPILING:
                    break
            if command == "serve":
                with WireClient(port) as client:
                    assert client.create_topic("orders") == 0
            process.send_signal(number)
            said, log = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    log = "\n".join([*lines, log])
    assert process.returncode == 0, log
    assert said == ""
    for event in ("warming planner=tree", f"stopping signal={number.name}", "stopped"):
        assert f"event={event}" in log
    assert "event=ready" not in log
    assert "Traceback" not in log


def test_another_signal_does_not_cut_the_stop_short(tmp_path: Path) -> None:
    """Of two signals that are there at once, the second one is ignored: exit status 0, and the last steps are taken."""
    path, _ = topology_file(tmp_path)
    with CoordinatorProcess(path, tmp_path / "data", "--planner", "paper") as coordinator:
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            os.kill(coordinator.pid, number)
        assert coordinator.terminate() == 0
        assert "event=stopped" in coordinator.log()


class Untouched(TreePlanner):
    """Nobody plans with it."""

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> TransferPlan:
        """Say so."""
        raise AssertionError("planned")


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `repaired` is asked for, a planner comes with which nobody may plan: nothing is compiled."""
    monkeypatch.setitem(PLANNERS, "repaired", (__name__, "Untouched"))


@pytest.mark.usefixtures("untouched")
def test_a_network_that_is_no_tree_is_refused_at_once() -> None:
    """The planner of this network is made before any of its kind is run."""
    names = ["a", "b", "c"]
    links = [link for one, other in (("a", "b"), ("b", "c"), ("c", "a")) for link in both_ways(one, other, 1)]
    with pytest.raises(TopologyError, match="is not a tree"):
        make_planner("repaired", Topology([Server(f"{name}1", name) for name in names], links, switches=names))


@pytest.mark.usefixtures("untouched")
async def test_a_directory_in_use_is_refused_at_once(tmp_path: Path) -> None:
    """Inside a sidecar as well."""
    path, _ = topology_file(tmp_path)
    with opened(tmp_path / "data"), pytest.raises(embedded.Refused, match="in use by another coordinator"):
        await embedded.start(path, Address("127.0.0.1", 0), tmp_path / "data", ignore, embedded.Access())


@pytest.mark.usefixtures("untouched")
async def test_a_damaged_store_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is read before anything is compiled."""

    def load() -> Mapping[str, str]:
        raise StoreDamaged("damaged")

    topology = racks([4, 4], 4)
    environment = CoordinatorEnvironment(topology, make_planner(None, topology), SystemClock(), Random(0), ignore)
    with opened(tmp_path) as metadata, pytest.raises(StoreDamaged):
        monkeypatch.setattr(metadata, "load", load)
        await serve(environment, metadata, SERVE)


class Watch(SystemClock):
    """A clock that a test moves on."""

    moved_s = 0.0

    def monotonic_s(self) -> float:
        """Seconds."""
        return super().monotonic_s() + self.moved_s


async def test_hosts_have_their_whole_time_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a start compiles: who was registered before it is not lost, as nobody could hear it."""
    topology, clock = racks([4, 4], 4), Watch()
    environment = CoordinatorEnvironment(topology, make_planner("paper", topology), clock, Random(0), ignore)

    async def slowly(planner: Planner, report: object) -> None:
        clock.moved_s += SERVE.coordinator.host_deadline_ms

    with opened(tmp_path) as metadata:
        with in_thread(environment, metadata, SERVE) as url:
            assert ask(url, "POST", "/v1/hosts", {"name": "r1h1", "address": "10.0.0.1:50010"}).status < 300
        monkeypatch.setattr(running, "warm_up_planner", slowly)
        async with trio.open_nursery() as nursery:
            started = await nursery.start(serve, environment, metadata, SERVE)
            coordinator = started.coordinator
            left_ms = coordinator.hosts.left_ms("r1h1", coordinator.now_ms())
            await started.drain()
    assert clock.moved_s > 0
    assert left_ms is not None
    assert left_ms > 0
