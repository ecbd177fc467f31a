"""What lies under a prefix of a metadata store, kept in memory and up to date: reads of it need no store.

Invariants:
* A key never goes back to an older entry. After changes that came while the entries were read in several pages, keys
  may for a moment be as of different revisions; up to MAX_PAGE_ENTRIES entries are read in one moment.
* While the store is away the view stays as it was, and says nothing new; it catches up by itself.
* After Compacted everything is read again; what was removed meanwhile goes.
"""

from collections.abc import Mapping
from types import MappingProxyType

from logstore.base.metadata.errors import Compacted, MetadataUnavailable
from logstore.base.metadata.interface import ABSENT, Changes, Entry, MetadataStore
from logstore.base.metadata.local_watch import ChangeSignal


class MetadataView:
    """See the module. `run` must run for it to have anything."""

    def __init__(self, store: MetadataStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._entries: dict[str, Entry] = {}
        self._changed = ChangeSignal()
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
        for key in self._entries.keys() - found.keys():
            del self._entries[key]
        self._entries.update(found)
        self._advance(first)
        return first

    def _apply(self, changes: Changes) -> None:
        for key, entry in changes.events:
            now = self._entries.get(key)
            if (ABSENT if now is None else now.revision) > changes.revision:
                continue  # read later than this change
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry
        self._advance(changes.revision)

    def _advance(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        self._changed.notify()
