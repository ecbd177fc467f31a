"""`cairn queries`: the queries that write epochs through a sidecar: epoch, run, lag, staged output. Changes nothing.

A query's lag counts records between the input that its last epoch ended at, as its commit noted it, and the end of that
input. It is known where the input is topics of the same sidecar. The name and the checkpoint of a query are known where
its commit noted them: Spark's sink does, and stateful queries do.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from logstore.client.admin import Admin
from logstore.client.blocking import Client, TopicPartition
from logstore.client.wire import LATEST
from logstore.commands.connection import add_connection_arguments, connect
from logstore.commands.output import print_fields, print_json, print_table, run, show_bytes, show_time
from logstore.commands.places import offsets_at
from logstore.errors import CairnError
from logstore.format.epoch_api import DescribeRequest
from logstore.format.operator_api import QuerySummary

RUN_CHARACTERS: Final = 12
"""Of a run's token in a table: enough to tell two apart."""
SHOWN_TOPICS: Final = 3
"""Of a query's topics in a table."""
SHOWN_QUERIES: Final = 5
"""Of the queries that a beginning may mean, in an error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn queries`."""
    add_connection_arguments(parser)
    parser.add_argument(
        "query",
        nargs="?",
        metavar="QUERY",
        help="show this query (an id, or the beginning of one) with the positions of its last epoch",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("queries", arguments, _queries)


def _queries(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        queries = Admin(client).queries()
        if arguments.query is not None:
            queries = [_chosen(queries, arguments.query, client.where)]
        positions = {query.query: client.describe(DescribeRequest(query.query)).positions for query in queries}
        inputs = {name: read_inputs(text) for name, text in positions.items()}
        ends = _ends(client, inputs.values())
    lags = {name: _lag(streams, ends) for name, streams in inputs.items()}
    if arguments.json:
        print_json({"queries": [_fields(query, lags[query.query], positions[query.query]) for query in queries]})
    elif arguments.query is not None:
        _show(queries[0], lags[queries[0].query], positions[queries[0].query])
    else:
        rows = [
            (
                query.query,
                read_note(positions[query.query], "name"),
                _topics(query),
                query.last_epoch,
                f"{query.incarnation_number} ({_short(query.incarnation)})",
                _state(query),
                lags[query.query],
                show_bytes(query.staged_bytes),
                query.staged_attempts,
            )
            for query in queries
        ]
        titles = ("query", "name", "topics", "epoch", "run", "state", "lag", "staged", "attempts")
        print_table(titles, rows, nothing="no query has written epochs")
    return 0


def _chosen(queries: Sequence[QuerySummary], asked: str, where: str) -> QuerySummary:
    """The query of this name, or else the only one whose name begins so. Raises CairnError."""
    found = [query for query in queries if query.query == asked]
    found = found or [query for query in queries if asked and query.query.startswith(asked)]
    if not found:
        raise CairnError(f"there is no query {asked!r} at {where}; `cairn queries` lists them")
    if len(found) > 1:
        names = ", ".join(repr(query.query) for query in found[:SHOWN_QUERIES])
        more = f" and {len(found) - SHOWN_QUERIES} more" if len(found) > SHOWN_QUERIES else ""
        raise CairnError(f"{asked!r} matches several queries at {where}: {names}{more}; give more of the id")
    return found[0]


def _fields(query: QuerySummary, lag: int | None, positions: str) -> dict[str, Any]:
    return {
        "query": query.query,
        "name": read_note(positions, "name"),
        "checkpoint": read_note(positions, "checkpoint"),
        "topics": list(query.topics),
        "epoch": query.last_epoch,
        "committed_ms": query.committed_ms,
        "run": query.incarnation,
        "run_number": query.incarnation_number,
        "run_seen_ms": query.seen_ms,
        "state": query.state,
        "streams_left": query.streams_left,
        "lag": lag,
        "staged_bytes": query.staged_bytes,
        "staged_attempts": query.staged_attempts,
        "batch_job": query.is_batch_job,
        "positions": positions,
    }


def _show(query: QuerySummary, lag: int | None, positions: str) -> None:
    committed = None if query.committed_ms is None else show_time(query.committed_ms)
    print_fields(
        [
            ("query", query.query),
            ("name", read_note(positions, "name")),
            ("checkpoint", read_note(positions, "checkpoint")),
            ("topics", ", ".join(query.topics) or None),
            ("epoch", query.last_epoch),
            ("committed at", committed),
            ("run", f"{query.incarnation_number}, {query.incarnation}"),
            ("run began", show_time(query.seen_ms)),
            ("state", _state(query)),
            ("lag", "unknown" if lag is None else lag),
            ("staged", f"{show_bytes(query.staged_bytes)} in {query.staged_attempts} attempts"),
            ("positions", positions or None),
        ]
    )


def _state(query: QuerySummary) -> str:
    left = f", {query.streams_left} partitions left" if query.streams_left else ""
    return query.state + left + (" (batch job)" if query.is_batch_job else "")


def _topics(query: QuerySummary) -> str | None:
    shown = ", ".join(query.topics[:SHOWN_TOPICS])
    return (f"{shown}, …" if len(query.topics) > SHOWN_TOPICS else shown) or None


def _short(token: str) -> str:
    return token if len(token) <= RUN_CHARACTERS else f"{token[: RUN_CHARACTERS - 1]}…"


def read_note(positions: str, name: str) -> str | None:
    """A text that a commit's positions note under this name; None where there is none, whatever they are."""
    try:
        value = json.loads(positions)[name]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return value if isinstance(value, str) and value else None


def read_inputs(positions: str) -> dict[TopicPartition, int]:
    """The offsets at which the planned input in a commit's positions ends; empty where there are none.

    A client may write any positions, so whatever is not understood is passed over.
    """
    try:
        lines = json.loads(positions)["input"]["offsets"]
        sources = [json.loads(line) for line in lines]
        return {
            TopicPartition(topic, int(partition)): offset
            for source in sources
            if isinstance(source, dict)
            for topic, offsets in source.items()
            if isinstance(offsets, dict)
            for partition, offset in offsets.items()
            if partition.isdecimal() and isinstance(offset, int) and offset >= 0  # others are a source's own notes
        }
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _ends(client: Client, inputs: Iterable[dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
    """The ends of all input streams that this sidecar has."""
    streams = sorted({stream for offsets in inputs for stream in offsets})
    if not streams:
        return {}
    counts = {topic: len(info.partitions) for topic, info in client.topics(sorted({s.topic for s in streams})).items()}
    return offsets_at(client, [stream for stream in streams if stream.partition < counts.get(stream.topic, 0)], LATEST)


def _lag(offsets: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> int | None:
    if not offsets or not all(stream in ends for stream in offsets):
        return None
    return sum(max(0, ends[stream] - offset) for stream, offset in offsets.items())
