"""Writes one chunk into a file over WebHDFS, with the `hdfs` package, and classifies failures for the plan.

WebHDFS creates a file in two steps: the NameNode answers with the address of a DataNode, which takes the bytes and is
the first of the pipeline. With a plan in the NameNode's table, this DataNode is the chain's first replica.

Invariants:
* When `put` returns, the file is complete: HDFS acknowledged every byte on at least one replica, and adds the others.
* There are three kinds of failures: HDFS is unavailable (wait), a DataNode failed (suspect it), HDFS refused.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from hdfs import InsecureClient
from hdfs.util import HdfsError as WebHdfsError
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from scheduler.hdfs.errors import HdfsError

PIECE_BYTES = 1 << 20
"""The bytes of one call of the socket: larger pieces copy less, smaller ones stop sooner after a revocation."""
MIN_BLOCK_BYTES = 1 << 20
"""HDFS's default lower limit (`dfs.namenode.fs-limits.min-block-size`)."""
CHECKSUM_BYTES = 512
_AWAY = {"SafeModeException", "RetriableException", "StandbyException", "ServerNotLeaderException"}
_SEE_OTHER = 300
_AT_DATANODES = {"CREATE", "OPEN"}


class HdfsAway(HdfsError):
    """The NameNode does not answer, is starting, or is in safe mode: a later try may succeed."""


class DataNodeFailed(HdfsError):
    """The DataNode at `address` failed."""

    def __init__(self, address: str, message: str) -> None:
        super().__init__(f"DataNode {address}: {message}")
        self.address = address


class Timeouts(NamedTuple):
    """How long a connection may take to open, and how long the other side may be silent, or take no bytes."""

    connect_s: float = 5.0
    read_s: float = 60.0


class _PatientConnection(HTTPConnection):
    """A connection that takes its time to send. urllib3 bounds each send by the time to connect, and a pipeline that
    shares its links may take no bytes for longer: the DataNode would count as failed, and go on beside the next try.
    """

    silence_s = Timeouts().read_s

    def connect(self) -> None:
        """Connect; from then on the bound of silence holds."""
        super().connect()
        if self.sock is not None:
            self.sock.settimeout(self.silence_s)


class _PatientPool(HTTPConnectionPool):
    ConnectionCls = _PatientConnection


class _PatientAdapter(HTTPAdapter):
    """Gives a session patient connections."""

    def __init__(self, silence_s: float) -> None:
        super().__init__()
        connection = type("_Connection", (_PatientConnection,), {"silence_s": silence_s})
        pool = type("_Pool", (_PatientPool,), {"ConnectionCls": connection})
        self.poolmanager.pool_classes_by_scheme = {"http": pool, "https": HTTPSConnectionPool}


class ChunkClient(InsecureClient):  # type: ignore[misc,unused-ignore]
    """The `hdfs` package's client, which also excludes DataNodes and remembers the DataNode of a redirect."""

    def __init__(self, url: str, user: str, timeouts: Timeouts, exclude: Sequence[str] = ()) -> None:
        super().__init__(url, user=user, timeout=tuple(timeouts))
        self._session.mount("http://", _PatientAdapter(timeouts.read_s))
        self._exclude = ",".join(exclude)
        self.led_to: str | None = None

    def _request(self, method: str, url: str, **options: Any) -> Any:
        parameters = options.get("params")
        if parameters and parameters.get("op") in _AT_DATANODES and self._exclude:
            options["params"] = {**parameters, "excludedatanodes": self._exclude}
        answer = super()._request(method, url, **options)
        if _SEE_OTHER <= answer.status_code < _SEE_OTHER + 100 and "location" in answer.headers:
            self.led_to = urlsplit(answer.headers["location"]).hostname
        elif answer.history:  # a read was redirected already
            self.led_to = urlsplit(answer.url).hostname
        return answer

    def close(self) -> None:
        """Close its connections."""
        self._session.close()


def block_bytes(size_bytes: int) -> int:
    """A block size that holds `size_bytes` in one block."""
    return max(MIN_BLOCK_BYTES, -(-size_bytes // CHECKSUM_BYTES) * CHECKSUM_BYTES)


def put(client: ChunkClient, path: str, pieces: Iterator[bytes], size_bytes: int, replicas: int) -> None:
    """Write a file, in place of one that may be there. Raises HdfsAway, DataNodeFailed, HdfsError."""
    client.led_to = None
    try:
        client.write(path, data=pieces, overwrite=True, replication=replicas, blocksize=block_bytes(size_bytes))
    except WebHdfsError as error:
        raise meaning(error) from error
    except requests.RequestException as error:
        if client.led_to is None:
            raise HdfsAway(f"the NameNode at {client.url} does not answer: {error}") from error
        raise DataNodeFailed(client.led_to, str(error)) from error


def meaning(error: WebHdfsError) -> HdfsError:
    """The exception for an error answer of HDFS."""
    kind = error.exception or ""
    if kind in _AWAY or any(name in error.message for name in _AWAY):
        return HdfsAway(f"{kind}: {error.message}")
    return HdfsError(f"HDFS refused: {kind}: {error.message}")


def get(client: ChunkClient, path: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
    """A file's bytes in pieces: `length` bytes from `start` on (None: to the end).

    Raises HdfsAway, DataNodeFailed, HdfsError.
    """
    client.led_to = None
    try:
        with client.read(path, offset=start, length=length, chunk_size=PIECE_BYTES) as pieces:
            yield from pieces
    except WebHdfsError as error:
        raise meaning(error) from error
    except requests.RequestException as error:
        asked = urlsplit(str(error.request.url)) if error.request else None  # `requests` follows redirects
        address = asked.hostname if asked and asked.netloc != urlsplit(client.url).netloc else client.led_to
        if address is None:
            raise HdfsAway(f"the NameNode at {client.url} does not answer: {error}") from error
        raise DataNodeFailed(address, str(error)) from error
