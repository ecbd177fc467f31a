"""What a producer has sent meanwhile, and when the cluster said that it has it.

Invariants: a load's records are the numbers from 0 on, in partition 0 of one topic. A record is acknowledged where its
client says so, at the moment at which it says so.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

from benchmarks.harness.process import PeerFailed
from logstore.testing.cluster import Cluster

PATIENCE_S: Final = 120.0
PACE_S: Final = 0.001
LOOK_S: Final = 0.005


class ClientLoad:
    """The records of one producer until `ended` is set."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """Those that were acknowledged."""
        self.times_s: list[float] = []
        """Of acknowledgements, on the monotonic clock."""
        self.errors: list[str] = []
        self.sent = 0
        self.ended = threading.Event()
        self.failure: Exception | None = None
        """What ended the client."""

    def acknowledged(self, offset: int, number: int) -> None:
        """The cluster has a record at an offset."""
        del offset  # the whole topic is read at the end
        self.numbers.append(number)
        self.times_s.append(time.monotonic())

    def wait_answered(self, since_s: float) -> None:
        """Until a record was acknowledged behind a moment. Raises PeerFailed."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (self.times_s and self.times_s[-1] > since_s):
            if self.failure is not None or time.monotonic() > deadline_s:
                raise PeerFailed(f"no record is acknowledged: {self.failure!r}, {self.errors[-3:]}")
            time.sleep(LOOK_S)

    def silence_s(self, since_s: float, until_s: float) -> float:
        """The longest time without an acknowledgement between two moments."""
        times = [since_s, *(at for at in list(self.times_s) if since_s < at < until_s), until_s]
        return max(after - before for before, after in pairwise(times))

    def lost_and_doubled(self, found: Iterable[int]) -> tuple[int, int]:
        """How many acknowledged records are not in the topic, and how many records are there more than once."""
        counts = Counter(found)
        return len(set(self.numbers) - counts.keys()), sum(count - 1 for count in counts.values())


@contextmanager
def producing(cluster: Cluster, run: Callable[[Cluster, ClientLoad], None]) -> Iterator[ClientLoad]:
    """A client that produces meanwhile, from its first acknowledgement on; at the end it has all its answers. Raises
    PeerFailed if it ends by itself, or does not end.
    """
    load = ClientLoad()

    def guarded() -> None:
        try:
            run(cluster, load)
        except Exception as error:  # noqa: BLE001  told to who waits for the client
            load.failure = error

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    try:
        load.wait_answered(0.0)
        yield load
    finally:
        load.ended.set()
        thread.join(PATIENCE_S)
    if load.failure is not None or thread.is_alive():
        raise PeerFailed(f"the client has not ended well: {load.failure!r}")
