"""What a check found: each finding names a file, a position and the offsets that it concerns.

Invariant: `DAMAGE` means that something acknowledged, or that a start needs, is wrong on disk; no crash alone makes it.
"""

from dataclasses import dataclass, field
from typing import Final

DAMAGE: Final = "damage"
NOTE: Final = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `position` is a byte of the file; offsets are those that are lost or concerned; None: none.

    `kind` is stable, for programs (docs/command-line.md lists all kinds).
    """

    severity: str
    kind: str
    path: str
    message: str
    position: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    @property
    def is_damage(self) -> bool:
        """Whether it is more than a crash may leave."""
        return self.severity == DAMAGE


@dataclass(slots=True)
class Counts:
    """How much was read."""

    files: int = 0
    bytes: int = 0
    chunks: int = 0
    batches: int = 0

    def add(self, other: "Counts") -> None:
        """Count what another check has read, too."""
        self.files += other.files
        self.bytes += other.bytes
        self.chunks += other.chunks
        self.batches += other.batches


@dataclass(slots=True)
class Findings:
    """The findings of one check, in the order in which they were made, and what was read for them."""

    found: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def damage(
        self, kind: str, path: str, message: str, *, position: int | None = None, lost: tuple[int, int] | None = None
    ) -> None:
        """Note damage; `lost` are the first and the last offset that are gone or concerned."""
        first, last = lost if lost is not None else (None, None)
        self.found.append(Finding(DAMAGE, kind, path, message, position, first, last))

    def note(
        self, kind: str, path: str, message: str, *, position: int | None = None, lost: tuple[int, int] | None = None
    ) -> None:
        """Note what a crash may leave."""
        first, last = lost if lost is not None else (None, None)
        self.found.append(Finding(NOTE, kind, path, message, position, first, last))

    def add(self, other: "Findings") -> None:
        """Take over what another check found."""
        self.found += other.found
        self.counts.add(other.counts)

    @property
    def damages(self) -> list[Finding]:
        """The damage."""
        return [finding for finding in self.found if finding.is_damage]
