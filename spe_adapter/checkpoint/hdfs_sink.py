"""HDFS as the place for checkpoints, over WebHDFS. With a plan table the NameNode follows Peace's chains; without a
table, or without a chain, HDFS places the chunks.

Invariants:
* A file is one block, so that a plan holds for all of it.
* A claim is a file that is created without being overwritten; a manifest gets its name by a rename, which HDFS refuses
  if the name is taken.
* A DataNode that failed a read is left out for the rest of the file; an HDFS that does not answer is waited for, for
  `patience_s` in all.
* A plan table that does not answer costs a chunk its plan, not its write.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import requests
from hdfs.util import HdfsError as WebHdfsError

from logstore.base.events import Level, LogEvent, Report, ignore
from scheduler.hdfs.errors import HdfsError, PlanTableError
from scheduler.hdfs.plan_table import PlanTable
from scheduler.hdfs.webhdfs import ChunkClient, DataNodeFailed, HdfsAway, Timeouts, get, meaning, put
from spe_adapter.checkpoint.errors import CheckpointDamaged, CheckpointTaken, SinkAway, SinkFailed, SinkFull
from spe_adapter.checkpoint.names import CLAIM, MANIFEST, CheckpointName, parse_name
from spe_adapter.checkpoint.sinks import READ_BYTES, FileContent, check_manifest_bytes

PLAN_TABLE_AWAY: Final = LogEvent("plan_table_away", Level.WARNING)
_FIRST_WAIT_S: Final = 0.1
_MAX_WAIT_S: Final = 2.0
_MAX_FAILED_NODES: Final = 8
_MISSING: Final = "FileNotFoundException"
_TAKEN: Final = ("FileAlreadyExistsException", "AlreadyBeingCreatedException")
"""A file is there, or is being created at this moment."""
_FULL: Final = ("DSQuotaExceededException", "NSQuotaExceededException", "could only be written to 0 of the")
_SMALL_FILE_REPLICAS: Final = 3
_NEW_LINE: Final = "\n"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class HdfsSinkSettings:
    """`url`: http://HOST:PORT of WebHDFS; `root`: the directory there; `patience_s`: how long HDFS may be away;
    `avoided`: addresses of DataNodes that are left out where HDFS places, such as the writer's own.
    """

    url: str
    root: str
    user: str = "cairn"
    patience_s: float = 30.0
    timeouts: Timeouts = field(default=Timeouts())
    avoided: tuple[str, ...] = ()


class HdfsSink:
    """Checkpoints in HDFS. `plans`: the NameNode's plan table, None without one."""

    def __init__(self, settings: HdfsSinkSettings, plans: PlanTable | None = None, report: Report = ignore) -> None:
        self._settings = settings
        self._plans = plans
        self._report = report
        self._closed = threading.Event()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"webhdfs{self._settings.url.removeprefix('http')}{self._settings.root}"

    def claim(self, name: CheckpointName) -> None:
        """Make the directory of a checkpoint for this writer alone."""
        path = self._path(name, CLAIM)
        # The answer to a creation may be lost: a second try would take the own claim for another writer's.
        with self._client() as client, _meant(path):
            try:
                client.write(path, data=b"", overwrite=False, replication=_SMALL_FILE_REPLICAS)
            except WebHdfsError as error:
                if any(_says(error, exception) for exception in _TAKEN):
                    raise CheckpointTaken(f"{path}: another writer has this number") from error
                raise

    def write(self, name: CheckpointName, file: str, content: FileContent) -> tuple[str, ...]:
        """Write a file through its chain."""
        path = self._path(name, file)
        replicas = len(content.chain) or content.replicas

        def attempt(excluded: tuple[str, ...]) -> tuple[str, ...]:
            planned = bool(content.chain) and self._push(path, content.chain)
            with self._client(tuple(node for node in excluded if node not in content.chain)) as client:
                pieces = (bytes(piece) for piece in content.pieces())
                put(client, path, pieces, content.max_bytes, replicas)
                led_to = client.led_to
            if planned:
                return content.chain if self._followed(path) else ()
            return (led_to,) if led_to else ()

        # A planned chunk has one attempt at a DataNode: the coordinator plans the next one.
        return self._tried(path, attempt, node_failures=0 if content.chain else _MAX_FAILED_NODES)

    def seal(self, name: CheckpointName, manifest: bytes) -> None:
        """Write the manifest."""
        path = self._path(name, MANIFEST)
        draft = f"{path}.{threading.get_native_id()}.tmp"

        def attempt(excluded: tuple[str, ...]) -> None:
            with self._client(excluded) as client:
                if not client.status(self._path(name, CLAIM), strict=False):
                    raise SinkFailed(f"{path}: the checkpoint was removed while it was written")
                put(client, draft, iter((manifest,)), len(manifest), _SMALL_FILE_REPLICAS)

        self._tried(path, attempt)
        with self._client() as client, _meant(path):
            try:
                client.rename(draft, path)
            except WebHdfsError as error:
                if client.status(path, strict=False):
                    client.delete(draft)
                    raise CheckpointTaken(f"{path}: another writer completed this checkpoint") from error
                raise

    def manifest(self, name: CheckpointName) -> bytes | None:
        """The manifest, None if the checkpoint is not complete."""
        path = self._path(name, MANIFEST)

        def attempt(excluded: tuple[str, ...]) -> bytes | None:
            with self._client(excluded) as client:
                status = client.status(path, strict=False)
                if status is None:
                    return None
                check_manifest_bytes(path, int(status["length"]))
                return b"".join(get(client, path))

        return self._tried(path, attempt)

    def read(self, name: CheckpointName, file: str) -> Iterator[bytes]:
        """The bytes of a file."""
        path = self._path(name, file)
        size_bytes = self._size(path)
        for start in range(0, size_bytes, READ_BYTES):

            def attempt(excluded: tuple[str, ...], start: int = start) -> bytes:
                with self._client(excluded) as client:
                    return b"".join(get(client, path, start, min(READ_BYTES, size_bytes - start)))

            yield self._tried(path, attempt)

    def is_there(self) -> bool:
        """Whether the directory is there."""

        def attempt(excluded: tuple[str, ...]) -> bool:
            with self._client(excluded) as client:
                status = client.status(self._settings.root, strict=False)
                return status is not None and status["type"] == "DIRECTORY"

        return self._tried(self._settings.root, attempt)

    def names(self) -> list[CheckpointName]:
        """All checkpoints here."""
        found = [parse_name(entry) for entry, _ in self._entries(self._settings.root)]
        return [name for name in found if name is not None]

    def files(self, name: CheckpointName) -> Mapping[str, int]:
        """The files of a checkpoint with their bytes."""
        return dict(self._entries(self._path(name)))

    def remove(self, name: CheckpointName) -> None:
        """Remove a checkpoint."""

        def attempt(excluded: tuple[str, ...]) -> None:
            with self._client(excluded) as client:
                client.delete(self._path(name, MANIFEST))
                client.delete(self._path(name), recursive=True)

        self._tried(self._path(name), attempt)

    def close(self) -> None:
        """End all waits, and the connection to the plan table."""
        self._closed.set()
        if self._plans is not None:
            self._plans.close()

    # ---- plans

    def _push(self, path: str, chain: tuple[str, ...]) -> bool:
        if self._plans is None:
            return False
        try:
            self._plans.push(path, chain)
        except PlanTableError as error:
            self._report(PLAN_TABLE_AWAY, file=path, error=error)
            return False
        return True

    def _followed(self, path: str) -> bool:
        """Remove the plan of a file; whether a placement followed it and none refused it."""
        if self._plans is None:
            return False
        try:
            counts = self._plans.forget(path).get(path)
        except PlanTableError:
            return False  # the plan expires
        return counts is not None and counts.used > 0 and not counts.refused

    # ---- calls

    def _size(self, path: str) -> int:
        def attempt(excluded: tuple[str, ...]) -> int:
            with self._client(excluded) as client:
                status = client.status(path, strict=False)
                if status is None:
                    raise CheckpointDamaged(f"{path}: there is no such file")
                return int(status["length"])

        return self._tried(path, attempt)

    def _entries(self, path: str) -> list[tuple[str, int]]:
        def attempt(excluded: tuple[str, ...]) -> list[tuple[str, int]]:
            with self._client(excluded) as client:
                try:
                    return [(name, int(status["length"])) for name, status in client.list(path, status=True)]
                except WebHdfsError as error:
                    if _says(error, _MISSING) or "does not exist" in error.message:
                        return []
                    raise

        return self._tried(path, attempt)

    def _tried(
        self,
        path: str,
        attempt: Callable[[tuple[str, ...]], Result],
        node_failures: int = _MAX_FAILED_NODES,
    ) -> Result:
        """The result of a call. HDFS is waited for while it is away; up to `node_failures` DataNodes may fail."""
        failed: tuple[str, ...] = ()
        deadline_s = time.monotonic() + self._settings.patience_s
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                with _meant(path):
                    return attempt(failed)
            except SinkAway:
                if time.monotonic() > deadline_s or self._closed.wait(wait_s):
                    raise
                wait_s = min(2 * wait_s, _MAX_WAIT_S)
            except NodeFailed as error:
                if error.address in failed or len(failed) >= node_failures:
                    raise
                failed = (*failed, error.address)

    def _client(self, excluded: tuple[str, ...] = ()) -> "ClosingClient":
        left_out = (*self._settings.avoided, *excluded)
        return ClosingClient(self._settings.url, self._settings.user, self._settings.timeouts, left_out)

    def _path(self, name: CheckpointName, file: str = "") -> str:
        return f"{self._settings.root}/{name}" + (f"/{file}" if file else "")


class ClosingClient(ChunkClient):
    """A client of WebHDFS for a `with` block; it serves one thread."""

    def __enter__(self) -> "ClosingClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NodeFailed(SinkFailed):
    """A DataNode failed. `address`: its address."""

    def __init__(self, address: str, message: str) -> None:
        super().__init__(message)
        self.address = address


@contextmanager
def _meant(path: str) -> Iterator[None]:
    """Turns errors of HDFS within the block into ours; `path` is named."""
    try:
        yield
    except (WebHdfsError, HdfsError, requests.RequestException) as error:
        known = meaning(error) if isinstance(error, WebHdfsError) else error
        what = f"{path}: {str(known).partition(_NEW_LINE)[0]}"  # Java's stack follows
        if isinstance(known, HdfsAway | requests.RequestException):
            raise SinkAway(what) from error
        if isinstance(known, DataNodeFailed):
            raise NodeFailed(known.address, what) from error
        full = any(name in str(known) for name in _FULL)
        raise (SinkFull if full else SinkFailed)(what) from error


def _says(error: WebHdfsError, exception: str) -> bool:
    return exception in (error.exception or "") or exception in error.message
