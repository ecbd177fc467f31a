"""A stream with sealed chunks, for tests of what becomes of their copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from logstore.replica.registrations import ChunkRegistration
from tests.cluster.memory import LIMITS, MemoryCluster, RunningHost

BATCHES: Final = tuple(b"%d" % number * 20 for number in range(30))
SMALL_CHUNKS: Final = replace(LIMITS, chunk_bytes=200)


class SealedChunk(NamedTuple):
    """The first chunk of a stream that has BATCHES, and the stream's owner."""

    stream: str
    owner: RunningHost
    chunk: ChunkRegistration


async def sealed_chunk(cluster: MemoryCluster, replicas: int = 3) -> SealedChunk:
    """Make a topic with one stream, append BATCHES and wait until nothing is under way. Wants SMALL_CHUNKS."""
    (stream,) = await cluster.create_topic(replicas=replicas)
    for batch in BATCHES:
        await cluster.append(stream, batch)
    await cluster.at_rest()
    owner = await cluster.owner(stream)
    return SealedChunk(stream, owner, owner.host.registration(stream).chunks[0])
