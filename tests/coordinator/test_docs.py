"""docs/coordinator.md does what it says: its commands and examples are taken from it and run."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.base.events import LogEvent, by_name
from scheduler.coordinator import command, log_events
from scheduler.coordinator.api import ROUTES
from scheduler.coordinator.testing import CoordinatorProcess
from tests.coordinator.support import ask
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT

PAGE = (ROOT / "docs/coordinator.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:9880"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """The coordinator of the page, on another port."""
    data_dir = tmp_path_factory.mktemp("docs") / "data"
    with CoordinatorProcess(ROOT / "docs/topologies/paper.toml", data_dir) as found:
        yield found


def blocks(language: str) -> list[str]:
    """Every block in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def commands(word: str) -> list[str]:
    """Every command that starts with this word."""
    lines = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    return [line for line in lines if line.startswith(word)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_commands_work(process: CoordinatorProcess) -> None:
    """One after the other, as they stand: none is refused, and the request they tell of goes as told."""
    said = [
        subprocess.run(
            ["sh", "-c", line.replace(ADDRESS, f"127.0.0.1:{process.port}") + " -w '%{http_code}'"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        ).stdout
        for line in commands("curl")
    ]  # fmt: skip
    assert [text[-3:] for text in said] == ["200", "201", "200", "200", "200", "200", "200", "201", "200", "200"]
    assert '"event":"go"' in said[2]
    assert '"state":"cancelled"' in said[5]


def test_the_python_examples_work(process: CoordinatorProcess) -> None:
    """Both run to their ends."""
    for example in blocks("python"):
        subprocess.run(
            [sys.executable, "-c", example.replace(ADDRESS, f"127.0.0.1:{process.port}")],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
    assert ask(process.url, "GET", "/v1/status").json()["capacities"] == []


def test_the_flags_are_the_commands() -> None:
    """The table has every flag with its default, and no other; every flag that is used exists."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    known = {
        option: action.default
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }
    listed: dict[str, str] = {}
    for flags, default in re.findall(r"^\| ((?:`--[a-z-]+`(?:, )?)+) \|([^|]*)\|", PAGE, flags=re.MULTILINE):
        listed |= dict.fromkeys(re.findall(r"--[a-z-]+", flags), default.strip("` "))
    assert set(listed) == set(known)
    for flag, default in listed.items():
        assert default == ("" if known[flag] in (None, False) else str(known[flag])), flag
    used = {flag for line in commands("cairn coordinate") for flag in re.findall(r"--[a-z-]+", line)}
    assert used <= set(known)


def test_the_routes_are_the_tables() -> None:
    """The table of the interface has every route, and no other."""
    assert set(re.findall(r"^\| `([A-Z]+ /\S*)` \|", PAGE, flags=re.MULTILINE)) == {
        f"{route.method} {route.path}" for route in ROUTES
    }


def test_the_ready_line_is_the_commands(process: CoordinatorProcess) -> None:
    """What the page shows is what is printed."""
    (shown,) = commands("cairn ready")
    assert shown == f"cairn ready coordinator={ADDRESS} data-dir=data"
    assert Path(process.data_dir / "coordinator.db").exists()


def test_every_event_of_the_log_is_explained() -> None:
    """The table of the log lists the events that a coordinator reports, no others, each with its level."""
    known = by_name(value for value in vars(log_events).values() if isinstance(value, LogEvent))
    levels = {name: event.level.label for name, event in {**known, **log_events.TOLD_TO_WRITERS}.items()}
    rows = re.findall(r"^\| (`[^|]+`) \| (info|warning|error) \|", PAGE, flags=re.MULTILINE)
    assert {name: level for names, level in rows for name in re.findall(r"`([^`]+)`", names)} == levels
