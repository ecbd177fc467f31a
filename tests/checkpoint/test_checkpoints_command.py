"""`cairn checkpoints`: what is listed, shown, found damaged and registered, by a sink and a coordinator."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logstore.cli import main
from logstore.client.blocking import Client, parse_addresses
from logstore.format.reader_api import ReaderOffset
from scheduler.client import CoordinatorClient
from scheduler.coordinator.testing import running
from scheduler.topology import racks
from spe_adapter.checkpoint.coordinator_registry import CoordinatorRegistry
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.errors import SinkFailed
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.names import CheckpointName
from spe_adapter.tools import checkpoints_command
from spe_adapter.tools.checkpoints_removal import remove_query
from spe_adapter.tools.checkpoints_view import COMPLETE, UNFINISHED, listed
from tests.checkpoint.state import UNIT, PagedState, manager_of
from tests.checkpoint.test_crashes import Counter
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

OTHER = UNIT._replace(partition=4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three checkpoints of a unit: a full one and two over it."""
    state = PagedState(64, Random(5))
    manager = manager_of(state, tmp_path / "sink")
    for _ in range(3):
        assert manager.checkpoint().is_complete
        state.change()
    return tmp_path / "sink"


@pytest.fixture
def url() -> Iterator[str]:
    """A coordinator."""
    with running(racks([2, 2], 4), planner="paper") as found:
        yield found


def run(capsys: pytest.CaptureFixture[str], *words: str, fails: int = 0) -> str:
    """Run the command; its output, or of one that fails its errors too."""
    assert main(["checkpoints", *words]) == fails
    said = capsys.readouterr()
    return said.out + said.err if fails else said.out


def objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects of an output."""
    return [json.loads(line) for line in text.splitlines()]


def names(seqs: range) -> list[str]:
    """Checkpoints of the unit."""
    return [str(CheckpointName(UNIT.name, seq)) for seq in seqs]


def test_a_sink_is_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first, with epoch, kind and sizes; a directory without a manifest is unfinished."""
    DirectorySink(root).claim(CheckpointName(UNIT.name, 9))
    lines = run(capsys, "list", "--sink", root.as_uri()).splitlines()
    assert lines[0].split("  ")[0] == "checkpoint"
    assert [line.split()[0] for line in lines[1:]] == [*names(range(9, 8, -1)), *names(range(3, 0, -1))]
    assert lines[1].endswith("unfinished")
    assert re.search(r" 3 +\d{4}-.*over 1, 2 .*complete$", lines[2])
    assert re.search(r" 1 +\d{4}-.*full .*complete$", lines[4])
    assert run(capsys, "--sink", root.as_uri()).splitlines() == lines, "without an action, they are listed"
    found = objects(run(capsys, "list", "--sink", root.as_uri(), "--json"))
    assert [one["state"] for one in found] == ["unfinished", "complete", "complete", "complete"]
    assert (found[1]["query"], found[1]["bases"], found[3]["state_bytes"]) == (UNIT.query, [1, 2], 64 * 512)


@pytest.mark.parametrize("wanted", [UNIT.name, f"{UNIT.query}.{UNIT.partition}", UNIT.query])
def test_units_are_found_by_any_of_their_names(root: Path, capsys: pytest.CaptureFixture[str], wanted: str) -> None:
    """As in paths, as query and partition, as the query alone; other units are left out."""
    state = PagedState(4, Random(6))
    CheckpointManager(OTHER._replace(query="other"), state.freeze, ManagerTools(DirectorySink(root))).checkpoint()
    found = objects(run(capsys, "list", "--sink", root.as_uri(), "--unit", wanted, "--json"))
    assert [one["seq"] for one in found] == [3, 2, 1]
    assert len(objects(run(capsys, "list", "--sink", root.as_uri(), "--json"))) == 4
    assert run(capsys, "list", "--sink", root.as_uri(), "--unit", "none").startswith("no checkpoint of none in")


def test_one_is_shown_with_all_files_of_its_recovery(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name or as the newest of its unit, with the files of its bases."""
    shown = objects(run(capsys, "show", UNIT.name, "--sink", root.as_uri(), "--json"))[0]
    assert (shown["seq"], {file["checkpoint"] for file in shown["files"]}) == (3, set(names(range(1, 4))))
    text = run(capsys, "show", names(range(1, 2))[0], "--sink", root.as_uri())
    assert "bases: none\n" in text
    assert re.search(rf"^{re.escape(names(range(1, 2))[0])} +000 +\d+ +[0-9a-f]{{8}} +64", text, re.MULTILINE)
    missing = run(capsys, "show", names(range(7, 8))[0], "--sink", root.as_uri(), fails=1)
    assert f"{names(range(7, 8))[0]}: no such checkpoint; there are: {names(range(3, 4))[0]}" in missing


def test_whole_checkpoints_are_verified(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every byte is read; the last line counts."""
    lines = run(capsys, "verify", "--sink", root.as_uri()).splitlines()
    assert all(": ok, " in line for line in lines[:3])
    assert lines[3] == "3 of 3 checkpoints can be recovered"


@pytest.mark.parametrize("damage", ["bit", "torn", "longer", "missing", "swapped"])
def test_what_is_damaged_is_named(root: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    """The file, why, and each checkpoint that needs the file; the others are said to be whole. The exit status is 1."""
    file = root / names(range(2, 3))[0] / "000"
    data = bytearray(file.read_bytes())
    match damage:
        case "bit":
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        case "torn":
            file.write_bytes(data[:-1])
        case "longer":
            file.write_bytes(data + b"x")
        case "missing":
            file.unlink()
        case "swapped":
            shutil.copy(root / names(range(1, 2))[0] / "000", file)
    lines = run(capsys, "verify", "--sink", root.as_uri(), fails=1).splitlines()
    for line, name in zip(lines[:2], names(range(3, 1, -1)), strict=True):
        assert line.startswith(f"{name}: cannot be recovered: {names(range(2, 3))[0]}/000: ")
        assert str(file) in line
    assert ": ok, " in lines[2]
    assert lines[3] == "1 of 3 checkpoints can be recovered"
    found = objects(run(capsys, "verify", "--sink", root.as_uri(), "--json", fails=1))
    assert [one["ok"] for one in found] == [False, False, True]


def test_a_damaged_manifest_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the list and in the verification, with its path."""
    manifest = root / names(range(3, 4))[0] / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes()[:-5])
    assert f"damaged: {root.as_uri()}/{names(range(3, 4))[0]}/MANIFEST: " in run(
        capsys, "list", "--sink", root.as_uri()
    )
    assert "2 of 3 checkpoints" in run(capsys, "verify", "--sink", root.as_uri(), fails=1)


def test_a_lost_registry_is_filled_again(root: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The list says what is not registered; `register` adds it, bases first; then both know the same."""
    both = ("--sink", root.as_uri(), "--coordinator", url)
    assert run(capsys, "list", *both).count("complete, not registered") == 3
    assert "not registered" in run(capsys, "verify", *both)
    assert run(capsys, "register", *both).splitlines() == [f"{name}: registered" for name in names(range(1, 4))]
    assert run(capsys, "register", *both) == "the registry knows every complete checkpoint of the sink\n"
    listed = objects(run(capsys, "list", "--coordinator", url, "--json"))
    assert [(one["seq"], one["registered"]) for one in listed] == [(3, True), (2, True), (1, True)]
    of_sink = objects(run(capsys, "list", *both, "--json"))
    for mine, theirs in zip(of_sink, listed, strict=True):
        assert {key: mine[key] for key in ("epoch", "state_bytes", "file_bytes", "bases")} == {
            key: theirs[key] for key in ("epoch", "state_bytes", "file_bytes", "bases")
        }
    assert "hosts that load it best:" in run(capsys, "show", UNIT.name, *both)
    assert len(objects(run(capsys, "show", UNIT.name, "--coordinator", url, "--json"))[0]["files"]) == 1


def test_what_only_the_registry_knows_is_missing(root: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that somebody removed by hand: the list and the verification say so."""
    both = ("--sink", root.as_uri(), "--coordinator", url)
    run(capsys, "register", *both)
    shutil.rmtree(root / names(range(3, 4))[0])
    assert "missing: the registry has it in" in run(capsys, "list", *both)
    assert "2 of 3 checkpoints can be recovered" in run(capsys, "verify", *both, fails=1)


def test_the_managers_own_entries_are_the_tools(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A manager with the coordinator as registry leaves nothing to register, and removes what it removes."""
    state = PagedState(16, Random(7))
    with CoordinatorClient(url) as client:
        tools = ManagerTools(DirectorySink(tmp_path), registry=CoordinatorRegistry(client))
        manager = CheckpointManager(UNIT, state.freeze, tools)
        for _ in range(30):
            assert manager.checkpoint().is_complete
            state.change(2)
    both = ("--sink", tmp_path.as_uri(), "--coordinator", url)
    assert run(capsys, "register", *both) == "the registry knows every complete checkpoint of the sink\n"
    found = objects(run(capsys, "list", *both, "--json"))
    assert {one["state"] for one in found} == {"complete"}
    assert 2 <= len(found) < 30


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("list",), 2, "needs --sink or --coordinator, or both"),
        (("verify", "--coordinator", "http://127.0.0.1:1"), 2, "needs --sink"),
        (("register", "--sink", "file:///c"), 2, "needs --coordinator"),
        (("list", "--sink", "ftp://h/c"), 1, "'ftp://h/c' names no place for checkpoints: write file:///DIRECTORY"),
        (("list", "--sink", "file:///no/such"), 1, "--sink file:///no/such names no directory"),
        (("verify", "--sink", "file:///etc/hostname/x"), 1, "names no directory"),
        (("verify", "--sink", "file:///etc/hostname"), 1, "names no directory"),
        (("list", "--coordinator", "nowhere"), 1, "is not an address of a coordinator"),
        (("list", "--sink", "file:///c", "--coordinator", "http://h", "--token-file", "/no/t"), 1, "'/no/t'"),
    ],
)
def test_wrong_words_are_named(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, says: str
) -> None:
    """One line on standard error that names the value and what to write."""
    assert says in run(capsys, *words, fails=status)


def test_it_runs_as_a_program(root: Path) -> None:
    """Without a terminal the progress is left out: standard error is empty."""
    command = [sys.executable, "-m", "logstore.cli", "checkpoints", "verify", "--sink", root.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", "3 of 3 checkpoints can be recovered")


# ---- remove


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    """The sidecar that knows the readers."""
    with Sidecar(tmp_path / "data") as running_one:
        yield running_one


def left(root: Path) -> set[str]:
    """The names that a sink still has."""
    return {path.name for path in root.iterdir()}


def test_all_checkpoints_of_a_query_are_removed(
    root: Path, url: str, sidecar: Sidecar, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all its partitions, complete or not, from sink and registry, also what only one of them has; nothing of a
    query whose name is nearly the same. A second time there is nothing to remove.
    """
    sink = DirectorySink(root)
    state = PagedState(8, Random(7))
    with CoordinatorClient(url) as client:
        registry = CoordinatorRegistry(client)
        names_of_others = (f"{UNIT.query}.3", f"{UNIT.query}x", UNIT.query[:-1])
        for unit in (OTHER, *(UNIT._replace(query=query) for query in names_of_others)):
            assert CheckpointManager(unit, state.freeze, ManagerTools(sink, registry=registry)).checkpoint().is_complete
        sink.claim(CheckpointName(UNIT.name, 9))
        run(capsys, "register", "--sink", root.as_uri(), "--coordinator", url)
        shutil.rmtree(root / str(CheckpointName(OTHER.name, 1)))
        before = left(root)
        words = ("remove", UNIT.query, "--sink", root.as_uri(), "--coordinator", url, "--servers", sidecar.address)
        lines = run(capsys, *words).splitlines()
        assert [line.partition(":")[0] for line in lines[:-1]] == [
            str(CheckpointName(UNIT.name, seq)) for seq in (9, 3, 2, 1)
        ] + [str(CheckpointName(OTHER.name, 1))]
        assert re.fullmatch(rf"removed of query {UNIT.query}: 5 checkpoints and their entries, 0.\d\d MB", lines[-1])
        assert left(root) == {name for name in before if not name.startswith(f"{UNIT.name}-")}
        assert {one["unit"] for one in client.units()} == {UNIT._replace(query=one).name for one in names_of_others}
        assert run(capsys, *words) == f"removed of query {UNIT.query}: nothing: there are none\n"


def test_an_interrupted_removal_leaves_what_can_be_recovered(root: Path) -> None:
    """Wherever it ends, each complete checkpoint that is left has all its files; the next call removes the rest."""
    for steps in range(8):
        copy = root.with_name(f"copy-{steps}")
        shutil.copytree(root, copy)
        removing = remove_query(DirectorySink(copy, Counter(steps + 1, InterruptedError)), None, UNIT.query)
        with suppress(InterruptedError, SinkFailed):
            list(removing)
        found = listed(DirectorySink(copy), None)
        assert not [one for one in found if one.state not in (COMPLETE, UNFINISHED)]
        list(remove_query(DirectorySink(copy), None, UNIT.query))
        assert not left(copy)


@pytest.mark.parametrize("reader", [f"stateful/{UNIT.query}", f"continuous/{UNIT.query}.0"])
def test_checkpoints_of_a_query_that_may_come_back_stay(
    root: Path, sidecar: Sidecar, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """A reader holds records for it: the message names the reader and what to do. So does that of a sidecar that is
    away. Readers of other queries do not count, and `--force` asks nobody.
    """
    sink = ("--sink", root.as_uri())
    before = left(root)
    with Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("out", 1)
        for other in (f"stateful/{UNIT.query}x", f"continuous/{UNIT.query}.x.0", f"continuous/{UNIT.query}", reader):
            client.register_reader(other, [ReaderOffset("out", 0, 0)])
        said = run(capsys, "remove", UNIT.query, *sink, "--servers", sidecar.address, fails=1)
        assert re.search(rf"{re.escape(reader)} \(\d+ s ago\)", said)
        assert f"cairn readers remove {reader}), or give --force" in said
        assert left(root) == before
        client.remove_reader(reader)
        with monkeypatch.context() as hasty:
            hasty.setattr(checkpoints_command, "PATIENCE_S", 0.1)
            said = run(capsys, "remove", UNIT.query, *sink, "--servers", "127.0.0.1:1", fails=1)
        assert "may come back is unknown" in said
        assert left(root) == before
        found = objects(run(capsys, "remove", UNIT.query, *sink, "--servers", sidecar.address, "--json"))
        assert [one["checkpoint"] for one in found] == names(range(3, 0, -1))
        assert all(one["freed_bytes"] for one in found)
    state = PagedState(4, Random(6))
    assert manager_of(state, root).checkpoint().is_complete
    run(capsys, "remove", UNIT.query, *sink, "--servers", "127.0.0.1:1", "--force")
    assert not left(root)


def test_a_removal_needs_a_sink(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Entries without the files that they name would be gone, and the files stay for ever."""
    assert "needs --sink" in run(capsys, "remove", "q", "--coordinator", url, fails=2)
