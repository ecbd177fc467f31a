"""`cairn hosts`: the hosts of a cluster, as one of them sees it. Changes nothing.

Any host answers on its Kafka port, so nobody needs the metadata store's address and password to look.
"""

import argparse
from typing import Any

from logstore.client.admin import Admin
from logstore.commands.connection import add_connection_arguments, connect
from logstore.commands.output import Cell, print_json, print_table, run, show_time
from logstore.format.host_summaries import HostsReply, HostSummary

TITLES = ("host", "node", "rack", "state", "streams", "chunks", "missing", "link", "addresses")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn hosts`."""
    add_connection_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("hosts", arguments, _hosts)


def _hosts(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        reply = Admin(client).hosts()
    if arguments.json:
        print_json(_fields(reply))
        return 0
    print_table(TITLES, [_row(host) for host in reply.hosts], nothing="there are no hosts")
    print()
    print(f"as host {reply.asked} sees it: {reply.streams} streams, {reply.ownerless} of them without an owner")
    more = "" if reply.is_complete else "; there are more chunks than were counted"
    print(f"{reply.under_replicated} of {reply.chunks} chunks have fewer copies than wanted{more}")
    return 0


def _row(host: HostSummary) -> tuple[Cell, ...]:
    state = host.state if host.gone_ms is None else f"{host.state} since {show_time(host.gone_ms)}"
    addresses = ",".join(host.addresses) or None
    counts = (host.streams, host.chunks, host.missing_copies)
    return (host.host, host.node_id, host.rack or None, state, *counts, host.link or None, addresses)


def _fields(reply: HostsReply) -> dict[str, Any]:
    return {
        "asked": reply.asked,
        "streams": reply.streams,
        "streams_without_owner": reply.ownerless,
        "chunks": reply.chunks,
        "under_replicated": reply.under_replicated,
        "complete": reply.is_complete,
        "hosts": [
            {
                "host": host.host,
                "node_id": host.node_id,
                "rack": host.rack or None,
                "state": host.state,
                "gone_ms": host.gone_ms,
                "streams": host.streams,
                "chunks": host.chunks,
                "missing_copies": host.missing_copies,
                "link": host.link or None,
                "addresses": list(host.addresses),
            }
            for host in reply.hosts
        ],
    }
