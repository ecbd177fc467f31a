"""Shell completion offers the subcommands, actions and flags that the parsers have; help shows every command once."""

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

from logstore.commands.completion import all_words
from logstore.commands.table import COMMANDS, GROUPS, load
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def in_shell(shell: str, *command: str) -> str:
    """What a shell without anybody's settings prints."""
    environment = {**os.environ, "HOME": "/nonexistent", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    finished = subprocess.run(
        [shell, *command], text=True, capture_output=True, timeout=PATIENCE_S, env=environment, check=True
    )
    return finished.stdout


def in_bash(script: Path, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    ask = (
        f"source {script}; COMP_WORDS=({' '.join(words)}{' ' if words[-1] else ' ' + chr(39) * 2}); "
        f"COMP_CWORD={len(words) - 1}; _cairn; printf '%s\\n' \"${{COMPREPLY[@]}}\"; complete -p cairn"
    )
    *offered, registered = in_shell("bash", "--norc", "--noprofile", "-c", ask).splitlines()
    assert "_cairn" in registered
    return offered


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the script of each shell."""
    directory = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        finished = cairn("completion", shell)
        assert finished.status == 0
        (directory / shell).write_text(finished.out)
    return directory


LINES = {
    "cairn ": set(COMMANDS),
    "cairn gro": {"groups"},
    "cairn topics ": {"list", "describe", "create", "grow", "delete", "set", "--servers", "--json"},
    "cairn topics create --p": {"--partitions"},
    "cairn topics --servers h:1 create --p": {"--partitions"},
    "cairn completion ": {"bash", "zsh", "fish"},
    "cairn serve --data": {"--data-dir"},
}


@pytest.mark.parametrize("line", LINES)
def test_bash_offers_what_fits(scripts: Path, line: str) -> None:
    """A real bash runs the script: subcommands, actions of a command, flags of an action."""
    offered = in_bash(scripts / "bash", line)
    assert set(offered) >= LINES[line]
    assert all(word.startswith(line.split(" ")[-1]) for word in offered)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize("line", LINES)
def test_fish_offers_what_fits(scripts: Path, line: str) -> None:
    """A real fish runs the script, and completes the same; flags once a word begins with a dash, as fish does."""
    output = in_shell("fish", "--no-config", "-c", f"source {scripts / 'fish'}; complete -C '{line}'")
    expected = {word for word in LINES[line] if line[-1] != " " or not word.startswith("-")}
    assert {text.split("\t")[0] for text in output.splitlines()} >= expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize("line", [line for line in LINES if line.endswith(" ")])
def test_zsh_offers_what_fits(scripts: Path, line: str) -> None:
    """A real zsh runs the function; what it would add to the line's choices is what fits."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    ask = (
        'compdef() { :; }; compadd() { shift; print -l -- "$@"; }; '
        f"source {scripts / 'zsh'}; words=({quoted}); CURRENT={len(words)}; _cairn"
    )
    assert set(in_shell("zsh", "-f", "-c", ask).splitlines()) >= LINES[line]


def test_words_are_those_of_the_parsers() -> None:
    """What completion knows of a command is what its help names."""
    words = all_words()
    for name in ("status", "topics", "groups", "trim", "verify", "dump"):
        flags = set(re.findall(r"--[a-z-]+", cairn(name, "--help").out.split("\n\n")[0] + cairn(name, "--help").out))
        assert {word for word in words[f"/{name}"] if word.startswith("--")} <= flags | {"--help"}
    assert "/groups/reset" in words


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A command's parser, and those of its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_complete(name: str) -> None:
    """The help of each action begins with what the action does; positional arguments have names in capitals; no
    default is empty.
    """
    command = argparse.ArgumentParser(prog=f"cairn {name}", description=COMMANDS[name][1])
    load(name).add_arguments(command)
    for parser in parsers(command):
        assert parser.description, parser.prog
        text = parser.format_help()
        assert "default )" not in text
        assert "default: )" not in text
        placed = [action for action in parser._actions if not action.option_strings and action.dest != "action"]
        names = [str(action.metavar) for action in placed]
        assert names == [name.upper() for name in names], parser.prog
        assert "None" not in names, parser.prog


def test_help_shows_every_command_once() -> None:
    """`cairn --help` has each command in one group, with its summary."""
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    shown = cairn("--help").out
    for name, (_, summary) in COMMANDS.items():
        assert len(re.findall(rf"^  {name} .*{re.escape(summary)}$", shown, flags=re.MULTILINE)) == 1


def test_cairn_alone_says_what_is_missing() -> None:
    """The usage has the place of the command, and the error says where commands are listed; a command's own usage and
    errors are its own.
    """
    alone = cairn()
    assert (alone.status, alone.out) == (2, "")
    assert alone.err.startswith("usage: cairn [-h] [--version] COMMAND ...\n")
    assert "a COMMAND is missing; `cairn --help` lists the commands" in alone.err
    assert cairn("verify").err.startswith("usage: cairn verify [-h]")
    assert cairn("--no-such").err == "cairn: unknown: --no-such; `cairn --help` lists the options\n"


def test_a_command_loads_its_own_room_only() -> None:
    """An operator's command imports neither the event loop nor kio: it starts for every line that is typed."""
    program = (
        "import sys; from logstore.cli import main\n"
        "try: main(['status', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in ('trio', 'kio', 'numpy', 'logstore.sidecar', 'logstore.verify') if m in sys.modules))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert finished.stdout.splitlines()[-1] == "[]"
