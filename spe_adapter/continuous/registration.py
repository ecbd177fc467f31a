"""The registration of a runner's partition as a reader of its sources and its target: retention keeps what a recovery
would read.

Invariants:
* The position in a source is the runner's needed offset, which lies behind what it has read: the input of open windows
  stays. The position in the target is that of the group with the oldest footprint of an open window.
* An older runner beside a newer one changes nothing, and ends with FencedIncarnation.
* A position is acknowledged after a committed epoch, at most every ACKNOWLEDGE_S, when the runner ends, and again while
  the runner waits for input.
* Records that are gone do not stop a runner that works: only a recovery would need them, and it says so.

Source: SGuard, section 3 (HAInput acknowledges what no recovery needs); docs/decisions/0022-registered-readers.md and
0026-trimming-and-default-retention.md.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from logstore.client.blocking import Client, TopicPartition
from logstore.format.reader_api import LOG_START
from spe_adapter.continuous.loop import Event, Recovered
from spe_adapter.continuous.port import FENCE_EPOCH
from spe_adapter.epochs.retention import ACKNOWLEDGE_S, EpochOffsets, HeldStreams

KEEP_ALIVE_MS: Final = 60_000.0
_MS_PER_S: Final = 1000.0


class Needed(NamedTuple):
    """What a recovery would read: the first offset of each source, and the oldest epoch of the target."""

    sources: Mapping[TopicPartition, int]
    target_epoch: int


class RunnerRegistration:
    """Registers one runner's partition as `reader`. `target` finds epochs in the target. `number` tells, after the
    runner's recovery, how many incarnations there were with this one.

    All methods raise TooManyReaders, FencedIncarnation if a newer runner has begun, and what the client raises.
    """

    def __init__(
        self,
        client: Client,
        reader: HeldStreams,
        needed: Callable[[], Needed],
        target: EpochOffsets,
        monotonic_ms: Callable[[], float],
        number: Callable[[], int],
    ) -> None:
        self._client = client
        self._reader = reader
        self._number = number
        self._needed = needed
        self._target = target
        self._monotonic_ms = monotonic_ms
        self._acknowledged_ms = 0.0

    def note(self, event: Event) -> None:
        """Take a runner's event: register after its recovery, acknowledge after committed epochs."""
        if isinstance(event, Recovered):
            self._reader.incarnation_number = self._number()
            self._reader.register(self._client, self._positions())
            self._acknowledged_ms = self._monotonic_ms()
        elif self._monotonic_ms() - self._acknowledged_ms >= ACKNOWLEDGE_S * _MS_PER_S:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Acknowledge what a recovery does not need."""
        self._reader.acknowledge(self._client, self._positions())
        self._acknowledged_ms = self._monotonic_ms()

    def keep_alive(self) -> None:
        """Acknowledge the former positions of a runner that waits for input, if it is time."""
        if self._monotonic_ms() - self._acknowledged_ms >= KEEP_ALIVE_MS:
            self._reader.keep_alive(self._client)
            self._acknowledged_ms = self._monotonic_ms()

    def _positions(self) -> dict[TopicPartition, int]:
        needed = self._needed()
        offset = None
        if needed.target_epoch != FENCE_EPOCH:
            offset = self._target.before(self._client, needed.target_epoch)
        return {**needed.sources, self._target.stream: LOG_START if offset is None else offset}
