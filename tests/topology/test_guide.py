"""The guide to topologies says what is so: its keys, its examples, its output and its messages."""

from __future__ import annotations

import argparse
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from logstore import cli
from scheduler.errors import TopologyError
from scheduler.topology.description import load_topology, parse_topology
from scheduler.topology.keys import SECTIONS
from scheduler.topology_command import add_arguments

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "topology.md").read_text(encoding="utf-8")
RACKS = '[[switch]]\nname = "core"\n[[switch]]\nname = "rack1"\nparent = "core"\ncapacity = 1\n'
MISTAKES = (
    RACKS + '[[server]]\nname = "h1"\nrack = "rak1"',
    RACKS + '[[server]]\nname = "h1"\nrack = "rack1"\nsend = -1',
    RACKS + '[[server]]\nname = "h1"\nrack = "rack1"\nsent = 1',
    '[[switch]]\nname="a"\nparent="b"\ncapacity=1\n[[switch]]\nname="b"\nparent="a"\ncapacity=1\n',
    RACKS + '[[switch]]\nname="far"\n[[server]]\nname="h1"\nrack="rack1"\n[[server]]\nname="h2"\nrack="far"',
)
"""What gives the guide's messages, in its order."""


def blocks(language: str) -> list[str]:
    """The guide's examples in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)


def key_table() -> str:
    """The table of keys that the code reads."""
    parts = []
    for section, keys in SECTIONS.items():
        rows = [f"| `{key.name}` | {key.kind} | {key.help} |" for key in keys]
        parts.append("\n".join([f"| {section} | | |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def test_the_keys_are_those_of_the_code() -> None:
    """The table in the guide is made from the table that the reader uses."""
    found = re.search(r"<!-- keys -->\n(.*?)<!-- end of keys -->", GUIDE, flags=re.DOTALL)
    assert found is not None
    assert found[1].strip() == key_table(), f"put this there:\n{key_table()}"


def test_the_descriptions_are_networks() -> None:
    """The smallest one has 16 servers in two racks; the paper's is the file that is shipped."""
    smallest, paper = (parse_topology(tomllib.loads(text)) for text in blocks("toml"))
    assert [server.name for server in smallest.servers][::8] == ["rack1-h1", "rack2-h1"]
    assert len(smallest.servers) == 16
    assert {(server.send, server.receive) for server in smallest.servers} == {(2, 2)}
    assert [link.capacity for link in smallest.links] == [5] * 4
    shipped = load_topology(ROOT / "docs" / "topologies" / "paper.toml")
    assert (paper.servers, paper.links, paper.switches) == (shipped.servers, shipped.links, shipped.switches)


def test_the_output_is_the_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `check` prints is what it prints."""
    command, _, output = blocks("console")[0].partition("\n")
    monkeypatch.chdir(ROOT)
    assert cli.main(shlex.split(command.removeprefix("$ cairn "))) == 0
    assert capsys.readouterr().out == output


def test_the_messages_are_the_readers() -> None:
    """Each message of the guide comes from a mistake, word by word."""
    for text, message in zip(MISTAKES, blocks("text")[0].splitlines(), strict=True):
        with pytest.raises(TopologyError) as caught:
            parse_topology(tomllib.loads(text), "net.toml")
        assert str(caught.value) == message


def test_the_commands_are_understood() -> None:
    """Every `cairn topology` line of the guide parses, and every option it names is there."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for line in re.findall(r"^\$ cairn topology (.*)$", GUIDE, flags=re.MULTILINE):
        parser.parse_args(shlex.split(line))
    actions = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    known = {option for one in actions.choices.values() for action in one._actions for option in action.option_strings}
    named = set(re.findall(r"`(--[a-z-]+)", GUIDE))
    assert named
    assert named <= known


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the assertions in it; what it draws and writes is there."""
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks("python"):
        exec(compile(block, "docs/topology.md", "exec"), names)
    assert b"<svg " in bytes(names["svg"])  # type: ignore[call-overload]
    assert parse_topology(tomllib.loads(str(names["text"]))).servers == names["topology"].servers  # type: ignore[attr-defined]
