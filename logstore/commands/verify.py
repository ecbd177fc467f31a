"""`cairn verify DIRECTORY`: checks every byte of a data directory at the disk's speed, and says what is wrong where.

Invariants: nothing is changed, made or locked for good. With no sidecar running, none can start on the directory while
it is checked; beside a running one, the newest end of each stream may move and proves nothing. Exit status 0: nothing
is damaged; 1: something is; 2: this could not be checked.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from logstore.base.directory import watched_directory
from logstore.commands.chunk_checkers import (
    DEFAULT_PROCESSES,
    MAX_PROCESSES,
    CheckerLost,
    ChunkCheckers,
    usable_processors,
)
from logstore.commands.output import EXIT_FAILED, UsageError, counted, print_json, run, show_bytes
from logstore.commands.progress import Progress
from logstore.commands.tier_check import check_tier
from logstore.disk.files import OsFiles
from logstore.errors import UnknownFormatVersion
from logstore.verify.directory import conclude, is_data_directory, plan
from logstore.verify.findings import Finding, Findings

_MEGA: Final = 1e6
SHORTEST_TIMED_S: Final = 0.1
"""A speed is printed from this duration on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn verify`."""
    parser.add_argument("directory", type=Path, metavar="DATA-DIR")
    parser.add_argument(
        "--processes",
        type=_processes,
        default=min(DEFAULT_PROCESSES, usable_processors()),
        metavar="N",
        help="processes that check chunks in parallel (default: %(default)s)",
    )
    parser.add_argument(
        "--tier", metavar="URL", help="also check the chunks in this tier: webhdfs://NAMENODE:PORT/DIRECTORY"
    )
    parser.add_argument("--tier-user", default="cairn", metavar="USER", help="HDFS user (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--quiet", action="store_true", help="print damage only, no progress")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("verify", arguments, _verify)


def _processes(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and 0 < int(text) <= MAX_PROCESSES):
        raise argparse.ArgumentTypeError(f"{text!r}: must be from 1 to {MAX_PROCESSES}")
    return int(text)


def _verify(arguments: argparse.Namespace) -> int:
    directory: Path = arguments.directory
    files = OsFiles(directory)
    try:
        if not directory.is_dir() or not is_data_directory(files):
            raise UsageError(f"{directory} is not a sidecar's data directory: it has no cairn.json, ledger or streams")
        with watched_directory(directory) as is_idle:
            planned = plan(files, is_live=not is_idle)
            is_shown = not arguments.quiet and not arguments.json
            with (
                ChunkCheckers(files, planned, arguments.processes) as checkers,
                Progress("verify", planned.size_bytes, is_shown=is_shown) as progress,
            ):
                findings = conclude(planned, checkers.results(progress.advance))
                if arguments.tier:
                    findings.add(check_tier(arguments.tier, arguments.tier_user, planned))
                seconds = progress.seconds
    except (UnknownFormatVersion, CheckerLost) as error:
        raise UsageError(f"{directory}: {error}") from error
    except PermissionError as error:
        raise UsageError(f"{error.filename or directory}: {error.strerror}; run this as the sidecar's user") from error
    if arguments.json:
        print_json(_as_fields(directory, findings, seconds, is_live=not is_idle))
    else:
        _show(directory, findings, seconds, is_live=not is_idle, is_quiet=arguments.quiet)
    return EXIT_FAILED if findings.damages else 0


def _as_fields(directory: Path, findings: Findings, seconds: float, *, is_live: bool) -> dict[str, Any]:
    counts = findings.counts
    return {
        "directory": str(directory),
        "sidecar_running": is_live,
        "damaged": bool(findings.damages),
        "files": counts.files,
        "chunks": counts.chunks,
        "batches": counts.batches,
        "bytes": counts.bytes,
        "seconds": round(seconds, 3),
        "findings": [asdict(finding) for finding in findings.found],
    }


def _show(directory: Path, findings: Findings, seconds: float, *, is_live: bool, is_quiet: bool) -> None:
    for finding in findings.found:
        if finding.is_damage or not is_quiet:
            print(_sentence(finding))
    counts = findings.counts
    if is_quiet and not findings.damages:
        return
    batches = "1 batch" if counts.batches == 1 else f"{counts.batches} batches"
    # A speed of a few bytes says nothing about the disk.
    speed = f" ({counts.bytes / _MEGA / seconds:.0f} MB/s)" if seconds >= SHORTEST_TIMED_S else ""
    print(
        f"{directory}: {counted(counts.chunks, 'chunk')} with {batches}, {show_bytes(counts.bytes)} in "
        f"{seconds:.1f} s{speed}"
    )
    if is_live:
        print("a sidecar is running here: the end of each stream was checked as it was when it was read")
    damages = len(findings.damages)
    print(f"{damages} places are damaged" if damages != 1 else "1 place is damaged") if damages else print("no damage")


def _sentence(finding: Finding) -> str:
    where = finding.path if finding.position is None else f"{finding.path}, byte {finding.position}"
    return f"{finding.severity.upper() if finding.is_damage else finding.severity}: {where}: {finding.message}"
