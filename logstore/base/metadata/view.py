"""What lies under a prefix of a metadata store, kept in memory and up to date: reads of it need no store.

Invariants:
* A key never goes back to an older entry. After changes that came while the entries were read in several pages, keys
  may for a moment be as of different revisions; up to MAX_PAGE_ENTRIES entries are read in one moment.
* While the store is away the view stays as it was, and says nothing new; it catches up by itself.
* After Compacted everything is read again; what was removed meanwhile goes.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from logstore.base.metadata.errors import Compacted, MetadataUnavailable
from logstore.base.metadata.interface import ABSENT, Changes, Entry, MetadataStore
from logstore.base.metadata.local_watch import ChangeSignal

KeyChanged = Callable[[str, Entry | None], None]
"""Takes a key and its new entry, None if it was removed."""


def _nobody(key: str, entry: Entry | None) -> None:
    """Nobody wants to know which keys change."""


class MetadataView:
    """See the module. `run` must run for it to have anything. `key_changed` is told each change, when the view has
    all that changed with it.
    """

    def __init__(self, store: MetadataStore, prefix: str, key_changed: KeyChanged = _nobody) -> None:
        self._store = store
        self._prefix = prefix
        self._entries: dict[str, Entry] = {}
        self._changed = ChangeSignal()
        self._key_changed = key_changed
        self.entries: Mapping[str, Entry] = MappingProxyType(self._entries)
        self.revision = 0
        """The newest revision that the view has; 0 before it was read for the first time."""

    async def run(self) -> None:
        """Keep the view up to date, until cancelled. Raises MetadataRefused, MetadataDamaged."""
        while True:
            try:
                after = await self._read()
                async with self._store.watch(self._prefix, after) as watch:
                    while True:
                        self._apply(await watch.receive())
            except (Compacted, MetadataUnavailable):
                continue  # both have waited: the one for changes, the other for the store

    async def reached(self, revision: int) -> None:
        """Wait until the view has a revision, such as that of a commit under its prefix; 1: until it has been read."""
        while self.revision < revision:
            await self._changed.wait()

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    async def _read(self) -> int:
        """Read all pages; returns the revision to watch from."""
        page = await self._store.page(self._prefix)
        first = page.revision
        found = {entry.key: entry for entry in page.entries}
        while page.more:
            page = await self._store.page(self._prefix, after=page.entries[-1].key)
            found.update((entry.key, entry) for entry in page.entries)
        gone = sorted(self._entries.keys() - found.keys())
        fresh = [key for key, entry in found.items() if self._entries.get(key) != entry]
        for key in gone:
            del self._entries[key]
        self._entries.update(found)
        self._advance(first, (*gone, *fresh))
        return first

    def _apply(self, changes: Changes) -> None:
        applied = []
        for key, entry in changes.events:
            now = self._entries.get(key)
            if (ABSENT if now is None else now.revision) > changes.revision:
                continue  # read later than this change
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry
            applied.append(key)
        self._advance(changes.revision, applied)

    def _advance(self, revision: int, changed: Sequence[str]) -> None:
        self.revision = max(self.revision, revision)
        for key in changed:
            self._key_changed(key, self._entries.get(key))
        self._changed.notify()
