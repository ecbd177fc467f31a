"""`cairn checkpoint`: lists the queries that wrote into a topic, and rebuilds a query's checkpoint from the log.

Invariant: `show` changes nothing; `rebuild` changes files of the given directory alone, and lists them.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from logstore.client.blocking import Client, TopicPartition
from logstore.client.commands import add_action, add_server_arguments, client_of, status_of
from logstore.errors import CairnError, CorruptBatch
from spe_adapter.cec.control import End, holds_progress
from spe_adapter.epochs.client import describe
from spe_adapter.epochs.scan import ends
from spe_adapter.spark_checkpoint.planned import Planned
from spe_adapter.tools.rebuild import planned_in_log, planned_of_positions, rebuild

_MAX_QUERIES: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn checkpoint`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = add_action(
        actions, "show", "list the queries that wrote to a topic, newest first, with their input positions"
    )
    show.add_argument("topic", metavar="TOPIC", help="the queries' output topic")
    again = add_action(actions, "rebuild", "rebuild the checkpoint of a stopped query from the log")
    again.add_argument(
        "directory",
        type=Path,
        metavar="DIRECTORY",
        help="checkpoint directory on this machine; may be empty or missing",
    )
    again.add_argument("--query", required=True, help="the query's id, as `show` lists it")
    for action in (show, again):
        add_server_arguments(action)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    try:
        with client_of(arguments) as client:
            if arguments.action == "show":
                _show(client, arguments.topic)
            else:
                _rebuild(client, arguments.directory, arguments.query)
    except (CairnError, OSError) as error:
        print(f"cairn checkpoint {arguments.action}: {error}", file=sys.stderr)
        return status_of(error)
    return 0


def _show(client: Client, topic: str) -> None:
    newest: dict[str, End] = {}
    for end in _ends(client, topic):
        known = newest.get(end.query)
        if known is None and len(newest) == _MAX_QUERIES:
            continue
        # An epoch without output for a partition leaves no marker there.
        if known is None or known.epoch < end.epoch:
            newest[end.query] = end
    for query, end in newest.items():
        kept = "keeps its state here" if holds_progress(end) else "writes here"
        epoch, positions = end.epoch, bytes(end.positions).decode(errors="replace")
        known_to_all = describe(client, query)
        if known_to_all.last_epoch is not None:  # an epoch without any output leaves no marker
            epoch, positions = known_to_all.last_epoch, known_to_all.positions
        print(f"{query}  {kept}, epoch {epoch}, {_read_up_to(positions)}")
    if not newest:
        print(f"no query has written epochs to {topic}")


def _ends(client: Client, topic: str) -> Iterator[End]:
    for partition in range(client.partitions(topic)):
        with closing(ends(client, TopicPartition(topic, partition))) as found:
            yield from (end for end, _ in found)


def _read_up_to(positions: str) -> str:
    planned: Planned | None = None
    with suppress(CorruptBatch):  # a query that is not Cairn's may note anything
        planned = planned_of_positions(positions)
    return "input positions not recorded" if planned is None else f"batch {planned.batch}, read up to {planned.said()}"


def _rebuild(client: Client, directory: Path, query: str) -> None:
    planned = planned_in_log(client, query)
    done = rebuild(directory, query, planned)
    print(f"{query} will continue after batch {done.batch}, at {planned.said()}")
    print(f"written in {directory}: {', '.join(done.written) or 'nothing, already up to date'}")
    if done.replaced:
        print(f"moved to {directory}/replaced: {', '.join(done.replaced)}")
