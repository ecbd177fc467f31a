"""Objects in HDFS, over WebHDFS, with the placement that Peace plans.

Invariants:
* An object is written under a temporary name in the directory that it will have, and gets its name by a rename, which
  HDFS does atomically; the name is new, for no key is put twice.
* The chain of hosts is in the NameNode's plan table before the file is created. Without a plan table, or without a
  chain, HDFS places the file.
* A DataNode that failed is not asked again for SUSPECTED_S: the NameNode may need minutes to notice its loss.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import requests
from crc32c import crc32c
from hdfs.util import HdfsError as WebHdfsError

from logstore.errors import ObjectMissing, TierFull, TierRefused, TierUnavailable
from logstore.format.tiered_chunk import StoredObject
from logstore.tier.interface import HostFailed, ListedObject
from logstore.tier.settings import HdfsPlace
from scheduler.hdfs.errors import HdfsError, PlanTableError
from scheduler.hdfs.plan_table import PlanTable
from scheduler.hdfs.webhdfs import ChunkClient, DataNodeFailed, HdfsAway, Timeouts, get, meaning, put

T = TypeVar("T")
SUSPECTED_S: Final = 60.0
READ_TRIES: Final = 3
"""DataNodes that a read asks, as many as a file usually has replicas."""
PIECE_BYTES: Final = 4 << 20
_FULL: Final = ("DSQuotaExceeded", "NSQuotaExceeded", "QuotaByStorageType", "could only be written to 0 of", "of space")
_GONE: Final = ("FileNotFoundException", "does not exist")


class HdfsSettings(NamedTuple):
    """`replicas`: of a file, when Peace does not plan it; `timeouts`: how long HDFS may be silent."""

    user: str = "cairn"
    replicas: int = 3
    timeouts: Timeouts = Timeouts(5.0, 30.0)


class HdfsObjects:
    """See `logstore.tier.interface.ObjectStore`. `table` is the NameNode's plan table, if it has the policy."""

    def __init__(
        self,
        place: HdfsPlace,
        settings: HdfsSettings | None = None,
        table: PlanTable | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._settings = settings or HdfsSettings()
        self._table = table
        self._now_s = now_s
        self._suspected: dict[str, float] = {}
        self._is_closed = False

    def put(self, key: str, size_bytes: int, pieces: Iterable[bytes], chain: Sequence[str] = ()) -> None:
        """See ObjectStore."""
        directory, _, name = self._path(key).rpartition("/")
        part = f"{directory}/_{name}"
        replicas = len(chain) or self._settings.replicas

        def write(client: ChunkClient) -> None:
            if chain and self._table is not None:
                self._table.push(directory, chain)
            put(client, part, self._open(pieces), size_bytes, replicas)

        self._call(key, write, chain)
        self._call(key, lambda client: self._rename(client, part, f"{directory}/{name}", size_bytes))
        if chain and self._table is not None:
            self._call(key, lambda _: self._forget(directory))

    def _open(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._is_closed:
                raise TierUnavailable("the sidecar stops")
            yield piece

    def _rename(self, client: ChunkClient, source: str, target: str, size_bytes: int) -> None:
        try:
            client.rename(source, target)
        except WebHdfsError:
            # The answer to an earlier try may have been lost.
            if _length(client, target) != size_bytes:
                raise

    def _forget(self, directory: str) -> None:
        if self._table is not None:
            try:
                self._table.forget(directory)
            except PlanTableError:
                return  # the plan expires

    def get(self, key: str, position: int, length: int) -> bytes:
        """See ObjectStore."""
        if not length:
            return b""
        return self._read(key, partial(self._get, self._path(key), position, length))

    def _get(self, path: str, position: int, length: int, client: ChunkClient) -> bytes:
        try:
            return b"".join(get(client, path, position, length))
        except HdfsError as error:
            if "out of the range" in str(error) and position >= _length(client, path) >= 0:
                return b""
            raise

    def checksum(self, key: str) -> StoredObject:
        """See ObjectStore: HDFS's own checksums depend on its settings, so the object is read."""

        def read(client: ChunkClient) -> StoredObject:
            size_bytes = crc = 0
            for piece in self._open(get(client, self._path(key))):
                size_bytes, crc = size_bytes + len(piece), crc32c(piece, crc)
            return StoredObject(size_bytes, crc)

        return self._read(key, read)

    def list_keys(self, prefix: str) -> Iterator[ListedObject]:
        """See ObjectStore."""
        directories = [prefix.rstrip("/")]
        while directories:
            directory = directories.pop()
            for name, is_directory, size_bytes in self._call(prefix, partial(self._names, directory)):
                key = f"{directory}/{name}" if directory else name
                if is_directory:
                    directories.append(key)
                else:
                    yield ListedObject(key, size_bytes)

    def _names(self, directory: str, client: ChunkClient) -> list[tuple[str, bool, int]]:
        try:
            found = client.list(self._path(directory), status=True)
        except WebHdfsError as error:
            if _is_gone(error):
                return []
            raise
        return [(name, status["type"] == "DIRECTORY", int(status["length"])) for name, status in found]

    def delete(self, key: str) -> None:
        """See ObjectStore. Directories that are empty then go as well."""

        def remove(client: ChunkClient) -> None:
            path = self._path(key)
            client.delete(path)
            while (path := path.rpartition("/")[0]) != self._place.root and path:
                try:
                    if not client.delete(path):
                        break
                except WebHdfsError:  # not empty
                    break

        self._call(key, remove)

    def close(self) -> None:
        """See ObjectStore."""
        self._is_closed = True
        if self._table is not None:
            self._table.close()

    # ---- calls

    def _path(self, key: str) -> str:
        return f"{self._place.root}/{key}" if key else self._place.root

    def _read(self, key: str, work: Callable[[ChunkClient], T]) -> T:
        """Ask another replica where a DataNode fails."""
        for left in range(READ_TRIES - 1, -1, -1):
            try:
                return self._call(key, work)
            except HostFailed:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _call(self, key: str, work: Callable[[ChunkClient], T], chain: Sequence[str] = ()) -> T:
        """Run calls of one client; what HDFS says becomes an error of the tier."""
        if self._is_closed:
            raise TierUnavailable("the sidecar stops")
        now_s, suspected = self._now_s(), tuple(self._suspected.items())
        excluded = [address for address, until_s in suspected if until_s > now_s and address not in chain]
        client = ChunkClient(self._place.url, self._settings.user, self._settings.timeouts, excluded)
        try:
            return work(client)
        except DataNodeFailed as error:
            self._suspected[error.address] = self._now_s() + SUSPECTED_S
            raise HostFailed(error.address, f"{key}: {error}") from error
        except (HdfsError, WebHdfsError, requests.RequestException) as error:
            raise _meaning(key, self._place, error) from error
        finally:
            client.close()


def _length(client: ChunkClient, path: str) -> int:
    """The bytes of a file; -1: there is none."""
    found: Any = client.status(path, strict=False)
    return -1 if found is None else int(found["length"])


def _is_gone(error: Exception) -> bool:
    return any(word in str(error) for word in _GONE)


def _meaning(key: str, place: HdfsPlace, error: Exception) -> Exception:
    """The tier's error for one of HDFS's."""
    said = meaning(error) if isinstance(error, WebHdfsError) else error
    text = f"{key or place.root}: {said}"
    if any(word in str(said) for word in _FULL):
        return TierFull(text)
    if isinstance(said, HdfsAway | PlanTableError | requests.RequestException):
        return TierUnavailable(text)
    if _is_gone(said):
        return ObjectMissing(text)
    return TierRefused(text) if isinstance(error, WebHdfsError) and _is_refusal(error) else TierUnavailable(text)


def _is_refusal(error: WebHdfsError) -> bool:
    return error.exception in ("AccessControlException", "SecurityException", "IllegalArgumentException")
