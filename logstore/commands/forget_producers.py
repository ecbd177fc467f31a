"""`cairn topics forget-producers TOPIC:PARTITION`: what waits in a stream goes on without a chunk that nobody can read.

Invariants:
* Nothing is changed before the stream was named twice: on the command line, and in `--confirm` or at the terminal. It
  says before what is given up, and afterwards what still waits or may be there twice.
* One wait is ended at a time, the one that it has shown: a takeover first, then epochs of queries.
"""

import argparse
import sys
from contextlib import suppress
from typing import Final

from logstore.client.admin import Admin
from logstore.client.blocking import Client, TopicPartition
from logstore.commands.describe_topic import wait_text, wait_values
from logstore.commands.output import EXIT_FAILED, UsageError, print_json
from logstore.commands.places import streams_of
from logstore.errors import NoCluster, NothingLost
from logstore.format.host_summaries import PlaceSummary, WaitSummary

NO_CHUNK: Final = 0
"""An epoch that no chunk has."""
LOST: Final = (
    "What is lost: no record but those that cannot be read anyway; reads of them fail as before, until they are back "
    "or trimmed."
)
PRODUCERS: Final = (
    "Idempotent producers begin anew: a batch that was sent before and is sent again is in the log twice, and the next "
    "batch of each is taken, whatever its sequence."
)
EPOCHS_REPEAT: Final = (
    "An epoch of a query that is not known to be over, and that these offsets may have, is appended behind them. If "
    "they have it, it is in the stream twice as soon as they are back, and for whoever has read them before."
)
EPOCHS_WAIT: Final = (
    "An epoch of a query that these offsets may have waits until they are back: it would be in the stream twice. "
    "--repeat-epochs has it appended behind them all the same."
)


def add_forget_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topics forget-producers`."""
    parser.add_argument("stream", metavar="TOPIC:PARTITION")
    parser.add_argument("--confirm", metavar="TOPIC:PARTITION", help="the same again: do not ask")
    parser.add_argument(
        "--even-if-away", action="store_true", help="also if a host or an HDFS that has the records may come back"
    )
    parser.add_argument(
        "--repeat-epochs",
        action="store_true",
        help="append epochs of queries that the records may have behind them; they are there twice if those come back",
    )


def forget_producers(client: Client, arguments: argparse.Namespace) -> int:
    """Run the action; the exit status. Raises NothingLost, NoCluster, UsageError."""
    text: str = arguments.stream
    if ":" not in text:
        raise UsageError(f"{text!r} is no TOPIC:PARTITION")
    (stream,) = streams_of(client, text)
    admin = Admin(client)
    waits = _place(admin, stream).waits
    if not waits:
        with suppress(NothingLost):  # who lacks the right is told that, and not what the stream waits for
            admin.forget_producers(stream, NO_CHUNK, even_if_away=False, repeat_epochs=False)
        raise NothingLost(f"{stream} waits for nothing that cannot be read; nothing was changed")
    if not _is_confirmed(text, arguments, stream, waits[0]):
        print("nothing was changed", file=sys.stderr)
        return EXIT_FAILED
    away, again = arguments.even_if_away, arguments.repeat_epochs
    forgotten = admin.forget_producers(stream, waits[0].chunk, even_if_away=away, repeat_epochs=again).wait
    if arguments.json:
        print_json({"topic": stream.topic, "partition": stream.partition, **wait_values(forgotten)})
    else:
        print(f"{stream} goes on without offsets {forgotten.first} to {forgotten.end - 1}, in a second or two")
        print(_about_epochs(forgotten, repeat_epochs=again))
    return 0


def _about_epochs(wait: WaitSummary, *, repeat_epochs: bool) -> str:
    """What becomes of epochs that a chunk may have."""
    return EPOCHS_REPEAT if wait.query or wait.is_lost or repeat_epochs else EPOCHS_WAIT


def _place(admin: Admin, stream: TopicPartition) -> PlaceSummary:
    places = admin.places(stream.topic)
    if places is None:
        raise NoCluster("this sidecar is alone: nothing waits for chunks of others")
    return places.places[stream.partition]


def _is_confirmed(text: str, arguments: argparse.Namespace, stream: TopicPartition, wait: WaitSummary) -> bool:
    if arguments.confirm is not None:
        if arguments.confirm != text:
            raise UsageError(f"--confirm {arguments.confirm!r} is not {text!r}")
        return True
    what = f"{LOST} {_about_epochs(wait, repeat_epochs=arguments.repeat_epochs)}"
    said = f"{stream} {wait_text(stream, wait)}\n{what if wait.query else f'{what} {PRODUCERS}'}"
    if not sys.stdin.isatty():
        raise UsageError(f"{said}\nSay so with --confirm {text}")
    print(f"{said}\nType {text} to go on: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == text
