"""`cairn trim TOPIC --before OFFSET|TIME`: remove the oldest records of a topic, or of one of its partitions.

Invariant: it says what will go before it asks, and trims nothing without `--yes` or an answer at the terminal. What is
trimmed is gone, also for registered readers.
"""

import argparse
import sys

from logstore.client.blocking import TopicPartition
from logstore.client.wire import EARLIEST, LATEST
from logstore.commands.connection import add_connection_arguments, connect
from logstore.commands.output import EXIT_FAILED, UsageError, print_json, print_table, run
from logstore.commands.places import offsets_at, parse_moment, streams_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn trim`."""
    add_connection_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC[:PARTITION]")
    before = parser.add_mutually_exclusive_group(required=True)
    before.add_argument("--before", metavar="OFFSET", help="remove records before this offset; latest: all records")
    before.add_argument(
        "--before-time",
        metavar="TIME",
        help="remove records before the first record at or after TIME: ms since 1970, or 2026-01-31T12:00:00Z",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("trim", arguments, _trim)


def _trim(arguments: argparse.Namespace) -> int:
    wanted_offset, moment = _limit(arguments)
    with connect(arguments) as client:
        streams = streams_of(client, arguments.topic)
        starts, ends = (offsets_at(client, streams, which) for which in (EARLIEST, LATEST))
        limits = dict.fromkeys(streams, wanted_offset) if moment is None else offsets_at(client, streams, moment)
        for stream, limit in limits.items():
            if limit > ends[stream]:
                raise UsageError(f"offset {limit} is beyond the end of {stream}, {ends[stream]}")
        going = {stream: limit for stream, limit in limits.items() if limit > starts[stream]}
        if going and not arguments.yes and not _is_confirmed(going, starts):
            print("nothing was trimmed", file=sys.stderr)
            return EXIT_FAILED
        trimmed = [
            {
                "partition": stream.partition,
                "from": starts[stream],
                "earliest": client.delete_records(stream, limit),
            }
            for stream, limit in going.items()
        ]
    if arguments.json:
        print_json({"topic": streams[0].topic, "trimmed": trimmed})
    else:
        rows = [(entry["partition"], entry["from"], entry["earliest"]) for entry in trimmed]
        print_table(("partition", "began at", "begins at"), rows, nothing="no records before that")
    return 0


def _limit(arguments: argparse.Namespace) -> tuple[int, int | None]:
    """An offset, or a moment to be looked up. Raises UsageError."""
    if arguments.before_time is not None:
        return 0, parse_moment(arguments.before_time)
    text = str(arguments.before)
    if text == "latest":
        return 0, LATEST
    if not (text.isdecimal() and text.isascii()):
        raise UsageError(f"--before {text!r} is not an offset; for a time use --before-time")
    return int(text), None


def _is_confirmed(going: dict[TopicPartition, int], starts: dict[TopicPartition, int]) -> bool:
    records = sum(limit - starts[stream] for stream, limit in going.items())
    if not sys.stdin.isatty():
        raise UsageError(f"this would remove {records} records of {len(going)} partitions; confirm with --yes")
    prompt = f"{records} records of {len(going)} partitions will be removed. Type yes: "
    print(prompt, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "yes"
