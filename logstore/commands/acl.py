"""`cairn acl`: lists, adds and removes the ACLs of a sidecar or a cluster.

Invariants:
* `list` changes nothing.
* `remove` removes every ACL only with `--all`. Before it removes more than one ACL, it shows the ACLs and asks at the
  terminal, unless `--yes` is given. It removes the ACLs that match at the time of the removal, not those that it has
  shown.
* Without users and ACLs, everybody may do everything. The first ACL ends this, and the removal of the last one may
  restore it: a note on standard error says so.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, TextIO

from logstore.access.acls import Acl, Operation, PatternType, Permission, ResourceType
from logstore.client.acl_wire import AclEntry, AclEntryFilter
from logstore.client.admin import Admin
from logstore.commands.acl_words import add_entry_arguments, add_filter_arguments, entries_of, filters_of, word_of
from logstore.commands.connection import add_action, add_connection_arguments, connect
from logstore.commands.output import EXIT_FAILED, UsageError, counted, print_json, print_table, run
from logstore.errors import CairnError

TITLES: Final = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
ANY: Final = 1
EVERYTHING: Final = AclEntryFilter(ANY, None, ANY, None, None, ANY, ANY)
YES: Final = ("y", "yes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn acl`."""
    add_connection_arguments(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = add_action(
        actions, "list", "ACLs: all, or those that apply to a name, a principal or an operation (the default)"
    )
    add_filter_arguments(listing, pattern="match", has_roles=False)
    add = add_action(actions, "add", "add ACLs, which allow or deny operations")
    add_entry_arguments(add)
    remove = add_action(actions, "remove", "remove all ACLs that match")
    add_filter_arguments(remove, pattern="literal", has_roles=True)
    remove.add_argument("--all", action="store_true", help="remove every ACL; no other option selects ACLs then")
    remove.add_argument("--yes", "--force", action="store_true", help="do not ask")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("acl", arguments, _acl)


def _acl(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        admin = Admin(client)
        match arguments.action:
            case "add":
                return _add(admin, arguments)
            case "remove":
                return _remove(admin, arguments)
            case _:
                return _list(admin, arguments)


def _list(admin: Admin, arguments: argparse.Namespace) -> int:
    wanted = filters_of(arguments) if arguments.action else [EVERYTHING]
    found = _found(admin, [AclEntryFilter(*each) for each in wanted])
    _show("acls", found, arguments)
    return 0


def _add(admin: Admin, arguments: argparse.Namespace) -> int:
    entries = [_entry(acl) for acl in entries_of(arguments)]
    before = set(admin.acls(EVERYTHING))
    admin.create_acls(entries)
    _show("added", entries, arguments)
    if not arguments.json:
        there = sum(entry in before for entry in entries)
        more = f"; {there} existed before" if there else ""
        print(f"added: {counted(len(entries) - there, 'ACL')}{more}")
    if not before:
        print(
            "cairn acl add: these are the first ACLs: what no ACL allows is refused from now on, except to users "
            "of super-users",
            file=sys.stderr,
        )
    return 0


def _remove(admin: Admin, arguments: argparse.Namespace) -> int:
    filters = [AclEntryFilter(*wanted) for wanted in filters_of(arguments)]
    if (filters == [EVERYTHING]) != arguments.all:
        raise UsageError(
            "--all cannot be combined with options that select ACLs"
            if arguments.all
            else "no option says which ACLs to remove: name a user, a resource or an operation; --all removes every ACL"
        )
    found = _found(admin, filters)
    if not found:
        raise CairnError("no ACL matches; `cairn acl list` shows all ACLs")
    if len(found) > 1 and not arguments.yes and not _is_meant(found):
        return EXIT_FAILED
    before = set(admin.acls(EVERYTHING))
    gone = sorted({*found, *admin.delete_acls(filters)})
    _show("removed", gone, arguments)
    if not arguments.json:
        print(f"removed: {counted(len(gone), 'ACL')}")
    if before.issubset(gone):
        print(
            "cairn acl remove: no ACL is left: without users (`cairn user list`) everybody may do everything, with "
            "users only those of super-users may do anything",
            file=sys.stderr,
        )
    return 0


def _is_meant(found: Sequence[AclEntry]) -> bool:
    """Whether the person at the terminal confirms the removal. Raises UsageError if there is no terminal."""
    if not sys.stdin.isatty():
        raise UsageError(f"this would remove {len(found)} ACLs; add --yes to remove them")
    _print(found, file=sys.stderr)
    print(f"Remove these {len(found)} ACLs? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in YES:
        return True
    print("nothing was removed", file=sys.stderr)
    return False


def _found(admin: Admin, filters: Iterable[AclEntryFilter]) -> list[AclEntry]:
    """The ACLs that match any of the filters, sorted."""
    return sorted({entry for wanted in filters for entry in admin.acls(wanted)})


def _entry(acl: Acl) -> AclEntry:
    return AclEntry(
        int(acl.resource_type),
        acl.name,
        int(acl.pattern),
        acl.principal,
        acl.host,
        int(acl.operation),
        int(acl.permission),
    )


# ---- what is shown


def _show(key: str, entries: Sequence[AclEntry], arguments: argparse.Namespace) -> None:
    """Print a table, or a list under a key of JSON."""
    if arguments.json:
        print_json({key: [_values(entry) for entry in entries]})
    else:
        _print(entries)


def _print(entries: Sequence[AclEntry], *, file: TextIO | None = None) -> None:
    print_table(TITLES, [tuple(_values(entry).values()) for entry in entries], nothing="there are no ACLs", file=file)


def _values(entry: AclEntry) -> Mapping[str, str]:
    """The fields of an ACL, with the documentation's names for the values."""
    return {
        "resource_type": _word(ResourceType, entry.resource_type),
        "name": entry.name,
        "pattern_type": _word(PatternType, entry.pattern).upper(),
        "principal": entry.principal,
        "host": entry.host,
        "operation": _word(Operation, entry.operation),
        "permission": _word(Permission, entry.permission).upper(),
    }


def _word(kind: type[IntEnum], number: int) -> str:
    """The name of a number; the number itself if only a newer server knows the name."""
    known = {int(value): word_of(value) for value in kind}
    return known.get(number, str(number))
