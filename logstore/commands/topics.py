"""`cairn topics`: list, describe, create, grow, delete topics, change their settings, and have a stream go on whose
takeover waits for a lost chunk.

Invariants: `list` and `describe` change nothing; a deletion needs `--yes` or an answer at the terminal. `list` asks all
hosts of a cluster at the same time.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from logstore.base.addresses import Address
from logstore.client.admin import Admin, Sizes
from logstore.client.blocking import Client
from logstore.client.wire import DEFAULT_REPLICATION
from logstore.commands.connection import add_action, add_connection_arguments, connect, connect_to
from logstore.commands.describe_topic import describe_topic
from logstore.commands.forget_producers import add_forget_arguments, forget_producers
from logstore.commands.output import (
    EXIT_FAILED,
    UsageError,
    print_json,
    print_table,
    run,
    show_size,
)
from logstore.commands.together import ask_together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topics`."""
    add_connection_arguments(parser)
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add_action(actions, "list", "all topics, with partitions and bytes (the default)")
    describe = add_action(actions, "describe", "one topic: offsets and bytes of each partition, and its settings")
    describe.add_argument("topic", metavar="TOPIC")
    create = add_action(actions, "create", "create a topic")
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument(
        "--partitions", type=_count, default=1, metavar="N", help="number of partitions (default: %(default)s)"
    )
    create.add_argument(
        "--replication-factor", type=_count, metavar="N", help="copies of each chunk (default: the cluster's default)"
    )
    create.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="CONFIG=VALUE",
        dest="settings",
        help="a setting of the topic, such as retention.ms=86400000; repeatable",
    )
    grow = add_action(actions, "grow", "give a topic more partitions")
    grow.add_argument("topic", metavar="TOPIC")
    grow.add_argument("partitions", type=_count, metavar="N", help="new number of partitions")
    delete = add_action(actions, "delete", "delete a topic and all its records")
    delete.add_argument("topic", metavar="TOPIC")
    delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    change = add_action(actions, "set", "change settings of a topic")
    change.add_argument("topic", metavar="TOPIC")
    change.add_argument("settings", nargs="+", metavar="CONFIG=VALUE", help="CONFIG= resets to the default")
    forget = add_action(actions, "forget-producers", "let a stream continue without a lost chunk that it waits for")
    add_forget_arguments(forget)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("topics", arguments, _topics)


def _topics(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        match arguments.action:
            case "describe":
                describe_topic(client, arguments)
            case "create":
                settings = {key: value or "" for key, value in _settings(arguments.settings).items()}
                replicas = arguments.replication_factor or DEFAULT_REPLICATION
                client.create_topic(arguments.topic, arguments.partitions, settings, replicas)
                _done(arguments, "created", arguments.topic)
            case "grow":
                client.create_partitions(arguments.topic, arguments.partitions)
                _done(arguments, "grown", arguments.topic)
            case "delete":
                return _delete(client, arguments)
            case "forget-producers":
                return forget_producers(client, arguments)
            case "set":
                Admin(client).alter_topic(arguments.topic, _settings(arguments.settings))
                _done(arguments, "changed", arguments.topic)
            case _:
                _list(client, arguments)
    return 0


def _done(arguments: argparse.Namespace, what: str, topic: str) -> None:
    if arguments.json:
        print_json({what: topic})
    else:
        print(f"{what}: {topic}")


class _ClusterHosts:
    """Hosts of a cluster that are asked at the same time, each by a client of its own, which is kept until the end."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._clients: dict[Address, Client] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def ask(self, hosts: Sequence[Address], question: Callable[[Client], Sizes | None]) -> list[Sizes | None]:
        """See `AskHosts`."""
        for host in hosts:
            if host not in self._clients:
                self._clients[host] = connect_to(self._arguments, str(host))
        return ask_together([partial(_asked, self._clients[host], question) for host in hosts])


def _asked(client: Client, question: Callable[[Client], Sizes | None]) -> Sizes | None:
    try:
        return question(client)
    except OSError:
        client.close()  # the next question goes over a new connection
        raise


def _list(client: Client, arguments: argparse.Namespace) -> None:
    with _ClusterHosts(arguments) as hosts:
        sizes = Admin(client).sizes(ask_hosts=hosts.ask)
    total_bytes: dict[str, int] = {}
    for stream, size_bytes in ({} if sizes is None else sizes).items():
        total_bytes[stream.topic] = total_bytes.get(stream.topic, 0) + size_bytes
    found: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": len(info.partitions),
            "bytes": None if sizes is None else total_bytes.get(name, 0),
        }
        for name, info in sorted(client.topics().items())
    ]
    if arguments.json:
        print_json({"topics": found})
        return
    rows = [(topic["topic"], topic["partitions"], show_size(topic["bytes"])) for topic in found]
    print_table(("topic", "partitions", "size"), rows, nothing="there are no topics")


def _delete(client: Client, arguments: argparse.Namespace) -> int:
    topic = arguments.topic
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"this would delete all records of {topic!r}; confirm with --yes")
        prompt = f"All records of {topic} will be deleted. Type its name to confirm: "
        print(prompt, end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != topic:
            print("nothing was deleted", file=sys.stderr)
            return EXIT_FAILED
    Admin(client).delete_topic(topic)
    _done(arguments, "deleted", topic)
    return 0


def _settings(texts: Sequence[str]) -> dict[str, str | None]:
    """Settings by name, None for an empty value. Raises UsageError."""
    settings: dict[str, str | None] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not name or not found:
            raise UsageError(f"{text!r} is not a setting; write CONFIG=VALUE")
        settings[name] = value or None
    return settings


def _count(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
