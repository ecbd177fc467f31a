"""URLs of metadata stores, and a cluster on a real etcd."""

from pathlib import Path
from random import Random

import pytest
import trio

from logstore.base.events import ignore
from logstore.base.metadata.interface import ABSENT
from logstore.base.metadata.sqlite import SqliteMetadataStore
from logstore.cluster.metadata_url import open_metadata
from logstore.errors import ConfigError
from tests.cluster.memory import LIMITS, MemoryCluster
from tests.metadata.support import NOTHING, etcd_members, needs_etcd
from tests.support.limits import PATIENCE_S


async def test_urls_that_name_no_store() -> None:
    """Refused with what is allowed."""
    for url in ("", "etcd", "etcd:", "etcd://", "etcd:host", "http://a:1", "sqlite:", "zk://a:1"):
        with pytest.raises(ConfigError, match=r"must be etcd://"):
            async with open_metadata(url, Random(0), ignore):
                pass


async def test_a_file(tmp_path: Path) -> None:
    """sqlite:PATH is the store of one host."""
    async with open_metadata(f"sqlite:{tmp_path}/meta.db", Random(0), ignore) as store:
        assert isinstance(store, SqliteMetadataStore)
        assert (await store.get("x")).entry_revision == ABSENT


@needs_etcd
async def test_a_cluster_on_etcd(tmp_path: Path) -> None:
    """Three hosts agree through a real etcd: one is killed, another ends as planned, the last one is restarted etcd."""
    with etcd_members(tmp_path) as members, trio.fail_after(PATIENCE_S):
        address = members[0].client.removeprefix("http://")
        async with (
            open_metadata(f"etcd://{address}", Random(0), ignore, patience_s=PATIENCE_S) as first,
            open_metadata(f"etcd://{address}", Random(1), ignore) as second,
            open_metadata(f"etcd://{address}", Random(2), ignore) as third,
            trio.open_nursery() as nursery,
        ):
            await first.commit(NOTHING)
            stores = {"a": first, "b": second, "c": third}
            cluster = MemoryCluster(nursery, stores, Random(0), LIMITS)
            for name in stores:
                await cluster.start(name)
            (stream,) = await cluster.create_topic()
            name, _ = await cluster.append(stream, b"0")
            begin_s = trio.current_time()
            await cluster.kill(name)
            other, offset = await cluster.append(stream, b"1")
            print(f"without service after a kill: {trio.current_time() - begin_s:.3f} s")
            assert (other != name, offset) == (True, 1)
            await cluster.start(name)
            await cluster.stop(other)
            last, offset = await cluster.append(stream, b"2")
            assert (last != other, offset) == (True, 2)
            members[0].kill()
            assert (await cluster.append(stream, b"3"))[1] == 3
            members[0].start()
            await cluster.start(other)
            assert (await cluster.append(stream, b"4"))[1] == 4
            await trio.sleep(0.1)  # every member is told what is acknowledged
            assert await cluster.read_all(last, stream) == [b"%d" % number for number in range(5)]
            nursery.cancel_scope.cancel()
