"""The same client for trio, on h11.

Invariants:
* One client serves any number of tasks; a connection has one user at a time, an interrupted one is closed.
* A lost connection, a restarted coordinator and a full disk are waited for, `patience_s` seconds for each question,
  from its first failure on.
* Keep-alives of registered hosts are sent by a task of the client's own while it is open (`async with`).
"""

import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import Any

import h11
import trio

from scheduler.client import core
from scheduler.client.blocking import raise_unless_finished
from scheduler.client.core import ApiRequest, GoEvent, QueuePlace
from scheduler.client.errors import CoordinatorError, NotUnderstood, CoordinatorRefused, CoordinatorUnavailable

RECEIVE_BYTES = 64 * 1024


class TrioGo:
    """A chunk that may be moved now."""

    __slots__ = ("_client", "addresses", "attempt", "chunk", "hosts", "request", "revoked")

    def __init__(self, client: "TrioCoordinatorClient", request: str, event: GoEvent) -> None:
        self._client = client
        self.request = request
        self.chunk, self.attempt, self.hosts, self.addresses = event
        self.revoked = False
        """Becomes true when the chunk is planned anew or the request given up: stop, nothing of it counts."""

    async def done(self) -> bool:
        """The chunk is on all its replicas. False: it counted already, or was revoked."""
        return await self._client.report_done(self.request, self.chunk, self.attempt)

    async def failed(self, suspects: Sequence[str] = ()) -> bool:
        """It could not be moved; `suspects` are avoided when it is planned again. False: it was revoked already."""
        return await self._client.report_failed(self.request, self.chunk, self.attempt, suspects)

    def __repr__(self) -> str:
        return f"TrioGo({self.request!r}, chunk={self.chunk}, attempt={self.attempt}, hosts={self.hosts})"


class TrioCoordinatorRequest:
    """A request of ours. `state` and `place` are as last heard."""

    def __init__(self, client: "TrioCoordinatorClient", view: dict[str, Any]) -> None:
        self._client = client
        self._progress = core.RequestProgress(view)
        self._open: dict[int, TrioGo] = {}
        self.name = self._progress.name
        self.place: QueuePlace | None = core.place(view)

    @property
    def state(self) -> str:
        """waiting, running, finished, cancelled or failed."""
        return self._progress.state

    async def goes(self, on_revoked: Callable[[TrioGo], None] | None = None) -> AsyncGenerator[TrioGo, None]:
        """Each chunk's go as it comes; ends when all chunks are done. As in the blocking client."""
        progress = self._progress
        first, progress.first = progress.first, []
        for event in first:
            yield self._opened(event)
        while not progress.ended:
            answer = await self._client.ask(core.events(self.name, progress.after, self._client.poll_s))
            for kind, event_or_none in progress.take(answer):
                if event_or_none is None:
                    break
                if kind == "go":
                    yield self._opened(event_or_none)
                else:
                    self._revoke(event_or_none, on_revoked)
        raise_unless_finished(self.name, progress.state)

    async def refresh(self) -> dict[str, Any]:
        """Ask where it stands; updates `place`."""
        view = await self._client.request(self.name)
        self.place = core.place(view)
        return view

    async def resubmit(self, chunks: int) -> None:
        """Change the number of chunks. It keeps its place in the queue unless they become more."""
        self.place = core.place(await self._client.ask(core.request("PUT", self.name, {"chunks": chunks})))

    async def cancel(self) -> None:
        """Give it up."""
        await self._client.cancel(self.name)

    def _opened(self, event: GoEvent) -> TrioGo:
        go = TrioGo(self._client, self.name, event)
        self._open[event.chunk] = go
        return go

    def _revoke(self, event: GoEvent, on_revoked: Callable[[TrioGo], None] | None) -> None:
        go = self._open.get(event.chunk)
        if go is not None and go.attempt == event.attempt:
            go.revoked = True
            if on_revoked is not None:
                on_revoked(go)


class _Wire:
    """One connection to the coordinator."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    async def ask(self, question: ApiRequest, headers: dict[str, str]) -> tuple[int, bytes]:
        """Send a question and take its answer."""
        http = self.http
        data = http.send(h11.Request(method=question.method, target=question.path, headers=list(headers.items())))
        content = question.content()
        if content:
            data = (data or b"") + (http.send(h11.Data(data=content)) or b"")
        data = (data or b"") + (http.send(h11.EndOfMessage()) or b"")
        await self.stream.send_all(data)
        status, body = 0, bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await self.stream.receive_some(RECEIVE_BYTES)))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > core.MAX_ANSWER_BYTES:
                    raise NotUnderstood(f"an answer of more than {core.MAX_ANSWER_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(body)
            elif not isinstance(event, h11.InformationalResponse):
                raise trio.BrokenResourceError("the coordinator closed the connection")

    def again(self) -> bool:
        """Make it ready for another question; false if it cannot be used again."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True


class TrioCoordinatorClient:
    """See the module. Use it in `async with`, or call `aclose`; `token` and `ca_file` as the coordinator has them."""

    def __init__(
        self,
        url: str = core.DEFAULT_URL,
        *,
        token: str | None = None,
        ca_file: Path | str | None = None,
        timeout_s: float = core.TIMEOUT_S,
        patience_s: float = core.PATIENCE_S,
        poll_s: float = core.POLL_S,
        random: Random | None = None,
    ) -> None:
        self.url = url
        self.poll_s = poll_s
        self._at = core.parse_url(url)
        self._token = None if token is None else token.strip()
        self._tls = ssl.create_default_context(cafile=ca_file) if self._at.tls else None
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._random = random or SystemRandom()
        self._idle: list[_Wire] = []
        self._hosts: dict[str, str | None] = {}
        self._keeper: trio.CancelScope | None = None
        self._kept = trio.Event()
        self._keeping = trio.Lock()
        self._keep_every_s = 1.0
        self._closed = False

    async def __aenter__(self) -> "TrioCoordinatorClient":
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections and stop the keep-alives; hosts stay registered until they miss their deadline."""
        with trio.CancelScope(shield=True):
            self._closed = True
            self._hosts.clear()
            if self._keeper is not None:
                self._keeper.cancel()
                await self._kept.wait()
                self._keeper = None
            await self._close_idle()

    # ---- hosts

    async def register(self, name: str, address: str | None = None, *, keep_alive: bool = True) -> None:
        """Say that a host is there, or back; with `keep_alive` go on saying so until the client is closed."""
        view = await self.ask(core.registration(name, address))
        if keep_alive:
            self._hosts[name] = address
            self._keep_every_s = core.keep_alive_every_s(view)
            if self._keeper is None:
                self._keeper, self._kept = trio.CancelScope(), trio.Event()
                # Not a nursery: a client is opened and closed where its user likes.
                trio.lowlevel.spawn_system_task(self._keep, self._keeper, self._kept)

    async def alive(self, name: str) -> None:
        """Say that a registered host lives. Raises Conflict if it was lost: register it."""
        await self.ask(core.host("PUT", name, "/alive"))

    async def deregister(self, name: str) -> None:
        """A host leaves: nothing is planned on it any more, and what is under way there is planned again."""
        async with self._keeping:
            self._hosts.pop(name, None)
        await self.ask(core.host("DELETE", name))

    async def _keep(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        with scope:
            while True:
                await trio.sleep(self._keep_every_s)
                for name in list(self._hosts):
                    # A host that is deregistered meanwhile must not be registered again.
                    async with self._keeping:
                        with suppress(CoordinatorError):  # asked again soon; the coordinator may be away
                            if name in self._hosts:
                                self._keep_every_s = core.keep_alive_every_s(await self._alive(name))
        ended.set()

    async def _alive(self, name: str) -> dict[str, Any]:
        try:
            return await self.ask(core.host("PUT", name, "/alive"), patience_s=0)
        except CoordinatorRefused:
            return await self.ask(core.registration(name, self._hosts.get(name)), patience_s=0)

    # ---- requests

    async def submit(
        self,
        writer: str | None = None,
        chunks: int = 1,
        replicas: int = 3,
        *,
        name: str | None = None,
        placement: Sequence[str] | None = None,
        **options: Any,
    ) -> TrioCoordinatorRequest:
        """Ask to move chunks. As in the blocking client."""
        fields = core.request_fields(writer, chunks, replicas, placement, options)
        return TrioCoordinatorRequest(self, await self.ask(core.submission(self._random, name, fields)))

    async def request(self, name: str) -> dict[str, Any]:
        """A request as the coordinator sees it. Raises NotFound."""
        return await self.ask(core.request("GET", name))

    async def cancel(self, name: str) -> None:
        """Give a request up."""
        await self.ask(core.request("DELETE", name))

    async def report_done(self, name: str, chunk: int, attempt: int) -> bool:
        """A chunk is on all its replicas; whether that was news."""
        return bool((await self.ask(core.report(name, chunk, "done", {"attempt": attempt})))["counted"])

    async def report_failed(self, name: str, chunk: int, attempt: int, suspects: Sequence[str] = ()) -> bool:
        """A chunk could not be moved; whether that was news."""
        body = {"attempt": attempt, "suspects": list(suspects)}
        return bool((await self.ask(core.report(name, chunk, "failed", body)))["counted"])

    async def status(self) -> dict[str, Any]:
        """What goes on."""
        return await self.ask(ApiRequest("GET", "/v1/status"))

    async def topology(self) -> dict[str, Any]:
        """The network that is planned on."""
        return await self.ask(ApiRequest("GET", "/v1/topology"))

    # ---- questions and answers

    async def ask(self, question: ApiRequest, *, patience_s: float | None = None) -> dict[str, Any]:
        """Ask until there is an answer. Raises Refused, Unavailable, NotUnderstood."""
        patience_s = self._patience_s if patience_s is None else patience_s
        backoff = core.Backoff(self._random, patience_s)
        while True:
            try:
                return core.understood(*await self._once(question))
            except (OSError, trio.BrokenResourceError, trio.TooSlowError, h11.ProtocolError, CoordinatorUnavailable) as error:
                delay_s = backoff.after(error, trio.current_time(), f"{question.method} {self.url}{question.path}")
            await trio.sleep(delay_s)

    async def _once(self, question: ApiRequest) -> tuple[int, bytes]:
        if self._closed:
            raise CoordinatorError("the client is closed")
        used = self._idle.pop() if self._idle else None
        with trio.fail_after(self._timeout_s + question.wait_s):
            if used is not None:
                try:
                    return await self._asked(used, question)
                except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
                    await self._close_idle()  # as old, and as dead when the coordinator was restarted
            return await self._asked(await self._connected(), question)

    async def _asked(self, wire: _Wire, question: ApiRequest) -> tuple[int, bytes]:
        """Ask on a connection that no other task has; it is idle afterwards, or closed."""
        again = False
        try:
            answer = await wire.ask(question, question.headers(self._at.authority, self._token))
            again = wire.again() and not self._closed
            return answer
        finally:
            if again:
                self._idle.append(wire)
            else:
                await trio.aclose_forcefully(wire.stream)

    async def _close_idle(self) -> None:
        while self._idle:
            await trio.aclose_forcefully(self._idle.pop().stream)

    async def _connected(self) -> _Wire:
        with trio.fail_after(self._timeout_s):
            plain = await trio.open_tcp_stream(self._at.host, self._at.port)
            if self._tls is None:
                return _Wire(plain)
            stream = trio.SSLStream(plain, self._tls, server_hostname=self._at.host, https_compatible=True)
            try:
                await stream.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            return _Wire(stream)
