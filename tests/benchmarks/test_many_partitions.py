"""The benchmark of many partitions still works: a tiny run measures every part and decides every goal."""

import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.harness.raw import RawFailed
from benchmarks.harness.report import Rows
from benchmarks.many_partitions import SMOKE, Beside, find_goals
from tests.benchmarks.smoke import run_smoke


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with every figure and nothing left out."""
    results = run_smoke("many_partitions", tmp_path)
    assert not results["left_out"]
    rows = Rows()
    rows.all = results["rows"]
    assert len(find_goals(rows, SMOKE)) == len(results["goals"]) == 11
    rounds = {goal["name"].partition(" ")[0]: goal["n"] for goal in results["goals"] if "partitions" in goal["name"]}
    assert rounds["start"] == rounds["stop"] == SMOKE.rounds


@pytest.mark.parametrize("may_fail", [False, True])
def test_a_client_beside_that_fails_is_said(may_fail: bool) -> None:
    """Its latencies are those of a part of the time: whoever reads them is told, by an error unless it was foreseen."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        beside = Beside(nobody.getsockname()[1], "t0", 0, may_fail=may_fail)
        with nullcontext() if may_fail else pytest.raises(RawFailed, match="failed after 0 records"), beside:
            pass
    assert beside.has_failed
