"""A stateful query's registration as a reader of its own output: retention keeps what a recovery of its state reads.

Invariants:
* The query is registered before its first epoch, at the end of each stream; from then on at the group of the epoch with
  the oldest footprint of an open window, as of a committed epoch.
* With checkpoints the position is behind the older of the last two of a partition, if that is later: the group of the
  checkpoint's epoch stays, as it tells which attempt counts.
* Positions are acknowledged after a commit, at most every ACKNOWLEDGE_S, and again while the query waits for input.
* In the first epoch of a new layout the streams of both layouts are held.
* An older incarnation that idles beside a newer one changes nothing, and ends with FencedIncarnation.

Source: docs/decisions/0022-registered-readers.md, 0026-trimming-and-default-retention.md and 0031-cleaning.md.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from logstore.client.blocking import Client, TopicPartition
from logstore.client.wire import LATEST
from logstore.errors import CairnError, FencedIncarnation
from logstore.format.reader_api import LOG_START
from spe_adapter.epochs.retention import ACKNOWLEDGE_S, EpochOffsets, HeldStreams, StateHistory
from spe_adapter.microbatch.checkpoint_watch import StandingCheckpoint
from spe_adapter.microbatch.committed import CommittedEpoch
from spe_adapter.microbatch.epoch import reader_name

KEEP_ALIVE_S: Final = 60.0
_log = logging.getLogger(__name__)


class OutputRegistration:
    """One incarnation's registration. `partitions` is the number of its state partitions; `history`: which of its
    records of state stay in the log.
    """

    def __init__(
        self, topic: str, query: str, partitions: int, history: StateHistory, monotonic_s: Callable[[], float]
    ) -> None:
        self._topic = topic
        self._query = query
        self._partitions = partitions
        self._monotonic_s = monotonic_s
        self._reader = HeldStreams(reader_name(query), query if history == "recovery" else "")
        self._offsets: dict[int, EpochOffsets] = {}
        self._acknowledged_s = monotonic_s()

    def begin(self, client: Client, last: CommittedEpoch | None, number: int) -> None:
        """Register at what the last committed epoch needs. `number` counts the query's incarnations with this one.
        Raises TooManyReaders, FencedIncarnation, and what the client raises.
        """
        self._offsets = {}
        # The sidecar forgets a query that has never committed, and counts anew: then an older number may stand there.
        # Such a query holds nothing that could be lost.
        self._reader.incarnation_number = 0 if last is None else number
        if last is None:
            streams = [TopicPartition(self._topic, partition) for partition in range(self._partitions)]
            ends = client.offsets(dict.fromkeys(streams, LATEST))
            self._reader.register(client, {stream: info.offset for stream, info in ends.items()})
        else:
            self._reader.register(client, self._needed(client, last))
        self._reader.incarnation_number = number
        self._acknowledged_s = self._monotonic_s()

    def note(self, client: Client, last: CommittedEpoch, covered: Sequence[StandingCheckpoint | None] = ()) -> None:
        """Acknowledge what a newly committed epoch does not need, if it is time. An error does not fail the epoch,
        which is committed: the records are held for longer. `covered`: of each partition the checkpoint behind which a
        recovery reads the log.
        """
        if self._monotonic_s() - self._acknowledged_s < ACKNOWLEDGE_S:
            return
        self._acknowledged_s = self._monotonic_s()
        try:
            self._reader.acknowledge(client, self._needed(client, last, covered))
        except CairnError as error:
            _log.warning("query %s: reader %r acknowledged nothing (%s)", self._query, self._reader.name, error)

    def keep_alive(self, connect: Callable[[], Client]) -> None:
        """Acknowledge the former position of a query that waits for input, if it is time. Raises FencedIncarnation if a
        newer incarnation has begun: this one is to end.
        """
        if self._monotonic_s() - self._acknowledged_s < KEEP_ALIVE_S:
            return
        self._acknowledged_s = self._monotonic_s()
        try:
            with connect() as client:
                self._reader.keep_alive(client)
        except FencedIncarnation:
            raise
        except CairnError as error:
            _log.warning("query %s: reader %r acknowledged nothing (%s)", self._query, self._reader.name, error)

    def _needed(
        self, client: Client, last: CommittedEpoch, covered: Sequence[StandingCheckpoint | None] = ()
    ) -> dict[TopicPartition, int]:
        """Per stream, the first offset that a recovery of this epoch reads."""
        new = range(len(last.oldest_epochs), self._partitions)
        needed = {TopicPartition(self._topic, partition): LOG_START for partition in new}
        for partition, oldest_epoch in enumerate(last.oldest_epochs):
            stream = TopicPartition(self._topic, partition)
            offsets = self._offsets.setdefault(partition, EpochOffsets(stream, self._query))
            checkpoint = covered[partition] if partition < len(covered) else None
            # Either is enough: the footprints of all open windows, or a checkpoint and what came after it.
            epoch = oldest_epoch if checkpoint is None else max(oldest_epoch, checkpoint.epoch)
            offset = offsets.before(client, epoch)
            needed[stream] = LOG_START if offset is None else offset
        return needed
