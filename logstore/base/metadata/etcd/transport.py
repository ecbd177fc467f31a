"""Calls of etcd, at any of its endpoints that answers.

Invariants:
* A change that must not be made twice is sent again only if the first attempt certainly had no effect; otherwise it
  ends with OutcomeUnknown. All other calls are tried at the endpoints in turn until `patience_s` is over.
* The endpoint that answered last is asked first.
* `attempts` has the time limits of attempts. Calls about leases have their own connections, so that other calls do not
  delay them. Their attempts have the longest limit, because the keeper of a lease calls again while an attempt waits,
  at the next endpoint, and takes the first answer. A request for a lease is also sent to each endpoint in turn, when
  another attempt would have ended, and the first granted lease is used. Other granted leases have no keys, are not kept
  alive, and expire.
* Answers of another cluster than the first answer's are refused.
* Answers are bounded (`connections`), connections by MAX_CONNECTIONS, MAX_WATCHES and LEASE_CONNECTIONS.
* No setting of the environment is used, such as a proxy.
* Of several calls that need a login at an endpoint at the same time, one logs in, and the others get its result: for
  etcd a login costs as much as thousands of calls. Its time limit doubles with each round of logins that failed. A
  password that etcd refused is sent again after REFUSED_LOGIN_S, whoever calls until then is told so at once.
* A token is given up only by a call that was refused with it.
* A lease is kept alive without a login, and with one only where etcd asks for it. Before 3.4.42, 3.5.28 and 3.6.9 it
  never does, and there no login that is slow or refused costs what is bound to the lease.
* A new connection uses the certificates that were loaded last (`EtcdTransport.tls`). Existing connections stay, so
  watches and leases are not interrupted.
"""

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import trio

from logstore.base.client_tls import ClientTls
from logstore.base.events import Report
from logstore.base.metadata.errors import (
    InvalidMetadataCall,
    MetadataDamaged,
    MetadataError,
    MetadataFull,
    MetadataRefused,
    MetadataUnavailable,
    OutcomeUnknown,
)
from logstore.base.metadata.etcd.attempts import AttemptLimits, AttemptOver, AttemptTime
from logstore.base.metadata.etcd.connections import (
    ConnectionFailed,
    EtcdConnections,
    EtcdExchange,
    connect,
)
from logstore.base.metadata.etcd.messages import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    OLD_LOGIN,
    OUT_OF_RANGE,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNIMPLEMENTED,
    AnswerHeader,
    BadAnswer,
    EtcdError,
    Json,
    error_of,
    header_of,
    parse,
    stream_answer,
    token_of,
)
from logstore.base.metadata.etcd.settings import EtcdSettings, EtcdTls
from logstore.base.metadata.events import METADATA_AWAY, METADATA_BACK
from logstore.base.metadata.interface import MetadataStatistics

MAX_CONNECTIONS: Final = 64
"""Of calls; a further call waits for a connection as long as for an answer."""
MAX_WATCHES: Final = 64
"""Each has a connection of its own."""
LEASE_CONNECTIONS: Final = 8
CONNECT_S: Final = 1.0
"""For a connection, of an attempt with the least limit; longer ones have more in proportion."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
LEAST_IDLE: Final = 0.75
"""Of `watch_idle_s`: the first of several quiet watches asks after so much of it, or a little more."""
REFUSED_LOGIN_S: Final = 1.0
"""Shorter than a lease, which may depend on the next login that is not refused."""
AT_ONCE_BYTES: Final = 8 << 10
"""So much of a request goes into the socket of a connection that is kept without waiting for the endpoint."""
HTTP_OK: Final = 200


class AttemptFailed(Exception):
    """One endpoint gave no usable answer. `made_perhaps`: the call may have changed something there."""

    def __init__(self, why: str, *, made_perhaps: bool) -> None:
        super().__init__(why)
        self.made_perhaps = made_perhaps


class _LoginUnderWay:
    """A login at one endpoint. `is_made` and `failure` say how it ended; neither: who made it gave up."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.is_made = False
        self.failure: AttemptFailed | MetadataRefused | None = None


class _RefusedLogin(NamedTuple):
    """A password that etcd refused, and until when that is believed."""

    password: str
    until_s: float
    why: str


class EtcdClients(NamedTuple):
    """Connections: for calls, for streams, and for calls about leases."""

    calls: EtcdConnections
    streams: EtcdConnections
    leases: EtcdConnections


class _Call(NamedTuple):
    """What an attempt sends. `streamed`: the first message of a streamed answer is meant; `ahead`: how many endpoints
    behind the one that answered last it is sent to.
    """

    path: str
    body: Json
    connections: EtcdConnections
    streamed: bool = False
    is_lease: bool = False
    ahead: int = 0
    logs_in: bool = True
    """Before it is sent, if there is no token; False: only once etcd has asked for one."""


class EtcdTransport:
    """See the module. `open_transport` has the clients."""

    def __init__(
        self,
        clients: EtcdClients,
        settings: EtcdSettings,
        random: Random,
        report: Report,
        tls: ClientTls | None = None,
    ) -> None:
        self.settings = settings
        self.tls = tls
        """The files of new connections, which somebody may follow; None: there are none."""
        self.statistics = MetadataStatistics()
        self.limits = AttemptLimits(settings.attempt_s, settings.longest_attempt_s)
        self._clients = clients
        self._lease_calls = 0
        """That wait for an answer."""
        self._random = random
        self._report = report
        self._current = 0
        self._token = ""
        self._without_users = False
        self._logins: dict[str, _LoginUnderWay] = {}
        self._refused_login: _RefusedLogin | None = None
        self._logins_failed = 0
        """Since one was made."""
        self._cluster_id = ""
        self._alive_s: dict[str, float] = {}
        self._failed = trio.Event()
        self._headers = {endpoint: _headers(endpoint) for endpoint in settings.endpoints}

    @property
    def endpoint(self) -> str:
        """The endpoint to ask first."""
        return self.settings.endpoints[self._current]

    @property
    def token(self) -> str:
        """What requests are sent with at present; "" before a login."""
        return self._token

    async def call(self, path: str, body: Json, *, repeatable: bool = True) -> Json:
        """The answer to a call.

        Raises EtcdError for what etcd refuses and no other try mends; MetadataUnavailable, MetadataFull,
        MetadataRefused, MetadataDamaged, InvalidMetadataCall; OutcomeUnknown only if the call is not `repeatable`.
        """
        return await self._answer(_Call(path, body, self._clients.calls), repeatable=repeatable)

    async def call_about_lease(self, path: str, body: Json) -> Json:
        """The answer to a call about a lease, which may be repeated: see the module, and `call`."""
        return await self._about_lease(_Call(path, body, self._clients.leases, is_lease=True))

    async def keep_alive(self, body: Json) -> Json:
        """The answer to a call that keeps a lease alive: see the module, and `call`."""
        call = _Call("lease/keepalive", body, self._clients.leases, streamed=True, is_lease=True, logs_in=False)
        return await self._about_lease(call)

    async def _about_lease(self, call: _Call) -> Json:
        call = call._replace(ahead=self._lease_calls)
        self._lease_calls += 1
        try:
            return await self._answer(call, repeatable=True)
        finally:
            self._lease_calls -= 1

    async def first_about_lease(self, path: str, body: Json) -> Json:
        """As `call_about_lease`, of several such calls the first answer, or the first error: see the module."""
        answers: list[Json] = []
        errors: list[EtcdError | MetadataError] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                try:
                    answers.append(await self.call_about_lease(path, body))
                except (EtcdError, MetadataError) as error:
                    errors.append(error)
                nursery.cancel_scope.cancel()

            for _ in self.settings.endpoints:
                nursery.start_soon(ask)
                await AttemptTime().wait(self.limits.limit_s())
        if answers:
            return answers[0]
        raise errors[0]

    async def _answer(self, call: _Call, *, repeatable: bool) -> Json:
        self.statistics.calls += 1
        pause_s, failures, endpoints = FIRST_PAUSE_S, 0, self.settings.endpoints
        until_s = trio.current_time() + self.settings.patience_s
        while True:
            endpoint = endpoints[(self._current + (0 if failures else call.ahead)) % len(endpoints)]
            limit_s = self.limits.longest_s if call.is_lease else self.limits.limit_s(failures // len(endpoints))
            try:
                answer = await self._attempt(endpoint, call, limit_s)
            except AttemptFailed as failure:
                failures += 1
                self.failed(endpoint, str(failure))
                if failure.made_perhaps and not repeatable:
                    self.statistics.unknown_outcomes += 1
                    raise OutcomeUnknown(
                        f"etcd did not answer a transaction ({failure}): it may have been made; read its keys"
                    ) from failure
                if trio.current_time() + pause_s >= until_s:
                    raise MetadataUnavailable(
                        f"etcd at {', '.join(endpoints)} did not answer within "
                        f"{self.settings.patience_s:g} s: {failure}; nothing was changed"
                    ) from failure
                if failures % len(endpoints) == 0:
                    await trio.sleep(pause_s * self._random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self.answered()
                return answer

    def quiet_s(self, endpoint: str, since_s: float) -> float:
        """For how long an endpoint may stay without an answer before it is asked whether it is alive; `since_s`: when a
        watch was told something last. Answers to other calls count from when these began. It is a little different
        each time, so that of several watches one asks, and its answer counts for all.
        """
        alive_s = max(since_s, self._alive_s.get(endpoint, since_s))
        return alive_s + self.settings.watch_idle_s * self._random.uniform(LEAST_IDLE, 1.0) - trio.current_time()

    async def is_alive(self, endpoint: str, path: str, body: Json) -> bool:
        """Whether this endpoint answers a call that changes nothing."""
        try:
            await self._attempt(endpoint, _Call(path, body, self._clients.calls), self.limits.limit_s())
        except (AttemptFailed, EtcdError) as failure:
            self.failed(endpoint, str(failure))
            return False
        return True

    async def open_stream(self, endpoint: str, path: str, body: Json) -> EtcdExchange:
        """The beginning of a streamed answer, which the caller ends. Raises AttemptFailed, and what `call` raises."""
        await self._login(endpoint)
        call, limit_s, time = _Call(path, body, self._clients.streams), self.limits.limit_s(), AttemptTime()
        token = self._token
        exchange, is_begun = call.connections.exchange(endpoint), False
        try:
            await self._send(exchange, endpoint, call, time, limit_s)
            status = await time.in_slices(limit_s, exchange.status)
            if status == HTTP_OK:
                is_begun = True
                return exchange
            _, data = await time.in_slices(limit_s, exchange.answer)
        except ConnectionFailed as failure:
            raise AttemptFailed(f"{endpoint}: {failure}", made_perhaps=False) from failure
        except AttemptOver:
            raise AttemptFailed(f"{endpoint} did not start to answer", made_perhaps=False) from None
        finally:
            if not is_begun:
                await exchange.end()
        error = _error(endpoint, status, data)
        if _wants_login(error):
            self.forget_login(token)
        raise self._judged(endpoint, error)

    def check_cluster(self, endpoint: str, header: AnswerHeader) -> None:
        """Raises MetadataDamaged if an endpoint's answer comes from another cluster than the answers before."""
        if not self._cluster_id:
            self._cluster_id = header.cluster_id
        if header.cluster_id != self._cluster_id:
            raise MetadataDamaged(
                f"the etcd at {endpoint} is cluster {header.cluster_id}, but earlier answers were of cluster "
                f"{self._cluster_id}: point etcd-endpoints at members of one cluster, or restart to use the new one"
            )

    def forget_login(self, token: str) -> bool:
        """Log in again before the next request, unless that was done since: etcd wants a user, or another token than
        this one. False: there is no user.
        """
        if token == self._token:
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
        self._failed.set()
        self._failed = trio.Event()

    async def wait_failure(self) -> None:
        """Wait until an endpoint fails the next time."""
        await self._failed.wait()

    def answered(self) -> None:
        """Note that an endpoint answered."""
        if self.statistics.away:
            self.statistics.away = ""
            self._report(METADATA_BACK, etcd=self.endpoint)

    # ---- details

    async def _attempt(self, endpoint: str, call: _Call, limit_s: float) -> Json:
        """One try at one endpoint; a token that is no longer valid is renewed once."""
        for last_try in (False, True):
            if call.logs_in or last_try:
                await self._login(endpoint)
            begun_s, token = trio.current_time(), self._token
            status, data = await self._ask(endpoint, call, limit_s)
            try:
                if status != HTTP_OK:
                    raise _error(endpoint, status, data)
                answer = stream_answer(data.split(b"\n", 1)[0]) if call.streamed else parse(data)
                self.check_cluster(endpoint, header_of(answer))
            except BadAnswer as error:
                raise AttemptFailed(f"{endpoint}: {error}", made_perhaps=True) from error
            except EtcdError as error:
                if _wants_login(error) and not last_try and self.forget_login(token):
                    continue
                raise self._judged(endpoint, error) from error
            if not call.is_lease:  # any other answer shows that a majority of the members is there
                self._alive_s[endpoint] = max(begun_s, self._alive_s.get(endpoint, begun_s))
            return answer
        raise AssertionError("the last try returns or raises")

    async def _ask(self, endpoint: str, call: _Call, limit_s: float) -> tuple[int, bytes]:
        """Status and body of an answer. Raises AttemptFailed."""
        exchange, time = call.connections.exchange(endpoint), AttemptTime()
        try:
            await self._send(exchange, endpoint, call, time, limit_s)
            found = await time.in_slices(limit_s, exchange.answer)
        except ConnectionFailed as failure:
            raise AttemptFailed(f"{endpoint}: {failure}", made_perhaps=exchange.is_sent) from failure
        except AttemptOver:
            why = f"{endpoint} did not answer within {limit_s:.3g} s"
            raise AttemptFailed(why, made_perhaps=exchange.is_sent) from None
        finally:
            await exchange.end()
        self.limits.answered(time.passed_s)
        return found

    async def _send(
        self, exchange: EtcdExchange, endpoint: str, call: _Call, time: AttemptTime, limit_s: float
    ) -> None:
        """Send a call. Raises ConnectionFailed, AttemptOver."""
        content = json.dumps(call.body).encode()
        headers = [*self._headers[endpoint], (b"Content-Length", b"%d" % len(content))]
        if self._token:
            headers.append((b"Authorization", self._token.encode()))
        send = partial(exchange.send, b"/v3/" + call.path.encode(), headers, content)
        if not await exchange.take_kept():
            connect_s = min(limit_s, CONNECT_S * self.limits.share_of(limit_s))
            await _within(time, limit_s, partial(exchange.open, limit_s, connect_s))
        if len(content) > AT_ONCE_BYTES:
            await _within(time, limit_s, send)
            return
        with trio.move_on_after(limit_s) as scope:
            await send()
        if scope.cancelled_caught:
            raise AttemptOver

    async def _login(self, endpoint: str) -> None:
        """Get a token if there is a user, or hear how another call gets it. Raises AttemptFailed, MetadataRefused."""
        while self.settings.user and not self._token and not self._without_users:
            login = self._logins.get(endpoint)
            if login is None:
                await self._log_in_for_all(endpoint)
                return
            await login.over.wait()
            if isinstance(login.failure, AttemptFailed):
                raise AttemptFailed(str(login.failure), made_perhaps=False)
            if login.failure is not None:
                raise MetadataRefused(str(login.failure))
            if login.is_made:
                return

    async def _log_in_for_all(self, endpoint: str) -> None:
        """Log in, and tell the others how that ended. Raises AttemptFailed, MetadataRefused."""
        login = self._logins[endpoint] = _LoginUnderWay()
        self._logins_failed += 1
        try:
            await self._log_in(endpoint, (self._logins_failed - 1) // len(self.settings.endpoints))
            login.is_made, self._logins_failed = True, 0
        except (AttemptFailed, MetadataRefused) as failure:
            login.failure = failure
            raise
        finally:
            del self._logins[endpoint]
            login.over.set()

    async def _log_in(self, endpoint: str, rounds: int) -> None:
        """Ask for a token, behind so many rounds of logins that failed. Raises AttemptFailed, MetadataRefused."""
        password = self.settings.password
        body = {"name": self.settings.user, "password": password() if callable(password) else password}
        refused = self._refused_login
        if refused is not None and refused.password == body["password"] and trio.current_time() < refused.until_s:
            raise MetadataRefused(refused.why)
        try:
            call = _Call("auth/authenticate", body, self._clients.calls)
            status, data = await self._ask(endpoint, call, self.limits.limit_s(rounds))
            if status != HTTP_OK:
                raise _error(endpoint, status, data)
            self._token = token_of(data)
        except (AttemptFailed, BadAnswer) as error:
            raise AttemptFailed(f"{endpoint}: {error}", made_perhaps=False) from error
        except EtcdError as error:
            if error.code == FAILED_PRECONDITION and "not enabled" in error.message:
                self._without_users = True  # an operator gives users to the hosts before etcd asks for them
                return
            if error.code == INVALID_ARGUMENT:
                why = f"etcd refuses user {self.settings.user!r}: {error.message}; check user and password"
                self._refused_login = _RefusedLogin(body["password"], trio.current_time() + REFUSED_LOGIN_S, why)
                raise MetadataRefused(why) from error
            raise AttemptFailed(f"{endpoint}: {error.message}", made_perhaps=False) from error

    def _judged(self, endpoint: str, error: EtcdError) -> Exception:
        """The exception for an error of etcd: one of ours, AttemptFailed, or the error itself for the caller."""
        message = f"etcd at {endpoint}: {error.message}"
        if OLD_LOGIN in error.message:  # users have been changed again, since the login of a moment ago
            return AttemptFailed(message, made_perhaps=False)
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


def _headers(endpoint: str) -> tuple[tuple[bytes, bytes], ...]:
    """What each request to an endpoint says beside its length."""
    return (
        (b"Host", urlsplit(endpoint).netloc.encode()),
        (b"Grpc-Metadata-hasleader", b"true"),  # a member that has lost the others says so, and does not wait for them
        (b"Accept-Encoding", b"identity"),
        (b"Content-Type", b"application/json"),
    )


async def _within(time: AttemptTime, limit_s: float, step: Callable[[], Awaitable[None]]) -> None:
    """Take a step of an attempt that cannot be taken up again. Raises ConnectionFailed, AttemptOver."""
    failures: list[ConnectionFailed] = []
    is_done = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(time.cancel_after, limit_s, nursery.cancel_scope)
        try:
            await step()
            is_done = True
        except ConnectionFailed as failure:
            failures.append(failure)
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if not is_done:
        raise AttemptOver


@asynccontextmanager
async def open_transport(settings: EtcdSettings, random: Random, report: Report) -> AsyncIterator[EtcdTransport]:
    """A transport with connections of its own. Raises TlsError. Nothing is sent yet."""
    is_encrypted = any(endpoint.startswith("https:") for endpoint in settings.endpoints)
    tls = _loaded(settings.tls) if settings.tls else None
    context = tls.context if tls else ssl.create_default_context() if is_encrypted else None
    if context is not None:
        context.set_alpn_protocols(["http/1.1"])
    limits = (MAX_CONNECTIONS, MAX_WATCHES, LEASE_CONNECTIONS)
    clients = EtcdClients(*(EtcdConnections(partial(connect, context), most) for most in limits))
    try:
        yield EtcdTransport(clients, settings, random, report, tls)
    finally:
        for client in clients:
            await client.close()


def _loaded(files: EtcdTls) -> ClientTls:
    return ClientTls(files.context, files, side="etcd", certificate=files.certificate)


def _wants_login(error: EtcdError) -> bool:
    return error.code == UNAUTHENTICATED or "user name is empty" in error.message or OLD_LOGIN in error.message


def _error(endpoint: str, status: int, data: bytes) -> EtcdError:
    """The error of an answer. Raises AttemptFailed if it is none of etcd's."""
    try:
        return error_of(status, data)
    except BadAnswer as error:
        raise AttemptFailed(f"{endpoint}: {error}", made_perhaps=True) from error
