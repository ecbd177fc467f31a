"""`cairn readers`: the readers that hold records back from retention.

Invariant: `list` and `show` change nothing; the others say what they did.
"""

import argparse
import sys
from typing import Final

from logstore.client.blocking import Client, TopicPartition
from logstore.client.commands import EXIT_FAILED, add_server_arguments, client_of, status_of
from logstore.errors import CairnError, UnknownReader
from logstore.format.reader_api import LOG_START, ReaderDescription, ReaderOffset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn readers`."""
    add_server_arguments(parser)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list all readers with their lag")
    show = actions.add_parser("show", help="show one reader, stream by stream")
    show.add_argument("reader")
    add = actions.add_parser("add", help="register a reader: records that it has not acknowledged are kept")
    add.add_argument("reader")
    add.add_argument("topics", nargs="+", metavar="TOPIC", help="all partitions of these topics")
    add.add_argument("--replace", action="store_true", help="replace the streams and positions of a registered reader")
    add.add_argument("--group", default="", help="acknowledge the offsets that this Kafka consumer group commits")
    remove = actions.add_parser("remove", help="remove a reader: the records it held may be trimmed")
    remove.add_argument("reader")
    for action in (listing, show, add, remove):
        add_server_arguments(action, is_action=True)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    try:
        with client_of(arguments) as client:
            match arguments.action:
                case "list":
                    _list(client)
                case "show":
                    _show(client, client.describe_reader(arguments.reader))
                case "add":
                    return _add(client, arguments)
                case "remove":
                    client.remove_reader(arguments.reader)
                    print(f"removed: {arguments.reader}")
    except CairnError as error:
        print(f"cairn readers {arguments.action}: {error}", file=sys.stderr)
        return status_of(error)
    return 0


def _list(client: Client) -> None:
    names = client.reader_names()
    if not names:
        print("no reader is registered")
    for name in names:
        reader = client.describe_reader(name)
        behind = sum(_behind(client, reader).values())
        released = f", released from {len(reader.released)} streams" if reader.released else ""
        print(f"{name}: {len(reader.streams)} streams, {behind} records behind, {_life(reader)}{released}")


def _show(client: Client, reader: ReaderDescription) -> None:
    behind = _behind(client, reader)
    print(f"{reader.names[0]}: {_life(reader)}")
    if not reader.streams and not reader.released:
        print("no streams")
    for entry in reader.streams:
        where = TopicPartition(entry.topic, entry.partition)
        print(f"{entry.topic}-{entry.partition}: holds from offset {entry.offset}, {behind[where]} records behind")
    for entry in reader.released:
        print(f"{entry.topic}-{entry.partition}: released at offset {entry.offset}")


def _life(reader: ReaderDescription) -> str:
    group = f", follows group {reader.group}" if reader.group else ""
    group += f", owns the state of query {reader.state}" if reader.state else ""
    return f"acknowledged {reader.idle_ms / 1000:.0f} s ago{group}"


def _behind(client: Client, reader: ReaderDescription) -> dict[TopicPartition, int]:
    """Records between each position and the end of its stream."""
    positions = {TopicPartition(entry.topic, entry.partition): entry.offset for entry in reader.streams}
    ends = client.offsets(dict.fromkeys(positions, LATEST)) if positions else {}
    return {where: max(0, ends[where].offset - position) for where, position in positions.items()}


def _add(client: Client, arguments: argparse.Namespace) -> int:
    if not arguments.replace and _is_registered(client, arguments.reader):
        print(
            f"cairn readers add: {arguments.reader} is already registered; --replace changes its streams and positions",
            file=sys.stderr,
        )
        return EXIT_FAILED
    streams = tuple(
        ReaderOffset(topic, partition, LOG_START)
        for topic in arguments.topics
        for partition in range(client.partitions(topic))
    )
    placed = client.register_reader(arguments.reader, streams, group=arguments.group)
    print(f"registered: {arguments.reader} holds {len(placed)} streams")
    return 0


def _is_registered(client: Client, reader: str) -> bool:
    try:
        client.describe_reader(reader)
    except UnknownReader:
        return False
    return True


LATEST: Final = -1
