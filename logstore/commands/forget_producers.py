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
    "Only the records that cannot be read are lost. Reads of them fail as before, until they are restored or trimmed."
)
PRODUCERS: Final = (
    "The state of idempotent producers is lost: a batch that a producer sends again is in the log twice, and the next "
    "batch of each producer is accepted with any sequence."
)
EPOCHS_REPEAT: Final = (
    "An epoch that is not known to be complete, and that these offsets may contain, is appended after them. If they "
    "contain it, it is in the stream twice once they are back, and already for consumers that have read them."
)
EPOCHS_WAIT: Final = (
    "An epoch that these offsets may contain is held back until they are restored, as it might be in the stream twice. "
    "--repeat-epochs appends it after them anyway."
)


def add_forget_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topics forget-producers`."""
    parser.add_argument("stream", metavar="TOPIC:PARTITION")
    parser.add_argument("--confirm", metavar="TOPIC:PARTITION", help="repeat TOPIC:PARTITION: do not ask")
    parser.add_argument(
        "--even-if-away", action="store_true", help="even if a host or an HDFS with the records may come back"
    )
    parser.add_argument(
        "--repeat-epochs",
        action="store_true",
        help="append epochs that the records may contain after them; they are duplicated if the records come back",
    )


def forget_producers(client: Client, arguments: argparse.Namespace) -> int:
    """Run the action; the exit status. Raises NothingLost, NoCluster, UsageError."""
    text: str = arguments.stream
    if ":" not in text:
        raise UsageError(f"{text!r} is not TOPIC:PARTITION")
    (stream,) = streams_of(client, text)
    admin = Admin(client)
    waits = _place(admin, stream).waits
    if not waits:
        with suppress(NothingLost):  # who lacks the right is told that, and not what the stream waits for
            admin.forget_producers(stream, NO_CHUNK, even_if_away=False, repeat_epochs=False)
        raise NothingLost(f"{stream} waits for no unreadable chunk; nothing was changed")
    if not _is_confirmed(text, arguments, stream, waits[0]):
        print("nothing was changed", file=sys.stderr)
        return EXIT_FAILED
    away, again = arguments.even_if_away, arguments.repeat_epochs
    forgotten = admin.forget_producers(stream, waits[0].chunk, even_if_away=away, repeat_epochs=again).wait
    if arguments.json:
        print_json({"topic": stream.topic, "partition": stream.partition, **wait_values(forgotten)})
    else:
        print(f"{stream} continues without offsets {forgotten.first} to {forgotten.end - 1} in a second or two")
        print(_about_epochs(forgotten, repeat_epochs=again))
    return 0


def _about_epochs(wait: WaitSummary, *, repeat_epochs: bool) -> str:
    """What becomes of epochs that a chunk may have."""
    return EPOCHS_REPEAT if wait.query or wait.is_lost or repeat_epochs else EPOCHS_WAIT


def _place(admin: Admin, stream: TopicPartition) -> PlaceSummary:
    places = admin.places(stream.topic)
    if places is None:
        raise NoCluster("this sidecar is not part of a cluster: no stream waits for chunks of other hosts")
    return places.places[stream.partition]


def _is_confirmed(text: str, arguments: argparse.Namespace, stream: TopicPartition, wait: WaitSummary) -> bool:
    if arguments.confirm is not None:
        if arguments.confirm != text:
            raise UsageError(f"--confirm {arguments.confirm!r} is not {text!r}")
        return True
    what = f"{LOST} {_about_epochs(wait, repeat_epochs=arguments.repeat_epochs)}"
    said = f"{stream} {wait_text(stream, wait)}\n{what if wait.query else f'{what} {PRODUCERS}'}"
    if not sys.stdin.isatty():
        raise UsageError(f"{said}\nConfirm with --confirm {text}")
    print(f"{said}\nType {text} to confirm: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == text
