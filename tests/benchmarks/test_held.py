"""A goal that holds stays held: a result is compared with the kept one, with a margin."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.held import CHECKED, lost, main
from benchmarks.harness.report import Goal, at_least, at_most
from benchmarks.harness.results import RESULTS


def goals(*found: Goal) -> list[dict[str, Any]]:
    """Goals as a result has them."""
    return [goal._asdict() for goal in found]


def test_what_misses_its_bound_by_more_than_the_margin_is_lost() -> None:
    """A quarter of the bound is noise; more is a loss, and so is a goal that is not measured any more."""
    kept = goals(at_least("rate", 2.2, "×", 2), at_most("start", 0.8, "s", 1), at_least("gone", 1.0, "×", 1))
    assert lost(kept, kept) == []
    noisy = goals(at_least("rate", 1.51, "×", 2), at_most("start", 1.24, "s", 1), at_least("gone", 0.76, "×", 1))
    assert lost(kept, noisy) == []
    slow = goals(at_least("rate", 1.49, "×", 2), at_most("start", 1.26, "s", 1))
    said = lost(kept, slow)
    assert [line.partition(":")[0] for line in said] == ["rate", "start", "gone"]
    assert "1.49 ×, held with 2.2 (≥ 2)" in said[0]


def test_a_goal_that_never_held_cannot_be_lost() -> None:
    """What falls short in the kept result is not checked."""
    assert lost(goals(at_least("rate", 1.0, "×", 2)), []) == []


@pytest.mark.parametrize("name", CHECKED)
def test_the_kept_results_hold_what_they_hold(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result compared with itself loses nothing; one without goals loses all that held."""
    kept = RESULTS / f"{name}.json"
    assert main([name, str(kept)]) == 0
    (tmp_path / "empty.json").write_text(json.dumps({"goals": []}))
    assert main([name, str(tmp_path / "empty.json")]) == 1
    held = sum(goal["holds"] for goal in json.loads(kept.read_text(encoding="utf-8"))["goals"])
    said = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("lost: ") for line in said) == held > 0
