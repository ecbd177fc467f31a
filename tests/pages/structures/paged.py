"""What the tests of structures share: page sets in memory, and a state machine that freezes, recovers and loads.

A machine of a structure compares each operation with a model in plain Python. Beside that, pages are frozen at any
time, and must read as they were then, whatever happens to the structure; and no page changes without `touch`.
"""

from typing import Any

import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spe_adapter.pages.manager import PageManager, PageSet, SetsCheckpoint

PAGE_BYTES = 4096
RESERVE = 256
SETS = 3


def manager_of(sets: int = SETS, page_bytes: int = PAGE_BYTES, reserve: int = RESERVE) -> PageManager:
    """A manager in anonymous memory with empty page sets 0, 1, …"""
    manager = PageManager.create_file(page_bytes=page_bytes, max_pages=sets * reserve)
    for set_id in range(sets):
        manager.create(set_id, reserve)
    return manager


def sets_of(manager: PageManager) -> list[PageSet]:
    """All page sets of a manager."""
    return [manager.recover(set_id) for set_id in manager.sets()]


def load(checkpoint: SetsCheckpoint, skip: int | None = None) -> PageManager:
    """A new manager with the page sets of a checkpoint, or all but one, which is empty."""
    manager = PageManager.create_file(page_bytes=checkpoint.pages.page_bytes, max_pages=SETS * RESERVE)
    ids = checkpoint.pages.ids
    if skip is not None:
        ids = ids[ids >> 32 != skip]
    wanted = [described for described in checkpoint.sets if described.set_id != skip]
    manager.load(wanted, [(ids, checkpoint.pages.read(ids))])
    if skip is not None:
        manager.create(skip, RESERVE)
    return manager


class Announcements:
    """Watches all pages of a manager: which changed since the last look, and whether `touch` was called for them."""

    def __init__(self, manager: PageManager) -> None:
        self._manager = manager
        self._known: dict[int, bytes] = {}
        self._since = 0

    def check(self) -> None:
        """Every page that differs from what it was at the last look was announced."""
        table, memory = self._manager.table, self._manager.memory
        allocated = np.flatnonzero(table.is_allocated(np.arange(self._manager.max_pages)))
        content = dict(zip(allocated.tolist(), map(bytes, memory[allocated]), strict=True))
        announced = set(table.changed_since(self._since).tolist())
        changed = {page for page, held in content.items() if self._known.get(page) != held}
        assert changed <= announced, f"pages {sorted(changed - announced)} changed without an announcement"
        self._known, self._since = content, table.sequence
        table.advance()


class PagedMachine(RuleBasedStateMachine):
    """Freezing, recovering and loading, for the machine of a structure to inherit."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = manager_of()
        self.structure: Any = self.opened(sets_of(self.manager))
        self.announcements = Announcements(self.manager)
        self.other: Any = None
        self.frozen: Any = None
        self.expected: Any = None

    def opened(self, sets: list[PageSet]) -> Any:
        """The structure over page sets."""
        raise NotImplementedError

    def check(self, structure: Any) -> None:
        """Compare all content with the model."""
        raise NotImplementedError

    @invariant()
    def content(self) -> None:
        """The structure holds what the model holds."""
        self.check(self.structure)

    @invariant()
    def changes(self) -> None:
        """Every page that differs from what it was before the last operation was announced."""
        self.announcements.check()

    @precondition(lambda self: self.frozen is None)
    @rule()
    def freeze(self) -> None:
        """Freeze all pages."""
        self.frozen = self.manager.freeze(copies=SETS * RESERVE)
        self.expected = self.manager.memory[self.manager.resolve(self.frozen.ids)].copy()

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def read_frozen(self) -> None:
        """Frozen pages read as they were when they were frozen."""
        assert np.array_equal(self.frozen.read(self.frozen.ids), self.expected)
        self.frozen.release()
        self.frozen = None

    @rule()
    def recover(self) -> None:
        """A structure that is opened again holds the same."""
        self.structure = self.opened(sets_of(self.manager))

    @precondition(lambda self: self.frozen is None)
    @rule()
    def reload(self) -> None:
        """A structure whose pages were checkpointed and loaded elsewhere holds the same, and goes on."""
        checkpoint = self.manager.checkpoint(copies=SETS * RESERVE)
        loaded = load(checkpoint)
        checkpoint.pages.release()
        self.manager.close()
        self.manager = loaded
        self.announcements = Announcements(loaded)
        self.other = None
        self.structure = self.opened(sets_of(loaded))

    @rule()
    def second_view(self) -> None:
        """Two objects over the same pages, which change them in turn, agree: each notices what the other did."""
        other = self.other or self.opened(sets_of(self.manager))
        self.other, self.structure = self.structure, other

    def teardown(self) -> None:
        """Close the manager."""
        if self.frozen is not None:
            self.read_frozen()
        self.manager.close()
