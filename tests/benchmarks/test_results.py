"""Kept results come from full runs and name what they measured; a shorter run never takes their place."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.report import write_json
from benchmarks.harness.results import FULL, MEASURED, RESULTS, ROOT, TRIALS, commit, directory, partial, states
from tests.support.limits import PATIENCE_S

KEPT = sorted(RESULTS.glob("*.json"))
in_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(),
    reason="no git, or not a git checkout: no history to compare with",
)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_result_is_of_a_full_run(path: Path) -> None:
    """It says so, names its commit and its goals, and has a plot beside it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["mode"] == FULL
    assert len(content["commit"]) == 40
    assert content["goals"]
    assert {"name", "value", "goal", "holds"} <= content["goals"][0].keys()
    assert path.with_suffix(".png").exists()


@pytest.mark.parametrize("mode", ["quick", "smoke", "partial"])
def test_a_shorter_run_does_not_replace_a_full_one(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its results go elsewhere by themselves, and to name the folder of full runs is refused."""
    parser = argparse.ArgumentParser()
    assert directory(parser, None, mode) == TRIALS
    assert directory(parser, None, FULL) == RESULTS
    with pytest.raises(SystemExit):
        directory(parser, RESULTS, mode)
    assert f"a {mode} run does not replace a full one" in capsys.readouterr().err


def test_a_run_that_turns_out_partial_goes_elsewhere(tmp_path: Path) -> None:
    """Never among the results of full runs, not even when it was told to; otherwise where it was told to."""
    assert partial(RESULTS) == TRIALS
    assert partial(tmp_path) == tmp_path


def test_every_benchmark_is_known() -> None:
    """The table of measured code has each program that leaves results, and only folders and files that are there."""
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__"}
    assert set(MEASURED) == programs
    for paths in MEASURED.values():
        for path in paths:
            name = path.removeprefix(":!").removeprefix(":(glob)").removesuffix("/*.py")
            assert (ROOT / name).exists(), path


@in_git
def test_what_verify_reads_logs_with_is_measured_code() -> None:
    """The packages that the check of a log is made of count as code that `verify_speed` measures."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "logstore" / "verify").glob("*.py"))
    for package in ("format", "log"):
        assert f"from logstore.{package}." in sources
        assert f"logstore/{package}" in MEASURED["verify_speed"]


def test_a_result_names_its_commit(tmp_path: Path) -> None:
    """What is written has the commit of the work tree, and says whether something was not committed."""
    write_json(tmp_path / "result.json", {"goals": []})
    content = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert content["commit"] == commit()["commit"]
    assert isinstance(content["uncommitted"], bool)


@in_git
def test_the_state_of_results(tmp_path: Path) -> None:
    """Of this commit: no changed lines but those of the work tree. Of an unknown commit nothing is known."""
    for name, sha in (("peace", commit()["commit"]), ("cec", "0" * 40)):
        content = {"mode": FULL, "finished": "2026-01-01T00:00:00", "commit": sha, "goals": [{"holds": True}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    cec, peace = states(tmp_path)
    assert (cec.name, cec.changed_lines) == ("cec", None)
    assert (peace.name, peace.goals, peace.held) == ("peace", 1, 1)
    assert peace.changed_lines == 0 or commit()["uncommitted"]
    assert peace.lines > 1000


@in_git
def test_the_status_is_printed() -> None:
    """`./run bench --status` lists every kept result."""
    command = [sys.executable, "-m", "benchmarks.harness.results"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    for path in KEPT:
        assert path.stem in printed
