"""A sidecar under systemd: it says when it is ready, alive and stopping; the unit file is one that systemd takes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore.base.service_manager import ALIVE, READY, STOPPING
from logstore.listeners import parse_http, parse_listeners
from logstore.settings_table import SETTINGS
from logstore.sidecar import FAILED, REFUSED
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT, Sidecar
from tests.support.waiting import until

UNIT = ROOT / "docs/systemd/cairn.service"


def test_it_says_when_it_is_ready_alive_and_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY=1 comes once it serves, WATCHDOG=1 again and again if wanted, STOPPING=1 at the signal."""
    monkeypatch.setenv("NOTIFY_SOCKET", f"@cairn-test-{os.getpid()}")
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with listening(f"\0cairn-test-{os.getpid()}") as said:
        with Sidecar(tmp_path / "data") as sidecar:
            until(lambda: said.count(READY) and said.count(ALIVE) >= 3, "it is ready and alive")
            assert STOPPING not in said
            sidecar.terminate()
        until(lambda: STOPPING in said, "it says that it stops")
        assert said.count(READY) == 1
        assert set(said) == {READY, ALIVE, STOPPING}


@contextmanager
def listening(name: str) -> Iterator[list[str]]:
    """What a manager at a socket of this name is told, as it comes: the few messages that a socket holds are soon full,
    and what does not fit is lost.
    """
    said: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, ThreadPoolExecutor(1) as executor:
        manager.bind(name)

        def listen() -> None:
            while message := manager.recv(100):
                said.append(message.decode())

        ended = executor.submit(listen)
        try:
            yield said
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", name)
            ended.result(PATIENCE_S)


def test_without_a_manager_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager's address that leads nowhere does not keep a sidecar from starting and stopping."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    monkeypatch.setenv("WATCHDOG_USEC", "not a number")
    with Sidecar(tmp_path / "data") as sidecar:
        assert sidecar.terminate() == 0


def test_the_unit_starts_what_exists() -> None:
    """The flags of its command are settings of a sidecar, and their values are taken."""
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    words = shlex.split(command)
    assert words[1] == "serve"
    flags = dict(zip(words[2::2], words[3::2], strict=True))
    assert set(flags) <= {"--data-dir", "--kafka", *(f"--{setting.name}" for setting in SETTINGS)}
    assert parse_http("http", flags["--http"]).address.port
    assert parse_listeners([flags["--kafka"]], [], insecure=False)
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in UNIT.read_text(encoding="utf-8"), "certificates are loaded again"


def test_what_only_a_person_mends_is_not_tried_again(tmp_path: Path) -> None:
    """The unit names the exit status of a bad setting, and no other: what may pass by itself is tried again without an
    end.
    """
    unit = UNIT.read_text(encoding="utf-8")
    assert re.findall(r"^RestartPreventExitStatus=(.*)$", unit, flags=re.MULTILINE) == [str(REFUSED)]
    assert "\nRestart=on-failure\n" in unit
    assert "\nStartLimitIntervalSec=0\n" in unit.partition("[Service]")[0]
    for flags, status in ((("--io-window", "0"), REFUSED), (("--data-dir", f"{tmp_path}/file/data"), FAILED)):
        (tmp_path / "file").touch()
        command = [sys.executable, "-m", "logstore.cli", "serve", "--data-dir", str(tmp_path / "data"), *flags]
        ended = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, cwd=ROOT, check=False)
        assert ended.returncode == status, ended.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing to say about it."""
    program = tmp_path / "cairn"
    program.symlink_to(shutil.which("true") or "/bin/true")
    unit = tmp_path / "cairn.service"
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/cairn/bin/cairn", str(program)), encoding="utf-8")
    finished = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (finished.returncode, [line for line in finished.stderr.splitlines() if "cairn" in line]) == (0, [])
