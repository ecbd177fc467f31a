"""`cairn topics forget-producers TOPIC:PARTITION`: a stream whose takeover waits goes on without what nobody can read.

Invariant: nothing is changed before the stream was named twice: on the command line, and in `--confirm` or at the
terminal. It says before what is lost.
"""

import argparse
import sys
from typing import Final

from logstore.client.admin import Admin
from logstore.client.blocking import Client, TopicPartition
from logstore.commands.describe_topic import wait_text, wait_values
from logstore.commands.output import EXIT_FAILED, UsageError, print_json
from logstore.commands.places import streams_of
from logstore.errors import NoCluster, NothingLost
from logstore.format.host_summaries import PlaceSummary, WaitSummary

LOST: Final = (
    "What is lost: no record but those that cannot be read anyway; reads of them fail as before, until they are back "
    "or trimmed. Idempotent producers begin anew: a batch that was sent before and is sent again is in the log twice, "
    "and the next batch of each is taken, whatever its sequence."
)


def add_forget_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topics forget-producers`."""
    parser.add_argument("stream", metavar="TOPIC:PARTITION")
    parser.add_argument("--confirm", metavar="TOPIC:PARTITION", help="the same again: do not ask")
    parser.add_argument(
        "--even-if-away", action="store_true", help="also if a host or an HDFS that has the records may come back"
    )


def forget_producers(client: Client, arguments: argparse.Namespace) -> int:
    """Run the action; the exit status. Raises NothingLost, NoCluster, UsageError."""
    text: str = arguments.stream
    if ":" not in text:
        raise UsageError(f"{text!r} is no TOPIC:PARTITION")
    (stream,) = streams_of(client, text)
    admin = Admin(client)
    wait = _place(admin, stream).wait
    if wait is None:
        raise NothingLost(f"{stream} waits for nothing that cannot be read; nothing was changed")
    if not _is_confirmed(text, arguments, stream, wait):
        print("nothing was changed", file=sys.stderr)
        return EXIT_FAILED
    forgotten = admin.forget_producers(stream, even_if_away=arguments.even_if_away).wait
    if arguments.json:
        print_json({"topic": stream.topic, "partition": stream.partition, **wait_values(forgotten)})
    else:
        print(f"{stream} goes on without offsets {forgotten.first} to {forgotten.end - 1}, in a second or two")
    return 0


def _place(admin: Admin, stream: TopicPartition) -> PlaceSummary:
    places = admin.places(stream.topic)
    if places is None:
        raise NoCluster("this sidecar is alone: no takeover of it waits")
    return places.places[stream.partition]


def _is_confirmed(text: str, arguments: argparse.Namespace, stream: TopicPartition, wait: WaitSummary) -> bool:
    if arguments.confirm is not None:
        if arguments.confirm != text:
            raise UsageError(f"--confirm {arguments.confirm!r} is not {text!r}")
        return True
    said = f"{stream} {wait_text(stream, wait)}\n{LOST}"
    if not sys.stdin.isatty():
        raise UsageError(f"{said}\nSay so with --confirm {text}")
    print(f"{said}\nType {text} to go on: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == text
