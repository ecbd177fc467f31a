"""The results of one query: read from its topic as they come, and compared with what must be there.

Invariant: a result is known by its window and key; every one counts, so a result that comes twice shows.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from spe_adapter.demo.purchases import Expected
from spe_adapter.demo.streams import Follower

Result = tuple[int, int, int, float]
"""Window start in ms, item or customer, purchases, average price or sum of prices."""


class Comparison(NamedTuple):
    """What was found beside what must be there, as numbers of results."""

    found: int
    missing: int
    doubled: int
    wrong: int

    @property
    def is_exact(self) -> bool:
        """Whether every result is there once, and right."""
        return self.found > 0 and not (self.missing or self.doubled or self.wrong)

    @property
    def verdict(self) -> str:
        """The comparison in a sentence."""
        if self.is_exact:
            return f"exact: {self.found:,} results, none missing, none twice, none wrong"
        return f"NOT exact: {self.missing:,} missing, {self.doubled:,} twice, {self.wrong:,} wrong of {self.found:,}"


class DemoResults:
    """All results of one query so far."""

    def __init__(self, followers: Sequence[Follower], parse: Callable[[str], Result]) -> None:
        self._followers = followers
        self._parse = parse
        self._found: Counter[Result] = Counter()

    def __len__(self) -> int:
        """How many there are, those that came twice counted twice."""
        return self._found.total()

    def read_new(self) -> int:
        """Take in what has come since the last call; returns how many results that were."""
        before = len(self)
        for follower in self._followers:
            for batch in follower.read_new():
                self._found.update(self._parse(value.decode()) for value in batch.column("value").to_pylist())
        return len(self) - before

    def compare(self, expected: Expected) -> Comparison:
        """Hold them against what must be there."""
        keys = Counter((window, key) for window, key, *_ in self._found.elements())
        return Comparison(
            found=len(self),
            missing=sum(1 for key in expected if not keys[key]),
            doubled=sum(count - 1 for count in keys.values()),
            wrong=sum(
                1 for window, key, count, figure in self._found if expected.get((window, key)) != (count, figure)
            ),
        )


def parse_average(value: str) -> Result:
    """A result of Spark's own aggregation: "window start in ms,item,purchases,average"."""
    window, item, count, average = value.split(",")
    return int(window), int(item), int(count), float(average)


def parse_spending(value: str) -> Result:
    """A result of the stateful query, as it writes results: a JSON object."""
    found = json.loads(value)
    start = datetime.fromisoformat(found["window"]["start"])
    return round(start.timestamp() * _MS), int(found["customer"]), int(found["purchases"]), float(found["spent"])


_MS: Final = 1000
