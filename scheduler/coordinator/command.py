"""`cairn coordinate`: run one coordinator.

Invariants: SIGHUP loads certificates and network again. At SIGTERM or SIGINT the listener closes, waiting clients are
answered, recorded changes are stored, and the exit status is 0, however many signals come meanwhile; a start that is
not complete is abandoned. An error that prevents a start is one clear line, and the exit status is 2.
"""

import argparse
import gc
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

import trio

from logstore.base.addresses import parse_address
from logstore.base.certificates import follow_certificates, reload_certificates
from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.failures import leaves, sentence
from logstore.base.http.messages import HttpSettings
from logstore.base.name_lookups import look_names_up_apart
from logstore.base.report import Reporter
from logstore.base.stop_signals import receive_signals
from logstore.base.system import SystemClock
from scheduler.coordinator.errors import StartError
from scheduler.coordinator.front_settings import DEFAULT_LISTEN, Security, server_tls
from scheduler.coordinator.log_events import STARTING, STOPPED, STOPPING
from scheduler.coordinator.metadata.interface import BlockingMetadata
from scheduler.coordinator.network_file import NetworkFile
from scheduler.coordinator.planners import PLANNERS, make_planner
from scheduler.coordinator.running import RunningCoordinator, ServeSettings, opened, serve
from scheduler.coordinator.service import CoordinatorEnvironment, CoordinatorSettings
from scheduler.coordinator.tokens import AcceptedTokens
from scheduler.peace.online import Mode, Settings

START_FAILED = 2
DESCRIPTORS_BESIDE_CONNECTIONS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `cairn coordinate` its flags."""
    defaults, http, scheduling = CoordinatorSettings(), HttpSettings(), Settings()
    parser.add_argument(
        "--topology", type=Path, required=True, metavar="FILE", help="topology file; changes to it are followed"
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="directory for the state")
    parser.add_argument(
        "--listen", default=str(DEFAULT_LISTEN), metavar="HOST:PORT", help="address to listen on (default %(default)s)"
    )
    parser.add_argument(
        "--planner", choices=sorted(PLANNERS), help="planner (default: repaired on trees of switches, else paper)"
    )
    parser.add_argument(
        "--mode", choices=[str(mode) for mode in Mode], default=str(scheduling.mode),
        help="when chunks start: continuous: each as soon as its path is free; timesteps: together, as in the paper "
        "(default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--finish-fraction", type=float, default=scheduling.finish_fraction, metavar="F",
        help="the next timestep starts when this fraction of the chunks is done (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--gather-ms", type=_natural, default=defaults.scheduler.gather_ms, metavar="N",
        help="plan events within this many milliseconds together; 0: plan each at once (default %(default)s)",
    )  # fmt: skip
    for name, default, says in (
        ("--host-deadline-ms", defaults.host_deadline_ms, "time without a call after which a registered host is lost"),
        (
            "--writer-deadline-ms",
            defaults.writer_deadline_ms,
            "time without a call of its writer after which a request is cancelled",
        ),
        ("--remember-ms", defaults.remember_ms, "how long finished requests can be queried"),
        ("--max-remembered", defaults.max_remembered, "maximum number of finished requests kept"),
        ("--max-connections", http.max_connections, "maximum connections"),
        (
            "--max-connections-per-address",
            http.max_connections_per_address,
            "maximum connections from one address; loopback addresses are exempt",
        ),
    ):
        parser.add_argument(name, type=_count, default=default, metavar="N", help=f"{says} (default {default})")
    parser.add_argument(
        "--chunk-deadline-ms", type=_count, metavar="N",
        help="time after which a chunk is revoked and planned again, avoiding its hosts (default: 10 times the time "
        "by the topology's rates, at least 30 s; 600000 without rates)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, help="seed of random choices (default: a new seed, which is logged)")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM file with the certificate chain")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM file with the private key")
    parser.add_argument(
        "--tls-client-ca", type=Path, metavar="FILE",
        help="PEM file with the CAs of client certificates; every client must then have one",
    )  # fmt: skip
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the token that clients must send")
    parser.add_argument(
        "--insecure", action="store_true",
        help="allow addresses other than loopback without TLS and without a token or client certificates",
    )  # fmt: skip


def _natural(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return number


def main(arguments: argparse.Namespace) -> int:
    """`cairn coordinate`; returns the exit status."""
    try:
        settings = parse(arguments)
        seed = SystemRandom().getrandbits(64) if arguments.seed is None else arguments.seed
        clock = SystemClock()
        reporter = Reporter(clock)
        network = NetworkFile(arguments.topology, reporter)
        topology = network.read()
        planner = make_planner(settings.planner, topology)
        environment = CoordinatorEnvironment(topology, planner, clock, Random(seed), reporter)  # noqa: S311
        _raise_descriptors(settings.http.max_connections)
        with opened(arguments.data_dir) as metadata:
            environment.report(STARTING, planner=planner.name, hosts=len(topology.servers), seed=seed)
            trio.run(_run, environment, metadata, settings, network, arguments.data_dir, reporter)
    except* (CairnError, OSError) as failures:
        for failure in leaves(failures):
            print(f"cairn: {sentence(failure)}", file=sys.stderr)
        return_status = START_FAILED
    else:
        return_status = 0
    return return_status


def parse(arguments: argparse.Namespace) -> ServeSettings:
    """Settings from flags. Raises StartError, RequestError."""
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise StartError("--tls-cert and --tls-key must be given together")
    if arguments.tls_client_ca is not None and arguments.tls_cert is None:
        raise StartError(f"--tls-client-ca {arguments.tls_client_ca} needs --tls-cert and --tls-key")
    files = arguments.tls_cert, arguments.tls_key
    security = Security(
        None if arguments.token_file is None else AcceptedTokens(arguments.token_file),
        None if arguments.tls_cert is None else server_tls(*files, arguments.tls_client_ca),
        arguments.insecure,
    )
    listen = parse_address(arguments.listen)
    security.check(listen)
    return ServeSettings(
        listen,
        CoordinatorSettings(
            Settings(
                mode=Mode(arguments.mode), finish_fraction=arguments.finish_fraction, gather_ms=arguments.gather_ms
            ),
            host_deadline_ms=arguments.host_deadline_ms,
            writer_deadline_ms=arguments.writer_deadline_ms,
            chunk_deadline_ms=arguments.chunk_deadline_ms,
            remember_ms=arguments.remember_ms,
            max_remembered=arguments.max_remembered,
        ),
        HttpSettings(
            max_connections=arguments.max_connections,
            max_connections_per_address=arguments.max_connections_per_address,
        ),
        security,
        arguments.planner,
    )


async def _run(
    environment: CoordinatorEnvironment,
    metadata: BlockingMetadata,
    settings: ServeSettings,
    network: NetworkFile,
    data_dir: Path,
    reporter: Reporter,
) -> None:
    look_names_up_apart()
    async with trio.open_nursery() as background:
        background.start_soon(reporter.run, trio.sleep)
        if settings.security.tls is not None:
            background.start_soon(follow_certificates, settings.security.tls, environment.clock, reporter)
        start = partial(serve, environment, metadata, settings, network)
        await _serve_until_signal(start, environment.report, settings.security, network, data_dir)
        background.cancel_scope.cancel()
    reporter.flush(is_end=True)
    reporter(STOPPED)


async def _serve_until_signal(
    serve_network: Callable[..., Awaitable[None]],
    report: Report,
    security: Security,
    network: NetworkFile,
    data_dir: Path,
) -> None:
    with receive_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            started: list[RunningCoordinator] = []

            async def start() -> None:
                running: RunningCoordinator = await nursery.start(serve_network)
                if nursery.cancel_scope.cancel_called:
                    return
                started.append(running)
                gc.collect()
                gc.freeze()  # present objects live until the end: collections need not scan them
                print(f"cairn ready coordinator={running.address} data-dir={data_dir}", flush=True)

            nursery.start_soon(start)
            async for number in signals:
                if number == signal.SIGHUP:
                    network.look_again()
                    if security.tokens is not None:
                        security.tokens.look_again()
                    if security.tls is not None:
                        await reload_certificates(security.tls, report, force=True)
                    continue
                report(STOPPING, signal=signal.Signals(number).name)
                if not started:
                    nursery.cancel_scope.cancel()
                for running in started:
                    await running.drain()
                break


def _raise_descriptors(connections: int) -> None:
    """Raise the limit of open files to the number that connections need, where the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + DESCRIPTORS_BESIDE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
