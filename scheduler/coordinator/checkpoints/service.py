"""The registry of checkpoints as a service: on the coordinator's journal, with lines in its log.

Invariants:
* An answer to a change comes when the change is durable, in the same transactions as those of requests.
* While the coordinator's store fails, or its plan is rebuilt from the store, nothing changes (StoreError, 503).
"""

from collections.abc import Awaitable, Callable, Mapping

from logstore.base.events import Report
from logstore.base.fields import shown
from scheduler.coordinator.checkpoints.locality import HostChoice, RackDistances, hosts_by_nearness
from scheduler.coordinator.checkpoints.registry import (
    CONFLICT,
    CheckpointRegistry,
    RegisteredChange,
    RegistryLimits,
    UnitCheckpoint,
)
from scheduler.coordinator.errors import ApiError
from scheduler.coordinator.hosts import Hosts
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.log_events import CHECKPOINT_REGISTERED, CHECKPOINT_REMOVED, UNIT_FORGOTTEN
from scheduler.topology import Topology


class CheckpointService:
    """The operations on complete checkpoints. `ready` raises StoreError while nothing may be changed."""

    def __init__(
        self,
        journal: MetadataJournal,
        ready: Callable[[], Awaitable[None]],
        report: Report,
        limits: RegistryLimits | None = None,
    ) -> None:
        self.registry = CheckpointRegistry(limits)
        self._journal = journal
        self._ready = ready
        self._report = report
        self._distances: RackDistances | None = None
        self.counts = dict.fromkeys(("registered", "removed", "forgotten"), 0)
        """The number of changes of each kind since this process started; forgotten: checkpoints, not units."""

    def restore(self, entries: Mapping[str, str]) -> None:
        """Restore the stored checkpoints. Raises StoreDamaged."""
        self.registry.restore(entries)

    async def register(self, checkpoint: UnitCheckpoint) -> bool:
        """Register a complete checkpoint; whether it is new. Raises ApiError, StoreError."""
        await self._ready()
        if self._journal.left_bytes < self.registry.limits.entry_bytes:
            raise ApiError(
                CONFLICT, f"unit={shown(checkpoint.unit)}: the store is full; remove old checkpoints", "unit"
            )
        change = self.registry.register(checkpoint)
        if change is not None:
            self._record(change)
            self.counts["registered"] += 1
            self._report(
                CHECKPOINT_REGISTERED,
                unit=checkpoint.unit,
                seq=checkpoint.seq,
                epoch=checkpoint.epoch,
                files=len(checkpoint.files),
                bytes=checkpoint.file_bytes,
            )
        await self._journal.durable()
        return change is not None

    async def remove(self, unit: str, seq: int) -> bool:
        """Remove a checkpoint that is not needed; whether it was there. Raises ApiError, StoreError."""
        await self._ready()
        change = self.registry.remove(unit, seq)
        if change is not None:
            self._record(change)
            self.counts["removed"] += 1
            self._report(CHECKPOINT_REMOVED, unit=unit, seq=seq)
        await self._journal.durable()
        return change is not None

    async def forget(self, unit: str) -> int:
        """Forget a unit; how many checkpoints it had. Raises StoreError."""
        await self._ready()
        number, change = self.registry.forget(unit)
        if change is not None:
            self._record(change)
            self.counts["forgotten"] += number
            self._report(UNIT_FORGOTTEN, unit=unit, checkpoints=number)
        await self._journal.durable()
        return number

    def hosts(self, unit: str, topology: Topology, hosts: Hosts) -> tuple[UnitCheckpoint, int, list[HostChoice]]:
        """The newest checkpoint of a unit, the bytes of its recovery, and the hosts that load it, the best first.

        Raises ApiError if the unit has no checkpoint.
        """
        newest = self.registry.newest(unit)
        files = list(self.registry.recovery_files(newest))
        if self._distances is None or self._distances.topology is not topology:
            self._distances = RackDistances(topology)
        choices = hosts_by_nearness(files, topology, self._distances, hosts.is_lost, hosts.names_by_address())
        return newest, sum(file.bytes for file in files), choices

    def _record(self, change: RegisteredChange) -> None:
        self._journal.record(change.changes, change.publish)
