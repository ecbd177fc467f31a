"""What benchmarks/checkpoint_burst.py makes of its figures; an operator and the writer beside it, without a network."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import checkpoint_burst
from benchmarks.burst import report
from benchmarks.burst.cluster import DEFAULT, OWN_DISK, PEACE, Burst, Nodes
from benchmarks.burst.operating import PARTITION, Epoch, Operator
from benchmarks.harness.report import Rows
from benchmarks.racks.experiment import Load
from benchmarks.racks.network import interfaces, namespaces, why_not
from spe_adapter.checkpoint.bases import freezing
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.snapshot import Freeze, Snapshot
from tests.benchmarks.smoke import run_benchmark
from tests.support.limits import PATIENCE_S

NODES = Nodes(0.1, 0.2, 150.0, 200.0)
PAUSE_S = 0.02


def burst(policy: str, seconds: float, waits_s: float, epoch_s: float, waited_s: float = 0.0) -> Burst:
    """Two checkpoints of so many seconds from the go, each told to wait first; quiet epochs take 10 ms."""
    checkpoints: dict[str, dict[str, Any]] = {
        f"r1h{place}": {
            "submitted_s": 100.0,
            "go_s": 100.0 + waits_s,
            "registered_s": 100.0 + waits_s + seconds * place,
            "freeze_s": 0.001,
            "bytes": 1000,
            "files": 4,
            "failed": 0,
            "planned": policy == PEACE,
            "lines": ["checkpoint_written"],
        }
        for place in (1, 2)
    }
    quiet = [Epoch(90.0, 90.01, 0.01, 0.0)] * 10
    during = [Epoch(101.0, 101.0 + epoch_s, epoch_s, waited_s)] * 10
    return Burst(policy, checkpoints, quiet, during, NODES, NODES, Load(1.0, 0.5, 0), 100.0)


def measured() -> Rows:
    """Two rounds; the machine is slower in the second one."""
    rows = Rows()
    for number, slow in enumerate((1.0, 2.0), 1):
        rows.add(policy=DEFAULT, round=number, **report.figures_of(burst(DEFAULT, 20.0 * slow, 0.0, 0.05)))
        rows.add(policy=OWN_DISK, round=number, **report.figures_of(burst(OWN_DISK, 10.0 * slow, 0.0, 0.04)))
        rows.add(policy=PEACE, round=number, **report.figures_of(burst(PEACE, 4.0 * slow, 10.0 * slow, 0.02, 0.01)))
    return rows


def test_goals_follow_from_rows() -> None:
    """Ratios are those of each round; an epoch's percentile in a burst is held against the quiet time before."""
    goals = {goal.name: goal for goal in report.find_goals(measured(), 2)}
    assert goals["one checkpoint from the go, Peace ÷ default"].value == pytest.approx(0.2)
    assert goals["all checkpoints, Peace ÷ default"].value == pytest.approx(18 / 40)
    felt = goals["p99 of an epoch under Peace, in the burst ÷ without"]
    assert felt.value == pytest.approx(2.0)
    assert not felt.holds
    apart = {goal.name: goal for goal in report.shown_apart(measured())}
    assert apart["one checkpoint from submission, Peace ÷ default"].value == pytest.approx(16 / 30, abs=1e-4)
    alone = apart[f"{PEACE}: the same without waiting for a processor, in the burst ÷ without"]
    assert alone.value == pytest.approx(1.0)
    assert alone.holds


def test_nothing_measured_no_goals() -> None:
    """What was not measured is no goal."""
    assert report.find_goals(Rows(), 2) == []
    assert report.shown_apart(Rows()) == []


@pytest.mark.parametrize("rows", [Rows(), measured()], ids=["nothing", "two rounds"])
def test_results_so_far_are_published(rows: Rows, tmp_path: Path) -> None:
    """JSON and plot come out of whatever was measured so far."""
    spans = [{"policy": PEACE, "round": 1, "spans": report.spans_of(burst(PEACE, 4.0, 10.0, 0.02))}]
    report.publish(rows, spans, {"mode": "full", "machine": {"cpus": 2}}, tmp_path, None)
    found = json.loads((tmp_path / "checkpoint_burst.json").read_text())
    assert {"goals", "shown_apart", "notes", "medians", "rows", "spans"} <= found.keys()
    assert found["spans"][0]["spans"][0] == {"go_s": 10.0, "registered_s": 14.0}
    assert (tmp_path / "checkpoint_burst.png").read_bytes().startswith(b"\x89PNG")


def frozen_changes(freeze: Freeze, since: object) -> Snapshot | None:
    """The released freeze of what changed since an earlier one; None if nothing changed, or if it is refused."""
    snapshot = freeze(since)
    if snapshot is None:
        return None
    snapshot.pages.release()  # while a freeze is held, the next one is refused
    return snapshot if len(snapshot.pages.ids) else None


def test_an_operators_base_is_frozen_while_its_epochs_go_on(tmp_path: Path) -> None:
    """All of the state is in the first checkpoint, hot pages alone in the next one, and epochs fail at nothing."""
    operator = Operator("h1", "127.0.0.1", tmp_path)
    state = operator.build(20_000)
    freeze = freezing(Path(state["root"]))(Unit(state["query"], PARTITION))
    first = freeze(None)
    assert first is not None
    assert first.is_full
    operator.run(0.01, 100, time.monotonic())
    first.pages.read(first.pages.ids)
    first.pages.release()
    deadline_s = time.monotonic() + PATIENCE_S
    while (second := frozen_changes(freeze, first.point)) is None:
        assert time.monotonic() < deadline_s, "no epoch changed the base, or each freeze was refused"
        threading.Event().wait(PAUSE_S)  # an epoch needs the lock for itself
    epochs = operator.rest()
    assert not second.is_full
    assert len(second.pages.ids) < len(first.pages.ids)
    assert epochs
    assert all(epoch.end_s > epoch.due_s and epoch.waited_s >= 0.0 for epoch in epochs)


@pytest.mark.parametrize("option", [["--rounds", "0"], ["--rounds", "many"]])
def test_bad_options_are_named(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that makes no sense ends the program with a message that quotes it."""
    with pytest.raises(SystemExit):
        checkpoint_burst.main(option)
    assert repr(option[1]) in capsys.readouterr().err


def test_machine_that_cannot_is_told_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without root, or without `ip` and `tc`, the program says so at once and leaves nothing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"need root|no command 'ip': install iproute2"):
        checkpoint_burst.main(["--results", str(tmp_path), "--data", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_quick_run_leaves_results(tmp_path: Path) -> None:
    """A quick run leaves JSON with goals and rows of both placements, and a plot; nothing else."""
    data, results = tmp_path / "data", tmp_path / "results"
    data.mkdir()
    found, _ = run_benchmark("checkpoint_burst", results, "--quick", "--data", data)
    assert found["left_out"] == []
    assert {row["policy"] for row in found["rows"]} == {DEFAULT, PEACE}
    assert all(row["planned"] == 16 for row in found["rows"] if row["policy"] == PEACE)
    assert sorted(path.name for path in results.iterdir()) == ["checkpoint_burst.json", "checkpoint_burst.png"]
    assert list(data.iterdir()) == []
    assert not namespaces()
    assert not interfaces()
