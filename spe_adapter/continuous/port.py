"""The port of a runner: the interface to input, commits, the backward scan and time.

Invariants:
* One thread uses the port. `fetch` and `commit` start a request and return; `fetched` and `committed` return results,
  the results of commits in the order of the calls.
* An epoch that `committed` has returned is durable and visible. Whether any other epoch is, is unknown.
"""

from typing import Final, NamedTuple, Protocol

from logstore.interfaces import Buffer
from spe_adapter.epochs.segments import StagedSegment

FENCE_EPOCH: Final = 0
"""The commit of this epoch, which is empty, makes an incarnation known to the log; other epochs follow it."""


class EpochOutput(NamedTuple):
    """The output of one epoch for its stream, and the positions that its END will hold."""

    epoch: int
    segments: tuple[StagedSegment, ...]
    positions: str


class Fetch(NamedTuple):
    """The answer to a fetch. `error` is Kafka's code, 0 for none; `records` are batches, the last of which may be cut
    off.
    """

    source: int
    error: int
    high_watermark: int
    log_start_offset: int
    records: Buffer


class ScannedBatches(NamedTuple):
    """Whole control batches of the output stream, newest first; `next_before` is the offset for the next scan."""

    batches: Buffer
    next_before: int
    log_start_offset: int


class Port(Protocol):
    """The outside world of one runner."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970: the timestamp of records."""

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back: it tells when an epoch ends."""

    def fence(self) -> int:
        """Make this incarnation the query's newest, durably, and return the last committed epoch. From then on no older
        incarnation commits, and what older ones committed is in the stream.
        """

    def scan(self, before_offset: int) -> ScannedBatches:
        """The newest control batches of the output stream below an offset (-1: the high watermark)."""

    def offset(self, source: int, moment: str) -> int:
        """The first ("earliest") or the next ("latest") offset of a source."""

    def fetch(self, source: int, offset: int) -> None:
        """Start a fetch of a source from an offset; one fetch per source at a time."""

    def fetched(self, wait_ms: float) -> Fetch | None:
        """The answer to a fetch, waiting at most `wait_ms`; None if none has arrived."""

    def commit(self, output: EpochOutput) -> None:
        """Start to stage and commit the output of an epoch."""

    def committed(self, *, wait: bool) -> int | None:
        """The oldest committed epoch that this method has not returned before, or None.

        `wait`: wait for it, if a commit is in progress.
        """
