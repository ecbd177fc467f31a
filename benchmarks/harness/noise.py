"""How far apart the rounds of the kept results lie, as a table of docs/figures.md.

`python -m benchmarks.harness.noise` writes the table anew, between its marks; tests/docs compares it with the results.

Invariant: only figures that were measured in several rounds, and whose rounds are all above 0, are counted.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from benchmarks.harness.results import RESULTS, ROOT

PAGE: Final = ROOT / "docs" / "figures.md"
BEGIN: Final = "<!-- noise: python -m benchmarks.harness.noise -->"
END: Final = "<!-- end of noise -->"
HEAD: Final = (
    "| result | figures with rounds | rounds | highest to lowest: the middle figure | the widest figure |",
    "|---|---|---|---|---|",
)


class Spread(NamedTuple):
    """A figure's highest and lowest round, one divided by the other."""

    ratio: float
    name: str
    rounds: int
    low: float
    high: float


def spreads(goals: Sequence[Mapping[str, Any]]) -> list[Spread]:
    """Of the figures that were measured in rounds, the narrowest first."""
    found = [
        Spread(goal["high"] / goal["low"], goal["name"], goal["n"], goal["low"], goal["high"])
        for goal in goals
        if (goal.get("n") or 0) > 1 and (goal.get("low") or 0) > 0
    ]
    return sorted(found)


def table() -> str:
    """The table of all kept results that have such figures."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        found = spreads(json.loads(path.read_text(encoding="utf-8")).get("goals", []))
        if found:
            widest, numbers = found[-1], sorted({spread.rounds for spread in found})
            rounds = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
            middle = statistics.median(spread.ratio for spread in found)
            rows.append(
                f"| `{path.stem}` | {len(found)} | {rounds} | {middle:.2g} × | "
                f"{widest.ratio:.2g} ×: {widest.name} ({widest.low:.3g} to {widest.high:.3g}) |"
            )
    return "\n".join((*HEAD, *rows))


def filled(page: str) -> str:
    """The page with the table. Raises ValueError if its marks are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, behind = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} must have {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{behind}"


def main() -> None:
    """Write the table anew."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
