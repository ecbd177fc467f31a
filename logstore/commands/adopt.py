"""`cairn adopt`: makes a sidecar that was alone, and is stopped, the first host of a cluster, and keeps its log.

Invariants: the data directory keeps all its records, and a file is added that says where they went; whatever ends the
command, it may be given again and goes on. Exit status 0: hosts may start.
"""

import argparse
import random
import shutil
import uuid
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import trio

from logstore.base.directory import locked_directory
from logstore.base.failures import leaves
from logstore.base.report import Reporter
from logstore.base.system import SystemClock
from logstore.cluster.adoption.adoption import Adopted, AdoptionEnvironment, AdoptionPlaces, adopt
from logstore.cluster.part import OpenMetadata
from logstore.cluster.settings import parse_url
from logstore.commands.metadata_store import add_etcd_arguments, cluster_room, etcd_security
from logstore.commands.output import UsageError, print_json, run, show_bytes
from logstore.commands.progress import Progress
from logstore.disk.files import OsFiles
from logstore.errors import AdoptionRefused
from logstore.verify.directory import is_data_directory

DEFAULT_REPLICAS: Final = 3
MAX_REPLICAS: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn adopt`."""
    parser.add_argument("directory", type=Path, metavar="DATA-DIR", help="data directory of the stopped sidecar")
    parser.add_argument(
        "--into", type=Path, required=True, metavar="DIR", help="new data directory of the host; needs as much space"
    )
    parser.add_argument("--cluster", required=True, metavar="URL", help="the cluster's metadata store, which is empty")
    parser.add_argument("--host-name", required=True, metavar="NAME", help="name of the host that will start on DIR")
    parser.add_argument(
        "--replication-factor",
        type=_replicas,
        default=DEFAULT_REPLICAS,
        metavar="N",
        help="copies (default: %(default)s)",
    )
    add_etcd_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("adopt", arguments, _adopt)


def _replicas(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and 0 < int(text) <= MAX_REPLICAS):
        raise argparse.ArgumentTypeError(f"{text!r}: must be from 1 to {MAX_REPLICAS}")
    return int(text)


def _adopt(arguments: argparse.Namespace) -> int:
    source, into = arguments.directory, arguments.into
    if not source.is_dir() or not is_data_directory(OsFiles(source)):
        raise UsageError(f"{source} is not a sidecar's data directory: it has no cairn.json, ledger or streams")
    if into.resolve().is_relative_to(source.resolve()) or source.resolve().is_relative_to(into.resolve()):
        raise UsageError(f"--into {into}: must be separate from {source}; neither may contain the other")
    try:
        with locked_directory(source, "sidecar"), locked_directory(into, "sidecar"):
            adopted = _run(arguments)
    except BaseExceptionGroup as failures:
        raise leaves(failures)[0] from None
    _say(adopted, arguments)
    return 0


def _run(arguments: argparse.Namespace) -> Adopted:
    open_metadata: OpenMetadata = cluster_room().OPEN_METADATA
    where, security = parse_url(arguments.cluster), etcd_security(arguments)
    clock, system_random = SystemClock(), random.SystemRandom()
    reporter = Reporter(clock)
    shown: list[Progress] = []

    def planned(size_bytes: int) -> None:
        free_bytes = shutil.disk_usage(arguments.into).free
        if free_bytes < size_bytes and not any(arguments.into.glob("replicas/*")):
            raise AdoptionRefused(
                f"--into {arguments.into} has {show_bytes(free_bytes)} free, but {show_bytes(size_bytes)} must be "
                "copied: give a directory on another disk, or free space"
            )
        is_shown = not arguments.quiet and not arguments.json
        shown.append(stack.enter_context(Progress("adopt", size_bytes, is_shown=is_shown)))

    def advanced(count_bytes: int) -> None:
        shown[-1].advance(count_bytes)

    source, into = OsFiles(arguments.directory), OsFiles(arguments.into)
    places = AdoptionPlaces(source, into, partial(open_metadata, where, security, system_random, reporter))
    environment = AdoptionEnvironment(clock, system_random, uuid.uuid4, reporter, planned, advanced)
    try:
        with ExitStack() as stack:
            return trio.run(adopt, places, arguments.host_name, arguments.replication_factor, environment)
    finally:
        reporter.flush(is_end=True)
        source.close()
        into.close()


def _say(adopted: Adopted, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json({**adopted._asdict(), "host": arguments.host_name, "into": str(arguments.into)})
    elif adopted.was_done:
        print(f"already adopted: start host {arguments.host_name} on {arguments.into}")
    else:
        print(
            f"{adopted.topics} topics, {adopted.streams} partitions, {adopted.chunks} chunks with "
            f"{show_bytes(adopted.size_bytes)}: start host {arguments.host_name} on {arguments.into}, and the others "
            "on new directories"
        )
