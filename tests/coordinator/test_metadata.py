"""Where the coordinator's state lies: one contract for a disk and for the metadata store of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from random import Random

import pytest

from logstore.base.events import ignore
from logstore.base.metadata import schema
from logstore.base.metadata.etcd.store import open_etcd
from logstore.base.metadata.interface import (
    Committed,
    MetadataStore,
)
from logstore.base.metadata.sqlite import open_sqlite
from scheduler.coordinator.metadata.cluster import ClusterMetadata, Leadership
from scheduler.coordinator.metadata.interface import Change, Metadata, RemovePrefix, SetValue
from scheduler.coordinator.metadata.on_threads import MetadataOnThreads
from scheduler.coordinator.metadata.sqlite import SqliteMetadata
from tests.metadata.support import etcd_members, needs_etcd, settings_for

Open = Callable[[], AbstractAsyncContextManager[Metadata]]
LONG = "ö" * 200
"""A name of the greatest length, which takes 400 bytes of UTF-8 and 1,200 characters in a key."""


async def lead(store: MetadataStore, host: str = "h1", start: str = "s1") -> Leadership:
    """Become the leader in place of whoever is."""
    before = await store.get(schema.LEADER_KEY)
    leader = schema.StoredLeader(host=host, start=start, url="http://127.0.0.1:9880")
    outcome = await store.commit(schema.lead(leader, 0, before.entry_revision))
    assert isinstance(outcome, Committed)
    return Leadership(outcome.revision, lambda: True)


async def led(store: MetadataStore, host: str = "h1") -> ClusterMetadata:
    """The metadata of a host that has just begun to lead, loaded."""
    found = ClusterMetadata(store, await lead(store, host))
    await found.load()
    return found


@asynccontextmanager
async def _stores(kind: str, directory: Path) -> AsyncIterator[Open]:
    """How to open the same metadata again and again."""
    if kind == "disk":

        @asynccontextmanager
        async def on_a_disk() -> AsyncIterator[Metadata]:
            with closing(SqliteMetadata(directory / "a.db")) as metadata:
                yield MetadataOnThreads(metadata)

        yield on_a_disk
        return

    if kind == "cluster":
        async with open_sqlite(directory / "cluster.db", Random(0)) as file:
            yield partial(_led, file)
    else:
        with etcd_members(directory) as members:
            async with open_etcd(settings_for(members), Random(0), ignore) as etcd:
                yield partial(_led, etcd)


@asynccontextmanager
async def _led(store: MetadataStore) -> AsyncIterator[Metadata]:
    yield await led(store)


KINDS = ["disk", "cluster", pytest.param("etcd", marks=needs_etcd)]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_store_is_an_ordered_map(kind: str, tmp_path: Path) -> None:
    """Against a dictionary: puts and removals in every order, values and batches of every size, each batch twice, and
    everything again for who opens it next.
    """
    random, model = Random(1), dict[str, str]()
    async with _stores(kind, tmp_path) as opened:
        for _ in range(6):
            async with opened() as metadata:
                assert await metadata.load() == model
                for batch in (_batch(random), _batch(random)):
                    await metadata.apply(batch)
                    await metadata.apply(batch)
                    _change(model, batch)
                assert await metadata.load() == model


def _batch(random: Random) -> list[Change]:
    names = ["a", "b", f"{LONG}", "a%2Fb", "=x", "#y", "ab"]
    changes: list[Change] = []
    for _ in range(random.choice([0, 1, 5, 150])):
        prefix = f"{random.choice(['requests', 'checkpoints'])}/{random.choice(names)}/"
        if random.random() < 0.1:
            changes.append(RemovePrefix(prefix))
        else:
            text = random.choice(["", "v", "#3", "ü" * random.choice([100, 100_000])])
            changes.append(SetValue(f"{prefix}{random.randrange(40)}", text))
    return changes


def _change(model: dict[str, str], batch: Sequence[Change]) -> None:
    for change in batch:
        if isinstance(change, SetValue):
            model[change.key] = change.value
        else:
            for key in [key for key in model if key.startswith(change.prefix)]:
                del model[key]
