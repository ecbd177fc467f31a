"""`cairn topology agent` and `cairn topology calibrate`.

Invariants: an agent listens on an address that others can reach only with a token, or with `--insecure`; the file of
measured capacities is written atomically at the end; Ctrl-C stops all measurements and writes nothing. Both follow the
file with their token: an agent takes the former one beside it for a while (`accepted_secrets`; SIGHUP: looks at once),
and the calibrator sends what the file has at that moment.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import trio

from logstore.base.accepted_secrets import AcceptedSecrets
from logstore.base.addresses import Address, is_loopback, parse_address
from logstore.base.name_lookups import look_names_up_apart
from logstore.base.report import Reporter
from logstore.base.secret_files import SecretFile
from logstore.base.system import SystemClock
from scheduler.calibration import agent as agents
from scheduler.calibration.calibrator import CalibrationSettings, CalibrationStep, Calibrator
from scheduler.calibration.rules import DEFAULT_SHARE, Calibrated, calibrate
from scheduler.calibration.tasks import first_of
from scheduler.calibration.wire import DEFAULT_PORT, CalibrationError
from scheduler.topology import Topology
from scheduler.topology.description import load_network, topology_toml
from scheduler.topology.quantities import duration_for_people, parse_duration, parse_size, rate_for_people, size_text

try:
    from rich.console import Console
    from rich.progress import Progress
except ImportError:  # without rich: plain lines
    Progress = None  # type: ignore[assignment,misc]

INTERRUPTED: Final = 130
MAX_TOKEN_BYTES: Final = 4096
Report = Callable[[CalibrationStep], None]


def add_agent_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topology agent`."""
    parser.add_argument(
        "--listen", default=f"127.0.0.1:{DEFAULT_PORT}", metavar="HOST:PORT",
        help="address for the calibrator and other agents (default: %(default)s; port 0: any)",
    )  # fmt: skip
    parser.add_argument("--directory", type=Path, required=True, help="directory on the disk that will hold chunks")
    parser.add_argument("--token-file", type=Path, help="file with the secret shared by calibrator and agents")
    parser.add_argument("--insecure", action="store_true", help="accept everyone who can reach the address")
    parser.add_argument(
        "--max-disk", default=size_text(agents.AgentLimits().disk_bytes), metavar="SIZE",
        help="maximum size of all test files at a time (default: %(default)s)",
    )  # fmt: skip


def add_calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topology calibrate`."""
    default = CalibrationSettings()
    parser.add_argument("file", type=Path, metavar="FILE", help="topology file; its capacities may be rough")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file for the measured topology (TOML)")
    parser.add_argument(
        "--agent", action="append", default=[], metavar="NAME=HOST:PORT",
        help="address of a server's agent (default: the server's address in the file, with --port)",
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="the agents' port (default: %(default)s)")
    parser.add_argument("--token-file", type=Path, help="file with the agents' secret")
    parser.add_argument(
        "--seconds", type=_duration, default=default.seconds, help="time per link measurement (default: %(default)g)"
    )
    parser.add_argument(
        "--sample", type=_positive, default=default.sample, metavar="N",
        help="hosts measured in each rack; the others get the median (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--partners", type=_positive, default=default.partners, metavar="N",
        help="partners that each host sends to and receives from; the best result counts (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--file-size", type=_size, default=default.file_bytes, metavar="SIZE",
        help=f"size that each writer writes (default: {size_text(default.file_bytes)})",
    )  # fmt: skip
    parser.add_argument(
        "--share", type=_share, default=DEFAULT_SHARE,
        help="part of the rate of a single writer that each of several writers must still get (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed for choosing the hosts (default: %(default)s)")


def run_agent(arguments: argparse.Namespace) -> int:
    """Run an agent until it is interrupted. Raises CalibrationError, OSError."""
    address, token = parse_address(arguments.listen, DEFAULT_PORT), _accepted(arguments.token_file)
    if not token and not arguments.insecure and not is_loopback(address.host):
        raise CalibrationError(
            f"--listen {address}: other machines can reach it; give --token-file, or --insecure to accept everyone"
        )
    if not arguments.directory.is_dir():
        raise CalibrationError(f"--directory {arguments.directory}: not a directory")
    try:
        limits = agents.AgentLimits(disk_bytes=parse_size(arguments.max_disk))
    except ValueError as error:
        raise CalibrationError(f"--max-disk {arguments.max_disk}: {error}") from None
    settings = agents.AgentSettings(arguments.directory, token, limits)
    return trio.run(first_of, partial(_serve, settings, address), partial(_interrupted, token))


async def _serve(settings: agents.AgentSettings, address: Address) -> int:
    look_names_up_apart()
    async with trio.open_nursery() as nursery:
        if isinstance(settings.token, AcceptedSecrets):
            nursery.start_soon(settings.token.follow, Reporter(SystemClock()))
        bound = await nursery.start(agents.Agent(settings).serve, address)
        print(f"agent ready on {bound}, test files in {settings.directory}", flush=True)
    return 0


def run_calibration(arguments: argparse.Namespace) -> int:
    """Measure, print and write. Raises SchedulerError, OSError."""
    network = load_network(arguments.file)
    addresses = _addresses(network.topology, arguments.agent, arguments.port)
    token = _followed(arguments.token_file)
    settings = CalibrationSettings(
        seconds=arguments.seconds,
        warm_up_s=min(0.5, arguments.seconds / 3),
        sample=arguments.sample,
        partners=arguments.partners,
        file_bytes=arguments.file_size,
    )

    async def measure(report: Report) -> Calibrated:
        look_names_up_apart()
        random = Random(arguments.seed)  # noqa: S311  which hosts are sampled is no secret
        calibrator = Calibrator(network.topology, addresses, token, settings, random, report)
        return calibrate(network.topology, await calibrator.measure(), arguments.share)

    with _progress() as report:
        result = trio.run(first_of, partial(measure, report), _stopped)
    if result is None:
        print("interrupted: nothing was written", file=sys.stderr)
        return INTERRUPTED
    comment = f"Measured by cairn topology calibrate from {arguments.file.name}, {arguments.sample} hosts per rack."
    _write(arguments.output, topology_toml(result.topology, result.timestep_s or network.timestep_s, comment=comment))
    for line in _lines(network.topology, result):
        print(line)
    print(f"written: {arguments.output}")
    return 0


def _lines(before: Topology, result: Calibrated) -> list[str]:
    """The lines of the table of measured and described capacities."""
    lines = []
    if result.timestep_s is not None:
        lines.append(f"a timestep is {duration_for_people(result.timestep_s)}")
    for old, new in zip(before.servers, result.topology.servers, strict=True):
        was = f"was {old.send}, {old.receive}, {'–' if old.disk is None else old.disk}"
        rates = [rate for rate in (new.link_bytes_s, new.disk_bytes_s) if rate is not None]
        measured = ", ".join(map(rate_for_people, rates))
        disk = "–" if new.disk is None else new.disk
        lines.append(f"{new.name}: send {new.send}, receive {new.receive}, disk {disk} ({was}; {measured})")
    for link, made in zip(before.links, result.topology.links, strict=True):
        rate = "" if made.bytes_s is None else f"; {rate_for_people(made.bytes_s)}"
        lines.append(f"{made.source} → {made.target}: {made.capacity} (was {link.capacity}{rate})")
    return [*lines, *(f"note: {note}" for note in result.notes)]


# ---- files and the terminal


async def _interrupted(token: bytes | AcceptedSecrets) -> int:
    signals = [signal.SIGINT, signal.SIGTERM]
    if isinstance(token, AcceptedSecrets):
        signals.append(signal.SIGHUP)
    with trio.open_signal_receiver(*signals) as received:
        async for number in received:
            if number != signal.SIGHUP or not isinstance(token, AcceptedSecrets):
                break
            token.look_again()
    return INTERRUPTED


async def _stopped() -> Calibrated | None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            break
    return None


def _token(path: Path) -> bytes:
    """The secret in a file, stripped. Raises CalibrationError."""
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise CalibrationError(f"--token-file {path}: {error.strerror}") from error
    if not token or len(token) > MAX_TOKEN_BYTES:
        raise CalibrationError(f"--token-file {path}: must have 1 to {MAX_TOKEN_BYTES} bytes")
    return token


def _accepted(path: Path | None) -> bytes | AcceptedSecrets:
    """The secrets that an agent accepts; empty without a file. Raises CalibrationError."""
    return b"" if path is None else AcceptedSecrets(path, _token, setting="token-file")


def _followed(path: Path | None) -> bytes | Callable[[], bytes]:
    """The secret that a calibrator sends; empty without a file. Raises CalibrationError."""
    if path is None:
        return b""
    # Latin-1 has a character for every byte.
    secret = SecretFile(
        lambda: _token(path).decode("latin-1"), str(path), Reporter(SystemClock()), setting="token-file"
    )
    return lambda: secret().encode("latin-1")


def _addresses(topology: Topology, given: list[str], port: int) -> dict[str, Address]:
    """The address of each server's agent: from `--agent`, else the server's own address and the common port."""
    addresses = {
        server.name: Address(parse_address(server.address, port).host, port)
        for server in topology.servers
        if server.address is not None
    }
    for text in given:
        name, equals, address = text.partition("=")
        if not equals or name not in topology.index:
            raise CalibrationError(f"--agent {text}: use NAME=HOST:PORT with the name of a server in the file")
        addresses[name] = parse_address(address, port)
    return addresses


def _write(path: Path, text: str) -> None:
    """Write a file atomically: it holds the whole text or does not exist."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@contextmanager
def _progress() -> Iterator[Report]:
    """A progress bar on a terminal if rich is installed; else a line per step on standard error."""
    if Progress is None or not sys.stderr.isatty():
        yield lambda step: print(f"[{step.done}/{step.total}] {step.text}", file=sys.stderr, flush=True)
        return
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=None)

        def report(step: CalibrationStep) -> None:
            progress.update(task, completed=step.done, total=step.total, description=step.text)

        yield report


def _duration(text: str) -> float:
    try:
        return parse_duration(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to 10000")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0, up to 1")
    return share
