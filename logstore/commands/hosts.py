"""`cairn hosts`: the hosts of a cluster, as one of them sees it; `drain`, `undrain` and `remove` for hosts that go.

Any host answers on its Kafka port, so nobody needs the metadata store's address and password.

Invariant: an action is written down with its first request and goes on without this command; whoever interrupts the
wait, or asks again, changes nothing.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from logstore.base.racks import domains
from logstore.client.admin import Admin
from logstore.commands.connection import add_action, add_connection_arguments, connect
from logstore.commands.output import Cell, counted, print_json, print_table, run, show_time
from logstore.errors import HostStays, UnknownHost
from logstore.format.host_summaries import DRAIN, REMOVE, UNDRAIN, HostsReply, HostSummary

TITLES = ("host", "node", "rack", "state", "streams", "chunks", "missing", "link", "addresses")
LIST: Final = "list"
POLL_S: Final = 1.0
"""Between two looks at a host that leaves: an answer is used again for as long."""
ALIVE: Final = "alive"
GONE: Final = "gone"
LEAVING: Final = {"": "", DRAIN: ", being drained", REMOVE: ", being removed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn hosts`."""
    add_connection_arguments(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add_action(actions, LIST, "all hosts (the default)")
    drain = add_action(actions, DRAIN, "move a host's streams and chunks to other hosts, and wait until it has none")
    undrain = add_action(actions, UNDRAIN, "cancel the drain of a host")
    remove = add_action(actions, REMOVE, "remove a host that is gone for good, and wait until no chunk names it")
    for each in (drain, undrain, remove):
        each.add_argument("host", metavar="HOST", help="the host's --host-name")
    for each in (drain, remove):
        each.add_argument("--no-wait", action="store_true", help="return at once; the cluster continues")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("hosts", arguments, _hosts)


def _hosts(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        admin = Admin(client)
        match arguments.action:
            case "drain":
                return _drain(admin, arguments)
            case "undrain":
                return _undrain(admin, arguments)
            case "remove":
                return _remove(admin, arguments)
            case _:
                return _list(admin, arguments)


# ---- list


def _list(admin: Admin, arguments: argparse.Namespace) -> int:
    reply = admin.hosts()
    if arguments.json:
        print_json(_fields(reply))
        return 0
    print_table(TITLES, [_row(host) for host in reply.hosts], nothing="there are no hosts")
    print()
    print(
        f"as host {reply.asked} sees it: {counted(reply.streams, 'stream')}, {reply.ownerless} of them without an owner"
    )
    more = "" if reply.is_complete else "; not all chunks were counted"
    print(f"{reply.under_replicated} of {reply.chunks} chunks have fewer copies than wanted{more}")
    if reply.crowded:
        print(f"{counted(reply.crowded, 'chunk')} with all copies, more of them in one rack or zone than need be")
    for host in reply.hosts:
        if host.leaving == DRAIN:
            print(progress(host, reply))
    for host in reply.hosts:
        if host.state == GONE and not host.leaving:
            print(gone_host(host))
    return 0


def _row(host: HostSummary) -> tuple[Cell, ...]:
    state = host.state if host.gone_ms is None else f"{host.state} since {show_time(host.gone_ms)}"
    addresses = ",".join(host.addresses) or None
    counts = (host.streams, host.chunks, host.missing_copies)
    shown = state + LEAVING[host.leaving]
    return (host.host, host.node_id, host.rack or None, shown, *counts, host.link or None, addresses)


def gone_host(host: HostSummary) -> str:
    """What a host that is gone still counts for, and what to do if it does not come back."""
    return (
        f"host {host.host} is gone, and counts until it is removed: topics without min.insync.replicas of their own "
        f"need as many hosts as with it; if it does not come back (it was started by mistake, say), run "
        f"cairn hosts remove {host.host}"
    )


def _fields(reply: HostsReply) -> dict[str, Any]:
    return {
        "asked": reply.asked,
        "streams": reply.streams,
        "streams_without_owner": reply.ownerless,
        "chunks": reply.chunks,
        "under_replicated": reply.under_replicated,
        "crowded": reply.crowded,
        "complete": reply.is_complete,
        "hosts": [_host_fields(host) for host in reply.hosts],
    }


def _host_fields(host: HostSummary) -> dict[str, Any]:
    return {
        "host": host.host,
        "node_id": host.node_id,
        "rack": host.rack or None,
        "state": host.state,
        "gone_ms": host.gone_ms,
        "leaving": host.leaving or None,
        "streams": host.streams,
        "chunks": host.chunks,
        "stuck_chunks": host.stuck_chunks,
        "missing_hosts": host.missing_hosts,
        "missing_copies": host.missing_copies,
        "link": host.link or None,
        "addresses": list(host.addresses),
    }


# ---- hosts that go


def _drain(admin: Admin, arguments: argparse.Namespace) -> int:
    name: str = arguments.host
    admin.change_host(name, DRAIN)

    def look() -> tuple[bool, str, dict[str, Any]]:
        reply = admin.hosts()
        host = next((each for each in reply.hosts if each.host == name and each.leaving == DRAIN), None)
        if host is None:
            raise HostStays(f"host {name!r} is no longer being drained: the drain was cancelled")
        return _is_drained(host, reply), progress(host, reply), _host_fields(host)

    return _follow(look, arguments)


def _is_drained(host: HostSummary, reply: HostsReply) -> bool:
    return host.is_empty and reply.is_complete


def progress(host: HostSummary, reply: HostsReply) -> str:
    """How far a host is that is drained, and what it lacks to get on."""
    if _is_drained(host, reply):
        return f"host {host.host} holds nothing: switch it off, then remove it"
    more = "" if reply.is_complete else " or more"
    stuck = ""
    if host.stuck_chunks:
        others = "another host" if host.missing_hosts < 2 else f"{host.missing_hosts} other hosts"
        stuck = f"; {host.stuck_chunks} of the chunks need more copies than there are other hosts: start {others}"
    lost = _lost_domain(host, reply)
    apart = f"; no remaining host is in {lost}, so copies will spread over fewer fault domains" if lost else ""
    chunks = counted(host.chunks, "chunk") if not more else f"{host.chunks}{more} chunks"
    return f"host {host.host} still owns {counted(host.streams, 'stream')} and has {chunks}{stuck}{apart}"


def _lost_domain(host: HostSummary, reply: HostsReply) -> str:
    """The widest fault domain of a host in which no host is that lives and stays, if other domains have some."""
    staying = [domains(each.rack) for each in reply.hosts if not each.leaving and each.state == ALIVE]
    way = domains(host.rack)
    lost = (depth for depth in range(1, len(way) + 1) if all(other[:depth] != way[:depth] for other in staying))
    depth = next(lost, 0)
    return "/" + "/".join(way[:depth]) if depth and any(staying) else ""


def _undrain(admin: Admin, arguments: argparse.Namespace) -> int:
    admin.change_host(arguments.host, UNDRAIN)
    if arguments.json:
        print_json({"host": arguments.host, "leaving": None})
    else:
        print(f"host {arguments.host} stays")
    return 0


def _remove(admin: Admin, arguments: argparse.Namespace) -> int:
    name: str = arguments.host
    was_known = False

    def look() -> tuple[bool, str, dict[str, Any]]:
        nonlocal was_known
        try:
            chunks = admin.change_host(name, REMOVE).chunks
        except UnknownHost:
            if not was_known:
                raise
            chunks = 0  # somebody else has removed it meanwhile
        was_known = True
        text = f"chunks that name host {name}: {chunks}" if chunks else f"host {name} is removed: no chunk names it"
        return not chunks, text, {"host": name, "chunks": chunks}

    return _follow(look, arguments)


def _follow(look: Callable[[], tuple[bool, str, dict[str, Any]]], arguments: argparse.Namespace) -> int:
    """Show how far a host is, until it is done: lines on standard error, the end on standard output."""
    shown = ""
    while True:
        is_done, text, fields = look()
        if is_done or arguments.no_wait:
            break
        if text != shown and not arguments.json:
            shown = text
            print(text, file=sys.stderr)
        time.sleep(POLL_S)
    print_json({**fields, "done": is_done}) if arguments.json else print(text)
    return 0
