"""docs/command-line.md does what it says: its commands are run, its kinds and keys are those of the commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Every command of the page, as its words behind `cairn`."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [shlex.split(line.partition(" > ")[0])[1:] for line in lines]


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    """In their order, against a sidecar and its directory, each ends with status 0 and says something."""
    data_dir = tmp_path / "data"
    places = {"verify": ["verify", str(data_dir)], "dump": ["dump", str(data_dir)]}
    with Sidecar(data_dir) as sidecar:
        asked = ("--servers", sidecar.address, "--timeout", str(PATIENCE_S))
        for words in commands():
            if words[0] in places:
                if words[0] == "dump":  # the page has deleted its topic by then
                    assert cairn("topics", "create", words[2], *asked).status == 0
                run = [*places[words[0]], *words[2:]]
            elif words[0] == "completion":
                run = words
            else:
                run = [*words, *asked]
            finished = cairn(*run)
            assert finished.status == 0, (words, finished.err)
            assert finished.out or words[0] == "dump"


def test_every_kind_of_finding_is_explained() -> None:
    """The kinds that the checks can report are those of the page's tables."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "logstore" / "verify").glob("*.py"))
    kinds = set(re.findall(r"\.(?:damage|note)\(\s*\"([a-z-]+)\"", source))
    assert len(kinds) > 15
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in PAGE] == []


def test_the_keys_are_those_of_the_commands(tmp_path: Path) -> None:
    """The keys of `--json` that the page lists for `status` and `verify` are the ones that are printed, all of them."""
    with Sidecar(tmp_path / "data") as sidecar:
        status = cairn("status", "--json", "--servers", sidecar.address, "--timeout", str(PATIENCE_S)).json
        verify = cairn("verify", str(tmp_path / "data"), "--json").json
    (row,) = re.findall(r"^\| `status` \|.*\|(.*)\|$", PAGE, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == list(status)
    (sentence,) = re.findall(r"The keys of `--json` are (.*?): `severity`", PAGE)
    assert re.findall(r"`(\w+)`", sentence) == list(verify)
