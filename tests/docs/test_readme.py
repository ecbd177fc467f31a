"""The README's commands do what it says they do: they are taken from it and run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from scheduler.coordinator.testing import running
from scheduler.topology.description import load_topology
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
README_ADDRESS = "127.0.0.1:9092"


def commands() -> list[str]:
    """Every command of the README, as a person would type it."""
    blocks = re.findall(r"^```console\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def shell(command: str) -> str:
    """What a command prints; it must succeed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    finished = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT, env={**os.environ, "PATH": path}, text=True, timeout=PATIENCE_S, check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    return finished.stdout


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_the_first_message_comes_back(tmp_path: Path) -> None:
    """The README's kcat commands against a default sidecar: what was sent comes back, also after a restart."""
    patient = f"kcat -m {PATIENCE_S} "  # kcat's own limit for an answer of a loaded machine is 5 s
    written, read = (command.replace("kcat ", patient) for command in commands() if "kcat" in command)
    with Sidecar(tmp_path / "data") as sidecar:
        shell(written.replace(README_ADDRESS, sidecar.address))
        assert shell(read.replace(README_ADDRESS, sidecar.address)) == "hello\n"
        assert sidecar.terminate() == 0
        sidecar.start()
        assert shell(read.replace(README_ADDRESS, sidecar.address)) == "hello\n"


def test_the_flags_that_are_named_exist() -> None:
    """Every long flag of `cairn serve` in the README is one that it knows."""
    known = set(re.findall(r"--[a-z-]+", shell("cairn serve --help")))
    named = set(re.findall(r"`(--[a-z-]+)", README)) | {
        flag
        for command in commands()
        if command.startswith("cairn serve")
        for flag in re.findall(r"--[a-z-]+", command)
    }
    assert named <= known


def test_the_entry_point_says_what_it_can_do() -> None:
    """`./run help` works on a machine where nothing is set up, and lists every command that the README uses."""
    listed = subprocess.run(
        ["./run", "help"], cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, text=True, check=True, stdout=subprocess.PIPE
    ).stdout
    used = {command.split()[1] for command in commands() if command.startswith("./run ")}
    assert used <= set(re.findall(r"^\./run ([a-z-]+)", listed, flags=re.MULTILINE))


def examples() -> list[str]:
    """Every Python example of the README."""
    return re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_spark_examples_name_real_formats() -> None:
    """The README's Spark examples are Python, and use the data source by the name under which Spark finds it."""
    for example in examples():
        compile(example, "README.md", "exec")
    assert [example.count('.format("cairn")') for example in examples() if "pyspark" in example] == [2, 1]


def test_the_writer_example_runs() -> None:
    """The README's writer against a coordinator of the network that its command names: every chunk gets a chain."""
    example = next(example for example in examples() if "CoordinatorClient" in example)
    command = next(command for command in commands() if command.startswith("cairn coordinate"))
    topology = load_topology(ROOT / command.split("--topology ")[1].split()[0])
    chains: dict[int, tuple[str, ...]] = {}

    def send_chunk(chunk: int, through: Sequence[str]) -> None:
        chains[chunk] = tuple(through)

    with running(topology) as url:
        exec(example.replace("http://127.0.0.1:9880", url), {"send_chunk": send_chunk})
    assert sorted(chains) == list(range(8))
    assert {len(set(chain)) for chain in chains.values()} == {4}
