"""Faults of histories on real processes: a host that ends by itself is told, one that is gone is no fault."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.checked.checker import Checker
from benchmarks.checked.faults import Faults
from benchmarks.checked.history import Recorder, read_history
from benchmarks.checked.kinds import Kinds
from benchmarks.checked.work import Work
from logstore.testing.cluster import Cluster
from logstore.testing.network import RelayedNetwork
from tests.metadata.support import needs_etcd
from tests.support.limits import PATIENCE_S

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]


class World:
    """A cluster without clients, and its history."""

    def __init__(self, directory: Path) -> None:
        self.network = RelayedNetwork()
        self.cluster = Cluster(directory / "cluster", network=self.network)
        self.path = directory / "history.jsonl"
        self.recorder = Recorder(self.path, time.monotonic)
        self.faults = Faults(self.cluster, self.network, Work((), self.recorder), Random(1), {})

    def end_behind_all_backs(self, name: str) -> None:
        """As a defect would: nobody asked for it."""
        host = self.cluster[name]
        os.kill(host.pid, signal.SIGKILL)
        os.waitid(os.P_PID, host.pid, os.WEXITED | os.WNOWAIT)

    def deaths(self) -> list[dict[str, Any]]:
        """What the history has of processes that ended by themselves."""
        self.recorder.close()
        return [entry for entry in read_history(self.path) if entry["what"] == "died"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three hosts that run."""
    made = World(tmp_path)
    with made.cluster:
        yield made
    made.recorder.close()


def test_a_host_that_ends_by_itself_is_told_and_started_again(world: World) -> None:
    """Healing does not hide it: the history has its status and the end of its log, and the checker calls it a broken
    promise.
    """
    world.end_behind_all_backs("b")
    world.faults.heal()
    assert all(host.is_running for host in world.cluster)
    (death,) = world.deaths()
    assert (death["host"], death["status"], "event=ready" in death["log"]) == ("b", -signal.SIGKILL, True)
    checker = Checker()
    checker.feed(read_history(world.path))
    assert [violation.promise for violation in checker.violations()] == ["hosts stay up"]


def test_a_fault_of_a_host_that_is_gone_is_none(world: World) -> None:
    """It is not seen, and the death that came before it is told."""
    for host in world.cluster:
        world.end_behind_all_backs(host.name)
    told: list[str] = []
    kinds = Kinds(world.cluster, world.network, Random(1), {}, lambda node, status, why: told.append(node.name))
    fault = kinds.make("kill")
    fault.begin()
    assert fault.seen() == ""
    assert told == [fault.hosts[0].name]


def test_all_kinds_choose_the_same_from_the_same_seed(world: World) -> None:
    """Hosts and pairs follow from the seed alone, and a second fault strikes other hosts than the first."""

    def chosen() -> list[tuple[str, tuple[str, ...]]]:
        kinds = Kinds(world.cluster, world.network, Random(7), {}, lambda node, status, why: None)
        found = []
        for name in [*kinds.names] * 3:
            first = kinds.make(name)
            second = kinds.second(first)
            struck = tuple(host.name for each in (first, second) if each is not None for host in each.hosts)
            assert len(struck) == len(set(struck))
            found.append((name, struck))
        return found

    assert chosen() == chosen()


def test_bytes_that_meet_a_cut_show_it(world: World) -> None:
    """A host that is cut off from etcd asks it again and again: the fault is seen, and ends with `end`."""
    kinds = Kinds(world.cluster, world.network, Random(3), {}, lambda node, status, why: None)
    fault = kinds.make("cut off")
    fault.begin()
    deadline_s = time.monotonic() + PATIENCE_S
    while not (seen := fault.seen()):
        assert time.monotonic() < deadline_s
    assert "to etcd" in seen
    fault.end()
    world.faults.heal()
    assert world.deaths() == []
