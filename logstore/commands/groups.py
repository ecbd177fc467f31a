"""`cairn groups`: consumer groups, how far behind they are, and setting them back or forward.

Invariants: `list` and `describe` change nothing; `reset` shows what it would do and does it with `--yes` only; a group
with members is neither reset nor deleted, because its members would go on where they are.
"""

import argparse
from typing import Any, NamedTuple

from logstore.client.admin import Admin
from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import SidecarRefused
from logstore.client.wire import LATEST
from logstore.commands.connection import add_action, add_connection_arguments, connect
from logstore.commands.output import UsageError, print_json, print_table, run
from logstore.commands.places import offsets_at, parse_moment, streams_of
from logstore.errors import CairnError

GONE = "Dead"
"""Kafka's name for the state of a group that does not exist."""


class StreamLag(NamedTuple):
    """A stream of a group: None where the group has committed nothing, or the stream is gone."""

    stream: TopicPartition
    committed: int | None
    end: int | None
    member: str

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn groups`."""
    add_connection_arguments(parser)
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add_action(actions, "list", "all groups, with members and lag (the default)")
    describe = add_action(actions, "describe", "one group: its members, and the lag of each partition")
    describe.add_argument("group", metavar="GROUP")
    delete = add_action(actions, "delete", "delete a group without members, and its offsets")
    delete.add_argument("group", metavar="GROUP")
    reset = add_action(actions, "reset", "set the offsets of a group without members; without --yes, only show them")
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:PARTITION]",
        help="repeatable (default: all partitions with a committed offset)",
    )
    to = reset.add_mutually_exclusive_group(required=True)
    to.add_argument("--to", metavar="MOMENT", help="earliest, latest, ms since 1970 or 2026-01-31T12:00:00Z")
    to.add_argument("--to-offset", metavar="OFFSET", help="this offset in each partition")
    reset.add_argument("--yes", action="store_true", help="apply the change")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("groups", arguments, _groups)


def _groups(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        match arguments.action:
            case "describe":
                _describe(client, arguments.group, as_json=arguments.json)
            case "delete":
                Admin(client).delete_group(arguments.group)
                print_json({"deleted": arguments.group}) if arguments.json else print(f"deleted: {arguments.group}")
            case "reset":
                return _reset(client, arguments)
            case _:
                _list(client, as_json=arguments.json)
    return 0


def _list(client: Client, *, as_json: bool) -> None:
    admin = Admin(client)
    found: list[dict[str, Any]] = []
    for name, group in admin.groups(admin.group_names()).items():
        lags = [entry.lag for entry in _lags(client, name, {}) if entry.lag is not None]
        found.append(
            {
                "group": name,
                "state": group.state,
                "members": len(group.members),
                "streams": len(lags),
                "lag": sum(lags),
            }
        )
    if as_json:
        print_json({"groups": found})
        return
    rows = [tuple(entry.values()) for entry in found]
    print_table(("group", "state", "members", "partitions", "lag"), rows, nothing="there are no groups")


def _lags(client: Client, group: str, readers: dict[TopicPartition, str]) -> list[StreamLag]:
    """The streams that a group has committed in or is assigned, sorted."""
    committed = Admin(client).committed(group)
    streams = sorted({*committed, *readers})
    counts = {topic: len(info.partitions) for topic, info in client.topics(sorted({s.topic for s in streams})).items()}
    there = [stream for stream in streams if stream.partition < counts.get(stream.topic, 0)]
    ends = offsets_at(client, there, LATEST)
    return [StreamLag(s, committed.get(s), ends.get(s), readers.get(s, "")) for s in streams]


def _describe(client: Client, name: str, *, as_json: bool) -> None:
    group = Admin(client).groups([name])[name]
    if group.state == GONE:
        raise CairnError(f"there is no group {name!r} at {client.where}; `cairn groups` lists them")
    readers = {stream: member.member_id for member in group.members for stream in member.streams}
    lags = _lags(client, name, readers)
    if as_json:
        print_json(
            {
                "group": name,
                "state": group.state,
                "protocol": group.protocol,
                "members": [
                    {
                        "member": member.member_id,
                        "client": member.client_id,
                        "host": member.host,
                        "streams": [[stream.topic, stream.partition] for stream in member.streams],
                    }
                    for member in group.members
                ],
                "streams": [
                    {
                        "topic": entry.stream.topic,
                        "partition": entry.stream.partition,
                        "committed": entry.committed,
                        "latest": entry.end,
                        "lag": entry.lag,
                        "member": entry.member or None,
                    }
                    for entry in lags
                ],
            }
        )
        return
    print(f"{name}: {group.state}{f', {group.protocol}' if group.protocol else ''}")
    print()
    members = [(member.member_id, member.client_id, member.host, len(member.streams)) for member in group.members]
    print_table(("member", "client", "host", "partitions"), members, nothing="no members")
    print()
    rows = [
        (entry.stream.topic, entry.stream.partition, entry.committed, entry.end, entry.lag, entry.member)
        for entry in lags
    ]
    titles = ("topic", "partition", "committed", "latest", "lag", "member")
    print_table(titles, rows, nothing="nothing committed")


def _reset(client: Client, arguments: argparse.Namespace) -> int:
    admin, name = Admin(client), arguments.group
    group = admin.groups([name])[name]
    if group.members:
        raise CairnError(
            f"group {name!r} has {len(group.members)} members, which would ignore the new offsets; stop them first"
        )
    committed = admin.committed(name)
    streams = [stream for text in arguments.topic for stream in streams_of(client, text)] or sorted(committed)
    if not streams:
        raise CairnError(f"group {name!r} has committed nothing; name the topics with --topic")
    if arguments.to_offset is None:
        targets = offsets_at(client, streams, parse_moment(arguments.to))
    else:
        targets = _checked(client, streams, arguments.to_offset)
    if arguments.yes:
        try:
            admin.commit(name, targets)
        except SidecarRefused as error:
            raise CairnError(f"{error}; UNKNOWN_MEMBER_ID means that a member has joined in the meantime") from error
    if arguments.json:
        moved = [
            {"topic": s.topic, "partition": s.partition, "from": committed.get(s), "to": offset}
            for s, offset in targets.items()
        ]
        print_json({"group": name, "done": arguments.yes, "offsets": moved})
    else:
        rows = [(s.topic, s.partition, committed.get(s), offset) for s, offset in targets.items()]
        print_table(("topic", "partition", "from", "to"), rows, nothing="no partitions")
        if not arguments.yes:
            print("nothing was changed; --yes applies the change")
    return 0


def _checked(client: Client, streams: list[TopicPartition], text: str) -> dict[TopicPartition, int]:
    """The same offset for all streams, which must have it. Raises UsageError."""
    if not (text.isdecimal() and text.isascii()):
        raise UsageError(f"--to-offset {text!r} is not an offset")
    offset = int(text)
    for stream, end in offsets_at(client, streams, LATEST).items():
        if offset > end:
            raise UsageError(f"offset {offset} is beyond the end of {stream}, {end}")
    return dict.fromkeys(streams, offset)
