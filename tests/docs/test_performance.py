"""docs/performance.md has the numbers of the kept results, and no others between its marks."""

import pytest

from benchmarks.harness.performance_page import BEGIN, END, PAGE, filled, kept_results, render
from benchmarks.harness.report import verdict


def test_the_page_has_the_kept_results() -> None:
    """The tables are what `python -m benchmarks.harness.performance_page` writes."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page, kept_results())


def test_every_goal_and_cell_of_the_results_is_in_the_tables() -> None:
    """With its value, and whether it holds."""
    content = kept_results()
    cell = {"what": "cell", "cell": "1 stream, 16 × 5, 1 KB", "server": "Cairn", "round": 0}
    figures = {"requests_per_s": 12_345.0, "p99_ms": 6.78, "cpu_us_per_request": 34.0}
    others = [row for row in content["rows"] if row.get("cell") != cell["cell"]]
    content["rows"] = [*others, {**cell, **figures}]
    text = render(content)
    for goal in content["goals"]:
        said = verdict(goal["holds"], goal["goal"], goal["low"], goal["high"])
        rounds = "" if goal["n"] is None else f"{goal['low']:.3g} to {goal['high']:.3g} (n = {goal['n']})"
        value = f"{goal['value']:.4g} {goal['unit']}"
        assert f"| {goal['name']} | {value} | {rounds} | {goal['goal']} | {said}" in text
    assert "| 1 stream, 16 × 5, 1 KB | 12,345 | 6.78 | 34 |" in text


def test_a_goal_that_no_server_reaches_is_said_to_be_such() -> None:
    """The same load at a server that answers at once has less than the goal asks for: the line says how much."""
    content = kept_results()
    cell = {"cell": "1 stream, 16 × 5, 1 KB", "round": 0}
    figures = {"p99_ms": 1.0, "cpu_us_per_request": 1.0}
    content["rows"] = [
        {"what": "cell", "server": "Kafka, flush.messages=1", "requests_per_s": 100.0, **cell, **figures},
        {"what": "generator", "server": "answers at once", "requests_per_s": 350.0, **cell, **figures},
    ]
    goal = {"value": 2.0, "unit": "×", "goal": "≥ 4", "holds": False, "low": 1.0, "high": 2.0, "n": 5}
    content["goals"] = [{"name": f"{cell['cell']}: requests / Kafka with fsync", **goal}]
    assert "| ≥ 4 | falls short; a server that answers at once has 3.50 × |" in render(content)
    content["rows"][1]["requests_per_s"] = 450.0
    assert "| ≥ 4 | falls short |" in render(content)


@pytest.mark.parametrize("page", ["", BEGIN, END + BEGIN, f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    """Rather than written to somewhere else."""
    with pytest.raises(ValueError, match="once each"):
        filled(page, kept_results())
