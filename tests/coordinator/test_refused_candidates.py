"""A coordinator whose host the metadata store refuses for a while: it stands by on, and leads when it is its turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from logstore.base.metadata.errors import MetadataDamaged, MetadataError, MetadataRefused
from logstore.base.metadata.interface import Changes, MetadataStore, Watch
from tests.coordinator.standby_world import HostLife, World, in_a_world

LOOKS_S = 0.1


class RefusingStore:
    """A store of a service that refuses to let anything be read while it has a `refusal`."""

    refusal: MetadataError | None = None

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        """Everything else."""
        return getattr(self._store, name)

    def look(self) -> None:
        """Raises the refusal."""
        if self.refusal is not None:
            raise self.refusal

    async def page(self, *words: Any, **named: Any) -> Any:
        """See MetadataStore."""
        await trio.lowlevel.checkpoint()
        self.look()
        return await self._store.page(*words, **named)

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[RefusedWatch]:
        """See MetadataStore."""
        async with self._store.watch(prefix, after_revision) as watch:
            yield RefusedWatch(self, watch)


class RefusedWatch:
    """A watch that notices a refusal while it is told nothing."""

    def __init__(self, store: RefusingStore, watch: Watch) -> None:
        self._store = store
        self._watch = watch

    async def receive(self) -> Changes:
        """See Watch."""
        while True:
            self._store.look()
            with trio.move_on_after(LOOKS_S):
                return await self._watch.receive()


class RefusedLife(HostLife):
    """A host whose coordinator has a RefusingStore."""

    def __init__(self, name: str, start: str, store: MetadataStore, world: World) -> None:
        self.refusing = RefusingStore(store)
        super().__init__(name, start, self.refusing, world)


@pytest.mark.parametrize("refusal", [MetadataRefused("check user and password"), MetadataDamaged("another cluster")])
def test_a_store_that_refuses_hosts_ends_no_coordinator(
    monkeypatch: pytest.MonkeyPatch, refusal: MetadataError
) -> None:
    """etcd may refuse all hosts for a while, as between two changes of their password: coordinators wait for the end of
    that, as all else of a host does, and then another one leads when the leader is killed.
    """
    monkeypatch.setattr(World, "life", RefusedLife)

    async def test(world: World) -> None:
        before = await world.leader()
        monkeypatch.setattr(RefusingStore, "refusal", refusal)
        await trio.sleep(10)
        assert (await world.at(before, "GET", "/v1/status")).status == 200
        monkeypatch.setattr(RefusingStore, "refusal", None)
        world.kill(before)
        assert await world.leader() != before

    in_a_world(test)
