"""The coordinator as the registry of checkpoints.

Invariant: what the coordinator lists is only as true as the sink: nothing here looks at files.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from scheduler.client import CompleteCheckpoint, CompleteFile, Conflict, CoordinatorClient
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit

_CONFLICT: Final = HTTPStatus.CONFLICT.value


class CoordinatorRegistry:
    """Complete checkpoints in the coordinator of `client`. Methods raise CoordinatorError."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client

    def register(self, manifest: Manifest, sink_url: str) -> None:
        """Add a complete checkpoint; the same one again changes nothing. Raises Conflict if the coordinator does not
        know all that it builds on: a registry that was lost needs a full checkpoint.
        """
        files = tuple(CompleteFile(file.name, file.size_bytes, file.crc32c, file.hosts) for file in manifest.files)
        self._client.register_checkpoint(
            CompleteCheckpoint(
                manifest.unit.name,
                manifest.seq,
                sink_url,
                manifest.header.epoch,
                manifest.state_bytes,
                manifest.written_ms,
                files,
                manifest.bases,
                manifest.header.attempt,
            )
        )
        if manifest.bases:
            newest = self._client.newest_checkpoint(manifest.unit.name)
            if newest is None or newest.seq < manifest.seq:
                raise Conflict(
                    _CONFLICT,
                    f"{manifest.name} builds on {list(manifest.bases)}, and the registry does not know them all",
                )

    def complete(self, unit: Unit) -> Sequence[int]:
        """The sequence numbers of a unit's checkpoints, newest first."""
        return [int(listed["seq"]) for listed in self._client.checkpoints(unit.name)]

    def remove(self, unit: Unit, seq: int) -> None:
        """Take a checkpoint out. Raises Conflict while another one builds on it."""
        self._client.remove_checkpoint(unit.name, seq)
