"""State larger than the memory it may take: pages go to the disk and come back, and nothing else is different."""

import os
from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import pytest

from spe_adapter.pages.resident import resident_bytes, write_out
from spe_adapter.state.files import StateEnvironment, map_start, open_file, unlock_and_close
from spe_adapter.state.segment import HEADER_BYTES, Segment, segment_bytes
from spe_adapter.state.versions import StateDirectory
from tests.state.conftest import OPERATOR, QUERY, SCHEMA, check_marks, windows_of
from tests.state.history import long_history
from tests.state.test_frozen import check_table, frozen_of, written

LIMIT = 256 * 1024 * 1024
HISTORY = long_history(40_000, 5)
TAGS = [step.tag for step in HISTORY.steps]
SHARE = 10
"""The bound is one part in so many of the base."""
PROBE_BYTES = 1024 * 1024


def segment_of(base: Path) -> tuple[Segment, int]:
    """A base as another process sees it, and its length."""
    descriptor = open_file(base)
    assert descriptor is not None
    size_bytes = segment_bytes(descriptor)
    assert size_bytes is not None
    try:
        return Segment(map_start(descriptor, size_bytes), StateEnvironment()), size_bytes
    finally:
        unlock_and_close(descriptor)


def check_disk(directory: Path) -> None:
    """Skip the test where files lie in memory, so that nothing can be dropped."""
    path = directory / "probe"
    path.write_bytes(os.urandom(PROBE_BYTES))
    with path.open("r+b") as file:
        block = map_start(file.fileno(), PROBE_BYTES)
        write_out(block, file.fileno(), 0, PAGESIZE, np.arange(PROBE_BYTES // PAGESIZE), 0)
        if resident_bytes(block):
            pytest.skip(f"{directory} lies in memory")


def test_a_base_takes_a_tenth_of_its_size_in_memory(root: Path, tmp_path: Path) -> None:
    """Between uses; each version is right, in place and in copies, and so are its checkpoints."""
    check_disk(tmp_path)
    told: list[str] = []
    memory_bytes = 1024 * 1024
    for version, tag in enumerate(TAGS):
        directory = StateDirectory(
            root,
            QUERY,
            LIMIT,
            seed=3,
            memory_bytes=memory_bytes,
            environment=StateEnvironment(step=told.append),
        )
        with directory.open(0, SCHEMA, OPERATOR, tag, HISTORY.loader(tag)) as state:
            assert windows_of(state.base) == HISTORY.at(tag)
            check_marks(state.base, HISTORY, tag)
        base = next(root.glob("*/*/base"))
        segment, size_bytes = segment_of(base)
        assert segment.resident_bytes() <= memory_bytes + HEADER_BYTES
        if version % 2:
            check_table(written(frozen_of(root), run=40), version, HISTORY)
        memory_bytes = size_bytes // SHARE
    assert "write out" in told


def test_pages_are_dropped_and_come_back(tmp_path: Path) -> None:
    """As many as needed, in whatever units the system keeps them; their content is the same."""
    check_disk(tmp_path)
    content = np.random.default_rng(4).integers(0, 256, PROBE_BYTES, np.uint8)
    path = tmp_path / "pages"
    path.write_bytes(bytes(PROBE_BYTES))
    with path.open("r+b") as file:
        block = map_start(file.fileno(), PROBE_BYTES)
        block[:] = content
        order = np.arange(PROBE_BYTES // PAGESIZE)[::-1].copy()
        assert write_out(block, file.fileno(), 0, PAGESIZE, order, PROBE_BYTES) == 0
        dropped = write_out(block, file.fileno(), 0, PAGESIZE, order, PROBE_BYTES // 2)
        assert dropped >= PROBE_BYTES // 2
        assert resident_bytes(block) == PROBE_BYTES - dropped
        assert (block == content).all()
