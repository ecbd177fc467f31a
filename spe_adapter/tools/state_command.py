"""`cairn state`: shows the state of queries in the log, in checkpoints and in this host's memory; resets and forks
queries.

Invariant: `show` and `memory` change nothing; `reset` appends an epoch to the query's topic, `fork` to a new topic.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from logstore.client.blocking import Client, TopicPartition
from logstore.client.commands import add_action, add_server_arguments, client_of, properties_of, status_of
from logstore.client.security import PROPERTIES
from logstore.client.told_network import ToldNetwork
from logstore.commands.output import show_time
from logstore.errors import CairnError
from spe_adapter.checkpoint.whole_state import place_of
from spe_adapter.datasource.options import DEFAULT_SINK_LIMIT_MS
from spe_adapter.epochs.lookup import queries, standing_epoch
from spe_adapter.state.query import default_root, usage
from spe_adapter.tools.fork import fork
from spe_adapter.tools.reset import reset
from spe_adapter.tools.state_inspector import InspectedState, inspect_state


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn state`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = add_action(actions, "show", "show a query's open windows, positions and extent, from the log")
    _add_topic(show)
    show.add_argument("--query", help="only this query (default: every query whose state is in the topic)")
    show.add_argument("--partition", type=int, help="only this partition")
    show.add_argument("--batch", type=int, help="as of the end of this Spark batch, if the log still has it")
    show.add_argument("--windows", type=int, default=0, metavar="N", help="list N open windows of each partition")
    show.add_argument("--json", action="store_true", help="one JSON object per query and partition")
    _add_checkpoints(show)
    memory = add_action(actions, "memory", "show the shared memory that queries use on this host")
    memory.add_argument(
        "--directory", type=Path, default=default_root(), help="directory of the shared state (default: %(default)s)"
    )
    back = add_action(actions, "reset", "set a stopped query back to an earlier batch")
    _add_topic(back)
    back.add_argument("--query", required=True, help="the query's id, as `show` lists it")
    back.add_argument("--batch", type=int, required=True, help="the last batch to keep")
    back.add_argument("--checkpoint", type=Path, help="the query's local checkpoint: newer batches are removed from it")
    _add_checkpoints(back)
    branch = add_action(actions, "fork", "start a new query from another query's state and input positions")
    _add_topic(branch)
    branch.add_argument("--query", help="the query's id, as `show` lists it (default: the only one in the topic)")
    moment = branch.add_mutually_exclusive_group()
    moment.add_argument("--batch", type=int, help="as of the end of this Spark batch (default: the newest)")
    moment.add_argument("--epoch", type=int, help="as of this epoch of the log")
    branch.add_argument("--to", required=True, metavar="NEW", help="the new query's topic, which is created")
    branch.add_argument("--checkpoint", type=Path, required=True, help="the new query's checkpoint, a new directory")
    _add_checkpoints(branch)


def _add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the query's output topic")
    add_server_arguments(parser)


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoints",
        metavar="URL",
        help="where the query's checkpoints are, if the log starts after one",
    )
    parser.add_argument("--checkpoint-user", metavar="USER", help="HDFS user (default: cairn)")


def _options(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of a query that the command line gives."""
    given = {
        "kafka.bootstrap.servers": arguments.servers,
        "checkpoints": arguments.checkpoints,
        "checkpointUser": arguments.checkpoint_user,
    }
    security = {f"kafka.{name}": value for name, value in properties_of(arguments).items() if name in PROPERTIES}
    return {**security, **{name: value for name, value in given.items() if value is not None}}


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    try:
        if arguments.action == "memory":
            _print_memory(arguments.directory)
        elif arguments.action == "reset":
            _reset(arguments)
        elif arguments.action == "fork":
            _fork(arguments)
        else:
            with client_of(arguments) as client:
                _show(client, arguments)
    except CairnError as error:
        print(f"cairn state {arguments.action}: {error}", file=sys.stderr)
        return status_of(error)
    return 0


def _show(client: Client, arguments: argparse.Namespace) -> None:
    found = list(_inspected(client, arguments))
    if arguments.json:
        for state in found:
            print(json.dumps(_fields(state, arguments.windows), default=str))
    elif not found:
        print(f"no query keeps state in {arguments.topic}")
    else:
        _print_table(found)
        for state in found:
            _print_windows(state, arguments.windows)


def _inspected(client: Client, arguments: argparse.Namespace) -> Iterator[InspectedState]:
    checkpoints = place_of(arguments.checkpoints, arguments.checkpoint_user)
    chosen = range(client.partitions(arguments.topic)) if arguments.partition is None else [arguments.partition]
    for partition in chosen:
        stream = TopicPartition(arguments.topic, partition)
        for query in queries(client, stream):
            if arguments.query in (None, query):
                batch = arguments.batch
                as_of = None if batch is None else standing_epoch(client, stream, query, batch=batch).epoch
                yield inspect_state(client, stream, query, as_of, checkpoints)


def _fields(state: InspectedState, windows: int) -> dict[str, object]:
    """An inspected state as plain values."""
    mark, progress, scanned = state.mark, state.progress, state.eventual.scanned
    fields: dict[str, object] = {"query": state.query, "partition": state.stream.partition}
    if progress is not None:
        fields |= {"generation": progress.generation, "batch": progress.batch, "closing": progress.closing}
        fields["watermark_ms"] = progress.watermark_ms
    if mark is not None:
        fields |= {"epoch": mark.epoch, "open_windows": mark.open_windows, "extent_records": state.extent_records}
        fields |= {"oldest_epoch": state.whole.oldest_epoch, "emitted": mark.emitted, "seen": mark.seen}
        fields |= {"positions": mark.positions, "operator": mark.operator}
    fields |= {"control_bytes": scanned.control_bytes, "control_tuples": scanned.tuples}
    checkpoint = state.whole.checkpoint
    if checkpoint is not None:
        fields |= {"checkpoint": str(checkpoint.name), "checkpoint_epoch": checkpoint.header.epoch}
    if windows:
        fields["windows"] = state.windows(windows)
    return fields


SINK_LIMIT_S: Final = DEFAULT_SINK_LIMIT_MS / 1000
"""How long `reset` and `fork` try."""
_COLUMNS: Final = {
    "query": "query",
    "partition": "partition",
    "batch": "batch",
    "open_windows": "open windows",
    "extent_records": "extent (records)",
    "control_bytes": "to scan (bytes)",
    "watermark_ms": "watermark",
}


def _print_table(found: Sequence[InspectedState]) -> None:
    rows = [[table_cell(name, _fields(state, 0).get(name, "")) for name in _COLUMNS] for state in found]
    _print_rows(list(_COLUMNS.values()), rows)


def table_cell(name: str, value: object) -> str:
    """The text of a value in the table; a time, in ms since 1970, as an ISO 8601 text in UTC."""
    return show_time(value) if name.endswith("_ms") and isinstance(value, int) else str(value)


def _print_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_windows(state: InspectedState, limit: int) -> None:
    if limit:
        print(f"\n{state.query}, partition {state.stream.partition}: windows with the oldest footprints")
        for window in state.windows(limit):
            print("  " + json.dumps(window, default=str))


def _print_memory(directory: Path) -> None:
    rows = [[str(cell) for cell in used] for used in usage(directory)]
    if rows:
        _print_rows(["query", "partition", "version", "bytes"], rows)
    else:
        print(f"no query has state in {directory}")


def _fork(arguments: argparse.Namespace) -> None:
    made = fork(
        topic=arguments.topic, query=arguments.query, batch=arguments.batch, epoch=arguments.epoch, to=arguments.to,
        checkpoint=arguments.checkpoint, options=_options(arguments), network=ToldNetwork(SINK_LIMIT_S),
    )  # fmt: skip
    print(
        f"query {made.query} starts in {arguments.to} with the {made.windows} windows of batch {made.batch} (epoch "
        f"{made.epoch}); start it with topic={arguments.to!r} and checkpointLocation={str(arguments.checkpoint)!r}"
    )


def _reset(arguments: argparse.Namespace) -> None:
    done = reset(
        topic=arguments.topic, query=arguments.query, batch=arguments.batch, checkpoint=arguments.checkpoint,
        options=_options(arguments), network=ToldNetwork(SINK_LIMIT_S),
    )  # fmt: skip
    print(
        f"{arguments.query} will continue after batch {done.batch}, epoch {done.epoch} of the log; epoch "
        f"{done.reset_epoch} records the reset"
    )
    if arguments.checkpoint is not None:
        print(f"removed from {arguments.checkpoint}: {', '.join(done.files) or 'nothing'}")
    else:
        print(
            f"before you start the query again, remove every file with a number above {done.batch} from the "
            "directories offsets and commits of its checkpoint"
        )
