"""The durable list of complete checkpoints, as this room needs it; the coordinator keeps one.

Invariant: the registry is a help, never the truth: what it lists is checked against the sink, and what it has lost is
found again in the sink.
"""

from collections.abc import Sequence
from typing import Protocol

from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit


class Registry(Protocol):
    """Lists complete checkpoints of units. Methods raise CoordinatorError."""

    def register(self, manifest: Manifest, sink_url: str) -> None:
        """Add a complete checkpoint. The same one again changes nothing."""

    def complete(self, unit: Unit) -> Sequence[int]:
        """The sequence numbers of a unit's checkpoints, newest first."""

    def remove(self, unit: Unit, seq: int) -> None:
        """Take a checkpoint out. A missing one is no error."""


class NoRegistry:
    """Without a registry the sink's own listing counts."""

    def register(self, manifest: Manifest, sink_url: str) -> None:
        """Nothing."""

    def complete(self, unit: Unit) -> Sequence[int]:
        """None known."""
        return ()

    def remove(self, unit: Unit, seq: int) -> None:
        """Nothing."""
