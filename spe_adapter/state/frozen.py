"""The base of a partition at one moment, frozen for a checkpoint while tasks go on: they read the base, and change it
for the next epoch.

A checkpoint is taken by any process of the host, without a task's help. It holds the base's lock in shared mode while
it freezes the pages, so that nobody is changing them; for that moment only.

Invariants:
* Only a base under a clean header is frozen: what is read is the version that the tag names, to the byte.
* Frozen pages belong to the base's file, and stay readable when another file has taken the base's name. Sequence
  numbers are comparable within a file only: a checkpoint builds on an earlier one of the same file, or is full.

Source: SGuard, section 4.4 (checkpoint and recovery of pages).
"""

from pathlib import Path
from typing import Final, NamedTuple

from spe_adapter.pages.errors import FreezeRefused
from spe_adapter.pages.frozen import FrozenPages
from spe_adapter.pages.kernels import load_loops
from spe_adapter.pages.page_memory import PageMemory
from spe_adapter.state.errors import StateDamaged
from spe_adapter.state.files import StateEnvironment, is_in_place, lock, map_start, open_file, unlock_and_close
from spe_adapter.state.paged import FreezePoint, FrozenBlock, freeze_block
from spe_adapter.state.query import QueryDirectory, default_root
from spe_adapter.state.segment import CLEAN, HEADER_BYTES, Header, Segment, StateOwner, Tag, segment_bytes
from spe_adapter.state.storage import BaseDescription

FREEZE_LIMIT_S: Final = 1.0
"""Time to wait for a base that a task is changing."""


class FrozenVersion(NamedTuple):
    """A version of a partition's state, frozen. `pages` must be released.

    `is_full`: `pages` are all pages that can differ from zero, not only those that changed since an earlier freeze.
    `point` is the `since` of the next checkpoint, once this one is complete.
    """

    owner: StateOwner
    tag: Tag | None
    capacity: int
    arena_bytes: int
    note: bytes
    page_bytes: int
    pages: FrozenPages
    point: FreezePoint
    is_full: bool

    @property
    def described(self) -> BaseDescription | None:
        """What `load_base` needs beside the pages; None for an empty state, which needs no checkpoint."""
        if self.tag is None:
            return None
        return BaseDescription(
            self.tag, self.owner.fingerprint, self.capacity, self.arena_bytes, self.page_bytes, self.note
        )


def freeze_base(
    root: Path | str | None,
    query: str,
    partition: int,
    since: FreezePoint | None = None,
    *,
    copies: int | None = None,
    environment: StateEnvironment | None = None,
    limit_s: float = FREEZE_LIMIT_S,
) -> FrozenVersion | None:
    """Freeze the base of a partition of a query whose state lies in `root` (None: the default): all of the base, or
    what changed since an earlier freeze of the same file.

    At most `copies` pages are copied aside for tasks that change them meanwhile; if more are needed, the freeze is
    cancelled. None if there is no whole base under a clean header, if a task changes it for longer than `limit_s`
    seconds, or if an earlier freeze is still being read. Raises OSError.
    """
    environment = StateEnvironment() if environment is None else environment
    directory = QueryDirectory(default_root() if root is None else Path(root), query, environment, limit_s)
    path = directory.base(partition)
    load_loops()  # tasks wait for the lock, and shall not wait for the compiler
    descriptor = open_file(path)
    if descriptor is None:
        return None
    try:
        if not lock(descriptor, environment, limit_s, exclusive=False) or not is_in_place(path, descriptor):
            return None
        return _freeze(descriptor, since, copies, environment)
    except (StateDamaged, FreezeRefused):
        return None
    finally:
        unlock_and_close(descriptor)


def _freeze(
    descriptor: int, since: FreezePoint | None, copies: int | None, environment: StateEnvironment
) -> FrozenVersion | None:
    """`freeze_base`, for a base under a shared lock."""
    size_bytes = segment_bytes(descriptor)
    if size_bytes is None:
        return None
    segment = Segment(map_start(descriptor, size_bytes), environment)
    header = segment.header()
    if header is None or header.state != CLEAN:
        return None
    table = segment.page_table()
    memory = PageMemory(segment.table_block(), table, descriptor, environment.step)
    block = freeze_block(memory, descriptor, HEADER_BYTES, since, copies, environment.step)
    return frozen_version(header, block)


def frozen_version(header: Header, block: FrozenBlock) -> FrozenVersion:
    """A frozen table with the header that describes its version: of a base, or of a private table (`state.paged`)."""
    return FrozenVersion(
        header.owner,
        header.tag,
        header.capacity,
        header.arena_bytes,
        header.note,
        block.pages.page_bytes,
        block.pages,
        block.point,
        block.is_full,
    )
