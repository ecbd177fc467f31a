"""A blocking client of the coordinator, on the standard library's http.client.

Invariants:
* Thread-safe: a connection has one user at a time, and only its user closes it; there are as many connections as
  requests at a time. `goes` of a request is for one thread, the gos are for any.
* A client survives a lost connection, a restarted coordinator and a full disk: it sends a request again for
  `patience_s` seconds from the request's first failure on. Of several addresses it finds the one that leads.
* One daemon thread sends the keep-alives of registered hosts until the client is closed.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from types import TracebackType
from typing import Any, Final

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

SHORTEST_S: Final = 0.001
"""A socket without any time is one that does not wait: it would fail in another way."""


class Go(BaseGo):
    """A chunk that may be moved now. Methods may be called from any thread."""

    __slots__ = ("_client",)

    def __init__(self, client: "CoordinatorClient", request: str, event: Mapping[str, Any]) -> None:
        super().__init__(request, event)
        self._client = client

    def done(self) -> bool:
        """Report that the chunk is on all its replicas. False: it was reported before, or revoked."""
        return self._client.report_done(self.request, self.chunk, self.attempt)

    def failed(self, suspects: Sequence[str] = ()) -> bool:
        """Report that the chunk could not be moved; it is planned again without `suspects`. False: it was revoked."""
        return self._client.report_failed(self.request, self.chunk, self.attempt, suspects)


class CoordinatorRequest(BaseRequest[Go]):
    """A request that this client submitted.

    `state` (waiting, running, finished, cancelled or failed) and `place` are those of the last answer.
    """

    def __init__(self, client: "CoordinatorClient", view: dict[str, Any]) -> None:
        super().__init__(view, partial(Go, client, str(view["request"])))
        self._client = client

    def wait(self, limit_s: float) -> bool:
        """Wait until a chunk may be moved, or all are done; False: neither came within `limit_s` seconds.

        What came is for `goes`, which raises the same errors. One thread waits at a time, and none in `goes`.
        """
        end_s = time.monotonic() + limit_s
        while not self.has_go:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            request = self._next_events(min(self._client.poll_s, left_s))
            if request is None:
                return True
            self._ready.extend(self._new_goes(self._client.call(request), None))
        return True

    def goes(self, on_revoked: Callable[[Go], None] | None = None) -> Iterator[Go]:
        """The go of each chunk as it comes; blocks, and ends when all chunks are done.

        A chunk that failed or was revoked comes again in a new attempt. Raises RequestCancelled or RequestFailed when
        the request ends otherwise, CoordinatorUnavailable when the coordinator does not answer for `patience_s`.
        """
        yield from self._first_goes()
        while (request := self._next_events(self._client.poll_s)) is not None:
            yield from self._new_goes(self._client.call(request), on_revoked)

    def refresh(self) -> dict[str, Any]:
        """The coordinator's view of the request; updates `place`."""
        view = self._client.request(self.name)
        self.place = core.place(view)
        return view

    def resubmit(self, chunks: int) -> None:
        """Change the number of chunks. With no more chunks than before, the request keeps its place in the queue."""
        self.place = core.place(self._client.call(core.request("PUT", self.name, {"chunks": chunks})))

    def cancel(self) -> None:
        """Cancel the request."""
        self._client.cancel(self.name)


class CoordinatorClient(BaseClient):
    """A client for threads. `token` and `ca_file` are those that the coordinator was started with."""

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[HTTPConnection] = set()
        self._idle: dict[Url, list[HTTPConnection]] = {}
        self._keeping = threading.Lock()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> "CoordinatorClient":
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End all requests and stop the keep-alives; hosts stay registered until they miss their deadline."""
        self._closed.set()
        with self._lock:
            for connection in self._busy:
                if connection.sock is not None:
                    # The thread that waits there sees the end of the stream and closes the connection. To close the
                    # connection here would not wake that thread.
                    with suppress(OSError):
                        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
        for at in self._addresses:
            self._close_idle(at)
        keeper = self._keeper
        if keeper is not None and keeper is not threading.current_thread():
            keeper.join(self._timeout_s)

    # ---- hosts

    def register(self, name: str, address: str | None = None, *, keep_alive: bool = True) -> None:
        """Register a host, or one that is back; `keep_alive`: send keep-alives until the client is closed."""
        view = self.call(core.registration(name, address))
        if keep_alive:
            with self._lock:
                self._hosts[name] = address
                self._keep_every_s = core.keep_alive_every_s(view)
                if self._keeper is None:
                    self._keeper = threading.Thread(target=self._keep, name="cairn keep-alives", daemon=True)
                    self._keeper.start()

    def alive(self, name: str) -> None:
        """Send one keep-alive of a registered host. Raises Conflict if the host was lost: register it again."""
        self.call(core.host("PUT", name, "/alive"))

    def deregister(self, name: str) -> None:
        """Deregister a host: it gets no new chunks, and its chunks in flight are planned again without it."""
        with self._keeping, self._lock:
            self._hosts.pop(name, None)
        self.call(core.host("DELETE", name))

    def _keep(self) -> None:
        while not self._closed.wait(self._keep_every_s):
            with self._lock:
                names = list(self._hosts)
            for name in names:
                # The lock: a host that is deregistered meanwhile must not be registered again. The error: the next
                # keep-alive is due soon, and the coordinator may be restarting.
                with self._keeping, suppress(CoordinatorError):
                    if name in self._hosts:
                        self._keep_every_s = core.keep_alive_every_s(self._send_alive(name))

    def _send_alive(self, name: str) -> dict[str, Any]:
        try:
            return self.call(core.host("PUT", name, "/alive"), patience_s=0)
        except CoordinatorRefused:
            return self.call(core.registration(name, self._hosts.get(name)), patience_s=0)

    # ---- requests

    def submit(
        self,
        writer: str | None = None,
        chunks: int = 1,
        replicas: int = 3,
        *,
        name: str | None = None,
        placement: Sequence[str] | None = None,
        **options: Any,
    ) -> CoordinatorRequest:
        """Submit a request to move chunks; `options`: `priority`, `kind` ("write", "read", "copy") and `sources`, as
        in the HTTP interface. With a `name` that was submitted before, the same request. Raises CoordinatorRefused.
        """
        request = core.submission(self._random, name, writer, chunks, replicas, placement, options)
        return CoordinatorRequest(self, self.call(request))

    def request(self, name: str) -> dict[str, Any]:
        """The coordinator's view of a request. Raises NotFound."""
        return self.call(core.request("GET", name))

    def cancel(self, name: str) -> None:
        """Cancel a request."""
        self.call(core.request("DELETE", name))

    def report_done(self, name: str, chunk: int, attempt: int) -> bool:
        """Report that a chunk is on all its replicas; whether the report counted."""
        return bool(self.call(core.done(name, chunk, attempt))["counted"])

    def report_failed(self, name: str, chunk: int, attempt: int, suspects: Sequence[str] = ()) -> bool:
        """Report that a chunk could not be moved; whether the report counted."""
        return bool(self.call(core.failed(name, chunk, attempt, suspects))["counted"])

    def status(self) -> dict[str, Any]:
        """The state of the coordinator: hosts, queue, chunks in flight."""
        return self.call(core.STATUS)

    def topology(self) -> dict[str, Any]:
        """The network of the coordinator."""
        return self.call(core.TOPOLOGY)

    # ---- checkpoints

    def register_checkpoint(self, complete: CompleteCheckpoint) -> None:
        """Register a complete checkpoint. Raises Conflict if the number is another checkpoint's, or was removed."""
        self.call(complete.registration())

    def newest_checkpoint(self, unit: str) -> CompleteCheckpoint | None:
        """The newest complete checkpoint of a unit all of whose bases are registered, or None."""
        try:
            return CompleteCheckpoint.load(self.call(checkpoints.unit("GET", unit, "/newest")))
        except NotFound:
            return None

    def checkpoint(self, unit: str, seq: int) -> CompleteCheckpoint:
        """A complete checkpoint by its number. Raises NotFound."""
        return CompleteCheckpoint.load(self.call(checkpoints.checkpoint("GET", unit, seq)))

    def checkpoints(self, unit: str) -> list[dict[str, Any]]:
        """The complete checkpoints of a unit without their files, the newest first; none if it is not known."""
        found: list[dict[str, Any]] = []
        before: int | None = None
        while True:
            try:
                page = self.call(checkpoints.checkpoints_page(unit, before))
            except NotFound:
                return found
            found += page["checkpoints"]
            before = page["next"]
            if before is None:
                return found

    def units(self) -> list[dict[str, Any]]:
        """All units that have a complete checkpoint, by name, each with its newest one."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = self.call(checkpoints.units_page(after))
            found += page["units"]
            after = page["next"]
            if after is None:
                return found

    def remove_checkpoint(self, unit: str, seq: int) -> bool:
        """Take a checkpoint out of the registry, before its files go. False: it was not there.

        Raises Conflict while it is the newest of its unit that can be recovered, or a base of that one.
        """
        return bool(self.call(checkpoints.checkpoint("DELETE", unit, seq))["removed"])

    def forget_unit(self, unit: str) -> int:
        """Forget all checkpoints of a unit, whose files stay; returns how many there were."""
        return int(self.call(checkpoints.unit("DELETE", unit))["removed"])

    def hosts_of_unit(self, unit: str, limit: int = 16) -> list[dict[str, Any]]:
        """The hosts that load a unit best, the best first: `host`, `address`, `bytes`, `distance`. Raises NotFound."""
        return list(self.call(checkpoints.unit("GET", unit, f"/hosts?limit={limit}"))["hosts"])

    # ---- calls

    def call(self, request: ApiRequest, *, patience_s: float | None = None) -> dict[str, Any]:
        """Send a request until it is answered.

        Raises CoordinatorRefused, CoordinatorUnavailable, NotUnderstood, and CoordinatorError if the client is closed.
        """
        backoff = self._backoff(patience_s)
        while True:
            try:
                return self._ask(request)
            except (OSError, HTTPException, CoordinatorUnavailable) as error:
                delay_s = backoff.after(error, time.monotonic(), self._operation(request))
            if self._closed.wait(delay_s):
                raise CoordinatorUnavailable(f"{request.method} {request.path}: the client was closed")

    def _ask(self, request: ApiRequest) -> dict[str, Any]:
        """Send a request to one address after the other, until one of them answers as a leader does."""
        asked = self._round(request, time.monotonic())
        while True:
            try:
                answer = core.parse_answer(self._send(asked, request))
            except (OSError, HTTPException, CoordinatorUnavailable, NotUnderstood, Unauthorized) as error:
                if not asked.goes_on(error, time.monotonic()) or self._closed.is_set():
                    self._note_failure(asked)
                    raise asked.outcome(error) from error.__cause__
            except CoordinatorRefused:
                self._note_leader(asked.at)
                raise
            else:
                self._note_leader(asked.at)
                return answer

    def _send(self, asked: AddressRound, request: ApiRequest) -> CoordinatorAnswer:
        """Send a request on an idle connection, and once more on a new one if the idle one had died."""
        if self._closed.is_set():
            raise CoordinatorError("the client is closed")
        with self._lock:
            idle = self._idle.get(asked.at)
            used = idle.pop() if idle else None
        try:
            return self._exchange(used or self._new_connection(asked), asked, request)
        except (OSError, HTTPException) as error:
            self._close_idle(asked.at)  # The others are as old: a restarted coordinator has closed them too.
            if used is None or isinstance(error, TimeoutError) or self._closed.is_set():
                raise
        return self._exchange(self._new_connection(asked), asked, request)

    def _exchange(self, connection: HTTPConnection, asked: AddressRound, request: ApiRequest) -> CoordinatorAnswer:
        """The answer, on a connection that no other thread uses; then the connection is idle, or closed."""
        with self._lock:
            self._busy.add(connection)
        reusable = False
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(max(SHORTEST_S, asked.limit_s(time.monotonic())))
            if self._closed.is_set():
                raise CoordinatorError("the client is closed")
            headers = self._headers(asked.at, request)
            connection.request(request.method, request.path, request.content() or None, headers)
            answer = connection.getresponse()
            content = answer.read(core.MAX_ANSWER_BYTES + 1)
            if len(content) > core.MAX_ANSWER_BYTES:
                raise NotUnderstood(f"an answer of more than {core.MAX_ANSWER_BYTES} bytes")
            if answer.length:
                raise IncompleteRead(content, answer.length)
            reusable = not answer.will_close
            location, retry_after = (answer.getheader(name, "") for name in ("Location", "Retry-After"))
            return CoordinatorAnswer(answer.status, content, location, retry_after)
        finally:
            with self._lock:
                self._busy.discard(connection)
                reusable = reusable and not self._closed.is_set()
                if reusable:
                    self._idle.setdefault(asked.at, []).append(connection)
            if not reusable:
                connection.close()

    def _new_connection(self, asked: AddressRound) -> HTTPConnection:
        at, limit_s = asked.at, max(SHORTEST_S, asked.connect_limit_s(time.monotonic()))
        if self._tls is None:
            return HTTPConnection(at.host, at.port, timeout=limit_s)
        return HTTPSConnection(at.host, at.port, timeout=limit_s, context=self._tls)

    def _close_idle(self, at: Url) -> None:
        with self._lock:
            idle = self._idle.pop(at, [])
        for connection in idle:
            connection.close()
