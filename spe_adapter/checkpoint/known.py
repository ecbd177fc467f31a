"""Which checkpoints of a query's units are complete, for whoever lets go of what they cover.

Invariants:
* One listing for all units; a manifest is read once.
* What is known is complete in the sink now, with all that it builds on; a checkpoint that goes is forgotten.
"""

from collections.abc import Collection, Mapping

from spe_adapter.checkpoint.errors import CheckpointDamaged
from spe_adapter.checkpoint.events import CHECKPOINT_REFUSED
from spe_adapter.checkpoint.manifest import Manifest, decode_manifest
from spe_adapter.checkpoint.names import CheckpointName, Unit
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.retention_rules import KEPT, recoverable


class KnownCheckpoints:
    """The complete checkpoints of some units."""

    def __init__(self, finder: Finder, units: Collection[Unit]) -> None:
        self._finder = finder
        self._units = {unit.name: unit for unit in units}
        self._manifests: dict[CheckpointName, Manifest] = {}
        self._damaged: set[CheckpointName] = set()

    def refresh(self) -> Mapping[Unit, tuple[Manifest, ...]]:
        """For each unit the last complete checkpoints, at most KEPT, last written first; units without any are left
        out. Raises SinkFailed.
        """
        names = {name for name in self._finder.sink.names() if name.unit in self._units}
        self._manifests = {name: manifest for name, manifest in self._manifests.items() if name in names}
        self._damaged &= names
        found: dict[Unit, tuple[Manifest, ...]] = {}
        seqs: dict[str, set[int]] = {}
        for name in names:
            seqs.setdefault(name.unit, set()).add(name.seq)
        for unit_name, own in seqs.items():
            for seq in sorted(own, reverse=True)[: 2 * KEPT]:
                self._learn(CheckpointName(unit_name, seq))
            known = [manifest for name, manifest in self._manifests.items() if name.unit == unit_name]
            whole = recoverable(known, own)[:KEPT]
            if whole:
                found[self._units[unit_name]] = tuple(whole)
        return found

    def _learn(self, name: CheckpointName) -> None:
        if name in self._manifests or name in self._damaged:
            return
        data = self._finder.sink.manifest(name)
        if data is None:
            return
        try:
            self._manifests[name] = decode_manifest(data, name, f"{self._finder.sink.url}/{name}")
        except CheckpointDamaged as error:
            self._damaged.add(name)
            self._finder.report(CHECKPOINT_REFUSED, checkpoint=str(name), error=error)
