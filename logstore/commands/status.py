"""`cairn status`: a sidecar at a glance. Changes nothing."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from logstore.client.admin import Admin
from logstore.client.blocking import Client
from logstore.client.errors import Unavailable
from logstore.commands.connection import add_connection_arguments, connect
from logstore.commands.output import counted, print_fields, print_json, run, show_age, show_bytes, show_time
from logstore.format.host_summaries import ClusterGlance
from logstore.format.operator_api import SidecarReply

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn status`."""
    add_connection_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("status", arguments, _status)


def _status(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        admin = Admin(client)
        sidecar, cluster = admin.sidecar(), admin.cluster()
        groups, readers, count, stuck = _counts(client, admin, sidecar)
    if arguments.json:
        print_json(
            {
                "server": client.where,
                "version": sidecar.version,
                "cluster_id": cluster.cluster_id,
                "advertised": ",".join(cluster.hosts),
                "uptime_ms": sidecar.uptime_ms,
                "topics": sidecar.topics,
                "streams": sidecar.streams,
                "log_bytes": sidecar.log_bytes,
                "groups": groups,
                "readers": readers,
                "queries": count,
                "queries_stuck": stuck,
                "staged_bytes": sidecar.staged_bytes,
                "disk_total_bytes": sidecar.disk_total_bytes,
                "disk_free_bytes": sidecar.disk_free_bytes,
                "disk_needed_bytes": sidecar.disk_needed_bytes,
                "appends_refused_since_ms": sidecar.refused_since_ms,
                "streams_waiting": list(sidecar.waiting),
                "hosts": None if sidecar.cluster is None else sidecar.cluster.hosts,
                "hosts_away": None if sidecar.cluster is None else sidecar.cluster.away,
                "streams_short": None if sidecar.cluster is None else sidecar.cluster.short_streams,
            }
        )
        return 0
    short_streams = 0 if sidecar.cluster is None else sidecar.cluster.short_streams
    free_percent = 100 * sidecar.disk_free_bytes // max(1, sidecar.disk_total_bytes)
    print_fields(
        [
            ("sidecar", f"{client.where}, {place(cluster.hosts, sidecar.cluster)}"),
            ("version", sidecar.version),
            ("cluster id", cluster.cluster_id),
            ("up for", show_age(sidecar.uptime_ms)),
            ("topics", f"{sidecar.topics} with {sidecar.streams} partitions here"),
            ("log", show_bytes(sidecar.log_bytes)),
            ("groups", groups),
            ("readers", readers),
            ("queries", f"{count}, {len(stuck)} stuck" if stuck else count),
            ("staged", show_bytes(sidecar.staged_bytes)),
            ("disk", f"{show_bytes(sidecar.disk_free_bytes)} free ({free_percent} %)"),
            *([] if sidecar.refused_since_ms is None else [("appends", _refusal(sidecar, sidecar.refused_since_ms))]),
            *([("copies", _short(short_streams))] if short_streams else []),
            *([("waiting", _waiting(sidecar.waiting))] if sidecar.waiting else []),
        ]
    )
    return 0


def _counts(
    client: Client, admin: Admin, sidecar: SidecarReply
) -> tuple[int | None, int | None, int | None, list[str] | None]:
    """How many groups, readers and queries there are, and which queries are stuck; None: nobody says, and why not goes
    to standard error. One host of a cluster has each of them, and any host answers about them.
    """
    unknown: dict[str, list[str]] = {}

    def known(what: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Unavailable as error:
            unknown.setdefault(str(error), []).append(what)
            return None

    groups = known("groups", admin.group_names)
    readers = known("readers", client.reader_names)
    queries = known("queries", admin.queries)
    for why, what in unknown.items():
        names = " and ".join(filter(None, (", ".join(what[:-1]), what[-1])))
        print(f"cairn status: {names} are unknown: {why}", file=sys.stderr)
    return (
        None if groups is None else len(groups),
        None if readers is None else max(sidecar.readers, len(readers)),
        None if queries is None else max(sidecar.queries, len(queries)),
        None if queries is None else [query.query for query in queries if query.state == "stuck"],
    )


def place(advertised: Sequence[str], cluster: ClusterGlance | None) -> str:
    """The sidecar among the hosts of its cluster, if it has one, and what clients are told."""
    told = f"advertised as {', '.join(advertised)}"
    if cluster is not None and cluster.away:
        return f"one of {cluster.hosts} hosts, {cluster.away} of them away (cairn hosts shows more); {told}"
    return f"one of {len(advertised)} hosts that are {told}" if len(advertised) > 1 else told


def _short(streams: int) -> str:
    return (
        f"{counted(streams, 'stream')} of this host with fewer live copies than min.insync.replicas: producers are "
        "refused until hosts are back (cairn topics describe TOPIC shows which are away)"
    )


def _waiting(streams: Sequence[str]) -> str:
    return f"{', '.join(streams)}: cairn topics describe TOPIC shows what waits, and what to do"


def _refusal(sidecar: SidecarReply, since_ms: int) -> str:
    return (
        f"refused since {show_time(since_ms)}: {show_bytes(sidecar.disk_needed_bytes)} must stay free on the disk "
        "(disk-reserve-bytes plus the bytes that are staged). Delete topics or records, lower their retention (cairn "
        "topics set TOPIC retention.ms=...), or free disk space; appends then resume by themselves"
    )
