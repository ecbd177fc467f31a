"""Composes a coordinator of metadata, service, interface and server, from opening to draining: one alone, with its own
database. `scheduler.coordinator.standby` has those of a cluster.

Invariants: the server starts after the stored state is restored and all code is compiled; errors of the network or the
data directory are raised before anything is compiled; one process holds a data directory; at the end recorded changes
are stored, and waiting writers are answered.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import trio

from logstore.base.addresses import Address, is_loopback
from logstore.base.directory import locked_directory
from logstore.base.errors import TlsError
from logstore.base.http.messages import HttpSettings
from logstore.base.http.server import HttpServer
from logstore.base.tls import ServerTls, TlsFiles
from scheduler.coordinator.dispatch import ClientCheck, Dispatch, may_wait
from scheduler.coordinator.errors import StartError, StoreError
from scheduler.coordinator.handlers import RouteHandlers
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.metadata.interface import BlockingMetadata
from scheduler.coordinator.metadata.on_threads import MetadataOnThreads
from scheduler.coordinator.metadata.sqlite import SqliteMetadata
from scheduler.coordinator.network_file import NetworkFile
from scheduler.coordinator.service import Coordinator, CoordinatorEnvironment, CoordinatorSettings
from scheduler.coordinator.warm_up import warm_up_planner
from scheduler.peace.plan import Planner
from scheduler.topology import Topology

DATABASE = "coordinator.db"
DRAIN_S = 5.0
"""How long a stop waits for the answers in work."""
DEFAULT_LISTEN = Address("127.0.0.1", 9880)
PLANNERS: Mapping[str, tuple[str, str]] = {
    "tree": ("scheduler.peace.tree", "TreePlanner"),
    "paper": ("scheduler.peace.paper", "PaperPlanner"),
    "repaired": ("scheduler.peace.repaired", "RepairedPlanner"),
}
"""The planners to choose from: module and class, imported on demand."""
MIN_TOKEN_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Security:
    """Access control. `insecure`: explicitly allow any client on any address."""

    token: str | None = None
    tls: ServerTls | None = None
    insecure: bool = False

    def check(self, listen: Address) -> None:
        """Raises StartError if clients from another machine could reach this address without TLS, or with neither a
        token nor a certificate of their own.
        """
        is_safe = self.tls is not None and (self.token is not None or self.tls.requires_certificate)
        if not is_loopback(listen.host) and not self.insecure and not is_safe:
            raise StartError(
                f"{listen} can be reached from other machines: give a certificate, a key, and a file with a token or "
                "the authorities of clients' certificates (cairn coordinate: --tls-cert, --tls-key, --token-file, "
                "--tls-client-ca; cairn serve: --coordinator https://…, --tls-certificate, --coordinator-token-file, "
                "--tls-client-auth required); or listen on 127.0.0.1; or say --insecure if the network is yours alone"
            )

    @property
    def clients(self) -> ClientCheck:
        """Which clients may ask."""
        return ClientCheck(self.token, own_only=self.own_only)

    @property
    def own_only(self) -> bool:
        """Whether clients need nothing but to run on this machine."""
        has_certificates = self.tls is not None and self.tls.requires_certificate
        return self.token is None and not has_certificates and not self.insecure


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where and how to serve."""

    listen: Address = DEFAULT_LISTEN
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    security: Security = field(default_factory=Security)


class RunningCoordinator:
    """A coordinator that serves on `address`."""

    def __init__(
        self, server: HttpServer, coordinator: Coordinator, dispatch: Dispatch, network: NetworkFile | None
    ) -> None:
        self.address = Address("", 0)
        self.coordinator = coordinator
        self.server = server
        self._dispatch = dispatch
        self._network = network

    def look_again(self) -> None:
        """Read the file with the network again soon."""
        if self._network is not None:
            self._network.look_again()

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
    running = traffic.of = RunningCoordinator(server, coordinator, dispatch, network)
    async with trio.open_nursery() as background:
        background.start_soon(journal.run)
        background.start_soon(coordinator.run)
        if network is not None:
            background.start_soon(network.follow, coordinator.change_network)
        async with trio.open_nursery() as front:
            running.address = await front.start(server.serve, settings.listen)
            task_status.started(running)
        with trio.move_on_after(DRAIN_S), suppress(StoreError):
            await journal.durable()
        background.cancel_scope.cancel()


def make_planner(name: str | None, topology: Topology) -> Planner:
    """A planner by name; None: `repaired` on trees of switches, else `paper`. Raises StartError, TopologyError."""
    chosen = name or ("paper" if topology.tree is None else "repaired")
    if chosen not in PLANNERS:
        raise StartError(f"planner {chosen!r}: must be one of {', '.join(PLANNERS)}")
    module, kind = PLANNERS[chosen]
    make: Callable[[Topology], Planner] = getattr(import_module(module), kind)
    return make(topology)


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


def read_token(path: Path) -> str:
    """A token from its file. Raises StartError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"token file {path}: {getattr(error, 'strerror', None) or 'must be ASCII'}") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise StartError(f"token file {path}: a token has at least {MIN_TOKEN_CHARACTERS} characters and no blanks")
    return token


def server_tls(certificate: Path, key: Path, client_ca: Path | None = None) -> ServerTls:
    """The TLS of a server; with `client_ca`, every client shows a certificate of these authorities.

    Raises StartError.
    """
    try:
        if client_ca is None:
            return ServerTls(TlsFiles(str(certificate), str(key)))
        return ServerTls(TlsFiles(str(certificate), str(key), "", str(client_ca), "required"))
    except TlsError as error:
        raise StartError(f"--tls-cert, --tls-key, --tls-client-ca: {error}") from error
