"""Calls to whichever endpoint of an etcd answers.

Invariants:
* A call that changes something, and may not be made twice, is sent again only if it was surely not made; else its end
  is OutcomeUnknown. All others are tried at the endpoints in turn until `patience_s` is over.
* The endpoint that answered last is asked first.
* Answers of another cluster than the first one's are refused.
* Answers are bounded by MAX_ANSWER_BYTES, connections by MAX_CONNECTIONS and MAX_WATCHES.
* Nothing is taken from the environment, such as a proxy.
"""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final
from urllib.parse import urlsplit

import httpx
import trio

from logstore.base.events import Report
from logstore.base.metadata.errors import (
    InvalidMetadataCall,
    MetadataDamaged,
    MetadataFull,
    MetadataRefused,
    MetadataUnavailable,
    OutcomeUnknown,
)
from logstore.base.metadata.etcd.messages import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    OUT_OF_RANGE,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNIMPLEMENTED,
    BadAnswer,
    EtcdError,
    Header,
    Json,
    error_of,
    header_of,
    parse,
    stream_answer,
)
from logstore.base.metadata.etcd.settings import EtcdSettings
from logstore.base.metadata.events import METADATA_AWAY, METADATA_BACK
from logstore.base.metadata.interface import MetadataStatistics

MAX_ANSWER_BYTES: Final = 32 << 20
"""A page of the largest values is 22 MiB in base64."""
MAX_CONNECTIONS: Final = 64
"""Of calls; a further call waits for a connection as long as for an answer."""
MAX_WATCHES: Final = 64
"""Each has a connection of its own."""
CONNECT_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
KEEP_IDLE_S: Final = 30.0
"""Connections are kept between calls: a lease is kept alive every few seconds."""
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class AttemptFailed(Exception):
    """One endpoint gave no usable answer. `made_perhaps`: the call may have changed something there."""

    def __init__(self, why: str, *, made_perhaps: bool) -> None:
        super().__init__(why)
        self.made_perhaps = made_perhaps


class EtcdTransport:
    """See the module. The clients make connections for calls and for streams; `open_transport` has those."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        stream_client: httpx.AsyncClient,
        settings: EtcdSettings,
        random: Random,
        report: Report,
    ) -> None:
        self.settings = settings
        self.statistics = MetadataStatistics()
        self._client = client
        self._stream_client = stream_client
        self._random = random
        self._report = report
        self._current = 0
        self._token = ""
        self._without_users = False
        self._cluster_id = ""

    @property
    def endpoint(self) -> str:
        """The endpoint to ask first."""
        return self.settings.endpoints[self._current]

    async def call(self, path: str, body: Json, *, repeatable: bool = True, streamed: bool = False) -> Json:
        """The answer to a call. `streamed`: the first message of a streamed answer is meant.

        Raises EtcdError for what etcd refuses and no other try mends; MetadataUnavailable, MetadataFull,
        MetadataRefused, MetadataDamaged, InvalidMetadataCall; OutcomeUnknown only if the call is not `repeatable`.
        """
        self.statistics.calls += 1
        pause_s, failures = FIRST_PAUSE_S, 0
        until_s = trio.current_time() + self.settings.patience_s
        while True:
            endpoint = self.endpoint
            try:
                answer = await self._attempt(endpoint, path, body, streamed=streamed)
            except AttemptFailed as failure:
                failures += 1
                self.failed(endpoint, str(failure))
                if failure.made_perhaps and not repeatable:
                    self.statistics.unknown_outcomes += 1
                    raise OutcomeUnknown(
                        f"etcd gave no answer to a transaction ({failure}): it was made or not; read its keys"
                    ) from failure
                if trio.current_time() + pause_s >= until_s:
                    raise MetadataUnavailable(
                        f"etcd at {', '.join(self.settings.endpoints)} did not answer within "
                        f"{self.settings.patience_s:g} s: {failure}; nothing was changed"
                    ) from failure
                if failures % len(self.settings.endpoints) == 0:
                    await trio.sleep(pause_s * self._random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self.answered()
                return answer

    async def is_alive(self, endpoint: str, path: str, body: Json) -> bool:
        """Whether this endpoint answers a call that changes nothing."""
        try:
            await self._attempt(endpoint, path, body, streamed=False)
        except AttemptFailed as failure:
            self.failed(endpoint, str(failure))
            return False
        return True

    async def open_stream(self, endpoint: str, path: str, body: Json) -> httpx.Response:
        """The beginning of a streamed answer, which the caller closes. Raises AttemptFailed, and what `call` raises."""
        await self._login(endpoint)
        response = None
        with trio.move_on_after(self.settings.attempt_s):
            response = await self._send(endpoint, path, body, endless=True)
        if response is None:
            raise AttemptFailed(f"{endpoint} did not begin to answer", made_perhaps=False)
        if response.status_code != httpx.codes.OK:
            with trio.move_on_after(self.settings.attempt_s):
                error = _error(endpoint, response.status_code, await _read(response))
                if _wants_login(error):
                    self.forget_login()
                raise self._judged(endpoint, error)
            raise AttemptFailed(f"{endpoint} answered with status {response.status_code}", made_perhaps=False)
        return response

    def check_cluster(self, endpoint: str, header: Header) -> None:
        """Raises MetadataDamaged if an endpoint's answer comes from another cluster than the answers before."""
        if not self._cluster_id:
            self._cluster_id = header.cluster_id
        if header.cluster_id != self._cluster_id:
            raise MetadataDamaged(
                f"the etcd at {endpoint} is cluster {header.cluster_id}, and answers before were of cluster "
                f"{self._cluster_id}: point etcd-endpoints at members of one cluster, or restart to use the new one"
            )

    def forget_login(self) -> bool:
        """Log in again before the next request: etcd wants a user, or another token. False: there is no user."""
        self._token, self._without_users = "", False
        return bool(self.settings.user)

    def failed(self, endpoint: str, why: str) -> None:
        """Note that an endpoint failed: the next one is asked."""
        self.statistics.attempts_failed += 1
        if endpoint == self.endpoint:
            self._current = (self._current + 1) % len(self.settings.endpoints)
        if not self.statistics.away:
            self._report(METADATA_AWAY, etcd=endpoint, why=why)
        self.statistics.away = why

    def answered(self) -> None:
        """Note that an endpoint answered."""
        if self.statistics.away:
            self.statistics.away = ""
            self._report(METADATA_BACK, etcd=self.endpoint)

    # ---- details

    async def _attempt(self, endpoint: str, path: str, body: Json, *, streamed: bool) -> Json:
        """One try at one endpoint; a token that is no longer valid is renewed once."""
        for last_try in (False, True):
            await self._login(endpoint)
            status, data = await self._ask(endpoint, path, body)
            try:
                if status != httpx.codes.OK:
                    raise _error(endpoint, status, data)
                answer = stream_answer(data.split(b"\n", 1)[0]) if streamed else parse(data)
                self.check_cluster(endpoint, header_of(answer))
            except BadAnswer as error:
                raise AttemptFailed(f"{endpoint}: {error}", made_perhaps=True) from error
            except EtcdError as error:
                if _wants_login(error) and not last_try and self.forget_login():
                    continue
                raise self._judged(endpoint, error) from error
            return answer
        raise AssertionError("the last try returns or raises")

    async def _ask(self, endpoint: str, path: str, body: Json) -> tuple[int, bytes]:
        """Status and body of an answer. Raises AttemptFailed."""
        with trio.move_on_after(self.settings.attempt_s):
            response = await self._send(endpoint, path, body, endless=False)
            return response.status_code, await _read(response)
        raise AttemptFailed(f"{endpoint} did not answer within {self.settings.attempt_s:g} s", made_perhaps=True)

    async def _send(self, endpoint: str, path: str, body: Json, *, endless: bool) -> httpx.Response:
        attempt_s = self.settings.attempt_s
        timeout = httpx.Timeout(attempt_s, connect=min(CONNECT_S, attempt_s), read=None if endless else attempt_s)
        client = self._stream_client if endless else self._client
        # With hasleader, a member that has lost the others says so instead of waiting for them.
        content = json.dumps(body).encode()
        headers = {
            "Host": urlsplit(endpoint).netloc,
            "Grpc-Metadata-hasleader": "true",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
        }
        if self._token:
            headers["Authorization"] = self._token
        request = httpx.Request(
            "POST",
            f"{endpoint}/v3/{path}",
            headers=headers,
            stream=_Content(content),
            extensions={"timeout": timeout.as_dict()},
        )
        try:
            return await client.send(request, stream=True)
        except httpx.TransportError as error:
            why = f"{endpoint}: {said(error)}"
            raise AttemptFailed(why, made_perhaps=not isinstance(error, _NOT_SENT)) from error

    async def _login(self, endpoint: str) -> None:
        """Get a token if there is a user. Raises AttemptFailed, MetadataRefused."""
        if not self.settings.user or self._token or self._without_users:
            return
        body = {"name": self.settings.user, "password": self.settings.password}
        try:
            status, data = await self._ask(endpoint, "auth/authenticate", body)
            if status != httpx.codes.OK:
                raise _error(endpoint, status, data)
            self._token = str(parse(data).get("token", ""))
        except (AttemptFailed, BadAnswer) as error:
            raise AttemptFailed(f"{endpoint}: {error}", made_perhaps=False) from error
        except EtcdError as error:
            if error.code == FAILED_PRECONDITION and "not enabled" in error.message:
                self._without_users = True  # an operator gives users to the hosts before etcd asks for them
                return
            if error.code == INVALID_ARGUMENT:
                raise MetadataRefused(
                    f"etcd refuses user {self.settings.user!r}: {error.message}; check user and password"
                ) from error
            raise AttemptFailed(f"{endpoint}: {error.message}", made_perhaps=False) from error

    def _judged(self, endpoint: str, error: EtcdError) -> Exception:
        """The exception for an error of etcd: one of ours, AttemptFailed, or the error itself for the caller."""
        message = f"etcd at {endpoint}: {error.message}"
        if error.code == PERMISSION_DENIED or _wants_login(error):
            return MetadataRefused(f"{message}; give a user with rights on {self.settings.namespace!r}")
        if error.code == RESOURCE_EXHAUSTED and "space" in error.message:
            return MetadataFull(f"{message}; compact and defragment etcd, then disarm its alarm")
        if error.code == INVALID_ARGUMENT:
            return InvalidMetadataCall(message)
        if error.code == UNIMPLEMENTED:
            return MetadataRefused(f"{message}; etcd 3.4 or newer is needed")
        if error.code in (NOT_FOUND, FAILED_PRECONDITION, OUT_OF_RANGE):
            return error
        return AttemptFailed(message, made_perhaps=error.made_perhaps)


class _Content(httpx.AsyncByteStream):
    """The body of a request. httpx's own is a generator, which a cancelled request leaves to the garbage collector, and
    trio complains of that.
    """

    def __init__(self, content: bytes) -> None:
        self._rest = [content]

    def __aiter__(self) -> "_Content":
        return self

    async def __anext__(self) -> bytes:
        if not self._rest:
            raise StopAsyncIteration
        return self._rest.pop()


@asynccontextmanager
async def open_transport(settings: EtcdSettings, random: Random, report: Report) -> AsyncIterator[EtcdTransport]:
    """A transport with a client of its own. Raises TlsError. Nothing is sent yet."""
    tls = any(endpoint.startswith("https:") for endpoint in settings.endpoints)
    context = settings.tls.context() if settings.tls else ssl.create_default_context() if tls else False
    async with _client(context, MAX_CONNECTIONS) as client, _client(context, MAX_WATCHES) as stream_client:
        yield EtcdTransport(client, stream_client, settings, random, report)


def _client(context: ssl.SSLContext | bool, connections: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections, keepalive_expiry=KEEP_IDLE_S)
    return httpx.AsyncClient(verify=context, trust_env=False, limits=limits)


async def _read(response: httpx.Response) -> bytes:
    """The rest of an answer; closes it. Raises AttemptFailed."""
    parts: list[bytes] = []
    size_bytes = 0
    body = response.aiter_raw()
    try:
        async for part in body:
            parts.append(part)
            size_bytes += len(part)
            if size_bytes > MAX_ANSWER_BYTES:
                await close(response, body)
                raise AttemptFailed(f"an answer above {MAX_ANSWER_BYTES} bytes", made_perhaps=True)
    except httpx.TransportError as error:
        raise AttemptFailed(said(error), made_perhaps=True) from error
    return b"".join(parts)


async def close(response: httpx.Response, parts: AsyncIterator[bytes]) -> None:
    """Close a response and the iterator over its body.

    The iterator is generators within generators, which end only by an exception of the innermost: that of the next read
    of a closed connection. Left alone, the garbage collector would find them, and trio would complain.
    """
    with trio.CancelScope(shield=True):
        await response.aclose()
        with suppress(StopAsyncIteration, httpx.TransportError, httpx.StreamError):
            while True:
                await anext(parts)


def said(error: BaseException) -> str:
    """What an exception says, or else what the exception that caused it says: TLS errors are wrapped in silent ones."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _wants_login(error: EtcdError) -> bool:
    return error.code == UNAUTHENTICATED or "user name is empty" in error.message


def _error(endpoint: str, status: int, data: bytes) -> EtcdError:
    """The error of an answer. Raises AttemptFailed if it is none of etcd's."""
    try:
        return error_of(status, data)
    except BadAnswer as error:
        raise AttemptFailed(f"{endpoint}: {error}", made_perhaps=True) from error
