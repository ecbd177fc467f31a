"""What the driver of a stateful query knows of its complete checkpoints, and what they cover.

A thread lists the sink every few seconds, beside the epochs. What it finds counts once the log confirms it: the
checkpoint's epoch stands in the present layout and generation, and its attempt is the one that the log has.

Invariants:
* A checkpoint that a reset has undone, or of another layout, operator or attempt, covers nothing.
* A partition is covered up to the older of its last two recoverable checkpoints: if the newest is damaged, the log
  behind the other one is still there.
* An epoch never waits for the sink, and never fails with it.

Source: SGuard, section 3 (acknowledge once a checkpoint is registered); docs/decisions/0026.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from logstore.client.blocking import Client, TopicPartition
from logstore.errors import CairnError
from spe_adapter.cec.control import EndPositions
from spe_adapter.checkpoint.errors import CheckpointFailed
from spe_adapter.checkpoint.log_lines import log_event
from spe_adapter.checkpoint.manifest import Manifest, decode_manifest
from spe_adapter.checkpoint.names import CheckpointName, Unit
from spe_adapter.checkpoint.retention_rules import KEPT, RECENT, recoverable
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink_to_read
from spe_adapter.checkpoint.sinks import Sink
from spe_adapter.epochs.scan import find_head
from spe_adapter.host import Host
from spe_adapter.microbatch.epoch import QueryDefinition
from spe_adapter.microbatch.epoch_end import NOT_COVERED
from spe_adapter.state.layout import fingerprint_of

WATCH_S: Final = 5.0
LOOKED_AT: Final = 64
"""Of the newest directories of a unit, so many are looked at, until RECENT of them are complete."""
_log = logging.getLogger(__name__)


class StandingCheckpoint(NamedTuple):
    """A complete checkpoint whose epoch and attempt the log has. `emitted`: the counter of the epoch's mark."""

    seq: int
    epoch: int
    emitted: int
    size_bytes: int


class _Layout(NamedTuple):
    """What a checkpoint's epoch must be of: the same generation and layout as the query's last epoch."""

    generation: int
    layout: int


class CheckpointWatch:
    """The checkpoints of the `partitions` units of a query. `fingerprint` is that of a base's owner."""

    def __init__(
        self,
        settings: CheckpointSettings,
        query: str,
        topic: str,
        partitions: int,
        fingerprint: str,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._query = query
        self._topic = topic
        self._partitions = partitions
        self._fingerprint = fingerprint
        self._monotonic_s = monotonic_s
        self._looked_s: float | None = None
        self._looking: threading.Thread | None = None
        self._found: Mapping[int, Sequence[Manifest]] = {}
        self._manifests: dict[CheckpointName, Manifest] = {}
        self._layout: _Layout | None = None
        self._confirmed: dict[tuple[int, int], StandingCheckpoint | None] = {}
        self._standing: dict[int, list[StandingCheckpoint]] = {}

    def note(self, client: Client, progress: EndPositions) -> None:
        """Take what was found since the last call, as confirmed by the log, and look again if it is time. `progress` is
        that of the last committed epoch. Raises what the client raises.
        """
        layout = _Layout(progress.generation, progress.layout)
        if layout != self._layout:
            self._layout, self._confirmed, self._standing = layout, {}, {}
        self._look()
        found = self._found
        confirmed = {
            partition: [self._confirm(client, manifest) for manifest in manifests]
            for partition, manifests in found.items()
        }
        # By epoch: a host that the partition has left may write its old version under the newest number. What is not
        # found any more covers nothing.
        self._standing = {
            partition: sorted((one for one in seen if one is not None), key=lambda one: one.epoch, reverse=True)[:KEPT]
            for partition, seen in confirmed.items()
        }
        known = {(partition, manifest.seq) for partition, manifests in found.items() for manifest in manifests}
        self._confirmed = {key: one for key, one in self._confirmed.items() if key in known}

    def newest(self) -> tuple[StandingCheckpoint | None, ...]:
        """The newest checkpoint of each partition."""
        found = (self._standing.get(partition) for partition in range(self._partitions))
        return tuple(standing[0] if standing else None for standing in found)

    def covering(self) -> tuple[StandingCheckpoint | None, ...]:
        """Of each partition, the checkpoint up to which the log is not needed: the older of the last two."""
        found = (self._standing.get(partition, ()) for partition in range(self._partitions))
        return tuple(standing[KEPT - 1] if len(standing) >= KEPT else None for standing in found)

    def named(self) -> tuple[tuple[int, int] | None, ...]:
        """Sequence number and epoch of the newest checkpoint of each partition; empty if there is none at all."""
        newest = self.newest()
        return tuple(one and (one.seq, one.epoch) for one in newest) if any(newest) else ()

    def covered_emitted(self) -> tuple[int, ...]:
        """Of each partition, the counter `emitted` at the checkpoint that covers it, NOT_COVERED without one."""
        return tuple(NOT_COVERED if one is None else one.emitted for one in self.covering())

    def join(self, timeout_s: float) -> None:
        """Wait until the present look is over."""
        if self._looking is not None:
            self._looking.join(timeout_s)

    # ---- the log

    def _confirm(self, client: Client, manifest: Manifest) -> StandingCheckpoint | None:
        key = (manifest.unit.partition, manifest.seq)
        if key not in self._confirmed:
            self._confirmed[key] = self._asked(client, manifest)
        return self._confirmed[key]

    def _asked(self, client: Client, manifest: Manifest) -> StandingCheckpoint | None:
        header = manifest.header
        if header.fingerprint != self._fingerprint:
            return None
        stream = TopicPartition(self._topic, manifest.unit.partition)
        head = find_head(client, stream, self._query, epoch=header.epoch)
        if head is None or head.mark is None or head.mark.attempt != header.attempt:
            return None
        progress = EndPositions.from_json(head.end.positions)
        if _Layout(progress.generation, progress.layout) != self._layout:
            return None
        return StandingCheckpoint(manifest.seq, header.epoch, head.mark.emitted, manifest.state_bytes)

    # ---- the sink

    def _look(self) -> None:
        """List the sink on a thread, unless one is at it."""
        if self._looking is not None and self._looking.is_alive():
            return
        now_s = self._monotonic_s()
        if self._looked_s is not None and now_s - self._looked_s < WATCH_S:
            return
        self._looked_s = now_s
        self._looking = threading.Thread(target=self._list, name=f"checkpoints of {self._query}", daemon=True)
        self._looking.start()

    def _list(self) -> None:
        try:
            self._found = self._listed()
        except (CairnError, OSError) as error:
            _log.warning("query %s: checkpoints at %s: %s", self._query, self._settings.sink, error)

    def _listed(self) -> dict[int, list[Manifest]]:
        """The recoverable checkpoints of each partition, newest first."""
        units = {unit.name: unit for unit in (Unit(self._query, partition) for partition in range(self._partitions))}
        found: dict[int, list[Manifest]] = {}
        with closing(open_sink_to_read(self._settings, log_event, WATCH_S)) as sink:
            seqs: dict[str, set[int]] = defaultdict(set)
            for name in sink.names():
                if name.unit in units:
                    seqs[name.unit].add(name.seq)
            known: dict[CheckpointName, Manifest] = {}
            for unit, present in seqs.items():
                own: list[Manifest] = []
                for seq in sorted(present, reverse=True)[:LOOKED_AT]:
                    manifest = self._manifest_of(sink, CheckpointName(unit, seq))
                    if manifest is not None:
                        own.append(manifest)
                    if len(own) == RECENT:
                        break
                known |= {manifest.name: manifest for manifest in own}
                found[units[unit].partition] = recoverable(own, present)
            self._manifests = known
        return found

    def _manifest_of(self, sink: Sink, name: CheckpointName) -> Manifest | None:
        """A complete checkpoint whose manifest is whole; it is read once."""
        manifest = self._manifests.get(name)
        if manifest is not None:
            return manifest
        data = sink.manifest(name)
        return None if data is None else _decoded(data, name, f"{sink.url}/{name}")


def watch_of(fixed: QueryDefinition, query: str, host: Host) -> CheckpointWatch | None:
    """The watch of a query's checkpoints; None if it writes none."""
    settings = fixed.options.checkpoints
    if settings is None:
        return None
    fingerprint = fingerprint_of(fixed.operator.state_schema(fixed.schema), fixed.fingerprint).hex()
    monotonic_s = host.network.monotonic_s
    return CheckpointWatch(settings, query, fixed.options.topic, fixed.partitions, fingerprint, monotonic_s)


def _decoded(data: bytes, name: CheckpointName, where: str) -> Manifest | None:
    try:
        return decode_manifest(data, name, where)
    except CheckpointFailed as error:
        _log.warning("%s", error)
        return None
