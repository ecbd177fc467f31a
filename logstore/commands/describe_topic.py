"""`cairn topics describe`: a topic's offsets, bytes and settings; in a cluster also owners, and where copies are.

Invariants: nothing is changed. In a cluster each owner is asked for its own partitions, and for nothing that another
host would have to say; what an owner does not say (none lives, or it does not answer) is shown as unknown, and the rest
is shown all the same. What it does not say of one partition is unknown of that one alone, with the reason. Who may not
see the settings sees the rest.
"""

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from logstore.client.admin import Admin
from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import NOT_LEADER, TOPIC_AUTHORIZATION_FAILED, SidecarRefused, Unavailable, name_of
from logstore.client.wire import EARLIEST, LATEST, OffsetInfo
from logstore.commands.connection import connect_to
from logstore.commands.output import Cell, print_fields, print_json, print_table, show_bytes, show_size, show_time
from logstore.commands.together import ask_together
from logstore.format.host_summaries import PlacesReply, PlaceSummary, WaitSummary
from logstore.format.tier_summaries import TieredPartition

_DAMAGED_TEXT = (
    "has a damaged entry in the metadata store; see `metadata_entry_damaged` and `metadata_unusable` in the log. "
    "The owner serves the partition from what it knows, does not seal its newest chunk, and moves no more of its "
    "chunks to the tier: restore the entry"
)


def describe_topic(client: Client, arguments: argparse.Namespace) -> None:
    """Print the topic. Raises Unavailable, SidecarRefused, MalformedReply."""
    topic = arguments.topic
    count = client.partitions(topic)
    streams = [TopicPartition(topic, partition) for partition in range(count)]
    places = Admin(client).places(topic)
    configs = _configs(client, topic)
    if places is not None:
        _describe_placed(places, _known_by_owners(topic, places.places, arguments), configs, arguments)
        return
    partitions = _known(client, streams)
    if arguments.json:
        print_json({"topic": topic, "partitions": partitions, "configs": configs})
        return
    rows: list[tuple[Cell, ...]] = [
        (entry["partition"], entry["earliest"], entry["latest"], show_size(entry["bytes"])) for entry in partitions
    ]
    _print(("partition", "earliest", "latest", "size"), rows, partitions)
    _print_unknown(partitions)
    _print_configs(configs)


def _configs(client: Client, topic: str) -> dict[str, str] | None:
    """The settings of a topic; None: the user may not see them, but may see the rest."""
    try:
        return client.topic_configs(topic)
    except SidecarRefused as error:
        if error.code != TOPIC_AUTHORIZATION_FAILED:
            raise
        return None


def _print_configs(configs: dict[str, str] | None) -> None:
    if configs is None:
        print("the settings are not shown: that needs DescribeConfigs on the topic; ask for an ACL that allows it")
        return
    print_fields(sorted(configs.items()))


def _print(titles: Sequence[str], rows: Sequence[tuple[Cell, ...]], partitions: Sequence[dict[str, Any]]) -> None:
    """A row for each partition, with what of it is in the tier if anything is."""
    if any(entry["tier"] for entry in partitions):
        titles = (*titles, "on disk from", "in tier up to", "chunks in tier", "size in tier")
        rows = [(*row, *_tier_row(entry["tier"])) for row, entry in zip(rows, partitions, strict=True)]
    print_table(titles, rows, nothing="no partitions")
    print()


def _tier(found: TieredPartition | None) -> dict[str, int] | None:
    """What of a partition is in the tier; None: nothing."""
    if found is None or found.tiered_end < 0:
        return None
    return {
        "local_from": found.local_start,
        "up_to": found.tiered_end - 1,
        "chunks": found.chunks,
        "bytes": found.size_bytes,
    }


def _tier_row(tier: dict[str, int] | None) -> tuple[Cell, ...]:
    if tier is None:
        return (None,) * 4
    return tier["local_from"], tier["up_to"], tier["chunks"], show_bytes(tier["bytes"])


def _known(client: Client, streams: Sequence[TopicPartition]) -> list[dict[str, Any]]:
    """Offsets and bytes of partitions, and what of them is in the tier, by the sidecar that has them."""
    admin = Admin(client)
    earliest, latest = (admin.offsets_here(streams, moment) for moment in (EARLIEST, LATEST))
    sizes, topics = admin.sizes(is_here=True), {stream.topic for stream in streams}
    tiered = {topic: admin.tiered(topic) for topic in topics}
    return [
        {
            "partition": stream.partition,
            "earliest": _offset(earliest.get(stream)),
            "latest": _offset(latest.get(stream)),
            "offsets_error": _error(latest.get(stream)) or _error(earliest.get(stream)),
            "bytes": None if sizes is None else sizes.get(stream, 0),
            "tier": _tier(tiered[stream.topic].get(stream.partition)),
        }
        for stream in streams
    ]


def _offset(found: OffsetInfo | None) -> int | None:
    return None if found is None or found.error else found.offset


def _error(found: OffsetInfo | None) -> str | None:
    """The name of Kafka's error where there is no offset; None: there is one, or the host does not own the stream."""
    return None if found is None or not found.error or found.error in (NOT_LEADER, 3) else name_of(found.error)


def _print_unknown(partitions: Iterable[dict[str, Any]]) -> None:
    """Why offsets of partitions are unknown though their host has answered."""
    for entry in partitions:
        if entry["offsets_error"]:
            unknown = " and ".join(name for name in ("earliest", "latest") if entry[name] is None)
            print(
                f"partition {entry['partition']}: its {unknown} offset is unknown ({entry['offsets_error']}). While a "
                "stream lacks members, its owner may not know all acknowledged records: start the hosts that hold them"
            )


def _known_by_owners(
    topic: str, places: Iterable[PlaceSummary], arguments: argparse.Namespace
) -> dict[int, dict[str, Any]]:
    """What the owners say of their partitions."""
    by_address: dict[str, list[TopicPartition]] = {}
    for place in places:
        if place.address and place.is_led:  # of one that nobody leads, nobody says anything
            by_address.setdefault(place.address, []).append(TopicPartition(topic, place.partition))

    def known(address: str, streams: Sequence[TopicPartition]) -> list[dict[str, Any]]:
        try:
            with connect_to(arguments, address) as owner:
                return _known(owner, streams)
        except (Unavailable, SidecarRefused):
            return []  # it has gone, or given the partition up, since

    answers = ask_together([partial(known, address, streams) for address, streams in by_address.items()])
    return {entry["partition"]: entry for entries in answers for entry in entries}


def _describe_placed(
    reply: PlacesReply, known: dict[int, dict[str, Any]], configs: dict[str, str] | None, arguments: argparse.Namespace
) -> None:
    unknown = dict.fromkeys(("earliest", "latest", "offsets_error", "bytes", "tier"))
    partitions = [
        {
            **unknown,
            **known.get(place.partition, {}),
            "partition": place.partition,
            "owner": place.owner or None,
            "epoch": place.epoch,
            "copies": place.copies,
            "replicas": list(place.replicas),
            "away": list(place.away),
            "chunks": place.chunks,
            "under_replicated": place.under_replicated,
            "min_copies": place.min_copies or None,
            "waits": [wait_values(wait) for wait in place.waits],
            "damaged": place.is_damaged,
        }
        for place in reply.places
    ]
    if arguments.json:
        described = {"topic": arguments.topic, "partitions": partitions, "configs": configs}
        print_json({**described, "complete": reply.is_complete})
        return
    titles = ("partition", "earliest", "latest", "size", "owner", "epoch", "replicas", "away", "chunks", "short")
    _print(titles, [_row(entry) for entry in partitions], partitions)
    _print_unknown(partitions)
    short = sum(place.under_replicated for place in reply.places)
    more = "" if reply.is_complete else "; not all chunks were counted"
    copies = max((place.copies for place in reply.places), default=0)
    print(f"{short} of {sum(place.chunks for place in reply.places)} chunks have fewer than {copies} copies{more}")
    for place in reply.places:
        if place.live_copies < place.min_copies:
            print(f"partition {place.partition} {_too_few_text(place)}")
        if place.is_damaged:
            print(f"partition {place.partition} {_DAMAGED_TEXT}")
        for wait in place.waits:
            stream = TopicPartition(arguments.topic, place.partition)
            print(f"partition {place.partition} {wait_text(stream, wait)}")
    print()
    _print_configs(configs)


def _too_few_text(place: PlaceSummary) -> str:
    """Why producers of a partition wait, or are refused, and what to do."""
    members = f"has {place.live_copies} live members" if place.replicas else "has no open chunk"
    return (
        f"{members}, but min.insync.replicas is {place.min_copies}: producers are "
        "refused (NOT_ENOUGH_REPLICAS) until there are enough members. Start the hosts that are away or other hosts, "
        "or lower the topic's min.insync.replicas"
    )


def wait_values(wait: WaitSummary) -> dict[str, Any]:
    """What waits for a chunk, as values for JSON."""
    return {
        "since_ms": wait.since_ms,
        "chunk": wait.chunk,
        "first": wait.first,
        "last": wait.end - 1,
        "object": wait.object or None,
        "error": wait.error,
        "lost": wait.is_lost,
        "query": wait.query or None,
        "epoch": wait.epoch if wait.query else None,
    }


def wait_text(stream: TopicPartition, wait: WaitSummary) -> str:
    """What a stream waits for, and what to do."""
    where = f", at {wait.object} in the tier" if wait.object else ""
    offsets = f"offsets {wait.first} to {wait.end - 1} (the chunk of epoch {wait.chunk}{where})"
    hosts = "" if wait.is_lost else ", or start the host that has them,"
    command = f"cairn topics forget-producers {stream.topic}:{stream.partition}"
    if not wait.query:
        away = "" if wait.is_lost else " --even-if-away"
        return (
            f"has had no leader since {show_time(wait.since_ms)}: {offsets}, which hold the state of its producers, "
            f"cannot be read: {wait.error}. Restore them{hosts} and the partition continues by itself; or continue "
            f"without them: {command}{away}"
        )
    away = "" if wait.is_lost else " --repeat-epochs"
    return (
        f"has held back epoch {wait.epoch} of query {wait.query} since {show_time(wait.since_ms)}: {offsets}, which "
        f"may contain it already, cannot be read: {wait.error}. Restore them{hosts} and the query continues by itself; "
        f"or append the epoch after them, which duplicates it if they contain it and come back: {command}{away}"
    )


def _row(entry: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        entry["partition"],
        entry["earliest"],
        entry["latest"],
        show_size(entry["bytes"]),
        entry["owner"],
        entry["epoch"],
        ",".join(entry["replicas"]) or None,
        ",".join(entry["away"]) or None,
        entry["chunks"],
        entry["under_replicated"],
    )
