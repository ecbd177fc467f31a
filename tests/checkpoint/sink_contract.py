"""What every sink promises, as functions over a sink; each is run over a directory and over HDFS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from spe_adapter.checkpoint.errors import CheckpointDamaged, CheckpointTaken, SinkFailed
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.names import Unit, checkpoint_name
from spe_adapter.checkpoint.recovery import Finder, recover
from spe_adapter.checkpoint.sinks import READ_BYTES, FileContent, Sink
from tests.checkpoint.state import UNIT, PagedState, rebuilt

NAME = checkpoint_name(UNIT, 1)
Contract = Callable[[Sink], None]


def content(data: bytes, replicas: int = 1) -> FileContent:
    """Content of a file, in pieces."""
    pieces = [data[start : start + 100_000] for start in range(0, len(data), 100_000)]
    return FileContent(len(data), lambda: iter(pieces), (), replicas)


def a_number_has_one_writer(sink: Sink) -> None:
    """Of many writers that claim a number, one gets it; the others are told that it is taken."""

    def claimed(_: int) -> bool:
        try:
            sink.claim(NAME)
        except CheckpointTaken:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claimed, range(8))) == 1
    assert sink.names() == [NAME]
    assert sink.is_there()
    assert sink.manifest(NAME) is None


def a_manifest_is_written_once(sink: Sink) -> None:
    """The first manifest stays, whoever tries again; it comes last and whole."""
    sink.claim(NAME)
    sink.write(NAME, "000", content(b"data"))
    assert sink.manifest(NAME) is None
    sink.seal(NAME, b"first")
    with pytest.raises(CheckpointTaken):
        sink.seal(NAME, b"second")
    assert sink.manifest(NAME) == b"first"
    assert {"000", "MANIFEST", "CLAIM"} == set(sink.files(NAME))


def files_are_read_as_written(sink: Sink) -> None:
    """Bytes of any length come back in bounded ranges; a second write takes the place of the first."""
    sink.claim(NAME)
    for size in (1, 1000, READ_BYTES, READ_BYTES + 1):
        sink.write(NAME, "000", content(b"other"))
        data = Random(size).randbytes(size)
        sink.write(NAME, "000", content(data))
        ranges = list(sink.read(NAME, "000"))
        assert b"".join(ranges) == data
        assert max(map(len, ranges)) <= READ_BYTES
        assert sink.files(NAME)["000"] == size


def a_file_that_is_missing_is_damage(sink: Sink) -> None:
    """A missing file is an error that names it; a missing checkpoint has no manifest and no files."""
    sink.claim(NAME)
    with pytest.raises(CheckpointDamaged, match="003"):
        list(sink.read(NAME, "003"))
    other = checkpoint_name(UNIT, 9)
    assert sink.manifest(other) is None
    assert not sink.files(other)
    with pytest.raises(SinkFailed):
        sink.seal(other, b"nothing was claimed")


def what_is_removed_is_gone(sink: Sink) -> None:
    """Removing takes everything, may be repeated, and touches no other checkpoint."""
    other = checkpoint_name(Unit("other", 0), 1)
    for name in (NAME, other):
        sink.claim(name)
        sink.write(name, "000", content(b"data"))
        sink.seal(name, b"manifest")
    sink.remove(NAME)
    sink.remove(NAME)
    assert sink.names() == [other]
    assert sink.manifest(other) == b"manifest"


def a_write_that_breaks_off_leaves_no_manifest(sink: Sink) -> None:
    """An error of whoever gives the bytes is raised, and the checkpoint stays incomplete."""

    def broken() -> Iterator[bytes]:
        yield b"x" * 1000
        raise CheckpointDamaged("the pages are gone")

    sink.claim(NAME)
    with pytest.raises(CheckpointDamaged, match="pages are gone"):
        sink.write(NAME, "000", FileContent(2000, broken))
    assert sink.manifest(NAME) is None


def checkpoints_come_back(sink: Sink) -> None:
    """A manager's checkpoints, full and incremental, are recovered exactly; old ones go."""
    state = PagedState(300, Random(7), 4096)
    manager = CheckpointManager(UNIT, state.freeze, ManagerTools(sink))
    for _ in range(4):
        outcome = manager.checkpoint()
        assert outcome.is_complete, outcome
        found = recover(Finder(sink), UNIT, lambda _: True, rebuilt)
        assert found is not None
        assert (found[1].manifest.header.epoch, found[0]) == (state.epoch, state.versions[state.epoch])
        state.change(200)
    assert len(Finder(sink).checkpoints(UNIT)) == len(sink.names()) <= 4


CONTRACTS: tuple[Contract, ...] = (
    a_number_has_one_writer,
    a_manifest_is_written_once,
    files_are_read_as_written,
    a_file_that_is_missing_is_damage,
    what_is_removed_is_gone,
    a_write_that_breaks_off_leaves_no_manifest,
    checkpoints_come_back,
)
