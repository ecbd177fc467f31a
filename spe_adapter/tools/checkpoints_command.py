"""`cairn checkpoints`: the checkpoints of operators that a sink and a coordinator's registry have.

Invariants: `list`, `show` and `verify` change nothing. `register` adds checkpoints of the sink to the registry, and
prints them. `remove` removes the checkpoints of a query; without `--force`, only if no reader holds records for it.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Final

from logstore.client.commands import CommandConfigUnusable, add_action, add_server_arguments, client_of, status_of
from logstore.errors import CairnError
from scheduler.client import CoordinatorClient, CoordinatorError, NotFound
from scheduler.client.tls import client_tls
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import parse_name
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink, read_token
from spe_adapter.checkpoint.sinks import Sink
from spe_adapter.tools.checkpoints_removal import holding_readers, remove_query
from spe_adapter.tools.checkpoints_view import (
    COMPLETE,
    DAMAGED,
    KEPT_FOR_NEWER,
    MISSING,
    UNFINISHED,
    ListedCheckpoint,
    VerifyProgress,
    listed,
    register_missing,
    verified,
)

try:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
except ImportError:  # the extra `demo` has it; without it there is no bar
    Progress = None  # type: ignore[assignment,misc]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
HDFS_USER: Final = "cairn"
PATIENCE_S: Final = 10.0
MAX_HOSTS: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn checkpoints`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    every = add_action(actions, "list", "list all checkpoints with epoch, size and state (the default)")
    show = add_action(actions, "show", "show a checkpoint with its files, and the hosts that load it fastest")
    show.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="UNIT-SEQ as `list` shows it, or a unit: its newest complete one"
    )
    verify = add_action(actions, "verify", "read and check every byte of the complete checkpoints")
    again = add_action(actions, "register", "register a sink's complete checkpoints with a coordinator")
    remove = add_action(actions, "remove", "remove all checkpoints of a deleted query, with their registry entries")
    remove.add_argument("query", metavar="QUERY", help="the query's id, as `list --json` shows it")
    add_server_arguments(remove)  # of the sidecar, which knows whether the query may come back
    remove.add_argument("--force", action="store_true", help="do not ask a sidecar whether the query may come back")
    _add_places(parser, is_action=False)
    _add_unit(parser, is_action=False)
    for action in (every, verify, again):
        _add_unit(action, is_action=True)
    for action in (every, show, verify, again, remove):
        _add_places(action, is_action=True)


def _add_unit(parser: argparse.ArgumentParser, *, is_action: bool) -> None:
    default = argparse.SUPPRESS if is_action else None
    what = "only this unit (its name as in paths, QUERY.PARTITION) or this query's id"
    parser.add_argument("--unit", default=default, help=what)


def _add_places(parser: argparse.ArgumentParser, *, is_action: bool) -> None:
    """Where the checkpoints and their registry are. `is_action`: the flags are also those of the command."""

    def default(value: object) -> object:
        return argparse.SUPPRESS if is_action else value

    parser.add_argument(
        "--sink",
        default=default(None),
        metavar="URL",
        help="where the checkpoints are: file:///DIRECTORY or hdfs://HOST:PORT/DIRECTORY",
    )
    parser.add_argument("--user", default=default(HDFS_USER), help=f"HDFS user (default: {HDFS_USER})")
    parser.add_argument(
        "--coordinator",
        default=default(None),
        metavar="URL[,URL]",
        help="the coordinator with the registry, http://HOST:PORT",
    )
    for name, what in (
        ("token-file", "file with the coordinator's token"),
        ("ca-file", "PEM file with the CAs of the coordinator's certificate"),
        ("certificate-file", "PEM file with the client certificate and key"),
    ):
        parser.add_argument(f"--{name}", default=default(""), metavar="FILE", help=what)
    parser.add_argument("--json", action="store_true", default=default(False), help="one JSON object per line")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status: 1 if something is damaged or cannot be asked."""
    arguments.action = arguments.action or "list"
    needed = {"verify": ("sink",), "register": ("sink", "coordinator"), "remove": ("sink",)}.get(arguments.action, ())
    missing = [f"--{name}" for name in needed if not getattr(arguments, name)]
    if missing or not (arguments.sink or arguments.coordinator):
        what = " and ".join(missing) or "--sink or --coordinator, or both"
        print(f"cairn checkpoints {arguments.action}: needs {what}", file=sys.stderr)
        return EXIT_USAGE
    try:
        with ExitStack() as stack:
            sink = client = None
            if arguments.sink:
                sink = open_sink(CheckpointSettings(arguments.sink, arguments.user))
                stack.callback(sink.close)
            if arguments.coordinator:
                token = read_token(arguments.token_file)
                tls = client_tls(arguments.ca_file, arguments.certificate_file)
                client = stack.enter_context(
                    CoordinatorClient(arguments.coordinator, token=token, ca_file=tls, patience_s=PATIENCE_S)
                )
            if sink is not None and not sink.is_there():
                print(
                    f"cairn checkpoints {arguments.action}: --sink {arguments.sink} names no directory; give the same "
                    "URL as the query's option 'checkpoints' (the first checkpoint creates the directory)",
                    file=sys.stderr,
                )
                return EXIT_FAILED
            return _ACTIONS[arguments.action](arguments, sink, client)
    except (CairnError, CoordinatorError, OSError) as error:
        print(f"cairn checkpoints {arguments.action}: {error}", file=sys.stderr)
        return status_of(error)


# ---- list


def _list(arguments: argparse.Namespace, sink: Sink | None, client: CoordinatorClient | None) -> int:
    found = listed(sink, client, arguments.unit)
    if arguments.json:
        for checkpoint in found:
            print(json.dumps(checkpoint.fields()))
    elif not found:
        of_unit = f" of {arguments.unit}" if arguments.unit else ""
        print(f"no checkpoint{of_unit} in {' or '.join(filter(None, (arguments.sink, arguments.coordinator)))}")
    else:
        head = ["checkpoint", "epoch", "written (UTC)", "kind", "files", "MB", "state MB", "it is"]
        _print_rows(head, [_row(checkpoint) for checkpoint in found])
    return 0


def _row(checkpoint: ListedCheckpoint) -> list[str]:
    fields = checkpoint.fields()
    known = "epoch" in fields
    says = checkpoint.state
    if checkpoint.state == COMPLETE and checkpoint.registered is False:
        says = "complete, not registered"
    elif checkpoint.problem and checkpoint.state != UNFINISHED:
        says = f"{checkpoint.state}: {checkpoint.problem}"
    bases = fields.get("bases", ())
    return [
        str(checkpoint.name),
        str(fields["epoch"]) if known else "",
        _time(fields["written_ms"]) if known else "",
        (f"over {', '.join(map(str, bases))}" if bases else "full") if known else "",
        str(fields["file_count"]) if known else "",
        _megabytes(fields["file_bytes"]) if known else "",
        _megabytes(fields["state_bytes"]) if known else "",
        says,
    ]


# ---- show


def _show(arguments: argparse.Namespace, sink: Sink | None, client: CoordinatorClient | None) -> int:
    name = parse_name(arguments.checkpoint)
    found = listed(sink, client, arguments.checkpoint if name is None else name.unit)
    wanted = [one for one in found if (one.state == COMPLETE if name is None else one.name == name)]
    if not wanted:
        known = ", ".join(str(one.name) for one in found[:MAX_HOSTS]) or "none of that unit"
        what = "complete checkpoint" if name is None else "checkpoint"
        print(f"cairn checkpoints show: {arguments.checkpoint}: no such {what}; there are: {known}", file=sys.stderr)
        return EXIT_FAILED
    shown = wanted[0]
    fields = shown.fields()
    if shown.manifest is not None:
        fields["files"] = list(_files(shown.manifest))
    elif client is not None:
        complete = client.checkpoint(shown.name.unit, shown.name.seq)
        fields["files"] = [
            {"checkpoint": str(shown.name), "file": file.name, "bytes": file.bytes, "crc32c": f"{file.crc32c:08x}",
             "hosts": list(file.hosts)}
            for file in complete.files
        ]  # fmt: skip
    if client is not None:
        try:
            fields["hosts"] = client.hosts_of_unit(shown.name.unit, MAX_HOSTS)
        except NotFound:
            fields["hosts"] = []
    if arguments.json:
        print(json.dumps(fields))
    else:
        _print_fields(fields)
    return 0


def _files(manifest: Manifest) -> Iterator[dict[str, object]]:
    for part in manifest.parts:
        for file in part.files:
            yield {
                "checkpoint": f"{manifest.unit.name}-{part.seq:010d}", "file": file.name, "bytes": file.size_bytes,
                "crc32c": f"{file.crc32c:08x}", "pages": file.pages, "hosts": list(file.hosts),
            }  # fmt: skip


def _print_fields(fields: dict[str, object]) -> None:
    files, hosts = fields.pop("files", []), fields.pop("hosts", [])
    for key, value in fields.items():
        shown = _time(value) + " UTC" if key == "written_ms" and isinstance(value, int) else value
        print(f"{key}: {', '.join(map(str, value)) or 'none' if isinstance(value, list) else shown}")
    for title, rows in (("files", files), ("hosts that load it best", hosts)):
        if isinstance(rows, list) and rows:
            print(f"\n{title}:")
            head = list(rows[0])
            _print_rows(head, [[_cell(row[key]) for key in head] for row in rows])


# ---- verify, register


def _verify(arguments: argparse.Namespace, sink: Sink | None, client: CoordinatorClient | None) -> int:
    if sink is None:
        return EXIT_USAGE
    found = listed(sink, client, arguments.unit)
    broken = [one for one in found if one.state in (DAMAGED, MISSING)]
    for one in broken:
        _say(
            arguments, {"checkpoint": str(one.name), "ok": False, "problem": one.problem}, f"{one.name}: {one.problem}"
        )
    manifests = [one.manifest for one in found if one.manifest is not None and one.state == COMPLETE]
    unregistered = {one.name for one in found if one.state == COMPLETE and one.registered is False}
    bad = len(broken)
    with _progress() as progress:
        results = list(verified(sink, manifests, progress))
    for manifest, problems in results:
        bad += bool(problems)
        files = sum(len(part.files) for part in manifest.parts)
        ok = f"ok, {files} files, {_megabytes(manifest.all_bytes)} MB"
        note = ", not registered" if manifest.name in unregistered else ""
        says = "; ".join(f"{problem.name}/{problem.file}: {problem.why}" for problem in problems) or ok + note
        values = {
            "checkpoint": str(manifest.name), "ok": not problems, "files": files, "bytes": manifest.all_bytes,
            "problems": [{"file": f"{one.name}/{one.file}", "why": one.why} for one in problems],
        }  # fmt: skip
        _say(arguments, values, f"{manifest.name}: {'cannot be recovered: ' if problems else ''}{says}")
    if not arguments.json:
        whole = len(results) + len(broken)
        others = Counter(one.state for one in found if one.state in (UNFINISHED, KEPT_FOR_NEWER))
        more = "".join(f"; {number} {'is' if number == 1 else 'are'} {state}" for state, number in others.items())
        print(f"{whole - bad} of {whole} checkpoints can be recovered{more}")
    return EXIT_FAILED if bad else 0


def _register(arguments: argparse.Namespace, sink: Sink | None, client: CoordinatorClient | None) -> int:
    if sink is None or client is None:
        return EXIT_USAGE
    said = list(register_missing(sink, client, listed(sink, client, arguments.unit)))
    for line in said:
        _say(arguments, {"says": line}, line)
    if not said and not arguments.json:
        print("the registry knows every complete checkpoint of the sink")
    return 0


# ---- remove


def _remove(arguments: argparse.Namespace, sink: Sink | None, client: CoordinatorClient | None) -> int:
    if sink is None:
        return EXIT_USAGE
    if not arguments.force and not _is_gone(arguments):
        return EXIT_FAILED
    count = size_bytes = 0
    for name, freed_bytes in remove_query(sink, client, arguments.query):
        count, size_bytes = count + 1, size_bytes + freed_bytes
        _say(arguments, {"checkpoint": str(name), "freed_bytes": freed_bytes}, f"{name}: removed")
    if not arguments.json:
        entries = "" if client is None else " and their entries"
        what = f"{count} checkpoints{entries}, {_megabytes(size_bytes)} MB" if count else "nothing: there are none"
        print(f"removed of query {arguments.query}: {what}")
    return 0


def _is_gone(arguments: argparse.Namespace) -> bool:
    """Whether no reader holds records for the query; says why not, and what to do."""
    try:
        with client_of(arguments, limit_s=PATIENCE_S) as sidecar:
            readers = holding_readers(sidecar, arguments.query)
    except CommandConfigUnusable:
        raise
    except CairnError as error:
        why = f"whether query {arguments.query} may come back is unknown ({error}); name its sidecar with --servers"
    else:
        if not readers:
            return True
        names = ", ".join(f"{found.names[0]} ({found.idle_ms / 1000:.0f} s ago)" for found in readers[:MAX_HOSTS])
        why = (
            f"query {arguments.query} may come back and need them: records are still held for it, acknowledged last by "
            f"{names}. Stop the query and release its log (cairn readers remove {readers[0].names[0]})"
        )
    print(f"cairn checkpoints remove: {why}, or give --force", file=sys.stderr)
    return False


_ACTIONS: Final[dict[str, Callable[[argparse.Namespace, Sink | None, CoordinatorClient | None], int]]] = {
    "list": _list,
    "show": _show,
    "verify": _verify,
    "register": _register,
    "remove": _remove,
}


# ---- output


def _say(arguments: argparse.Namespace, values: dict[str, object], text: str) -> None:
    print(json.dumps(values) if arguments.json else text)


def _print_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _time(written_ms: int) -> str:
    return datetime.fromtimestamp(written_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.2f}"


@contextmanager
def _progress() -> Iterator[Callable[[VerifyProgress], None]]:
    """A bar on a terminal, if rich is installed; else nothing."""
    if Progress is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def report(state: VerifyProgress) -> None:
            described = f"reading, {state.files} of {state.all_files} files"
            bar.update(task, description=described, completed=state.bytes, total=state.all_bytes)

        yield report
