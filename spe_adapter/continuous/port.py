"""The port of a runner, as a protocol: input, commits, the backward scan and time.

Invariants:
* One thread uses the port. `fetch` and `commit` start a request and return; `fetched` and `committed` give results,
  those of commits in the order of `commit`.
* An epoch that `committed` has returned is durable and visible; any other epoch may be or may not be.
"""

from typing import Final, NamedTuple, Protocol

from logstore.interfaces import Buffer
from spe_adapter.epochs.segments import StagedSegment

FENCE_EPOCH: Final = 0
"""The commit of this epoch, which is empty, makes an incarnation known to the log; other epochs follow it."""


class EpochOutput(NamedTuple):
    """The output of one epoch in its stream, and the positions that END holds."""

    epoch: int
    segments: tuple[StagedSegment, ...]
    positions: str


class Fetch(NamedTuple):
    """The answer to a fetch. `error` is Kafka's code, 0 for none; `records` are batches, the last one perhaps torn."""

    source: int
    error: int
    high_watermark: int
    log_start_offset: int
    records: Buffer


class ScannedBatches(NamedTuple):
    """Whole control batches of the output stream, newest first; `next_before` is the offset to scan from next."""

    batches: Buffer
    next_before: int
    log_start_offset: int


class Port(Protocol):
    """See the module."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch: the timestamp of records."""

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back: when an epoch is over."""

    def fence(self) -> int:
        """Make this incarnation the query's newest, durably, and return the last committed epoch. From then on no older
        incarnation commits, and what older ones committed is in the stream.
        """

    def scan(self, before_offset: int) -> ScannedBatches:
        """The newest control batches of the output stream below an offset (-1: the high watermark)."""

    def offset(self, source: int, moment: str) -> int:
        """A source's first ("earliest") or next ("latest") offset."""

    def fetch(self, source: int, offset: int) -> None:
        """Start to fetch from an offset on; one fetch per source at a time."""

    def fetched(self, wait_ms: float) -> Fetch | None:
        """An answer, waited for at most so long; None if there is none."""

    def commit(self, output: EpochOutput) -> None:
        """Start to stage and commit the output of an epoch."""

    def committed(self, *, wait: bool) -> int | None:
        """The oldest group that is committed and was not yet reported, by its epoch; None without one. `wait`: until
        there is one, if any is under way.
        """
