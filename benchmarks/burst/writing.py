"""The process beside an operator that writes checkpoints of its state, as the I/O service does: the product's manager,
freezing the operator's base across processes, with HDFS as its sink and Peace's plans.

Invariants:
* Every checkpoint is the first of its manager, and so a full one: all runs write as much.
* A checkpoint that fails is written again at once, at most MAX_TRIES times in all; its go is that of the first try.
* Times are the machine's monotonic clock, the same in every process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.burst.operating import PARTITION
from benchmarks.racks.hdfs_host import USER, HdfsHost
from benchmarks.racks.host import obey
from logstore.base.events import LogEvent
from scheduler.client import CoordinatorClient
from scheduler.hdfs.plan_table import PlanTable
from spe_adapter.checkpoint.bases import freezing
from spe_adapter.checkpoint.coordinator_registry import CoordinatorRegistry
from spe_adapter.checkpoint.hdfs_sink import HdfsSink, HdfsSinkSettings
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.plans import PeaceRequests
from spe_adapter.checkpoint.snapshot import Snapshot

MAX_TRIES: Final = 3


class BurstHost(HdfsHost):
    """Its chunks are those of checkpoints of the operator on the same host."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        super().__init__(name, address, directory)
        self._checkpoint_of: dict[str, Any] = {}
        self.commands |= {"watch": self.watch, "checkpoint": self.checkpoint}

    def watch(self, url: str, plan_url: str, plan_token: str, state: Mapping[str, str]) -> None:
        """Which HDFS, and where the operator's state is."""
        self._checkpoint_of = {"url": url, "plan_url": plan_url, "plan_token": plan_token, "state": dict(state)}

    def checkpoint(
        self, at_s: float, root: str, coordinator: str, replicas: int, planned: bool, own_disk: bool
    ) -> dict[str, Any]:
        """Checkpoint at `at_s` into a directory of HDFS, with Peace's plan or without one; what became of it, and when.

        `own_disk`: HDFS may place chunks on this host.
        """
        own = self._checkpoint_of
        unit = Unit(own["state"]["query"], PARTITION)
        freeze_base = freezing(Path(own["state"]["root"]))(unit)
        frozen_s: list[float] = []
        registered_s: list[float] = []
        failed_go_s: list[float] = []
        lines: list[str] = []

        def freeze(since: object) -> Snapshot | None:
            frozen_s.append(time.monotonic())
            return freeze_base(since)

        def acknowledge(_: Manifest) -> None:
            registered_s.append(time.monotonic())

        def report(event: LogEvent, /, **fields: object) -> None:
            error = str(fields.get("error", "")).partition("\n")[0]
            lines.append(f"{event.name} {error}".strip())

        settings = HdfsSinkSettings(own["url"], root, USER, avoided=() if own_disk else (self.address,))
        sink = HdfsSink(settings, PlanTable(own["plan_url"], own["plan_token"]) if planned else None, report)
        with CoordinatorClient(coordinator) as client:
            peace = PeaceRequests(client, self.name, replicas) if planned else None
            tools = ManagerTools(sink, peace, CoordinatorRegistry(client), report=report, replicas=replicas)
            manager = CheckpointManager(unit, freeze, tools, acknowledge)
            time.sleep(max(0.0, at_s - time.monotonic()))
            submitted_s = time.monotonic()
            for _ in range(MAX_TRIES):
                outcome = manager.checkpoint()
                if outcome.is_complete:
                    break
                failed_go_s.append(frozen_s[-1])
        sink.close()
        if outcome.manifest is None or not registered_s:
            raise RuntimeError(f"{unit.name}: {outcome.state.value} {outcome.error}; {lines}")
        return {
            "submitted_s": submitted_s,
            "go_s": (*failed_go_s, frozen_s[-1])[0],
            "failed": len(failed_go_s),
            "registered_s": registered_s[-1],
            "freezes": len(frozen_s),
            "freeze_s": outcome.freeze_s,
            "write_s": outcome.write_s,
            "bytes": outcome.manifest.own_bytes,
            "files": len(outcome.manifest.files),
            "planned": outcome.manifest.is_planned,
            "lines": lines,
        }


def main(arguments: Sequence[str]) -> None:
    """The process of a host with a DataNode and an operator."""
    name, address, directory = arguments
    obey(BurstHost(name, address, Path(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
