"""docs/hdfs.md is true: its code and its commands run, its settings are the ones the code knows."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from logstore.cli import COMMANDS
from scheduler.coordinator.testing import running
from scheduler.hdfs import jars
from tests.hdfs.writers import table_of
from tests.support.hdfs.__main__ import options
from tests.support.hdfs.cluster import HdfsCluster, network
from tests.support.hdfs.launch import Runtime
from tests.support.hdfs.layout import SETTINGS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "hdfs.md"


def blocks(language: str) -> list[str]:
    """The guide's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_the_code_runs(hdfs: HdfsCluster, runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster of one's own (a smaller one here), and a checkpoint through a coordinator, as planned."""
    write, small = blocks("python")
    exec(compile(small.replace("loopback_nodes(4, racks=2)", "loopback_nodes(1, 1)"), str(GUIDE), "exec"), {})
    assert "r1h1" in capsys.readouterr().out
    with running(network(hdfs.nodes, 4)) as url:
        names: dict[str, Any] = {"COORDINATOR": url, "WEBHDFS": hdfs.webhdfs_url}
        exec(compile(write, str(GUIDE), "exec"), names | {"PLANS": hdfs.plan_url, "TOKEN": hdfs.plan_token})
    first, second = capsys.readouterr().out.splitlines()
    for number, line in enumerate((first, second)):
        path, planned = f"/checkpoint/17/chunk-{number:03d}", hdfs.placements()[f"/checkpoint/17/chunk-{number:03d}"][0]
        assert line.startswith(f"{path} {tuple(planned)} ")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_calls_of_the_plan_table_work(hdfs: HdfsCluster) -> None:
    """The curl commands, in their order, against a real NameNode."""
    calls = [block for block in blocks("sh") if block.startswith("curl")]
    environment = {**os.environ, "PLANS": hdfs.plan_url, "TOKEN": hdfs.plan_token}
    done = subprocess.run(["sh", "-ec", *calls], capture_output=True, text=True, env=environment, check=True)
    put, got, deleted = parts(done.stdout)
    assert put["kept"] == 1
    assert [plan["path"] for plan in got["plans"]] == ["/checkpoint/17"]
    assert [plan["path"] for plan in deleted["forgotten"]] == ["/checkpoint/17"]
    with table_of(hdfs) as table:
        assert table.plans().chains == {}


def parts(text: str) -> list[dict[str, Any]]:
    """JSON objects that follow each other without anything between them."""
    decoder, found, place = json.JSONDecoder(), [], 0
    while place < len(text):
        value, place = decoder.raw_decode(text, place)
        found.append(value)
    return found


def test_the_commands_are_known() -> None:
    """Every command line in it is understood; every option of the laboratory is in its table."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("cairn ")]
    assert len(commands) == 2
    for line in commands:
        _, name, *words = shlex.split(line)
        parser = argparse.ArgumentParser()
        import_module(COMMANDS[name][0]).add_arguments(parser)
        parser.parse_args(words)
    (laboratory,) = (line for line in lines if line.startswith("python -m tests.support.hdfs "))
    options().parse_args(shlex.split(laboratory)[3:])
    guide = GUIDE.read_text(encoding="utf-8")
    named = re.findall(r"--[a-z]+", options().format_help())
    assert [option for option in named if option != "--help" and f"`{option}" not in guide] == []


def test_the_settings_are_those_of_the_policys_jar(runtime: Runtime) -> None:
    """What goes into hdfs-site.xml names classes that the jar has, and settings that they read."""
    (text,) = blocks("xml")
    given = {entry.findtext("name"): entry.findtext("value") for entry in ET.fromstring(f"<c>{text}</c>")}
    for name in ("dfs.block.replicator.classname", "dfs.namenode.plugins"):
        assert given[name] == SETTINGS[name]
    with zipfile.ZipFile(runtime.class_path.split(":")[0]) as jar:
        inside = jar.namelist()
    for name in ("dfs.block.replicator.classname", "dfs.namenode.plugins"):
        assert SETTINGS[name].replace(".", "/") + ".class" in inside
    sources = "".join(path.read_text() for path in jars.SOURCES.rglob("src/main/**/*.java"))
    for key in re.findall(r"`(cairn\.[a-z.-]+)`", GUIDE.read_text(encoding="utf-8")):
        assert f'"{key}"' in sources
