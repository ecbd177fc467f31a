"""A small state of pages that can be frozen, changed and rebuilt, and what tests need around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder, PageRuns, recover
from spe_adapter.checkpoint.snapshot import Snapshot, VersionHeader
from spe_adapter.codec.kernels import Bytes, Int64s

PAGE_BYTES = 512
UNIT = Unit("totals of Ä/1", 3)


class FrozenArray:
    """A copy of some pages of an array; `released` and `given_back` tell what its reader did."""

    def __init__(self, content: Bytes, ids: Int64s) -> None:
        self.ids = ids
        self.page_bytes = content.shape[1]
        self.released = False
        self.given_back: list[int] = []
        self.is_cancelled = False
        self._content = content.copy()

    def read(self, ids: Int64s) -> Bytes:
        """The content at the freeze."""
        assert not self.released
        return self._content[ids]

    def written(self, ids: Int64s) -> None:
        """Give pages back."""
        self.given_back.extend(ids.tolist())

    def release(self) -> None:
        """End the freeze."""
        self.released = True


class PagedState:
    """An array of pages with an epoch; every change is known to the next incremental freeze."""

    def __init__(self, pages: int, random: Random, page_bytes: int = PAGE_BYTES) -> None:
        self.random = random
        self.content: Bytes = np.array([_page(random, page_bytes) for _ in range(pages)])
        self.epoch = 1
        self.number = 0
        self.frozen: list[FrozenArray] = []
        self.versions: dict[int, bytes] = {}
        self._changed = np.zeros(pages, np.int64)
        self._note()

    def change(self, pages: int = 3) -> None:
        """The next epoch: some pages change."""
        chosen = self.random.sample(range(len(self.content)), min(pages, len(self.content)))
        for page in chosen:
            self.content[page] = _page(self.random, self.content.shape[1])
        self._changed[chosen] = self.number + 1
        self.epoch += 1
        self._note()

    def freeze(self, since: object) -> Snapshot | None:
        """Freeze all pages, or those that changed since."""
        self.number += 1
        ids = np.arange(len(self.content)) if since is None else np.flatnonzero(self._changed > int(str(since)))
        frozen = FrozenArray(self.content, ids.astype(np.int64))
        self.frozen.append(frozen)
        header = VersionHeader("print", self.epoch, f"{self.epoch}-a", len(self.content), 7, b"note")
        return Snapshot(header, frozen, self.number, since is None)

    def _note(self) -> None:
        self.versions[self.epoch] = self.content.tobytes()


def _page(random: Random, page_bytes: int) -> Bytes:
    """A page of noise, of noise that repeats, or of small words: of each form that runs are stored in."""
    kind = random.randrange(3)
    if kind == 0:
        return np.frombuffer(random.randbytes(page_bytes), np.uint8)
    if kind == 1:
        return np.frombuffer(random.randbytes(page_bytes // 8) * 8, np.uint8)
    return np.array([random.randrange(1000) for _ in range(page_bytes // 8)], np.int64).view(np.uint8)


def rebuilt(manifest: Manifest, runs: PageRuns) -> bytes:
    """The content that a recovery reads."""
    content = np.zeros((manifest.header.capacity, manifest.page_bytes), np.uint8)
    seen = np.zeros(manifest.header.capacity, np.int64)
    for ids, pages in runs:
        content[ids] = pages
        seen[ids] += 1
    assert (seen == 1).all()
    return content.tobytes()


def recovered(root: Path, unit: Unit = UNIT, finder: Finder | None = None) -> tuple[int, bytes] | None:
    """Epoch and content of the newest checkpoint that checks."""
    found = recover(finder or Finder(DirectorySink(root)), unit, lambda _: True, rebuilt)
    return None if found is None else (found[1].manifest.header.epoch, found[0])


def manager_of(state: PagedState, root: Path, step: Callable[[str], None] | None = None) -> CheckpointManager:
    """A manager that writes the state into a directory."""
    sink = DirectorySink(root) if step is None else DirectorySink(root, step)
    return CheckpointManager(UNIT, state.freeze, ManagerTools(sink))
