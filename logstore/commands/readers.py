"""`cairn readers`: the registered readers, which keep records from being trimmed: list, show, add, remove.

Invariant: `list` and `show` change nothing; `add` and `remove` print what they changed.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from logstore.client.blocking import Client, TopicPartition
from logstore.client.wire import LATEST
from logstore.commands.connection import add_action, add_connection_arguments, connect
from logstore.commands.output import counted, print_json, run
from logstore.errors import CairnError, UnknownReader
from logstore.format.reader_api import LOG_START, ReaderDescription, ReaderOffset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn readers`."""
    add_connection_arguments(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add_action(actions, "list", "list all readers with their lag (the default)")
    show = add_action(actions, "show", "show a reader with the position and the lag in each stream")
    show.add_argument("reader", metavar="READER")
    add = add_action(actions, "add", "register a reader: records that it has not acknowledged are kept")
    add.add_argument("reader", metavar="READER", help="a new name, or with --replace that of a registered reader")
    add.add_argument("topics", nargs="+", metavar="TOPIC", help="the reader holds all partitions of these topics")
    add.add_argument("--replace", action="store_true", help="replace the streams and positions of a registered reader")
    add.add_argument(
        "--group", default="", metavar="GROUP", help="acknowledge the offsets that this Kafka consumer group commits"
    )
    remove = add_action(actions, "remove", "remove a reader: the records that it held may be trimmed")
    remove.add_argument("reader", metavar="READER")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("readers", arguments, _readers)


def _readers(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        match arguments.action:
            case "show":
                _show(client, arguments)
            case "add":
                _add(client, arguments)
            case "remove":
                _remove(client, arguments)
            case _:
                _list(client, arguments)
    return 0


def _list(client: Client, arguments: argparse.Namespace) -> None:
    found = [client.describe_reader(name) for name in client.reader_names()]
    behind = {reader.names[0]: sum(_behind(client, reader).values()) for reader in found}
    if arguments.json:
        print_json(
            {
                "readers": [
                    {
                        **_fields(reader),
                        "streams": len(reader.streams),
                        "lag": behind[reader.names[0]],
                        "released": len(reader.released),
                    }
                    for reader in found
                ]
            }
        )
        return
    if not found:
        print("no reader is registered")
    for reader in found:
        name = reader.names[0]
        released = f", released from {counted(len(reader.released), 'stream')}" if reader.released else ""
        print(
            f"{name}: {counted(len(reader.streams), 'stream')}, {behind[name]} records behind, "
            f"{_life(reader)}{released}"
        )


def _show(client: Client, arguments: argparse.Namespace) -> None:
    reader = client.describe_reader(arguments.reader)
    behind = _behind(client, reader)
    if arguments.json:
        streams = [{**_place(entry), "lag": behind[_stream(entry)]} for entry in reader.streams]
        print_json({**_fields(reader), "streams": streams, "released": [_place(entry) for entry in reader.released]})
        return
    print(f"{reader.names[0]}: {_life(reader)}")
    if not reader.streams and not reader.released:
        print("no streams")
    for entry in reader.streams:
        lag = behind[_stream(entry)]
        print(f"{entry.topic}-{entry.partition}: holds from offset {entry.offset}, {lag} records behind")
    for entry in reader.released:
        print(f"{entry.topic}-{entry.partition}: released at offset {entry.offset}")


def _add(client: Client, arguments: argparse.Namespace) -> None:
    name: str = arguments.reader
    if not arguments.replace and _is_registered(client, name):
        raise CairnError(f"{name} is already registered; --replace changes its streams and positions")
    streams = tuple(
        ReaderOffset(topic, partition, LOG_START)
        for topic in arguments.topics
        for partition in range(client.partitions(topic))
    )
    placed = client.register_reader(name, streams, group=arguments.group)
    if arguments.json:
        print_json({"registered": name, "streams": [_place(entry) for entry in placed]})
    else:
        print(f"registered: {name} holds {counted(len(placed), 'stream')}")


def _remove(client: Client, arguments: argparse.Namespace) -> None:
    client.remove_reader(arguments.reader)
    if arguments.json:
        print_json({"removed": arguments.reader})
    else:
        print(f"removed: {arguments.reader}")


def _is_registered(client: Client, reader: str) -> bool:
    try:
        client.describe_reader(reader)
    except UnknownReader:
        return False
    return True


def _behind(client: Client, reader: ReaderDescription) -> dict[TopicPartition, int]:
    """For each stream of a reader, the number of offsets between its position and the end of the stream."""
    positions = {_stream(entry): entry.offset for entry in reader.streams}
    ends = client.offsets(dict.fromkeys(positions, LATEST)) if positions else {}
    return {where: max(0, ends[where].offset - position) for where, position in positions.items()}


# ---- what is printed


def _life(reader: ReaderDescription) -> str:
    group = f", follows group {reader.group}" if reader.group else ""
    group += f", owns the state of query {reader.state}" if reader.state else ""
    return f"acknowledged {reader.idle_ms / 1000:.0f} s ago{group}"


def _fields(reader: ReaderDescription) -> Mapping[str, Any]:
    """What `list` and `show` print of a reader, as JSON values."""
    return {
        "reader": reader.names[0],
        "idle_ms": reader.idle_ms,
        "group": reader.group or None,
        "query": reader.state or None,
    }


def _stream(entry: ReaderOffset) -> TopicPartition:
    return TopicPartition(entry.topic, entry.partition)


def _place(entry: ReaderOffset) -> Mapping[str, Any]:
    return {"topic": entry.topic, "partition": entry.partition, "offset": entry.offset}
