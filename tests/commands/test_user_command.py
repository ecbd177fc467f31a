"""`cairn user` where no sidecar is asked, and the first user of those who serve everybody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import trio

from logstore.base.metadata.interface import Put
from logstore.base.metadata.schema import CLUSTER_KEY
from logstore.base.metadata.sqlite import open_sqlite
from logstore.testing.metadata_contract import changing, committed
from tests.support.cli import Finished, cairn
from tests.support.limits import PATIENCE_S
from tests.support.programs import ROOT
from tests.support.sidecar import Sidecar


@pytest.fixture
def password(tmp_path: Path) -> str:
    """A file with one."""
    path = tmp_path / "password"
    path.write_text("correct horse\n")
    return str(path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The metadata store of a cluster."""
    path = tmp_path / "metadata"

    async def found() -> None:
        async with open_sqlite(path, Random(0)) as metadata:
            await committed(metadata, changing(Put(CLUSTER_KEY, b"{}")))

    trio.run(found)
    return path


def add(name: str, password: str, *words: str) -> Finished:
    """`cairn user add`, quick and without a terminal."""
    return cairn("user", "add", name, "--iterations", "4096", "--password-file", password, *words)


def contents(directory: Path) -> dict[str, bytes | None]:
    """All that a directory has."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


def test_a_look_makes_nothing(tmp_path: Path) -> None:
    """An empty directory stays empty, a file that is missing stays so, and the message says what was not found."""
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.mkdir()
    for action in (("list",), ("remove", "alice"), ()):
        found = cairn("user", *action, "--data-dir", str(empty))
        assert (found.status, found.out) == (1, "")
        assert "is not a sidecar's data directory: it has no cairn.json" in found.err
        assert not list(empty.iterdir())
        assert "no such directory" in cairn("user", *action, "--data-dir", str(missing)).err
        assert "there is no such file" in cairn("user", *action, "--cluster", f"sqlite:{missing}").err
        assert not missing.exists()


def test_a_look_changes_nothing(tmp_path: Path, password: str) -> None:
    """The users of a directory are shown, also of a copy without a lock file that a power cut has left: what a sidecar
    would mend is not mended.
    """
    directory = tmp_path / "data"
    assert add("alice", password, "--data-dir", str(directory)).status == 0
    (directory / "lock").unlink()
    (ledger,) = (directory / "ledger").glob("users.*")
    with ledger.open("ab") as file:
        file.write(b"torn")
    (directory / "ledger" / f"{ledger.name}.new").write_bytes(b"half")
    before = contents(directory)
    assert "alice: SCRAM-SHA-512 (4096 iterations)" in cairn("user", "list", "--data-dir", str(directory)).out
    assert contents(directory) == before
    assert cairn("user", "remove", "alice", "--data-dir", str(directory)).status == 0
    assert cairn("user", "list", "--data-dir", str(directory)).out == "there are no users\n"


def test_the_first_user_of_a_cluster_is_confirmed(store: Path, password: str) -> None:
    """It locks out all who do not log in: without --yes nothing is changed, and the message says what would be. Nobody
    is asked about the second user.
    """
    where = ("--cluster", f"sqlite:{store}")
    refused = add("alice", password, *where)
    assert (refused.status, refused.out) == (2, "")
    assert f"--cluster sqlite:{store} has no users and no ACLs, so it serves everybody" in refused.err
    assert "clients without a login are refused" in refused.err
    assert "add --yes" in refused.err
    assert cairn("user", "list", *where).out == "there are no users\n"
    assert add("alice", password, "--yes", *where).status == 0
    assert add("bob", password, *where).status == 0


def test_the_first_user_before_the_first_host_is_not(tmp_path: Path, password: str) -> None:
    """Where there is no cluster yet, and in a directory that no sidecar has open, nobody is locked out."""
    assert add("alice", password, "--cluster", f"sqlite:{tmp_path / 'new'}").status == 0
    assert add("alice", password, "--data-dir", str(tmp_path / "data")).status == 0


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 2)])
def test_a_person_is_asked(store: Path, password: str, answer: str, status: int) -> None:
    """At a terminal."""
    ours, theirs = os.openpty()
    words = ("user", "add", "alice", "--password-file", password, "--cluster", f"sqlite:{store}")
    with subprocess.Popen(
        [sys.executable, "-m", "logstore.cli", *words], cwd=ROOT, stdin=theirs, stderr=subprocess.PIPE, text=True
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        _, err = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    os.close(theirs)
    assert "Add it? [y/N]" in err
    assert process.returncode == status
    users = cairn("user", "list", "--cluster", f"sqlite:{store}").out
    assert users.startswith("alice: " if answer == "y" else "there are no users")


def test_the_first_user_of_a_running_sidecar_is_confirmed(tmp_path: Path, password: str) -> None:
    """As that of a cluster, unless ACLs say already who may do what."""
    with Sidecar(tmp_path / "data", "--super-users", "User:ANONYMOUS") as sidecar:
        where = ("--servers", sidecar.address)
        refused = add("alice", password, *where)
        assert refused.status == 2
        assert "add --yes" in refused.err
        assert cairn("user", "list", *where).out == "there are no users\n"
        assert cairn("acl", "add", "--user", "bob", "--operation", "Read", "--topic", "orders", *where).status == 0
        assert add("alice", password, *where).status == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("acl", "remove", "--resource-pattern-type", "match", "--topic", ""), "--topic"),
        (("acl", "add", "--user", "", "--operation", "Read", "--topic", "orders"), "--user"),
        (("acl", "list", "--principal="), "--principal"),
        (("topics", "delete", "", "--yes"), "an argument"),
        (("topics", "create", " "), "an argument"),
        (("user", "remove", ""), "an argument"),
        (("groups", "delete", "--group=", "--yes"), "--group"),
        (("trim", "", "--before", "1"), "an argument"),
        (("hosts", "remove", ""), "an argument"),
        (("verify", ""), "an argument"),
    ],
    ids=" ".join,
)
def test_an_empty_name_is_refused(words: tuple[str, ...], what: str) -> None:
    """An empty shell variable means nothing, and not all: `--topic ""` would have matched the ACLs of `*`. No server is
    asked.
    """
    refused = cairn(*words)
    assert (refused.status, refused.out) == (2, "")
    assert f"cairn {words[0]}: {what} is empty" in refused.err
