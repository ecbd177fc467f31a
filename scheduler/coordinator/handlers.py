"""One handler for every route: from checked values to the service, from its state to the answer.

Invariants: handlers make no decisions; every answer is one that the tables of `api` describe.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from scheduler.coordinator import metrics, page
from scheduler.coordinator.checkpoints.handlers import CheckpointHandlers
from scheduler.coordinator.dispatch import ApiCall, Operation, Reply
from scheduler.coordinator.events import with_addresses
from scheduler.coordinator.hosts import HostRecord
from scheduler.coordinator.openapi import document
from scheduler.coordinator.registry import RequestEntry
from scheduler.coordinator.service import Coordinator
from scheduler.peace.online.records import Submission
from scheduler.peace.plan import TransferKind
from scheduler.topology import Topology

OK = 200
CREATED = 201
UNAVAILABLE = 503
MAX_LISTED = 1000
"""Requests, chunks and capacities listed in a status; the counts cover all."""


class RouteHandlers:
    """The operations of the interface on one coordinator. `traffic`: the server's own numbers, for the metrics."""

    def __init__(self, coordinator: Coordinator, traffic: metrics.Traffic) -> None:
        self._coordinator = coordinator
        self._traffic = traffic
        self._document = document()
        self._topology: tuple[Topology, dict[str, Any]] | None = None
        """The network whose view was made last, and the view."""
        self._checkpoints = CheckpointHandlers(
            coordinator.checkpoints, coordinator.hosts, lambda: coordinator.environment.topology
        )

    def operations(self) -> Mapping[str, Operation]:
        """Handlers by the operations' names."""
        return {
            "registerHost": self._register,
            "hostAlive": self._alive,
            "deregisterHost": self._deregister,
            "submitRequest": self._submit,
            "getRequest": self._get,
            "resubmitRequest": self._resubmit,
            "cancelRequest": self._cancel,
            "waitForGo": self._wait,
            "chunkDone": self._done,
            "chunkFailed": self._failed,
            **self._checkpoints.operations(),
            "getStatus": self._status,
            "getTopology": self._get_topology,
            "getMetrics": self._metrics,
            "getOpenApi": self._get_document,
            "getHealth": self._health,
            "getPage": self._page,
        }

    # ---- hosts

    async def _register(self, call: ApiCall) -> Reply:
        return Reply(OK, self._host(await self._coordinator.register(call.body["name"], call.body["address"])))

    async def _alive(self, call: ApiCall) -> Reply:
        return Reply(OK, self._host(self._coordinator.alive(call.parameters["name"])))

    async def _deregister(self, call: ApiCall) -> Reply:
        return Reply(OK, self._host(await self._coordinator.deregister(call.parameters["name"])))

    def _host(self, record: HostRecord) -> dict[str, Any]:
        hosts = self._coordinator.hosts
        return {
            "host": record.name,
            "address": hosts.address(record.name),
            "registered": record.registered,
            "lost": record.lost,
            "deadline_ms": hosts.left_ms(record.name, self._coordinator.now_ms()),
        }

    # ---- requests

    async def _submit(self, call: ApiCall) -> Reply:
        body = {**call.body, "kind": TransferKind(call.body["kind"])}
        entry, new = await self._coordinator.submit(body.pop("name"), lambda name: Submission(name=name, **body))
        return Reply(CREATED if new else OK, self._view(entry))

    async def _get(self, call: ApiCall) -> Reply:
        return Reply(OK, self._view(await self._coordinator.request(call.parameters["name"])))

    async def _resubmit(self, call: ApiCall) -> Reply:
        return Reply(OK, self._view(await self._coordinator.resubmit(call.parameters["name"], call.body["chunks"])))

    async def _cancel(self, call: ApiCall) -> Reply:
        return Reply(OK, self._view(await self._coordinator.cancel(call.parameters["name"])))

    async def _wait(self, call: ApiCall) -> Reply:
        name, after = call.parameters["name"], call.query["after"]
        entry, events = await self._coordinator.wait(name, after, call.query["wait_s"])
        shown = [with_addresses(event, self._coordinator.hosts.address) for event in events]
        return Reply(OK, {"request": name, "state": entry.log.published_state, "events": shown})

    async def _done(self, call: ApiCall) -> Reply:
        name, chunk = call.parameters["name"], call.parameters["chunk"]
        entry, counted = await self._coordinator.done(name, chunk, call.body["attempt"])
        return self._reported(entry, name, chunk, counted=counted)

    async def _failed(self, call: ApiCall) -> Reply:
        name, chunk = call.parameters["name"], call.parameters["chunk"]
        suspects = tuple(call.body["suspects"])
        entry, counted = await self._coordinator.failed(name, chunk, call.body["attempt"], suspects)
        return self._reported(entry, name, chunk, counted=counted)

    def _reported(self, entry: RequestEntry, name: str, chunk: int, *, counted: bool) -> Reply:
        return Reply(OK, {"request": name, "chunk": chunk, "counted": counted, "state": entry.log.published_state})

    def _view(self, entry: RequestEntry) -> dict[str, Any]:
        record = entry.stored
        if record is None:
            raise LookupError("a request that is not stored")
        place = self._coordinator.place(record.name) if record.name in self._coordinator.registry.requests else None
        return {
            "request": record.name,
            "state": record.state,
            "kind": record.kind,
            "writer": record.writer,
            "chunks": record.chunks,
            "done": len(entry.done),
            "place": None if place is None else place._asdict(),
            "stranded": record.name in self._coordinator.unreachable,
            "go": [with_addresses(event, self._coordinator.hosts.address) for event in entry.current_goes()],
            "last_event": entry.log.durable,
            "why": record.reason[:500] or None,
        }

    # ---- status

    async def _status(self, call: ApiCall) -> Reply:
        return Reply(OK, self.status())

    def status(self) -> dict[str, Any]:
        """The state as a value for JSON."""
        coordinator = self._coordinator
        status = coordinator.status()
        now_ms = coordinator.now_ms()
        flights = sorted(status.in_flight, key=lambda flight: flight.since_ms)
        return {
            "topology": coordinator.environment.topology.name,
            "planner": coordinator.environment.planner.name,
            "mode": status.mode,
            "uptime_ms": coordinator.uptime_ms(),
            "store": coordinator.failing or "ok",
            "requests": dict(Counter(str(entry.state) for entry in coordinator.registry.requests.values())),
            "hosts": [self._host(record) for record in coordinator.hosts.known()],
            "queue": [
                {
                    "request": one.name, "state": one.state, "writer": one.writer, "done": one.done,
                    "chunks": one.done + one.in_flight + one.waiting, "in_flight": one.in_flight,
                    "waiting": one.waiting, "for_ms": max(0, now_ms - one.submitted_ms), "stranded": one.unreachable,
                }
                for one in status.requests[:MAX_LISTED]
            ],
            "in_flight": [
                {
                    "request": go.request, "chunk": go.chunk, "attempt": go.attempt, "kind": go.kind,
                    "hosts": list(go.hosts), "for_ms": max(0, now_ms - since_ms),
                }
                for go, since_ms in flights[:MAX_LISTED]
            ],
            "capacities": [use._asdict() for use in status.uses if use.used][:MAX_LISTED],
            "checkpoints": coordinator.checkpoints.registry.counts(),
        }  # fmt: skip

    async def _get_topology(self, call: ApiCall) -> Reply:
        topology = self._coordinator.environment.topology
        if self._topology is None or self._topology[0] is not topology:
            self._topology = (topology, topology_view(topology))
        return Reply(OK, self._topology[1])

    async def _get_document(self, call: ApiCall) -> Reply:
        return Reply(OK, self._document)

    async def _health(self, call: ApiCall) -> Reply:
        failing = self._coordinator.failing is not None
        return Reply(UNAVAILABLE, {"status": "failing"}) if failing else Reply(OK, {"status": "ok"})

    async def _metrics(self, call: ApiCall) -> Reply:
        return Reply(OK, metrics.text(self._coordinator, self._traffic))

    async def _page(self, call: ApiCall) -> Reply:
        coordinator = self._coordinator
        picture = page.Picture(coordinator.registry.spans(), coordinator.now_ms())
        return Reply(OK, page.html(self.status(), picture))


def topology_view(topology: Topology) -> dict[str, Any]:
    """The network as a value for JSON."""
    return {
        "name": topology.name,
        "chunk_bytes": topology.chunk_bytes,
        "switches": list(topology.switches),
        "servers": [
            {
                "name": one.name, "rack": one.rack, "send": one.send, "receive": one.receive, "disk": one.disk,
                "address": one.address,
            }
            for one in topology.servers
        ],
        "links": [
            {"source": one.source, "target": one.target, "capacity": one.capacity, "cost": one.cost}
            for one in topology.links
        ],
    }  # fmt: skip
