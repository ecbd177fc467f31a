"""Which checkpoints of a unit are kept, and on what the next one builds.

Invariants:
* The newest KEPT checkpoints that can be recovered are kept, with all that they build on. What is older goes only
  while they are there.
* Of the RECENT newest ones, the KEPT with the highest epochs are kept as well: a host that a unit has left may still
  write the old version that it has, under a new number.
* No clock, no I/O: names and manifests come in.
"""

from collections.abc import Collection, Iterable
from typing import Final

from spe_adapter.checkpoint.manifest import Manifest

KEPT: Final = 2
"""If the newest is damaged, there is the one before."""
RECENT: Final = 8
"""After so many checkpoints of a query that was made anew under an old name, those of the old one go."""
MAX_CHAIN: Final = 8
"""Checkpoints that an incremental one may build on: a recovery opens the files of all of them."""
MAX_GARBAGE_SHARE: Final = 0.5
"""Share of the pages read in a recovery that newer files supersede; beyond it a full checkpoint is written."""


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Manifests by epoch, then by sequence number: the order in which a recovery tries them."""
    return sorted(manifests, key=lambda manifest: (manifest.header.epoch, manifest.seq), reverse=True)


def recoverable(manifests: Iterable[Manifest], seqs: Collection[int]) -> list[Manifest]:
    """The checkpoints whose parts are all among the directories `seqs`, last written first.

    Not by epoch: a query that was made anew under an old name begins at a low epoch.
    """
    whole = [manifest for manifest in manifests if {part.seq for part in manifest.parts} <= set(seqs)]
    return sorted(whole, key=lambda manifest: manifest.seq, reverse=True)


def to_remove(manifests: Collection[Manifest], seqs: Collection[int]) -> list[int]:
    """The sequence numbers that may go, oldest first: complete or abandoned ones that no kept checkpoint needs.

    `seqs`: all directories of the unit. Directories above the oldest kept one are never removed: another writer may be
    at work there.
    """
    recent = recoverable(manifests, seqs)[:RECENT]
    if len(recent) < KEPT:
        return []
    kept = [*recent[:KEPT], *newest_first(recent)[:KEPT]]
    needed = {part.seq for manifest in kept for part in manifest.parts}
    limit = min(manifest.seq for manifest in kept)
    return sorted(seq for seq in seqs if seq < limit and seq not in needed)


def garbage_share(manifest: Manifest) -> float:
    """The share of the pages in all its files that newer files supersede."""
    return 1.0 - manifest.state_bytes / manifest.all_page_bytes if manifest.all_page_bytes else 0.0


def may_build_on(manifest: Manifest, seqs: Collection[int]) -> bool:
    """Whether the next checkpoint may hold only what changed since this one."""
    return (
        len(manifest.parts) <= MAX_CHAIN
        and {part.seq for part in manifest.parts} <= set(seqs)
        and garbage_share(manifest) <= MAX_GARBAGE_SHARE
    )
