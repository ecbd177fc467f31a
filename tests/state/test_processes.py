"""Real processes on one host's shared state: two at once, killed ones, and ones that hold on too long."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spe_adapter.state.query import usage
from spe_adapter.state.versions import StateDirectory
from tests.state.conftest import OPERATOR, QUERY, SCHEMA, History, check_marks, windows_of
from tests.state.history import big_history, long_history

pytestmark = pytest.mark.crash

LIMIT = 1024 * 1024 * 1024
WINDOWS = 5_000
KILLS = 30
LONGEST_SPIN = 30_000
"""Turns of an empty loop between a step that is told and the kill: some milliseconds."""


HISTORY = big_history(WINDOWS)


class Victim:
    """The process of `tests/state/victim.py`, and its child at work."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.state.victim"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.child = 0
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def start(self, **order: object) -> None:
        """Give it something to do."""
        self._input.write(json.dumps(order).encode() + b"\n")
        self.child = int(self.line().removeprefix("child "))

    def line(self) -> str:
        """The next thing it says."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._output.read(1)
            assert byte, "the victim has gone"
            line += byte
        return line.decode().strip()

    def until(self, what: str) -> list[str]:
        """All it says until it says this."""
        said: list[str] = []
        while not said or said[-1] != what:
            said.append(self.line())
        return said

    def go_on(self) -> None:
        """Let it leave the step in which it waits."""
        self._input.write(b"\n")

    def kill(self) -> None:
        """Kill the child and wait until it is gone. On a busy machine it may be over by now."""
        with suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)
        self.until("over")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._input.close()
        self._output.close()


@pytest.fixture
def victim() -> Iterator[Victim]:
    """A process to be stopped or killed."""
    process = Victim()
    yield process
    process.close()


def check(root: Path, version: int, *, history: History = HISTORY) -> tuple[str, list[str]]:
    """Open a version, compare it with the model; where it came from, and what the log was asked for."""
    tag = history.steps[version].tag
    loader = history.loader(tag)
    directory = StateDirectory(root, QUERY, LIMIT, lock_limit_s=0.05)
    with directory.open(0, SCHEMA, OPERATOR, tag, loader) as state:
        assert windows_of(state.base) == history.at(tag)
        check_marks(state.base, history, tag)
        return state.how, loader.asked


def publish(root: Path, version: int, *, history: History = HISTORY) -> None:
    """Publish the delta from one version to the next."""
    tag, told = history.steps[version].tag, history.steps[version + 1]
    with StateDirectory(root, QUERY, LIMIT).open(0, SCHEMA, OPERATOR, tag, history.loader(tag)) as state:
        state.publish(told.tag, told.changes(), told.mark())


def test_two_processes_share_a_version(root: Path, victim: Victim) -> None:
    """What one process published another one applies, and both read the same base at the same time."""
    victim.start(root=str(root), windows=WINDOWS, version=0, limit_s=1, publish=True)
    victim.until("over")
    assert check(root, 1) == ("delta", [])
    victim.start(root=str(root), windows=WINDOWS, version=1, limit_s=1, hold="opened current")
    victim.until("opened current")
    assert check(root, 1) == ("current", [])
    victim.go_on()
    assert "right" in victim.until("over")


def test_kill_9_at_any_moment_of_a_change(root: Path, victim: Victim) -> None:
    """A base that is cut off in the middle of a change is made whole from the delta alone, whenever it happened, over
    and over again.
    """
    chance = random.Random(20)
    history = long_history(WINDOWS, KILLS + 1)
    killed_in, in_place = set(), 0
    check(root, 0, history=history)
    for version in range(1, KILLS + 1):
        publish(root, version - 1, history=history)
        victim.start(root=str(root), windows=WINDOWS, long=KILLS + 1, version=version, limit_s=1)
        said = [victim.line() for _ in range(chance.randrange(1, 8))]
        for _ in range(chance.randrange(LONGEST_SPIN)):
            pass
        victim.kill()
        killed_in.add(said[-1])
        in_place += said[0] == "header applying"
        how, asked = check(root, version, history=history)
        assert how in ("delta", "current")
        assert asked == []
        assert len(usage(root)) <= 2
    assert in_place > KILLS // 2
    assert {"ensure", "fill", "mark"} <= killed_in


def test_kill_9_at_any_moment_of_a_load(root: Path, victim: Victim) -> None:
    """A load that is cut off leaves nothing that anybody uses or that stays."""
    chance = random.Random(21)
    for _ in range(KILLS // 4):
        victim.start(root=str(root), windows=WINDOWS, version=1, limit_s=1)
        for _ in range(chance.randrange(1, 6)):
            victim.line()
        victim.kill()
        assert check(root, 1)[0] in ("loaded", "current")
        assert [entry.version for entry in usage(root)] == ["4 of attempt 0"]
        assert StateDirectory(root, QUERY, LIMIT).remove()


def test_a_reader_that_does_not_let_go_holds_nobody_up(root: Path, victim: Victim) -> None:
    """A task that hangs keeps its version; others go on in a new file after the limit, and it is not theirs to see."""
    check(root, 0)
    publish(root, 0)
    victim.start(root=str(root), windows=WINDOWS, version=0, limit_s=1, hold="opened current")
    victim.until("opened current")
    assert check(root, 1) == ("delta", [])
    assert check(root, 2) == ("caught_up", ["since"])
    victim.go_on()
    assert "right" in victim.until("over")
    assert check(root, 2) == ("current", [])


def test_a_writer_that_does_not_let_go_holds_nobody_up(root: Path, victim: Victim) -> None:
    """A process that is stopped in the middle of a change is gone round by a load, and harms nobody when it goes on."""
    check(root, 0)
    publish(root, 0)
    victim.start(root=str(root), windows=WINDOWS, version=1, limit_s=1, hold="fill")
    victim.until("fill")
    assert check(root, 1) == ("loaded", ["everything"])
    victim.go_on()
    assert "right" in victim.until("over")
    assert check(root, 1) == ("current", [])


def test_many_processes_at_once(root: Path) -> None:
    """Processes that want different versions of one partition at the same time all get what they want."""
    chance = random.Random(22)
    victims = [Victim() for _ in range(3)]
    try:
        for _ in range(10):
            for victim in victims:
                publishes = chance.random() < 0.5
                victim.start(
                    root=str(root), windows=500, long=6, version=chance.randrange(4), limit_s=0.02, publish=publishes
                )
            for victim in victims:
                said = victim.until("over")
                assert "right" in said
                assert "wrong" not in said
        assert not list(root.glob("*/*/*.tmp"))
    finally:
        for victim in victims:
            victim.close()


FULL = """
import ctypes, os, subprocess, sys
from pathlib import Path
from spe_adapter.state.errors import StateTooLarge
from spe_adapter.state.versions import StateDirectory
from tests.state.test_processes import check, publish, big_history, SCHEMA, OPERATOR, QUERY, LIMIT
root = Path(sys.argv[1])
root.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(root)], check=True)
history = big_history(100)
check(root, 0, history=history)
(root / "filler").write_bytes(bytes(os.statvfs(root).f_bavail * os.statvfs(root).f_frsize - 4096))
for what in ("delta", "base"):
    try:
        if what == "delta":
            publish(root, 0, history=history)
        else:
            with StateDirectory(root, QUERY, LIMIT).open(1, SCHEMA, OPERATOR, None, history.loader(None)):
                pass
    except StateTooLarge as error:
        print(what, error)
    assert check(root, 0, history=history) == ("current", [])
    assert not list(root.glob("*/*/*.tmp"))
(root / "filler").unlink()
publish(root, 0, history=history)
print(check(root, 1, history=history)[0])
"""


def test_full_memory_is_an_error_and_not_a_signal(root: Path) -> None:
    """Where the file system is full, the error names it, the bytes and the setting, and the last version stays."""
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", FULL, str(root)]
    if subprocess.run([*command[:4], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no name spaces, without which no small file system can be mounted")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["delta", "base", "delta"]
    for line in lines[:2]:
        assert "has no room for" in line
        assert "'stateDirectory'" in line
        assert str(root) in line
