"""The process that runs on each host beside a DataNode: a writer over WebHDFS.

As the paper modified HDFS, a writer's own disk is never chosen: with HDFS's default placement its DataNode is excluded
(`excludedatanodes`), under Peace the chain never holds it.

Invariant: a chunk is one file in one block, /RUN/REQUEST/NUMBER.ATTEMPT.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from benchmarks.racks.chunks import Chunk, ChunkFailed
from benchmarks.racks.host import HostProcess, obey
from scheduler.hdfs.errors import HdfsError
from scheduler.hdfs.plan_table import PlanTable
from scheduler.hdfs.webhdfs import ChunkClient, DataNodeFailed, Timeouts, put

USER = "cairn"
PIECE_BYTES = 256 << 10


class HdfsHost(HostProcess):
    """Its chunks go into HDFS."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        super().__init__(name, address, directory)
        self._url = ""
        self._replicas = 0
        self._run = ""
        self._table: PlanTable | None = None
        self._addresses: dict[str, str] = {}
        self.commands |= {"use": self.use, "begin": self.begin}

    def use(
        self, url: str, plan_url: str, plan_token: str, addresses: dict[str, str], replicas: int, chunk_bytes: int
    ) -> None:
        """Which HDFS, what its DataNodes are called, and how much a chunk has."""
        self._url = url
        if self._table is not None:
            self._table.close()
        self._table = PlanTable(plan_url, plan_token, addresses)
        self._addresses = addresses
        self._replicas = replicas
        self.data = memoryview(Random(self.name).randbytes(chunk_bytes))

    def begin(self, run: str) -> None:
        """All paths from now on begin with /RUN."""
        self._run = run

    def send_chunk(self, chunk: Chunk, hosts: Sequence[str]) -> None:
        """Write a chunk through `hosts`, this one first; if it is alone, HDFS chooses. Raises ChunkFailed."""
        path = chunk_path(self._run, chunk)
        chain = hosts[1:]
        client = ChunkClient(self._url, USER, Timeouts(), () if chain else (self.address,))
        try:
            if chain and self._table is not None:
                self._table.push(path, chain)
            put(client, path, _pieces(self.data), len(self.data), self._replicas)
            if chain and self._table is not None:
                self._table.forget(path)
        except DataNodeFailed as failed:
            suspects = [name for name in chain if self._addresses[name] == failed.address]
            raise ChunkFailed(str(failed), suspects) from failed
        except HdfsError as failed:
            raise ChunkFailed(str(failed)) from failed
        finally:
            client.close()


def chunk_path(run: str, chunk: Chunk) -> str:
    """A chunk's file; HDFS takes no colons, among others."""
    return f"/{run}/{re.sub('[^A-Za-z0-9]+', '-', chunk.request)}/{chunk.number}.{chunk.attempt}"


def _pieces(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(data[start : start + PIECE_BYTES])


def main(arguments: Sequence[str]) -> None:
    """The process of a host with a DataNode."""
    name, address, directory = arguments
    obey(HdfsHost(name, address, Path(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
