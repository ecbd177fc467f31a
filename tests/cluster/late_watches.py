"""A metadata store of which a host does not hear all: it reads and changes what is there, and watches late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from logstore.base.metadata.interface import MetadataStore, Watch


class LateWatches:
    """A metadata store whose watches say nothing of some keys, until they are `released`."""

    def __init__(self, store: MetadataStore, prefixes: tuple[str, ...]) -> None:
        self._store = store
        self._prefixes = prefixes
        self.released = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Watch]:
        """See MetadataStore."""
        if prefix in self._prefixes:
            await self.released.wait()
        async with self._store.watch(prefix, after_revision) as watch:
            yield watch
