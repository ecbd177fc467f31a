"""docs/operations.md is true: its commands start, its settings file is taken, it lists every event there is."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from logstore import events
from logstore.base.events import LogEvent, by_name
from logstore.testing.ports import free_port
from tests.kafka.wire_client import WireClient
from tests.sidecar.test_start import has_ipv6
from tests.sidecar.test_stop import batch
from tests.support.limits import PATIENCE_S
from tests.support.programs import PYTHON_PATH
from tests.support.sidecar import ROOT, Sidecar

PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
COMMANDS = [line[2:] for line in PAGE.splitlines() if line.startswith("$ cairn serve")]
(TOML,) = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
LISTED = {
    event: level
    for names, level in re.findall(r"^\| (`[^|]+`) \| (info|warning|error) \|", PAGE, flags=re.MULTILINE)
    for event in re.findall(r"`([^`]+)`", names)
}


def events_of(module: object) -> dict[str, LogEvent]:
    """Every event that a module defines, by the name of its constant."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, LogEvent)}
    assert {name: event.name.upper() for name, event in found.items()} == {name: name for name in found}
    return found


def test_every_event_is_explained() -> None:
    """The table lists the events that exist, no others, each with its level."""
    assert {name: event.level.label for name, event in by_name(events_of(events).values()).items()} == LISTED


def test_every_event_is_reported() -> None:
    """Each event is used somewhere in the log store."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "logstore").rglob("*.py"))
    words = Counter(re.findall(r"\w+", code))
    assert [name for name in events_of(events) if words[name] < 3] == []


def on_free_ports(command: str) -> list[str]:
    """The command's words, with ports that are free here instead of those in the text."""
    words = shlex.split(command)[1:]
    for number, word in enumerate(words):
        if words[number - 1] in ("--kafka", "--http"):
            host = word.rpartition(":")[0]
            words[number] = f"{host}:{free_port()}"
    return words


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_start(tmp_path: Path, command: str) -> None:
    """Every `cairn serve` on the page becomes ready and stops with status 0."""
    if "::1" in command and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    settings = TOML.replace("/var/lib/cairn", str(tmp_path / "var")).replace(":9092", f":{free_port()}")
    (tmp_path / "cairn.toml").write_text(settings, encoding="utf-8")
    words = on_free_ports(command)
    if "--kafka" not in words and "--config" not in words:
        words += ["--kafka", f"127.0.0.1:{free_port()}"]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    with subprocess.Popen(
        [sys.executable, "-m", "logstore.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("cairn ready kafka="), process.stderr
        finally:
            process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_a_copy_is_a_backup(tmp_path: Path) -> None:
    """A directory copied after a stop holds everything, and starts."""
    with Sidecar(tmp_path / "data") as sidecar:
        with WireClient(sidecar.port) as client:
            client.create_topic("orders")
            for _ in range(5):
                assert client.produce("orders", batch()).error == 0
        assert sidecar.terminate() == 0
        shutil.copytree(tmp_path / "data", tmp_path / "backup")
        sidecar.restart()
    with Sidecar(tmp_path / "backup") as restored, WireClient(restored.port) as client:
        assert client.latest("orders") == 5
        assert client.fetch("orders", 0).records


def copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless it went since its directory was listed: files are replaced by renaming new ones."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def test_a_copy_of_a_running_sidecar_starts_too(tmp_path: Path) -> None:
    """Copied in the middle of appends, the directory is at worst like after a crash: what was acked before is there."""
    with Sidecar(tmp_path / "data") as sidecar, WireClient(sidecar.port) as client:
        client.create_topic("orders")
        for _ in range(20):
            assert client.produce("orders", batch()).error == 0
        for _ in range(50):
            client.send_produce("orders", batch())
        shutil.copytree(tmp_path / "data", tmp_path / "backup", copy_function=copy_if_there)
    with Sidecar(tmp_path / "backup") as restored, WireClient(restored.port) as client:
        assert client.latest("orders") >= 20
