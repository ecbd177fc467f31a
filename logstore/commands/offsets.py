"""`cairn offsets TOPIC`: where a topic's partitions begin and end, and which offset a time has. Changes nothing."""

import argparse

from logstore.client.wire import EARLIEST, LATEST
from logstore.commands.connection import add_connection_arguments, connect
from logstore.commands.output import Cell, parse_time, print_json, print_table, run
from logstore.commands.places import offsets_at, streams_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn offsets`."""
    add_connection_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC[:PARTITION]")
    parser.add_argument(
        "--time",
        metavar="TIME",
        help="also show the offset of the first record at or after TIME: ms since 1970, or 2026-01-31T12:00:00Z",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("offsets", arguments, _offsets)


def _offsets(arguments: argparse.Namespace) -> int:
    time_ms = None if arguments.time is None else parse_time(arguments.time)
    with connect(arguments) as client:
        streams = streams_of(client, arguments.topic)
        earliest, latest = (offsets_at(client, streams, moment) for moment in (EARLIEST, LATEST))
        at_time = {} if time_ms is None else offsets_at(client, streams, time_ms)
    if arguments.json:
        found = [
            {
                "partition": stream.partition,
                "earliest": earliest[stream],
                "latest": latest[stream],
                **({} if time_ms is None else {"at_time": at_time[stream]}),
            }
            for stream in streams
        ]
        print_json({"topic": streams[0].topic, "time_ms": time_ms, "partitions": found})
        return 0
    titles = ["partition", "earliest", "latest", "offsets"]
    rows: list[list[Cell]] = [
        [stream.partition, earliest[stream], latest[stream], latest[stream] - earliest[stream]] for stream in streams
    ]
    if time_ms is not None:
        titles.append("at time")
        for row, stream in zip(rows, streams, strict=True):
            row.append(at_time[stream])
    print_table(titles, rows, nothing="no partitions")
    return 0
