"""Checkpoints of bases: freezes the base of a partition for the manager, and gives checkpoints to the state's loader.

Invariant: nothing here opens state for changes; a base is read through its frozen pages alone.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from spe_adapter.checkpoint.events import CHECKPOINT_REFUSED
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder, read_pages
from spe_adapter.checkpoint.snapshot import Freeze, Snapshot, VersionHeader
from spe_adapter.state.frozen import freeze_base
from spe_adapter.state.paged import FreezePoint
from spe_adapter.state.segment import Tag
from spe_adapter.state.storage import BaseDescription, PageRuns


def freezing(state_directory: Path) -> Callable[[Unit], Freeze]:
    """Gives for each unit the way to freeze its base in a state directory."""

    def of(unit: Unit) -> Freeze:
        def freeze(since: object) -> Snapshot | None:
            point = since if isinstance(since, FreezePoint) else None
            frozen = freeze_base(state_directory, unit.query, unit.partition, point)
            if frozen is None:
                return None
            if frozen.tag is None:  # an empty state needs no checkpoint
                frozen.pages.release()
                return None
            header = VersionHeader(
                frozen.owner.fingerprint,
                frozen.tag.epoch,
                frozen.tag.attempt,
                frozen.capacity,
                frozen.arena_bytes,
                frozen.note,
            )
            return Snapshot(header, frozen.pages, frozen.point, frozen.is_full)

        return freeze

    return of


class StoredBase(NamedTuple):
    """A checkpoint of a base in a sink: what `StateDirectory.open` takes as a `BaseCheckpoint`."""

    finder: Finder
    manifest: Manifest

    @property
    def described(self) -> BaseDescription:
        """The base at the checkpoint."""
        header = self.manifest.header
        return BaseDescription(
            Tag(header.epoch, header.attempt),
            header.fingerprint,
            header.capacity,
            header.arena_bytes,
            self.manifest.page_bytes,
            header.note,
        )

    def runs(self) -> PageRuns:
        """The pages, each once, in no order, from files that are read in parallel. Raises CheckpointDamaged and
        SinkFailed, also behind the last page.
        """
        reader = read_pages(self.finder.sink, self.manifest)
        try:
            yield from reader
        finally:
            reader.close()

    def refused(self, error: Exception) -> None:
        """Report that the checkpoint was not used, and why."""
        self.finder.report(CHECKPOINT_REFUSED, checkpoint=str(self.manifest.name), error=error)


def stored_bases(
    finder: Finder, unit: Unit, usable: Callable[[Manifest], bool] = lambda manifest: True
) -> Iterator[StoredBase]:
    """The checkpoints of a unit that are `usable`, newest first. Raises SinkFailed if the sink cannot be asked."""
    for manifest in finder.checkpoints(unit):
        if usable(manifest):
            yield StoredBase(finder, manifest)
