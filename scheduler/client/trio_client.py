"""A client of the coordinator for trio, on h11; its methods are those of the blocking client.

Invariants:
* One client serves any number of tasks; a connection has one user at a time, and a call that is cancelled closes its
  connection.
* A client survives a lost connection, a restarted coordinator and a full disk: it sends a request again for
  `patience_s` seconds from the request's first failure on. Of several addresses it finds the one that leads.
* A task of the client sends the keep-alives of registered hosts while the client is open (`async with`).
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import h11
import trio

from scheduler.client import checkpoints, core
from scheduler.client.addresses import AddressRound, Url
from scheduler.client.base import BaseClient, BaseGo, BaseRequest
from scheduler.client.checkpoints import CompleteCheckpoint
from scheduler.client.core import ApiRequest, CoordinatorAnswer
from scheduler.client.errors import (
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    NotFound,
    NotUnderstood,
    Unauthorized,
)

RECEIVE_BYTES = 64 * 1024
FAILURES = (OSError, trio.BrokenResourceError, trio.TooSlowError, h11.ProtocolError, CoordinatorUnavailable)
"""What is worth another try, here or at another address."""


class TrioGo(BaseGo):
    """A chunk that may be moved now."""

    __slots__ = ("_client",)

    def __init__(self, client: "TrioCoordinatorClient", request: str, event: Mapping[str, Any]) -> None:
        super().__init__(request, event)
        self._client = client

    async def done(self) -> bool:
        """Report that the chunk is on all its replicas. False: it was reported before, or revoked."""
        return await self._client.report_done(self.request, self.chunk, self.attempt)

    async def failed(self, suspects: Sequence[str] = ()) -> bool:
        """Report that the chunk could not be moved; it is planned again without `suspects`. False: it was revoked."""
        return await self._client.report_failed(self.request, self.chunk, self.attempt, suspects)


class TrioCoordinatorRequest(BaseRequest[TrioGo]):
    """A request that this client submitted.

    `state` (waiting, running, finished, cancelled or failed) and `place` are those of the last answer.
    """

    def __init__(self, client: "TrioCoordinatorClient", view: dict[str, Any]) -> None:
        super().__init__(view, partial(TrioGo, client, str(view["request"])))
        self._client = client

    async def wait(self, limit_s: float) -> bool:
        """Wait until a chunk may be moved, or all are done; False: neither came within `limit_s` seconds.

        What came is for `goes`, which raises the same errors. One task waits at a time, and none in `goes`.
        """
        end_s = trio.current_time() + limit_s
        while not self.has_go:
            left_s = end_s - trio.current_time()
            if left_s <= 0:
                return False
            request = self._next_events(min(self._client.poll_s, left_s))
            if request is None:
                return True
            self._ready.extend(self._new_goes(await self._client.call(request), None))
        return True

    async def goes(self, on_revoked: Callable[[TrioGo], None] | None = None) -> AsyncGenerator[TrioGo, None]:
        """The go of each chunk as it comes; ends when all chunks are done. Errors: as in the blocking client."""
        for go in self._first_goes():
            yield go
        while (request := self._next_events(self._client.poll_s)) is not None:
            for go in self._new_goes(await self._client.call(request), on_revoked):
                yield go

    async def refresh(self) -> dict[str, Any]:
        """The coordinator's view of the request; updates `place`."""
        view = await self._client.request(self.name)
        self.place = core.place(view)
        return view

    async def resubmit(self, chunks: int) -> None:
        """Change the number of chunks. With no more chunks than before, the request keeps its place in the queue."""
        self.place = core.place(await self._client.call(core.request("PUT", self.name, {"chunks": chunks})))

    async def cancel(self) -> None:
        """Cancel the request."""
        await self._client.cancel(self.name)


class _ClientConnection:
    """One connection to the coordinator."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    async def exchange(self, request: ApiRequest, headers: dict[str, str]) -> CoordinatorAnswer:
        """Send a request; returns the answer."""
        http = self.http
        data = http.send(h11.Request(method=request.method, target=request.path, headers=list(headers.items())))
        content = request.content()
        if content:
            data = (data or b"") + (http.send(h11.Data(data=content)) or b"")
        data = (data or b"") + (http.send(h11.EndOfMessage()) or b"")
        await self.stream.send_all(data)
        status, body, found = 0, bytearray(), dict[bytes, str]()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await self.stream.receive_some(RECEIVE_BYTES)))
            elif isinstance(event, h11.Response):
                status = event.status_code
                found = {name: value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > core.MAX_ANSWER_BYTES:
                    raise NotUnderstood(f"an answer of more than {core.MAX_ANSWER_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return CoordinatorAnswer(status, bytes(body), found.get(b"location", ""), found.get(b"retry-after", ""))
            elif not isinstance(event, h11.InformationalResponse):
                raise trio.BrokenResourceError("the coordinator closed the connection")

    def reuse(self) -> bool:
        """Make the connection ready for another request; False: it cannot take one."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True


class TrioCoordinatorClient(BaseClient):
    """A client for trio. Use it in `async with`, or call `aclose`."""

    def _prepare(self) -> None:
        self._idle: dict[Url, list[_ClientConnection]] = {}
        self._keeper: trio.CancelScope | None = None
        self._keeper_ended = trio.Event()
        self._keeping = trio.Lock()
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
                await self._keeper_ended.wait()
                self._keeper = None
            for at in self._addresses:
                await self._close_idle(at)

    # ---- hosts

    async def register(self, name: str, address: str | None = None, *, keep_alive: bool = True) -> None:
        """Register a host, or one that is back; `keep_alive`: send keep-alives until the client is closed."""
        view = await self.call(core.registration(name, address))
        if keep_alive:
            self._hosts[name] = address
            self._keep_every_s = core.keep_alive_every_s(view)
            if self._keeper is None:
                self._keeper, self._keeper_ended = trio.CancelScope(), trio.Event()
                # Not a nursery: the caller opens and closes a client anywhere.
                trio.lowlevel.spawn_system_task(self._keep, self._keeper, self._keeper_ended)

    async def alive(self, name: str) -> None:
        """Send one keep-alive of a registered host. Raises Conflict if the host was lost: register it again."""
        await self.call(core.host("PUT", name, "/alive"))

    async def deregister(self, name: str) -> None:
        """Deregister a host: it gets no new chunks, and its chunks in flight are planned again without it."""
        async with self._keeping:
            self._hosts.pop(name, None)
        await self.call(core.host("DELETE", name))

    async def _keep(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        with scope:
            while True:
                await trio.sleep(self._keep_every_s)
                for name in list(self._hosts):
                    # The lock: a host that is deregistered meanwhile must not be registered again. The error: the next
                    # keep-alive is due soon, and the coordinator may be restarting.
                    async with self._keeping:
                        with suppress(CoordinatorError):
                            if name in self._hosts:
                                self._keep_every_s = core.keep_alive_every_s(await self._send_alive(name))
        ended.set()

    async def _send_alive(self, name: str) -> dict[str, Any]:
        try:
            return await self.call(core.host("PUT", name, "/alive"), patience_s=0)
        except CoordinatorRefused:
            return await self.call(core.registration(name, self._hosts.get(name)), patience_s=0)

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
        """Submit a request to move chunks. Arguments and errors: as in the blocking client."""
        request = core.submission(self._random, name, writer, chunks, replicas, placement, options)
        return TrioCoordinatorRequest(self, await self.call(request))

    async def request(self, name: str) -> dict[str, Any]:
        """The coordinator's view of a request. Raises NotFound."""
        return await self.call(core.request("GET", name))

    async def cancel(self, name: str) -> None:
        """Cancel a request."""
        await self.call(core.request("DELETE", name))

    async def report_done(self, name: str, chunk: int, attempt: int) -> bool:
        """Report that a chunk is on all its replicas; whether the report counted."""
        return bool((await self.call(core.done(name, chunk, attempt)))["counted"])

    async def report_failed(self, name: str, chunk: int, attempt: int, suspects: Sequence[str] = ()) -> bool:
        """Report that a chunk could not be moved; whether the report counted."""
        return bool((await self.call(core.failed(name, chunk, attempt, suspects)))["counted"])

    async def status(self) -> dict[str, Any]:
        """The state of the coordinator: hosts, queue, chunks in flight."""
        return await self.call(core.STATUS)

    async def topology(self) -> dict[str, Any]:
        """The network of the coordinator."""
        return await self.call(core.TOPOLOGY)

    # ---- checkpoints

    async def register_checkpoint(self, complete: CompleteCheckpoint) -> None:
        """Register a complete checkpoint. Raises Conflict if the number is another checkpoint's, or was removed."""
        await self.call(complete.registration())

    async def newest_checkpoint(self, unit: str) -> CompleteCheckpoint | None:
        """The newest complete checkpoint of a unit all of whose bases are registered, or None."""
        try:
            return CompleteCheckpoint.load(await self.call(checkpoints.unit("GET", unit, "/newest")))
        except NotFound:
            return None

    async def checkpoint(self, unit: str, seq: int) -> CompleteCheckpoint:
        """A complete checkpoint by its number. Raises NotFound."""
        return CompleteCheckpoint.load(await self.call(checkpoints.checkpoint("GET", unit, seq)))

    async def checkpoints(self, unit: str) -> list[dict[str, Any]]:
        """The complete checkpoints of a unit without their files, the newest first; none if it is not known."""
        found: list[dict[str, Any]] = []
        before: int | None = None
        while True:
            try:
                page = await self.call(checkpoints.checkpoints_page(unit, before))
            except NotFound:
                return found
            found += page["checkpoints"]
            before = page["next"]
            if before is None:
                return found

    async def units(self) -> list[dict[str, Any]]:
        """All units that have a complete checkpoint, by name, each with its newest one."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = await self.call(checkpoints.units_page(after))
            found += page["units"]
            after = page["next"]
            if after is None:
                return found

    async def remove_checkpoint(self, unit: str, seq: int) -> bool:
        """Take a checkpoint out of the registry, before its files go. False: it was not there.

        Raises Conflict while it is the newest of its unit that can be recovered, or a base of that one.
        """
        return bool((await self.call(checkpoints.checkpoint("DELETE", unit, seq)))["removed"])

    async def forget_unit(self, unit: str) -> int:
        """Forget all checkpoints of a unit, whose files stay; returns how many there were."""
        return int((await self.call(checkpoints.unit("DELETE", unit)))["removed"])

    async def hosts_of_unit(self, unit: str, limit: int = 16) -> list[dict[str, Any]]:
        """The hosts that load a unit best, the best first: `host`, `address`, `bytes`, `distance`. Raises NotFound."""
        answer = await self.call(checkpoints.unit("GET", unit, f"/hosts?limit={limit}"))
        return list(answer["hosts"])

    # ---- calls

    async def call(self, request: ApiRequest, *, patience_s: float | None = None) -> dict[str, Any]:
        """Send a request until it is answered.

        Raises CoordinatorRefused, CoordinatorUnavailable, NotUnderstood, and CoordinatorError if the client is closed.
        """
        backoff = self._backoff(patience_s)
        while True:
            try:
                return await self._ask(request)
            except FAILURES as error:
                delay_s = backoff.after(error, trio.current_time(), self._operation(request))
            await trio.sleep(delay_s)

    async def _ask(self, request: ApiRequest) -> dict[str, Any]:
        """Send a request to one address after the other, until one of them answers as a leader does."""
        asked = self._round(request, trio.current_time())
        while True:
            try:
                answer = core.parse_answer(await self._send(asked, request))
            except (*FAILURES, NotUnderstood, Unauthorized) as error:
                if not asked.goes_on(error, trio.current_time()):
                    self._note_failure(asked)
                    raise asked.outcome(error) from error.__cause__
            except CoordinatorRefused:
                self._note_leader(asked.at)
                raise
            else:
                self._note_leader(asked.at)
                return answer

    async def _send(self, asked: AddressRound, request: ApiRequest) -> CoordinatorAnswer:
        """Send a request on an idle connection, and once more on a new one if the idle one had died."""
        if self._closed:
            raise CoordinatorError("the client is closed")
        idle = self._idle.get(asked.at)
        used = idle.pop() if idle else None
        with trio.fail_after(asked.limit_s(trio.current_time())):
            if used is not None:
                try:
                    return await self._exchange(used, asked, request)
                except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
                    await self._close_idle(asked.at)  # The others are as old: a restarted coordinator has closed them.
            return await self._exchange(await self._new_connection(asked), asked, request)

    async def _exchange(
        self, connection: _ClientConnection, asked: AddressRound, request: ApiRequest
    ) -> CoordinatorAnswer:
        """The answer, on a connection that no other task uses; then the connection is idle, or closed."""
        reusable = False
        try:
            answer = await connection.exchange(request, self._headers(asked.at, request))
            reusable = connection.reuse() and not self._closed
            return answer
        finally:
            if reusable:
                self._idle.setdefault(asked.at, []).append(connection)
            else:
                await trio.aclose_forcefully(connection.stream)

    async def _close_idle(self, at: Url) -> None:
        idle = self._idle.pop(at, [])
        while idle:
            await trio.aclose_forcefully(idle.pop().stream)

    async def _new_connection(self, asked: AddressRound) -> _ClientConnection:
        at = asked.at
        with trio.fail_after(asked.connect_limit_s(trio.current_time())):
            plain = await trio.open_tcp_stream(at.host, at.port)
            if self._tls is None:
                return _ClientConnection(plain)
            stream = trio.SSLStream(plain, self._tls, server_hostname=at.host, https_compatible=True)
            try:
                await stream.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            return _ClientConnection(stream)
