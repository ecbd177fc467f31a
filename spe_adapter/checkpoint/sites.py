"""The sinks and coordinators that units name, each opened once for all units with the same settings.

Invariant: at most MAX_SITES are open; the one that was not used for longest is closed for a new one.
"""

import json
import threading
from collections import OrderedDict
from concurrent.futures import Executor
from hashlib import sha256
from typing import Final, NamedTuple

from logstore.base.clock import Clock
from logstore.base.events import Report
from scheduler.client import CoordinatorClient
from spe_adapter.checkpoint.coordinator_registry import CoordinatorRegistry
from spe_adapter.checkpoint.manager import ManagerTools
from spe_adapter.checkpoint.plans import PeaceRequests
from spe_adapter.checkpoint.registry import NoRegistry
from spe_adapter.checkpoint.settings import CheckpointSettings, open_coordinator, open_sink
from spe_adapter.checkpoint.throttle import Throttle

MAX_SITES: Final = 16


class Site(NamedTuple):
    """A place for checkpoints, opened."""

    tools: ManagerTools
    client: CoordinatorClient | None

    def close(self) -> None:
        """Close its connections; calls that wait end with an error."""
        if self.client is not None:
            self.client.close()
        self.tools.sink.close()


def open_site(
    settings: CheckpointSettings,
    clock: Clock,
    report: Report,
    ending: threading.Event,
    pool: Executor | None = None,
    owner: str = "",
) -> Site:
    """The tools of a manager for these settings, until `ending`. `owner`: see Peace. Raises CheckpointUrlRefused and
    CoordinatorError.
    """
    sink = open_sink(settings, report)
    client = open_coordinator(settings, report)
    tools = ManagerTools(
        sink,
        None if client is None else PeaceRequests(client, settings.host, settings.replicas, owner=owner),
        NoRegistry() if client is None else CoordinatorRegistry(client),
        Throttle(settings.max_bytes_per_s, clock, ending.wait) if settings.max_bytes_per_s else None,
        report,
        clock,
        settings.replicas,
        pool,
    )
    return Site(tools, client)


class Sites:
    """Open sites by their settings, for the writer `owner`."""

    def __init__(self, clock: Clock, report: Report, ending: threading.Event, pool: Executor, owner: str) -> None:
        self._owner = owner
        self._ending = ending
        self._clock = clock
        self._report = report
        self._pool = pool
        self._open: OrderedDict[str, Site] = OrderedDict()

    def at(self, settings: CheckpointSettings) -> Site:
        """The site of these settings. Raises CheckpointUrlRefused and CoordinatorError."""
        key = json.dumps({**settings.described(), "policy": None}, sort_keys=True)
        site = self._open.get(key)
        if site is None:
            owner = f"{self._owner}-{sha256(key.encode()).hexdigest()[:16]}"
            site = self._open[key] = open_site(settings, self._clock, self._report, self._ending, self._pool, owner)
            if len(self._open) > MAX_SITES:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(key)
        return site

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popitem()[1].close()
