"""Writes checkpoints into HDFS as Peace plans them: one file per chunk, through the chain that the coordinator chose.

For each chunk: go → push its chain into the NameNode's plan table → write it with the `hdfs` package → report done, or
failed with the suspected DataNode. While HDFS is unavailable (restart, safe mode) the writer waits, and then pushes the
chain again.

Invariants:
* A chunk is reported done only after HDFS acknowledged all of its bytes.
* One attempt of a chunk at a time writes: a revoked attempt is stopped before the next begins, so that it cannot
  overwrite the file of a later attempt.
* Waits and attempts are bounded: here by `patience_s`, in the coordinator by the number of attempts. The wait grows
  with each attempt, so that together they are longer than the time until HDFS itself avoids a lost DataNode.
"""

import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.client import CoordinatorClient, CoordinatorError, Go
from scheduler.hdfs.errors import ChunkLost, HdfsError, PlanTableError
from scheduler.hdfs.plan_table import PlanTable
from scheduler.hdfs.webhdfs import PIECE_BYTES, ChunkClient, DataNodeFailed, HdfsAway, Timeouts, get, put

FIRST_WAIT_S = 0.1
MAX_WAIT_S = 2.0
PLACEMENTS = 2
"""The placements of a file over WebHDFS: the DataNode that the writer is redirected to, and that of the block."""
MAX_SHOWN = 10
"""The number of failed attempts that an error names."""
SUSPECTED_S = 30.0
"""How long HDFS's own choice avoids a failed DataNode; by then the NameNode knows whether it is dead."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """`patience_s`: how long HDFS may be unavailable; `at_once`: chunks of a checkpoint written in parallel."""

    user: str = "cairn"
    patience_s: float = 120.0
    at_once: int = 8
    timeouts: Timeouts = field(default=Timeouts())


class WrittenChunk(NamedTuple):
    """A chunk that HDFS acknowledged. `hosts`: the chain that was planned, first replica first.

    `followed`: HDFS confirms these hosts; it does not if a host of the chain could not serve, or if the NameNode
    restarted while the chunk was written. `led_to`: the address of the DataNode that took it from the writer;
    `crc32`: of its bytes.
    """

    chunk: int
    path: str
    hosts: tuple[str, ...]
    attempt: int
    followed: bool
    led_to: str
    size_bytes: int
    crc32: int
    seconds: float


class Revoked(HdfsError):
    """The coordinator planned the chunk again while it was written."""


def chunk_path(checkpoint: str, chunk: int) -> str:
    """The file of a checkpoint's chunk: /checkpoint/ID/chunk-000."""
    return f"{checkpoint}/chunk-{chunk:03d}"


class CheckpointWriter:
    """Writes checkpoints. Safe for several threads; each `write` is one request to the coordinator."""

    def __init__(
        self,
        coordinator: CoordinatorClient,
        table: PlanTable,
        webhdfs_url: str,
        settings: WriterSettings | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._table = table
        self._url = webhdfs_url
        self._settings = settings or WriterSettings()
        self._suspected: dict[str, float] = {}

    def write(
        self,
        writer: str,
        checkpoint: str,
        chunks: Sequence[bytes],
        replicas: int = 3,
        placement: Sequence[str] | None = None,
    ) -> list[WrittenChunk]:
        """Write all chunks below the path `checkpoint` on behalf of host `writer`; blocks until all are acknowledged.

        A chunk is read from the sequence once per attempt. Raises ChunkLost if the request was given up,
        CoordinatorError for what the coordinator refuses.
        """
        request = self._coordinator.submit(writer, len(chunks), replicas, placement=placement)
        latest: dict[int, Future[WrittenChunk | None]] = {}
        problems: deque[str] = deque(maxlen=MAX_SHOWN)
        with ThreadPoolExecutor(self._settings.at_once, thread_name_prefix="chunk") as pool:
            try:
                for go in request.goes():
                    before = latest.get(go.chunk)
                    latest[go.chunk] = pool.submit(self._attempt, go, before, checkpoint, chunks, problems)
            except CoordinatorError as error:
                raise ChunkLost(f"{checkpoint}: {error}; {_shown(problems)}") from error
        written = {chunk: future.result() for chunk, future in latest.items() if future.exception() is None}
        missing = [chunk for chunk in range(len(chunks)) if written.get(chunk) is None]
        if missing:
            raise ChunkLost(f"{checkpoint}: the request ended without chunks {missing}; {_shown(problems)}")
        return [one for _, one in sorted(written.items()) if one is not None]

    def read(self, written: WrittenChunk) -> bytes:
        """The bytes of a chunk, from any of its replicas; waits while HDFS is unavailable.

        Raises ChunkLost if they differ from the written bytes, HdfsError if no replica can be read.
        """
        data = self._read(written.path)
        if len(data) != written.size_bytes or zlib.crc32(data) != written.crc32:
            raise ChunkLost(
                f"{written.path}: {len(data)} bytes with CRC {zlib.crc32(data):08x}, "
                f"but {written.size_bytes} with {written.crc32:08x} were written"
            )
        return data

    def _read(self, path: str) -> bytes:
        """The bytes of a file. A failed DataNode is excluded: the NameNode may need minutes to notice its loss."""
        failed: list[str] = []
        deadline = time.monotonic() + self._settings.patience_s
        wait_s = FIRST_WAIT_S
        while True:
            client = self._client(failed)
            try:
                return b"".join(get(client, path))
            except DataNodeFailed as error:
                if error.address in failed:
                    raise
                failed.append(error.address)
            except HdfsAway:
                if time.monotonic() > deadline:
                    raise
                threading.Event().wait(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
            finally:
                client.close()

    # ---- one chunk

    def _attempt(
        self,
        go: Go,
        before: "Future[WrittenChunk | None] | None",
        checkpoint: str,
        chunks: Sequence[bytes],
        problems: deque[str],
    ) -> WrittenChunk | None:
        if before is not None:
            before.exception()  # wait until the earlier attempt has stopped
        path = chunk_path(checkpoint, go.chunk)
        addresses = [address or name for name, address in zip(go.hosts, go.addresses, strict=True)]
        try:
            if go.attempt > 1:
                _wait(go, min(FIRST_WAIT_S * 2 ** (go.attempt - 1), MAX_WAIT_S))
            written = self._write(go, path, addresses[1:], chunks[go.chunk])
        except Revoked:
            return None
        except Exception as error:
            problems.append(f"chunk {go.chunk}, attempt {go.attempt}: {error}")
            go.failed(self._suspects(error, go.hosts[1:], addresses[1:]))
            raise
        go.done()
        return written

    def _suspects(self, error: Exception, hosts: Sequence[str], addresses: Sequence[str]) -> list[str]:
        """The hosts of a chain that an error makes suspects."""
        if not isinstance(error, DataNodeFailed):
            return []
        self._suspected[error.address] = time.monotonic() + SUSPECTED_S
        return [name for name, address in zip(hosts, addresses, strict=True) if address == error.address]

    def _write(self, go: Go, path: str, chain: Sequence[str], data: bytes) -> WrittenChunk:
        """Write one file; waits while HDFS is unavailable. Raises Revoked, DataNodeFailed, HdfsAway, HdfsError."""
        started = time.monotonic()
        wait_s = FIRST_WAIT_S
        while True:
            client = self._client(self._excluded(chain))
            try:
                self._table.push(path, chain)
                put(client, path, _pieces(go, data), len(data), len(chain))
                break
            except (HdfsAway, PlanTableError) as error:
                if time.monotonic() - started > self._settings.patience_s:
                    raise HdfsAway(f"{path}: HDFS was away for {self._settings.patience_s:.0f} s: {error}") from error
            finally:
                client.close()
            _wait(go, wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)
        seconds = time.monotonic() - started
        crc32, led_to = zlib.crc32(data), client.led_to or ""
        return WrittenChunk(
            go.chunk, path, tuple(go.hosts[1:]), go.attempt, self._followed(path), led_to, len(data), crc32, seconds
        )

    def _followed(self, path: str) -> bool:
        """Remove a chunk's plan; returns whether every placement followed it."""
        try:
            counts = self._table.forget(path).get(path)
        except PlanTableError:
            return False  # the plan expires
        return counts is not None and counts.used >= PLACEMENTS and not counts.refused

    def _excluded(self, chain: Sequence[str]) -> list[str]:
        """DataNodes that failed recently and are not in the chain: if HDFS chooses hosts itself, it avoids them."""
        now, suspected = time.monotonic(), tuple(self._suspected.items())  # other threads may add entries meanwhile
        return [address for address, until in suspected if until > now and address not in chain]

    def _client(self, exclude: Sequence[str] = ()) -> ChunkClient:
        return ChunkClient(self._url, self._settings.user, self._settings.timeouts, exclude)


def _pieces(go: Go, data: bytes) -> Iterator[bytes]:
    """The chunk in pieces. Raises Revoked when the chunk is revoked."""
    view = memoryview(data)
    for start in range(0, len(view), PIECE_BYTES):
        _stop_if_revoked(go)
        yield bytes(view[start : start + PIECE_BYTES])


def _stop_if_revoked(go: Go) -> None:
    if go.revoked:
        raise Revoked(f"chunk {go.chunk} of {go.request} was planned anew")


def _wait(go: Go, seconds: float) -> None:
    _stop_if_revoked(go)
    threading.Event().wait(seconds)
    _stop_if_revoked(go)


def _shown(problems: Sequence[str]) -> str:
    return "; ".join(problems) or "no chunk failed here"
