"""docs/figures.md says how far apart the rounds of the kept results lie."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness.noise import BEGIN, END, PAGE, filled, spreads


def test_the_table_of_noise_is_that_of_the_kept_results() -> None:
    """It is what `python -m benchmarks.harness.noise` writes."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page)
    with pytest.raises(ValueError, match="must have"):
        filled(page.replace(BEGIN, "").replace(END, ""))


def test_only_figures_with_rounds_are_counted() -> None:
    """A figure that was measured once, or may be below 0, has no such ratio; the widest one comes last."""
    goals: list[dict[str, Any]] = [
        {"name": "wide", "n": 3, "low": 1.0, "high": 4.0},
        {"name": "once", "n": None, "low": None, "high": None},
        {"name": "below", "n": 3, "low": -1.0, "high": 4.0},
        {"name": "narrow", "n": 5, "low": 2.0, "high": 3.0},
    ]
    assert [(spread.name, spread.ratio) for spread in spreads(goals)] == [("narrow", 1.5), ("wide", 4.0)]
