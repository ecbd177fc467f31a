"""One handler for every route of the registry of checkpoints.

Invariants: handlers make no decisions; every answer is one that the tables of `interface` describe.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from logstore.base.fields import MAX_INTEGER
from scheduler.coordinator.checkpoints.registry import UnitCheckpoint, checkpoint_of, newest_recoverable
from scheduler.coordinator.checkpoints.service import CheckpointService
from scheduler.coordinator.dispatch import ApiCall, Operation, Reply
from scheduler.coordinator.hosts import Hosts
from scheduler.topology import Topology

OK = 200
CREATED = 201


class CheckpointHandlers:
    """The operations of the interface on the registry of checkpoints. `topology` gives the present network."""

    def __init__(self, service: CheckpointService, hosts: Hosts, topology: Callable[[], Topology]) -> None:
        self._service = service
        self._hosts = hosts
        self._topology = topology

    def operations(self) -> Mapping[str, Operation]:
        """Handlers by the operations' names."""
        return {
            "listUnits": self._list_units,
            "forgetUnit": self._forget,
            "listCheckpoints": self._list,
            "newestCheckpoint": self._newest,
            "hostsOfUnit": self._near_hosts,
            "registerCheckpoint": self._register,
            "getCheckpoint": self._get,
            "removeCheckpoint": self._remove,
        }

    async def _list_units(self, call: ApiCall) -> Reply:
        registry = self._service.registry
        names, after = registry.units(call.query["after"], call.query["limit"])
        return Reply(OK, {"units": [self._unit(registry.checkpoints(name)) for name in names], "next": after})

    async def _forget(self, call: ApiCall) -> Reply:
        unit = call.parameters["unit"]
        return Reply(OK, {"unit": unit, "removed": await self._service.forget(unit)})

    async def _list(self, call: ApiCall) -> Reply:
        unit, before, limit = call.parameters["unit"], call.query["before"], call.query["limit"]
        found = [one for one in self._service.registry.checkpoints(unit) if not before or one.seq < before]
        more = found[limit - 1].seq if len(found) > limit else None
        return Reply(OK, {"unit": unit, "checkpoints": [self._summary(one) for one in found[:limit]], "next": more})

    async def _newest(self, call: ApiCall) -> Reply:
        return Reply(OK, self._view(self._service.registry.newest(call.parameters["unit"])))

    async def _near_hosts(self, call: ApiCall) -> Reply:
        unit, limit = call.parameters["unit"], call.query["limit"]
        newest, total, choices = self._service.hosts(unit, self._topology(), self._hosts)
        shown = [
            {
                "host": choice.host,
                "address": self._hosts.address(choice.host),
                "bytes": choice.bytes,
                "distance": None if choice.distance is None else round(choice.distance, 3),
            }
            for choice in choices[:limit]
        ]
        return Reply(OK, {"unit": unit, "seq": newest.seq, "bytes": total, "hosts": shown})

    async def _register(self, call: ApiCall) -> Reply:
        checkpoint = checkpoint_of(call.parameters["unit"], call.parameters["seq"], call.body)
        new = await self._service.register(checkpoint)
        return Reply(CREATED if new else OK, self._summary(checkpoint))

    async def _get(self, call: ApiCall) -> Reply:
        return Reply(OK, self._view(self._service.registry.checkpoint(call.parameters["unit"], call.parameters["seq"])))

    async def _remove(self, call: ApiCall) -> Reply:
        unit, seq = call.parameters["unit"], call.parameters["seq"]
        return Reply(OK, {"unit": unit, "seq": seq, "removed": await self._service.remove(unit, seq)})

    # ---- values

    def _summary(self, checkpoint: UnitCheckpoint) -> dict[str, Any]:
        return {
            "unit": checkpoint.unit,
            "seq": checkpoint.seq,
            "sink": checkpoint.sink,
            "epoch": checkpoint.epoch,
            "attempt": checkpoint.attempt,
            "state_bytes": checkpoint.state_bytes,
            "bases": list(checkpoint.bases),
            "recoverable": self._service.registry.is_recoverable(checkpoint),
            "written_ms": checkpoint.written_ms,
            "file_count": len(checkpoint.files),
            "file_bytes": checkpoint.file_bytes,
        }

    def _view(self, checkpoint: UnitCheckpoint) -> dict[str, Any]:
        return {**self._summary(checkpoint), "files": [asdict(file) for file in checkpoint.files]}

    def _unit(self, checkpoints: list[UnitCheckpoint]) -> dict[str, Any]:
        newest = newest_recoverable({one.seq: one for one in checkpoints})
        return {
            "unit": checkpoints[0].unit,
            "checkpoints": len(checkpoints),
            "file_bytes": min(sum(one.file_bytes for one in checkpoints), MAX_INTEGER),
            "newest": None if newest is None else self._summary(newest),
        }
