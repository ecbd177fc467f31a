"""Composes a coordinator of metadata, service, interface and server, from opening to draining: one alone, with its own
database. `scheduler.coordinator.standby` has those of a cluster.

Invariants: the server starts after the stored state is restored and all code is compiled; errors of the network or the
data directory are raised before anything is compiled; one process holds a data directory; at the end recorded changes
are stored, and waiting writers are answered.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from logstore.base.addresses import Address
from logstore.base.directory import locked_directory
from logstore.base.http.messages import HttpSettings
from logstore.base.http.server import HttpServer
from scheduler.coordinator.dispatch import Dispatch, may_wait
from scheduler.coordinator.errors import StoreError
from scheduler.coordinator.front_settings import DATABASE, DEFAULT_LISTEN, DRAIN_S, Security
from scheduler.coordinator.handlers import RouteHandlers
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.metadata.interface import BlockingMetadata
from scheduler.coordinator.metadata.on_threads import MetadataOnThreads
from scheduler.coordinator.metadata.sqlite import SqliteMetadata
from scheduler.coordinator.network_file import NetworkFile
from scheduler.coordinator.network_moves import move_network
from scheduler.coordinator.service import Coordinator, CoordinatorEnvironment, CoordinatorSettings
from scheduler.coordinator.tokens import AcceptedTokens
from scheduler.coordinator.warm_up import warm_up_planner


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where and how to serve."""

    listen: Address = DEFAULT_LISTEN
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    security: Security = field(default_factory=Security)
    planner: str | None = None
    """The planner of networks that the file has later; None: see `planner_name`."""


class RunningCoordinator:
    """A coordinator that serves on `address`."""

    def __init__(
        self,
        server: HttpServer,
        coordinator: Coordinator,
        dispatch: Dispatch,
        network: NetworkFile | None,
        tokens: AcceptedTokens | None,
    ) -> None:
        self.address = Address("", 0)
        self.coordinator = coordinator
        self.server = server
        self._dispatch = dispatch
        self._network = network
        self._tokens = tokens

    def look_again(self) -> None:
        """Read the files with the network and with the token again soon."""
        if self._network is not None:
            self._network.look_again()
        if self._tokens is not None:
            self._tokens.look_again()

    async def resign(self) -> None:
        """Nothing: no other host can lead."""

    async def drain(self, patience_s: float = DRAIN_S) -> None:
        """Accept no more requests, answer the waiting ones, and store the recorded changes."""
        self.coordinator.stop()
        await self.server.drain(patience_s)
        with trio.move_on_after(patience_s), suppress(StoreError):
            await self.coordinator.journal.durable()

    def answered(self) -> Mapping[tuple[str, int], int]:
        """See metrics.Traffic."""
        return self._dispatch.answered

    def connections(self) -> tuple[int, int]:
        """See metrics.Traffic."""
        return self.server.connections, self.server.refused


class _Traffic:
    """The server's numbers, for metrics that are created before the server."""

    def __init__(self) -> None:
        self.of: RunningCoordinator | None = None

    def answered(self) -> Mapping[tuple[str, int], int]:
        """See metrics.Traffic."""
        return {} if self.of is None else self.of.answered()

    def connections(self) -> tuple[int, int]:
        """See metrics.Traffic."""
        return (0, 0) if self.of is None else self.of.connections()


async def serve(
    environment: CoordinatorEnvironment,
    blocking: BlockingMetadata,
    settings: ServeSettings,
    network: NetworkFile | None = None,
    *,
    task_status: trio.TaskStatus[RunningCoordinator] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until drained or cancelled; reports the running coordinator. `network`: the file of the environment's
    network, which is followed. Raises StartError, StoreError, OSError.
    """
    settings.security.check(settings.listen)
    metadata = MetadataOnThreads(blocking)
    stored = await metadata.load()
    await warm_up_planner(environment.planner, environment.report)
    # After the warm-up: here the deadlines of hosts and writers begin, and restored chunks may be planned again.
    journal = MetadataJournal(metadata, environment.report)
    coordinator = Coordinator(environment, settings.coordinator, journal)
    coordinator.restore(stored)
    traffic = _Traffic()
    clients = settings.security.clients
    dispatch = Dispatch(RouteHandlers(coordinator, traffic).operations(), environment.report, clients)
    server = HttpServer(
        settings.http,
        dispatch,
        environment.report,
        may_wait=may_wait,
        takes_large=clients.takes_large,
        tls=settings.security.tls,
    )
    tokens = settings.security.tokens
    running = traffic.of = RunningCoordinator(server, coordinator, dispatch, network, tokens)
    async with trio.open_nursery() as background:
        background.start_soon(journal.run)
        background.start_soon(coordinator.run)
        if tokens is not None:
            background.start_soon(tokens.follow, environment.report)
        if network is not None:
            background.start_soon(network.follow, partial(move_network, coordinator, settings.planner))
        async with trio.open_nursery() as front:
            running.address = await front.start(server.serve, settings.listen)
            task_status.started(running)
        with trio.move_on_after(DRAIN_S), suppress(StoreError):
            await journal.durable()
        background.cancel_scope.cancel()


@contextmanager
def opened(data_dir: Path) -> Iterator[SqliteMetadata]:
    """The metadata of a data directory, made if it is missing, locked for this process.

    Raises DirectoryInUse, StartError, OSError.
    """
    with locked_directory(data_dir, "coordinator"):
        metadata = SqliteMetadata(data_dir / DATABASE)
        try:
            yield metadata
        finally:
            metadata.close()
