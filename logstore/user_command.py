"""`cairn user`: lists, adds and removes the users that may log in: those of a running sidecar or cluster, of the data
directory of a stopped sidecar, or of a cluster's metadata store.

Invariants:
* A password comes from a prompt, from standard input or from a file, never from a flag. The command sends and stores
  only the salted hash of a password.
* `list` changes nothing, and makes nothing on the disk; `add` and `remove` print what they changed.
* Where clients are served without a login, the first user ends that for all of them at once: `add` says so, and asks at
  the terminal, unless `--yes` is given. It does not ask where nobody can be served yet: in a data directory, which no
  sidecar has open, and in a metadata store in which there is no cluster yet.
"""

import argparse
import getpass
import hashlib
import random
import secrets
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from logstore.access.entries import AccessEntries, LedgerEntries
from logstore.access.ledger import AclStore
from logstore.base.directory import locked_directory, watched_directory
from logstore.base.errors import DirectoryInUse
from logstore.base.events import ignore
from logstore.base.failures import leaves
from logstore.base.metadata.schema import CLUSTER_KEY
from logstore.client import users as requests
from logstore.client.admin import Admin
from logstore.client.wire import ALTER_USERS, DESCRIBE_USERS
from logstore.cluster.part import OpenAccess, OpenMetadata
from logstore.cluster.settings import ClusterSecurity, EtcdUrl, SqliteUrl, parse_url
from logstore.commands.acl import EVERYTHING, YES
from logstore.commands.connection import add_action, add_connection_arguments, connect
from logstore.commands.metadata_store import ETCD_FLAGS, add_etcd_arguments, cluster_room, etcd_security
from logstore.commands.output import UsageError, fail, print_json
from logstore.disk.files import OsFiles
from logstore.errors import CairnError, ConfigError
from logstore.kafka.security.credentials import (
    MAX_ITERATIONS,
    MAX_PASSWORD_BYTES,
    MECHANISM_NUMBERS,
    MECHANISMS,
    MIN_ITERATIONS,
    SALT_BYTES,
    check_name,
    credential_of_password,
)
from logstore.kafka.security.users import LEDGER, CredentialName, Users
from logstore.log.data_directory import IDENTITY_FILE, prepare_directory
from logstore.log.jobs import JobQueue
from logstore.log.ledger import Ledger
from logstore.log.ticket import Ticket
from logstore.refusals import refuse_adopted, refuse_foreign_files

DEFAULT_ITERATIONS: Final = 16_384
"""The most that Kafka itself takes; a login costs a client some 10 ms."""
ASK_IT: Final = (
    "which manages its users: omit --data-dir and give --servers HOST:PORT; if there are users, add --command-config "
    "FILE for a user with Alter on the cluster"
)
"""What to do about a data directory that a sidecar has open."""
Act = Callable[[Users], Ticket[None]]
"""Reads or changes users."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn user`."""
    add_connection_arguments(parser)
    _add_places(parser, is_action=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add = add_action(actions, "add", "add a user, or change a user's password")
    add.add_argument("user", metavar="USER")
    add.add_argument(
        "--mechanism",
        action="append",
        choices=tuple(MECHANISMS),
        help="mechanism that the user may log in with, repeatable (default: all; PLAIN works with either)",
    )
    add.add_argument(
        "--iterations", type=int, default=DEFAULT_ITERATIONS, help="iterations of the hash (default: %(default)s)"
    )
    add.add_argument("--password-file", type=Path, metavar="FILE", help="file whose first line is the password")
    add.add_argument(
        "--yes", action="store_true", help="do not ask whether the first user may end access without a login"
    )
    remove = add_action(actions, "remove", "remove a user; connections that are logged in stay open")
    remove.add_argument("user", metavar="USER")
    listing = add_action(actions, "list", "list all users with their mechanisms (the default)")
    for action in (add, remove, listing):
        _add_places(action, is_action=True)


def _add_places(parser: argparse.ArgumentParser, *, is_action: bool) -> None:
    """The flags that name users elsewhere than at a running sidecar."""
    default = argparse.SUPPRESS if is_action else None
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=default,
        metavar="DIR",
        help="instead of a running sidecar: a data directory that is new or whose sidecar is stopped",
    )
    parser.add_argument(
        "--cluster", default=default, metavar="URL", help="instead of a running host: the cluster's metadata store"
    )
    add_etcd_arguments(parser, "with --cluster: ", is_action=is_action)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    status = 0
    name = "user" if arguments.action is None else f"user {arguments.action}"
    try:
        match arguments.action:
            case "add":
                _add(arguments)
            case "remove":
                _remove(arguments)
            case _:
                _list(arguments)
    except* (CairnError, OSError) as failures:
        for error in leaves(failures):
            if isinstance(error, CairnError | OSError):
                status = max(status, fail(name, error))
    return status


def _add(arguments: argparse.Namespace) -> None:
    user, iterations = check_name(arguments.user), arguments.iterations
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ConfigError(f"--iterations {iterations}: must be from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    if not arguments.yes and _ends_free_access(arguments):
        _confirm(arguments)
    password = _password(arguments.password_file)
    mechanisms = arguments.mechanism or list(MECHANISMS)
    salts = {mechanism: secrets.token_bytes(SALT_BYTES) for mechanism in mechanisms}
    credentials = {
        CredentialName(user, mechanism): credential_of_password(mechanism, password, salt, iterations)
        for mechanism, salt in salts.items()
    }
    act = _place(arguments, is_change=True)
    if act is not None:
        act(lambda users: users.change((), credentials))
    else:
        given = [
            requests.NewCredential(
                MECHANISM_NUMBERS[mechanism],
                iterations,
                salt,
                hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations),
            )
            for mechanism, salt in salts.items()
        ]
        with connect(arguments) as client:
            requests.check_altered(client.ask(ALTER_USERS, requests.alter_request(user, (), given)))
    if arguments.json:
        print_json({"added": user, "mechanisms": mechanisms})
    else:
        print(f"added: {user}, {', '.join(mechanisms)}")


def _remove(arguments: argparse.Namespace) -> None:
    user = arguments.user
    mechanisms = _users(arguments).get(user)
    if not mechanisms:
        raise ConfigError(f"there is no user {user!r}; cairn user list shows all users")
    act = _place(arguments, is_change=True)
    if act is not None:
        names = [CredentialName(user, mechanism) for mechanism in mechanisms]
        act(lambda users: users.change(names, {}))
    else:
        numbers = [MECHANISM_NUMBERS[mechanism] for mechanism in mechanisms]
        with connect(arguments) as client:
            requests.check_altered(client.ask(ALTER_USERS, requests.alter_request(user, numbers, ())))
    if arguments.json:
        print_json({"removed": user})
    else:
        print(f"removed: {user}")


def _list(arguments: argparse.Namespace) -> None:
    found = _users(arguments)
    if arguments.json:
        print_json(
            {
                "users": [
                    {
                        "user": user,
                        "mechanisms": [
                            {"mechanism": mechanism, "iterations": iterations}
                            for mechanism, iterations in mechanisms.items()
                        ],
                    }
                    for user, mechanisms in sorted(found.items())
                ]
            }
        )
        return
    if not found:
        print("there are no users")
    for user, mechanisms in sorted(found.items()):
        shown = ", ".join(f"{mechanism} ({iterations} iterations)" for mechanism, iterations in mechanisms.items())
        print(f"{user}: {shown}")


def _users(arguments: argparse.Namespace) -> Mapping[str, Mapping[str, int]]:
    """Iterations by mechanism, for each user."""
    if arguments.data_dir is not None and not arguments.data_dir.is_dir():
        raise ConfigError(f"--data-dir {arguments.data_dir}: no such directory")
    act = _place(arguments, is_change=False)
    if act is not None:
        found_here: dict[str, Mapping[str, int]] = {}

        def look(users: Users) -> Ticket[None]:
            for name in users.names():
                credentials = users.credentials_of(name)
                found_here[name] = {mechanism: found.iterations for mechanism, found in credentials.items()}
            return Ticket.succeeded(None)

        act(look)
        return found_here
    names = {number: mechanism for mechanism, number in MECHANISM_NUMBERS.items()}
    with connect(arguments) as client:
        found = requests.describe_reply(client.ask(DESCRIBE_USERS, requests.describe_request()))
    return {
        user: {names.get(number, str(number)): iterations for number, iterations in infos.items()}
        for user, infos in found.items()
    }


def _ends_free_access(arguments: argparse.Namespace) -> bool:
    """Whether a first user ends that clients are served which do not log in: see the module."""
    if arguments.cluster is None:
        if arguments.data_dir is not None or _users(arguments):
            return False
        with connect(arguments) as client:
            return not Admin(client).acls(EVERYTHING)
    where, security = parse_url(arguments.cluster), etcd_security(arguments)
    if _is_missing(where) or _users(arguments):
        return False
    open_metadata: OpenMetadata = cluster_room().OPEN_METADATA
    found: list[bool] = []

    async def look() -> None:
        async with open_metadata(where, security, random.SystemRandom(), ignore) as metadata:
            found.append((await metadata.get(CLUSTER_KEY)).entry is not None)

    trio.run(look)
    if found == [True]:
        _in_cluster(where, security, lambda access: found.append(not AclStore(access).index))
    return all(found)


def _is_missing(where: EtcdUrl | SqliteUrl) -> bool:
    """Whether a metadata store is yet to be made."""
    return isinstance(where, SqliteUrl) and not where.path.exists()


def _confirm(arguments: argparse.Namespace) -> None:
    """Ask the person at the terminal. Raises UsageError if there is none, or the answer is not yes."""
    where = f"--cluster {arguments.cluster}" if arguments.cluster is not None else "the sidecar or cluster"
    effect = (
        f"{where} has no users and no ACLs, so it serves everybody. With the first user this ends at once, on all hosts"
        ": clients without a login are refused, and users may only do what ACLs allow, or all if super-users names them"
    )
    if not sys.stdin.isatty():
        raise UsageError(f"{effect}; add --yes if that is meant")
    print(f"{effect}. Add it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in YES:
        raise UsageError("nothing was changed")


def _place(arguments: argparse.Namespace, *, is_change: bool) -> Callable[[Act], None] | None:
    """What opens the users elsewhere than at a running sidecar, and acts on them; None: ask a sidecar. Raises
    ConfigError.
    """
    security = etcd_security(arguments)
    if arguments.cluster is None:
        if security.is_set:
            raise ConfigError(f"{', '.join(f'--{name}' for name in ETCD_FLAGS)} need --cluster URL")
        if arguments.data_dir is None:
            return None
        return partial(_offline if is_change else _offline_look, arguments.data_dir)
    if arguments.data_dir is not None:
        raise ConfigError(
            "give --cluster URL or --data-dir, not both: the users of a cluster are in its metadata store"
        )
    where = parse_url(arguments.cluster)
    if not is_change and _is_missing(where):
        raise ConfigError(f"--cluster {arguments.cluster}: there is no such file")
    return lambda act: _in_cluster(where, security, lambda access: act(Users(access, secrets.token_bytes)))


def _in_cluster(
    where: EtcdUrl | SqliteUrl, security: ClusterSecurity, act: Callable[[AccessEntries], Ticket[None] | None]
) -> None:
    """Open users and rights of a cluster in its metadata store, and act. Raises CairnError, in groups."""
    open_access: OpenAccess = cluster_room().OPEN_ACCESS

    async def run() -> None:
        async with open_access(where, security, random.SystemRandom(), ignore) as access:
            ticket, settled = act(access), trio.Event()
            for why in access.damaged.values():
                print(f"cairn user: {why}", file=sys.stderr)
            if ticket is not None:
                ticket.add_callback(lambda _: settled.set())
                await settled.wait()
                ticket.result()

    trio.run(run)


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """The lock of a data directory. Raises DirectoryInUse, which says how to reach the sidecar that has it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_directory(data_dir, "sidecar"))
        except DirectoryInUse as error:
            raise DirectoryInUse(f"{str(error).partition(';')[0]}, {ASK_IT}") from error
        yield


def _offline_look(data_dir: Path, act: Act) -> None:
    """Open the users of a data directory, and look at them; nothing is made or written. Raises CairnError, OSError."""
    refuse_foreign_files(data_dir)
    if not (data_dir / IDENTITY_FILE).exists():
        raise ConfigError(f"--data-dir {data_dir} is not a sidecar's data directory: it has no {IDENTITY_FILE}")
    with watched_directory(data_dir) as is_free:
        if not is_free:
            raise DirectoryInUse(f"{data_dir} is in use by another sidecar, {ASK_IT}")
        files = OsFiles(data_dir)
        try:
            act(Users(LedgerEntries(Ledger.look(files, LEDGER)), secrets.token_bytes))
        finally:
            files.close()


def _offline(data_dir: Path, act: Act) -> None:
    """Open the users of a data directory, act, and make durable what was changed. Raises CairnError, OSError."""
    refuse_foreign_files(data_dir)
    with _locked(data_dir):
        refuse_adopted(data_dir, "Its users are now the cluster's: give --cluster URL, not --data-dir")
        files = OsFiles(data_dir)
        try:
            prepare_directory(files, uuid.uuid4)
            queue = JobQueue(1)
            ticket = act(Users(LedgerEntries(Ledger.open(files, LEDGER, queue.ready)), secrets.token_bytes))
            while (job := queue.next_job()) is not None:
                failure = job.run(files)
                queue.finished(job, failure)
                if failure is not None:
                    raise failure[1]
            ticket.result()
        finally:
            files.close()


def _password(path: Path | None) -> str:
    """The password of a file's first line, of a prompt, or of standard input's first line. Raises ConfigError."""
    if path is not None:
        try:
            with path.open(encoding="utf-8") as file:
                return file.readline(2 * MAX_PASSWORD_BYTES).rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConfigError(f"--password-file {path}: it is not UTF-8") from None
    if not sys.stdin.isatty():
        return sys.stdin.readline(2 * MAX_PASSWORD_BYTES).rstrip("\r\n")
    password = getpass.getpass("password: ")
    if getpass.getpass("again: ") != password:
        raise ConfigError("the passwords differ; nothing was changed")
    return password
