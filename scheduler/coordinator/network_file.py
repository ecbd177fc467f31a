"""The network of a coordinator, as new as its file: a description, or what Hadoop or Kubernetes print of hosts.

Invariants:
* A file that cannot be used changes nothing, and is reported once for each error.
* A file that has changed is read when it has stayed as it is for CHECK_S: whoever writes it may not be done, and half
  of a network is a network too. It is read at once when that is asked for (SIGHUP).
* While the coordinator cannot store a change, the change is tried again.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import trio

from logstore.base.errors import CairnError
from logstore.base.events import Report
from scheduler.coordinator.errors import StoreError
from scheduler.coordinator.log_events import TOPOLOGY_LOADED, TOPOLOGY_UNUSABLE
from scheduler.topology import Topology
from scheduler.topology.description import load_topology

CHECK_S: Final = 5.0
UNUSABLE: Final = (CairnError, OSError, ArithmeticError, ValueError)
"""What a file that cannot be used raises; the last two: numbers without bounds."""
_Stamp = tuple[int, int, int]


class NetworkOutcome(NamedTuple):
    """What a new network did: the chunks that were revoked, and the requests that ended."""

    revoked: int = 0
    requests_ended: int = 0


Apply = Callable[[Topology], Awaitable[NetworkOutcome]]
"""Goes on with a network; returns what came of it. Raises StoreError if it cannot now, CairnError if never."""


class NetworkFile:
    """See the module."""

    def __init__(self, path: Path, report: Report) -> None:
        self._path = path
        self._report = report
        self._current: Topology | None = None
        self._taken: _Stamp | None = None
        """Of the file as it was read last."""
        self._seen: _Stamp | None = None
        """Of the file as it was at the last look."""
        self._wanted = trio.Event()
        self._problem = ""

    def read(self) -> Topology:
        """Read it now, as the network to begin with; blocks. Raises CairnError, OSError."""
        self._taken = self._stamp()
        self._current = load_topology(self._path)
        return self._current

    def look_again(self) -> None:
        """Read it again soon, whether or not it has changed."""
        self._wanted.set()

    async def follow(self, apply: Apply) -> None:
        """Apply each network that the file describes, until cancelled."""
        while True:
            with trio.move_on_after(CHECK_S):
                await self._wanted.wait()
            is_wanted, self._wanted = self._wanted.is_set(), trio.Event()
            await self.look(apply, is_wanted=is_wanted)

    async def look(self, apply: Apply, *, is_wanted: bool = False) -> None:
        """Look at the file, and apply its network if there is a reason to; with `is_wanted`, whether or not it has
        changed.
        """
        try:
            await self._look(apply, is_wanted=is_wanted)
        except StoreError:
            self._taken = None  # the store reports that it fails
        except UNUSABLE as error:
            if str(error) != self._problem or is_wanted:
                self._problem = str(error)
                self._report(
                    TOPOLOGY_UNUSABLE, file=str(self._path), error=error, effect="the network known before stays"
                )

    async def _look(self, apply: Apply, *, is_wanted: bool) -> None:
        before, self._seen = self._seen, await trio.to_thread.run_sync(self._stamp, abandon_on_cancel=True)
        if not is_wanted and (self._seen == self._taken or self._seen != before):
            return
        self._taken = self._seen
        topology = await trio.to_thread.run_sync(load_topology, self._path, abandon_on_cancel=True)
        self._problem, current = "", self._current
        if current is not None and _values(topology) == _values(current):
            if is_wanted:
                self._say(topology, topology, NetworkOutcome())
            return
        outcome = await apply(topology)
        self._current = topology
        self._say(topology if current is None else current, topology, outcome)

    def _say(self, before: Topology, after: Topology, outcome: NetworkOutcome) -> None:
        self._report(
            TOPOLOGY_LOADED,
            topology=after.name,
            hosts=len(after.servers),
            hosts_new=len(set(after.index) - set(before.index)),
            hosts_gone=len(set(before.index) - set(after.index)),
            changed=_values(before) != _values(after),
            revoked=outcome.revoked,
            requests_ended=outcome.requests_ended,
        )

    def _stamp(self) -> _Stamp:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


def _values(topology: Topology) -> tuple[object, ...]:
    return topology.name, topology.chunk_bytes, topology.servers, topology.links, topology.switches
