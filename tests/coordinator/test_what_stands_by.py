"""A host that only stands by as coordinator pays for a front: what plans is loaded by the host that leads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.coordinator.compiling import compile_ahead
from tests.coordinator.support import topology_file
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT

PROGRAM = """
import json
import sys
from functools import partial
from pathlib import Path
from random import Random

sys.modules["hypothesis"] = None

import trio

import logstore.cli
import logstore.sidecar
from logstore.base.addresses import Address
from logstore.base.metadata import schema
from logstore.base.metadata.interface import Delete, Transaction
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from scheduler.coordinator import embedded
from scheduler.coordinator.log_events import COORDINATOR_FOLLOWS, COORDINATOR_LEADS


def loaded():
    return sorted({name.split(".")[0] for name in sys.modules} | {n for n in sys.modules if n.startswith("scheduler.")})


class Store:
    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    async def commit(self, transaction):
        seen.setdefault("ready to lead", loaded())
        return await self.store.commit(transaction)


class Member:
    name, start = "a", "s1"
    lease_id = 0


async def main():
    def report(event, **fields):
        if event in (COORDINATOR_FOLLOWS, COORDINATOR_LEADS):
            told[event].set()

    told = {event: trio.Event() for event in (COORDINATOR_FOLLOWS, COORDINATOR_LEADS)}
    service, member = SimulatedMetadata(Random(0), MetadataFaults()), Member()
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        store = service.store("a")
        other = schema.StoredLeader(host="b", start="s1", url="http://b:9880")
        await store.commit(schema.lead(other, (await store.grant_lease(600)).lease_id))
        member.lease_id = (await store.grant_lease(600)).lease_id
        side = embedded.ClusterSide(member, Store(store))
        where, access = Address("127.0.0.1", 0), embedded.Access()
        standing = await nursery.start(embedded.stand_by_in, side, Path(sys.argv[1]), where, report, access)
        await told[COORDINATOR_FOLLOWS].wait()
        await store.commit(Transaction((), (Delete(schema.LEADER_KEY),)))
        await told[COORDINATOR_LEADS].wait()
        seen["leads"] = loaded()
        await standing.drain()
        nursery.cancel_scope.cancel()


seen = {"imported": loaded()}
sys.executable = sys.argv[2]
trio.run(main)
print(json.dumps(seen))
"""
PLANS = {
    *("numpy", "numba", "llvmlite"),
    *("scheduler.peace", "scheduler.coordinator.service", "scheduler.coordinator.handlers"),
}
"""What makes a leader large: 80 MB."""


def seen_by_a_host(tmp_path: Path, python: str) -> dict[str, set[str]]:
    """What a host has loaded when it is imported, when it may lead, and when it leads; `python` starts its compiler."""
    path, _ = topology_file(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), python],
        capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return {when: set(names) for when, names in json.loads(ended.stdout).items()}


def test_a_host_that_stands_by_has_loaded_nothing_that_plans(tmp_path: Path) -> None:
    """Up to the moment in which it may lead, and puts its entry, as its planner's code is compiled: it has neither
    numpy nor the compiler in memory. When it leads it has.
    """
    seen = seen_by_a_host(tmp_path, sys.executable)
    assert not PLANS & seen["imported"]
    assert not PLANS & seen["ready to lead"]
    assert seen["leads"] > PLANS


@pytest.mark.parametrize("python", ["/bin/false", "/no/such/program"])
def test_a_host_whose_code_is_not_kept_has_it_before_it_leads(tmp_path: Path, python: str) -> None:
    """Where no process can compile ahead, as without a directory for compiled code, the host does so by itself, and
    leads only then: nobody waits for a compiler behind a takeover.
    """
    seen = seen_by_a_host(tmp_path, python)
    assert not PLANS & seen["imported"]
    assert seen["ready to lead"] > PLANS


async def test_a_compiler_that_fails_keeps_nothing() -> None:
    """It says so to the host that started it."""
    assert not await compile_ahead("no such planner")
