"""What queries leave in shared memory goes when nobody uses it, and nothing else does: real files and real locks."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from logstore.disk.shared_state import GONE_PREFIX, LOCK_NAME, Kept, Reclaimed, SharedState
from logstore.testing.clock import ManualClock
from spe_adapter.state.files import StateEnvironment
from spe_adapter.state.query import QueryDirectory
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

IDLE_MS = 600_000


class Host:
    """A root with queries' directories, and a clock that stands still."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(int(time.time() * 1000))
        self.state = SharedState(str(root), IDLE_MS, self.clock)

    def query(self, name: str, *, idle_ms: int = IDLE_MS + 1, size_bytes: int = 10_000) -> Path:
        """A query's directory as its workers leave it, touched so long ago."""
        directory = self.root / name
        (directory / "0").mkdir(parents=True)
        (directory / "0" / "base").write_bytes(bytes(size_bytes))
        (directory / "0" / "7-a.delta").write_bytes(bytes(size_bytes))
        (directory / LOCK_NAME).touch()
        self.age(directory / LOCK_NAME, idle_ms)
        return directory

    def age(self, path: Path, idle_ms: int) -> None:
        """Set a file's modification time back."""
        at_ns = (self.clock.wall_ms() - idle_ms) * 1_000_000
        os.utime(path, ns=(at_ns, at_ns), follow_symlinks=False)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with an empty root."""
    (tmp_path / "root").mkdir()
    return Host(tmp_path / "root")


@contextmanager
def used(directory: Path) -> Iterator[None]:
    """A worker that uses a query's directory: holds the shared lock, touches nothing."""
    with (directory / LOCK_NAME).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def enter(root: Path, name: str) -> tuple[int, Path]:
    """The worker's side of the rule in docs/operations.md: the locked descriptor, and the directory."""
    directory = root / name
    while True:
        with suppress(FileExistsError):  # also from exist_ok=True, should the directory go at that moment
            directory.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(lock)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(directory / LOCK_NAME)):
                    return lock, directory
            os.close(lock)


def test_what_nobody_uses_goes(host: Host) -> None:
    """An idle directory goes with all below it, and the outcome says how many bytes that were."""
    directory = host.query("idle", size_bytes=100_000)
    (outcome,) = host.state.sweep()
    assert isinstance(outcome, Reclaimed)
    assert outcome.query == "idle"
    assert 200_000 <= outcome.freed_bytes < 300_000
    assert not directory.exists()
    assert list(host.root.iterdir()) == []


def test_what_is_used_or_fresh_stays(host: Host) -> None:
    """A shared lock keeps a directory however old it is, a touch keeps it without a lock."""
    busy = host.query("busy", idle_ms=100 * IDLE_MS)
    host.query("fresh", idle_ms=IDLE_MS - 1)
    with used(busy):
        assert host.state.sweep() == []
    assert sorted(path.name for path in host.root.iterdir()) == ["busy", "fresh"]
    assert [outcome.query for outcome in host.state.sweep() if isinstance(outcome, Reclaimed)] == ["busy"]
    host.clock.advance(2)
    assert [outcome.query for outcome in host.state.sweep() if isinstance(outcome, Reclaimed)] == ["fresh"]


def test_a_lock_of_a_killed_worker_counts_no_more(host: Host) -> None:
    """The lock goes with its process: a worker that is killed keeps nothing."""
    directory = host.query("killed")
    program = (
        f"import fcntl; f = open({str(directory / LOCK_NAME)!r}); fcntl.flock(f, fcntl.LOCK_SH); print(1); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "1\n"
        assert host.state.sweep() == []
        worker.kill()
    assert len(host.state.sweep()) == 1
    assert not directory.exists()


def test_a_directory_that_is_being_made_stays(host: Host) -> None:
    """A directory without its lock file is left alone while it is new; one that stays so goes in the end."""
    directory = host.root / "new"
    directory.mkdir()
    assert host.state.sweep() == []
    assert list(directory.iterdir()) == []
    host.age(directory, IDLE_MS + 1)
    assert host.state.sweep() == []  # from now on it has a lock file, for whoever is on the way
    host.age(directory / LOCK_NAME, IDLE_MS + 1)
    assert [outcome.query for outcome in host.state.sweep() if isinstance(outcome, Reclaimed)] == ["new"]


def test_links_lead_nowhere(host: Host, tmp_path: Path) -> None:
    """Nothing outside the root is touched: not through a link for a query, for its lock, or inside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    (outside / LOCK_NAME).touch()
    host.age(outside / LOCK_NAME, 100 * IDLE_MS)
    (host.root / "link").symlink_to(outside)
    locked = host.query("linked-lock")
    (locked / LOCK_NAME).unlink()
    (locked / LOCK_NAME).symlink_to(outside / LOCK_NAME)
    inner = host.query("inner")
    (inner / "1").symlink_to(outside)
    (inner / "file").symlink_to(outside / "precious")
    host.root.joinpath("stray").write_text("no directory")
    outcomes = host.state.sweep()
    assert [outcome.name for outcome in outcomes if isinstance(outcome, Kept)] == ["linked-lock"]
    assert [outcome.query for outcome in outcomes if isinstance(outcome, Reclaimed)] == ["inner"]
    assert (outside / "precious").read_text() == "keep"
    assert sorted(path.name for path in host.root.iterdir()) == ["link", "linked-lock", "stray"]


def test_a_root_that_is_a_link_or_missing(tmp_path: Path) -> None:
    """A root that is no directory of its own is refused; one that is missing is no error."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    host = Host(tmp_path / "root")
    (outcome,) = host.state.sweep()
    assert isinstance(outcome, Kept)
    assert outcome.name == ""
    assert Host(tmp_path / "missing").state.sweep() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_root_of_another_user_is_refused(host: Host) -> None:
    """Whoever made the directory first does not get its contents removed by somebody else."""
    directory = host.query("theirs")
    os.chown(host.root, 12345, -1)
    (outcome,) = host.state.sweep()
    assert isinstance(outcome, Kept)
    assert "another user" in outcome.why
    os.chown(host.root, os.geteuid(), -1)
    os.chown(directory, 12345, -1)
    assert host.state.sweep() == []
    assert (directory / "0" / "base").exists()


def test_an_interrupted_removal_is_finished(host: Host) -> None:
    """What a sidecar that was killed left behind goes with the next sweep, however new it is."""
    directory = host.query("half")
    directory.rename(host.root / f"{GONE_PREFIX}1.1")
    assert host.state.sweep() == []
    assert list(host.root.iterdir()) == []


@contextmanager
def by_the_rule(root: Path, name: str) -> Iterator[Path]:
    """A worker that follows the rule, step by step."""
    lock, directory = enter(root, name)
    try:
        yield directory
    finally:
        os.close(lock)


@contextmanager
def by_the_adapter(root: Path, name: str) -> Iterator[Path]:
    """A worker as Spark's are."""
    place = QueryDirectory(root, name, StateEnvironment(), PATIENCE_S)
    with place.held():
        yield place.path


@pytest.mark.parametrize("entered", [by_the_rule, by_the_adapter])
def test_workers_that_come_and_go_while_it_sweeps(
    host: Host, entered: Callable[[Path, str], AbstractContextManager[Path]]
) -> None:
    """Whoever holds the lock by the rule never loses the directory, whenever the sweeps come: a file that it writes is
    there until it lets go.
    """
    stop = threading.Event()
    lost: list[str] = []
    rounds = 0
    eager = SharedState(str(host.root), -60_000, host.clock)  # to it, everything is idle

    def work(number: int) -> None:
        nonlocal rounds
        while not stop.is_set():
            with entered(host.root, "shared") as directory:
                mine = directory / f"{number}"
                mine.write_text("state")
                if not mine.exists() or not mine.exists():
                    lost.append(f"worker {number}")
                mine.unlink(missing_ok=True)
                rounds += 1
            stop.wait(0.001 * number)

    workers = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    deadline_s = time.monotonic() + PATIENCE_S
    reclaimed = 0
    while (reclaimed < 20 or rounds < 200) and time.monotonic() < deadline_s:
        reclaimed += sum(isinstance(outcome, Reclaimed) for outcome in eager.sweep())
    stop.set()
    for worker in workers:
        worker.join()
    assert lost == []
    assert reclaimed >= 20


def test_a_sidecar_tidies_up(tmp_path: Path) -> None:
    """A running sidecar removes what is idle soon after its start, says so, and leaves what is used."""
    host = Host(tmp_path / "root")
    host.root.mkdir()
    idle, busy = host.query("idle"), host.query("busy")
    flags = ("--state-directory", str(host.root), "--state-idle-ms", "1000")
    with used(busy), Sidecar(tmp_path / "data", *flags) as sidecar:
        deadline_s = time.monotonic() + PATIENCE_S
        while idle.exists() or "state_reclaimed" not in sidecar.log():
            assert time.monotonic() < deadline_s, sidecar.log()
            os.sched_yield()
        assert "query=idle" in sidecar.log()
        assert (busy / "0" / "base").exists()


def test_a_sidecar_that_is_told_not_to(tmp_path: Path) -> None:
    """With an empty state directory nothing is looked at."""
    with Sidecar(tmp_path / "data", "--state-directory", "") as sidecar:
        assert sidecar.terminate() == 0
        assert "state" not in sidecar.log()


def test_usage_counts_what_queries_have_in_the_root(host: Host, tmp_path: Path) -> None:
    """Bytes by query; neither what is being removed, nor plain files, nor what a symbolic link leads to is counted."""
    query = host.query("averages", size_bytes=100_000)
    (host.root / "stray").write_bytes(bytes(50_000))
    host.query(f"{GONE_PREFIX}1.1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(bytes(1_000_000))
    (host.root / "linked").symlink_to(outside)
    (query / "link").symlink_to(outside)
    usage = host.state.usage()
    assert set(usage) == {"averages"}
    assert 200_000 <= usage["averages"] < 300_000
    assert SharedState(str(tmp_path / "missing"), IDLE_MS, host.clock).usage() == {}
