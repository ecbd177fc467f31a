"""How many requests of each kind were answered, and how long their answers took.

Invariants: the kinds are the requests that are served, so their number is bounded. A request counts once, when its
answer is ready; one that gets no answer does not count.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from logstore.base.histogram import Histogram

REQUEST_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60,
)  # fmt: skip
"""From an answer out of memory to a fetch or a join that waits."""


class RequestMeter:
    """The times of all requests of one server, from a frame's arrival to its ready answer."""

    def __init__(self, keys: Iterable[int]) -> None:
        """`keys`: the API keys of all requests that are answered."""
        self._times = {key: Histogram(REQUEST_BOUNDS_S) for key in keys}

    def of(self, api_key: int) -> Histogram:
        """The times of one kind of request."""
        return self._times[api_key]

    def used(self) -> Iterator[tuple[int, Histogram]]:
        """The kinds that were asked for at least once."""
        return ((key, times) for key, times in sorted(self._times.items()) if times.count)
