"""Where checkpoints are kept, behind one protocol: a directory, or HDFS.

Invariants of every sink:
* One writer gets a name (`claim`); a manifest is there whole or not at all, and is written once (`seal`).
* What `write` and `seal` returned for survives a loss of power, as far as the sink's storage does.
* `remove` takes the manifest first: a checkpoint that is half removed is not complete.
* Errors are SinkFailed (SinkFull, SinkAway), CheckpointTaken, or CheckpointDamaged for a file that is missing or short.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from spe_adapter.checkpoint.errors import CheckpointDamaged
from spe_adapter.checkpoint.names import CheckpointName

READ_BYTES: Final = 4 << 20
"""The length of a range that a recovery asks for."""
MAX_MANIFEST_BYTES: Final = 64 << 20
"""A longer manifest is not read."""
Pieces = Callable[[], Iterator[bytes | memoryview]]
"""Gives the bytes of a file from its begin, each time that it is called."""


class FileContent(NamedTuple):
    """What is written as a file: `pieces`, of at most `max_bytes` together. `chain`: the addresses of the hosts that a
    plan names, in order, none without a plan. `replicas`: how many hosts are to keep it, where the sink has replicas.
    """

    max_bytes: int
    pieces: Pieces
    chain: tuple[str, ...] = ()
    replicas: int = 1


def check_manifest_bytes(where: object, size_bytes: int) -> None:
    """Raise CheckpointDamaged for a manifest that is too long to be read."""
    if size_bytes > MAX_MANIFEST_BYTES:
        raise CheckpointDamaged(f"{where}: a manifest of {size_bytes} bytes; at most {MAX_MANIFEST_BYTES} are read")


class Sink(Protocol):
    """A place for checkpoints. Methods may be called by several threads."""

    @property
    def url(self) -> str:
        """Where it is."""

    def is_there(self) -> bool:
        """Whether the sink's directory is there. The first checkpoint makes a missing one."""

    def claim(self, name: CheckpointName) -> None:
        """Make the directory of a checkpoint for this writer alone. Raises CheckpointTaken."""

    def write(self, name: CheckpointName, file: str, content: FileContent) -> tuple[str, ...]:
        """Write a file of a claimed checkpoint, in place of one that may be there; the addresses of its hosts, as far
        as they are known.
        """

    def seal(self, name: CheckpointName, manifest: bytes) -> None:
        """Write the manifest: from now on the checkpoint is complete. Raises CheckpointTaken if there is one."""

    def manifest(self, name: CheckpointName) -> bytes | None:
        """The manifest, None if the checkpoint is not complete."""

    def read(self, name: CheckpointName, file: str) -> Iterator[bytes]:
        """The bytes of a file, in ranges of at most READ_BYTES. Raises CheckpointDamaged if there is no such file."""

    def names(self) -> list[CheckpointName]:
        """All checkpoints here, complete or not, in any order."""

    def files(self, name: CheckpointName) -> Mapping[str, int]:
        """The files of a checkpoint with their bytes."""

    def remove(self, name: CheckpointName) -> None:
        """Remove a checkpoint, its manifest first. A missing checkpoint is no error."""

    def close(self) -> None:
        """Let go of connections."""
