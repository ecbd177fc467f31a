"""Starts the HTTP listener of a sidecar's monitoring. Loaded only where it is wanted."""

from importlib.metadata import PackageNotFoundError, version

import trio

from logstore.base.addresses import Address, is_loopback
from logstore.base.http.server import HttpServer
from logstore.base.tls import ServerTls
from logstore.monitoring.sampler import Sampler, Watched
from logstore.monitoring.service import LIMITS, Monitoring, is_urgent


async def serve(
    address: Address,
    watched: Watched,
    tls: ServerTls | None = None,
    *,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the address with its real port once it is open. Raises OSError."""
    handler = Monitoring(Sampler(watched), _version(), own_only=is_loopback(address.host))
    server = HttpServer(LIMITS, handler, watched.events, is_urgent=is_urgent, tls=tls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.health.watch_loop, trio.sleep, watched.clock.monotonic_s)
        await server.serve(address, task_status=task_status)


def _version() -> str:
    try:
        return version("cairn")
    except PackageNotFoundError:
        return "unknown"
