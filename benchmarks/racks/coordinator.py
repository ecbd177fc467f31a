"""A real coordinator for the hosts: in a thread of this process, served on the control network.

Invariant: no other machine reaches it; the control network is a bridge without a way out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from benchmarks.racks.network import CONTROL_ADDRESS
from logstore.base.addresses import Address
from logstore.base.events import ignore
from logstore.base.system import SystemClock
from scheduler.coordinator.front_settings import Security
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.running import ServeSettings, opened
from scheduler.coordinator.service import CoordinatorEnvironment, CoordinatorSettings
from scheduler.coordinator.testing import in_thread
from scheduler.peace.online import GATHER_MS, Mode, Settings, Stragglers
from scheduler.topology import Topology


@contextmanager
def coordinating(
    topology: Topology, mode: Mode, seed: int, planner: str | None = None, address: str = CONTROL_ADDRESS
) -> Iterator[str]:
    """Serve meanwhile; gives the URL. Its state is durable, in a temporary directory.

    Timesteps are planned on the full network, whatever the last one has not finished, and at once: one reading of the
    paper, which leaves that open.
    """
    gather_ms = GATHER_MS if mode is Mode.CONTINUOUS else 0
    chosen = CoordinatorSettings(Settings(mode, stragglers=Stragglers.IGNORED, gather_ms=gather_ms))
    served = ServeSettings(Address(address, 0), chosen, security=Security(insecure=True))
    world = CoordinatorEnvironment(topology, make_planner(planner, topology), SystemClock(), Random(seed), ignore)
    with (
        tempfile.TemporaryDirectory(prefix="coordinator-") as directory,
        opened(Path(directory)) as metadata,
        in_thread(world, metadata, served) as url,
    ):
        yield url
