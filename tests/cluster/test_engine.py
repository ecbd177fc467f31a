"""The engines behind a front, of a host alone and of a cluster: each serves the streams of its own store."""

import uuid
from pathlib import Path
from typing import cast

import pytest

from logstore.cluster.engine import ClusterEngine
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.topics import ClusterTopics
from logstore.disk.files import OsFiles
from logstore.engine import open_engine
from logstore.log.served import ForeignStream, ServedStream, ServingEngine
from logstore.log.store import Store, StoreSettings
from tests.cluster.support import Front, MemoryOwner, NoFiles


async def test_an_engine_refuses_the_streams_of_another(tmp_path: Path) -> None:
    """A front that gives an engine a stream which another one serves hears of its defect, by name, from each read."""
    files, owner = OsFiles(tmp_path), MemoryOwner()
    front = Front(owner)
    store = Store.open(files, front.clock, StoreSettings(), new_id=uuid.uuid4, report=front.reports)
    async with open_engine(store, files) as engine:
        topic = await engine.wait(store.create_topic("own", 1, {}))
        reads = ChunkReads(engine, owner, cast(ReplicaFiles, NoFiles()), front.clock, front.reports)
        of_cluster = ClusterEngine(engine, cast(ClusterTopics, None), reads)
        pairs: list[tuple[ServingEngine, ServedStream]] = [(engine, front.stream), (of_cluster, topic.partitions[0])]
        for serving, foreign in pairs:
            for reading in (
                serving.read(foreign, 0, 1),
                serving.find_timestamp(foreign, 0),
                serving.max_timestamp(foreign),
            ):
                with pytest.raises(ForeignStream, match=rf"{foreign.name} is a \w+, which a \w+ does not serve"):
                    await reading
    files.close()
