"""`cairn status`: a sidecar at a glance; at a host of a cluster, which host that is, what it says of itself alone and
what of the whole cluster. Changes nothing.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from logstore.client.admin import Admin
from logstore.client.admin_wire import ClusterInfo
from logstore.client.blocking import Client
from logstore.client.errors import Unavailable
from logstore.commands.connection import add_connection_arguments, connect
from logstore.commands.output import (
    Cell,
    counted,
    print_fields,
    print_json,
    run,
    show_age,
    show_bytes,
    show_time,
)
from logstore.commands.together import ask_together
from logstore.format.host_summaries import ClusterGlance
from logstore.format.operator_api import SidecarReply

_States = dict[str, str]
"""States by name; "" where it has none that counts here."""
_Fields = list[tuple[str, Cell]]


class _StatusCounts(NamedTuple):
    """How many groups, readers and queries there are, and which queries are stuck; None: nobody says."""

    groups: int | None
    readers: int | None
    queries: int | None
    stuck: list[str] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn status`."""
    add_connection_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("status", arguments, _status)


def _status(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        admin = Admin(client)
        sidecar, cluster, where = admin.sidecar(), admin.cluster(), client.where
    counts = _counts(arguments, sidecar)
    if arguments.json:
        print_json(_values(where, sidecar, cluster, counts))
    elif sidecar.cluster is None:
        print_fields(
            [
                ("sidecar", f"{where}, {place(cluster.hosts, None)}"),
                ("version", sidecar.version),
                ("cluster id", cluster.cluster_id),
                ("up for", show_age(sidecar.uptime_ms)),
                ("topics", f"{sidecar.topics} with {counted(sidecar.streams, 'partition')}"),
                ("log", show_bytes(sidecar.log_bytes)),
                *_counted(counts),
                *_disk(sidecar),
                *_waiting(sidecar.waiting),
            ]
        )
    else:
        _print_host(where, sidecar, cluster, counts, sidecar.cluster)
    return 0


def _print_host(
    where: str, sidecar: SidecarReply, cluster: ClusterInfo, counts: _StatusCounts, glance: ClusterGlance
) -> None:
    """A host of a cluster: what it says of itself, then what of all hosts."""
    host = f"host {glance.host}" if glance.host else "the host that answered"
    own: _Fields = [
        ("host", f"{glance.host or '-'}, asked at {where}"),
        ("version", sidecar.version),
        ("up for", show_age(sidecar.uptime_ms)),
        ("leads", counted(sidecar.streams, "partition")),
        ("log", show_bytes(sidecar.log_bytes)),
        *_disk(sidecar),
        *_short(glance.short_streams),
    ]
    whole: _Fields = [
        ("cluster id", cluster.cluster_id),
        ("hosts", place(cluster.hosts, glance)),
        ("topics", sidecar.topics),
        *_counted(counts),
        *_waiting(sidecar.waiting),
    ]
    print(f"Of {host} alone:")
    print_fields(own)
    print()
    print(f"Of the whole cluster, as {host} knows it:")
    print_fields(whole)


def _values(where: str, sidecar: SidecarReply, cluster: ClusterInfo, counts: _StatusCounts) -> dict[str, object]:
    """What `--json` prints."""
    glance = sidecar.cluster
    return {
        "server": where,
        "host": None if glance is None else glance.host or None,
        "version": sidecar.version,
        "cluster_id": cluster.cluster_id,
        "advertised": ",".join(cluster.hosts),
        "uptime_ms": sidecar.uptime_ms,
        "topics": sidecar.topics,
        "streams": sidecar.streams,
        "log_bytes": sidecar.log_bytes,
        "groups": counts.groups,
        "readers": counts.readers,
        "queries": counts.queries,
        "queries_stuck": counts.stuck,
        "staged_bytes": sidecar.staged_bytes,
        "disk_total_bytes": sidecar.disk_total_bytes,
        "disk_free_bytes": sidecar.disk_free_bytes,
        "disk_needed_bytes": sidecar.disk_needed_bytes,
        "appends_refused_since_ms": sidecar.refused_since_ms,
        "streams_waiting": list(sidecar.waiting),
        "hosts": None if glance is None else glance.hosts,
        "hosts_away": None if glance is None else glance.away,
        "streams_short": None if glance is None else glance.short_streams,
    }


def _counts(arguments: argparse.Namespace, sidecar: SidecarReply) -> _StatusCounts:
    """What is counted; why something is not known goes to standard error. One host of a cluster has each of them, and
    any host answers about them: where one is silent, the others are known all the same, and no later for it.
    """
    questions: dict[str, Callable[[Client], _States]] = {
        "groups": lambda client: dict.fromkeys(Admin(client).group_names(), ""),
        "readers": lambda client: dict.fromkeys(client.reader_names(), ""),
        "queries": lambda client: {query.query: query.state for query in Admin(client).queries()},
    }

    def known(ask: Callable[[Client], _States]) -> _States | Unavailable:
        try:
            with connect(arguments) as client:
                return ask(client)
        except Unavailable as error:
            return error

    answers = ask_together([partial(known, ask) for ask in questions.values()])
    found: dict[str, _States | None] = {}
    unknown: dict[str, list[str]] = {}
    for what, answer in zip(questions, answers, strict=True):
        if isinstance(answer, Unavailable):
            found[what] = None
            unknown.setdefault(str(answer), []).append(what)
        else:
            found[what] = answer
    for why, asked in unknown.items():
        names = " and ".join(filter(None, (", ".join(asked[:-1]), asked[-1])))
        print(f"cairn status: {names} are unknown: {why}", file=sys.stderr)
    groups, readers, queries = found["groups"], found["readers"], found["queries"]
    return _StatusCounts(
        None if groups is None else len(groups),
        None if readers is None else max(sidecar.readers, len(readers)),
        None if queries is None else max(sidecar.queries, len(queries)),
        None if queries is None else [query for query, state in queries.items() if state == "stuck"],
    )


# ---- what is printed


def place(advertised: Sequence[str], cluster: ClusterGlance | None) -> str:
    """The sidecar among the hosts of its cluster, if it has one, and what clients are told."""
    told = f"advertised as {', '.join(advertised)}"
    if cluster is not None and cluster.away:
        return f"one of {cluster.hosts} hosts, {cluster.away} of them away (cairn hosts shows more); {told}"
    return f"one of {len(advertised)} hosts that are {told}" if len(advertised) > 1 else told


def _counted(counts: _StatusCounts) -> _Fields:
    stuck = f", {len(counts.stuck)} stuck" if counts.stuck else ""
    return [
        ("groups", counts.groups),
        ("readers", counts.readers),
        ("queries", f"{counts.queries}{stuck}" if stuck else counts.queries),
    ]


def _disk(sidecar: SidecarReply) -> _Fields:
    free_percent = 100 * sidecar.disk_free_bytes // max(1, sidecar.disk_total_bytes)
    refused = sidecar.refused_since_ms
    return [
        ("staged", show_bytes(sidecar.staged_bytes)),
        ("disk", f"{show_bytes(sidecar.disk_free_bytes)} free ({free_percent} %)"),
        *([] if refused is None else [("appends", _refusal(sidecar, refused))]),
    ]


def _short(streams: int) -> _Fields:
    if not streams:
        return []
    text = (
        f"{counted(streams, 'stream')} of this host with fewer live copies than min.insync.replicas: producers are "
        "refused until hosts are back (cairn topics describe TOPIC shows which are away)"
    )
    return [("copies", text)]


def _waiting(streams: Sequence[str]) -> _Fields:
    if not streams:
        return []
    return [("waiting", f"{', '.join(streams)}: cairn topics describe TOPIC shows what waits, and what to do")]


def _refusal(sidecar: SidecarReply, since_ms: int) -> str:
    return (
        f"refused since {show_time(since_ms)}: {show_bytes(sidecar.disk_needed_bytes)} must stay free on the disk "
        "(disk-reserve-bytes plus the bytes that are staged). Delete topics or records, lower their retention (cairn "
        "topics set TOPIC retention.ms=...), or free disk space; appends then resume by themselves"
    )
