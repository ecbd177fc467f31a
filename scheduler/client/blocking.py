"""A blocking client of the coordinator, on the standard library's http.client.

Invariants:
* Thread-safe: a connection has one user at a time, who alone closes it, and there are as many as questions at a time.
  A Write's `goes` is for one thread, its gos are for any.
* A lost connection, a restarted coordinator and a full disk are waited for, `patience_s` seconds for each question,
  from its first failure on.
* Keep-alives of registered hosts are sent by one daemon thread until the client is closed.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import Any

from scheduler.client import core
from scheduler.client.core import ApiRequest, GoEvent, QueuePlace
from scheduler.client.errors import (
    CoordinatorError,
    NotUnderstood,
    CoordinatorRefused,
    RequestCancelled,
    RequestFailed,
    CoordinatorUnavailable,
)


class Go:
    """A chunk that may be moved now. Methods may be called from any thread."""

    __slots__ = ("_client", "addresses", "attempt", "chunk", "hosts", "request", "revoked")

    def __init__(self, client: "CoordinatorClient", request: str, event: GoEvent) -> None:
        self._client = client
        self.request = request
        self.chunk, self.attempt, self.hosts, self.addresses = event
        self.revoked = False
        """Becomes true when the chunk is planned anew or the request given up: stop, nothing of it counts."""

    def done(self) -> bool:
        """The chunk is on all its replicas. False: it counted already, or was revoked."""
        return self._client.report_done(self.request, self.chunk, self.attempt)

    def failed(self, suspects: Sequence[str] = ()) -> bool:
        """It could not be moved; `suspects` are avoided when it is planned again. False: it was revoked already."""
        return self._client.report_failed(self.request, self.chunk, self.attempt, suspects)

    def __repr__(self) -> str:
        return f"Go({self.request!r}, chunk={self.chunk}, attempt={self.attempt}, hosts={self.hosts})"


class CoordinatorRequest:
    """A request of ours. `state` and `place` are as last heard."""

    def __init__(self, client: "CoordinatorClient", view: dict[str, Any]) -> None:
        self._client = client
        self._progress = core.RequestProgress(view)
        self._open: dict[int, Go] = {}
        self.name = self._progress.name
        self.place: QueuePlace | None = core.place(view)

    @property
    def state(self) -> str:
        """waiting, running, finished, cancelled or failed."""
        return self._progress.state

    def goes(self, on_revoked: Callable[[Go], None] | None = None) -> Iterator[Go]:
        """Each chunk's go as it comes, blocking; ends when all chunks are done.

        A chunk that failed or was revoked comes again in a new attempt. Raises RequestCancelled or RequestFailed when
        the request ends otherwise, Unavailable when the coordinator stays away.
        """
        progress = self._progress
        first, progress.first = progress.first, []
        for event in first:
            yield self._opened(event)
        while not progress.ended:
            answer = self._client.ask(core.events(self.name, progress.after, self._client.poll_s))
            for kind, event_or_none in progress.take(answer):
                if event_or_none is None:
                    break
                if kind == "go":
                    yield self._opened(event_or_none)
                else:
                    self._revoke(event_or_none, on_revoked)
        raise_unless_finished(self.name, progress.state)

    def refresh(self) -> dict[str, Any]:
        """Ask where it stands; updates `place`."""
        view = self._client.request(self.name)
        self.place = core.place(view)
        return view

    def resubmit(self, chunks: int) -> None:
        """Change the number of chunks. It keeps its place in the queue unless they become more."""
        self.place = core.place(self._client.ask(core.request("PUT", self.name, {"chunks": chunks})))

    def cancel(self) -> None:
        """Give it up."""
        self._client.cancel(self.name)

    def _opened(self, event: GoEvent) -> Go:
        go = Go(self._client, self.name, event)
        self._open[event.chunk] = go
        return go

    def _revoke(self, event: GoEvent, on_revoked: Callable[[Go], None] | None) -> None:
        go = self._open.get(event.chunk)
        if go is not None and go.attempt == event.attempt:
            go.revoked = True
            if on_revoked is not None:
                on_revoked(go)


class CoordinatorClient:
    """See the module. `token` and `ca_file` as the coordinator was started with."""

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
        self._lock = threading.Lock()
        self._busy: set[HTTPConnection] = set()
        self._idle: list[HTTPConnection] = []
        self._keeping = threading.Lock()
        self._hosts: dict[str, str | None] = {}
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        self._keep_every_s = 1.0

    def __enter__(self) -> "CoordinatorClient":
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End all questions and stop the keep-alives; hosts stay registered until they miss their deadline."""
        self._closed.set()
        with self._lock:
            for connection in self._busy:
                if connection.sock is not None:
                    # The thread that waits there sees an end, and closes: to close under it would not even wake it.
                    with suppress(OSError):
                        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
        self._close_idle()
        keeper = self._keeper
        if keeper is not None and keeper is not threading.current_thread():
            keeper.join(self._timeout_s)

    # ---- hosts

    def register(self, name: str, address: str | None = None, *, keep_alive: bool = True) -> None:
        """Say that a host is there, or back; with `keep_alive` go on saying so until the client is closed."""
        view = self.ask(core.registration(name, address))
        if keep_alive:
            with self._lock:
                self._hosts[name] = address
                self._keep_every_s = core.keep_alive_every_s(view)
                if self._keeper is None:
                    self._keeper = threading.Thread(target=self._keep, name="cairn keep-alives", daemon=True)
                    self._keeper.start()

    def alive(self, name: str) -> None:
        """Say that a registered host lives. Raises Conflict if it was lost: register it."""
        self.ask(core.host("PUT", name, "/alive"))

    def deregister(self, name: str) -> None:
        """A host leaves: nothing is planned on it any more, and what is under way there is planned again."""
        with self._keeping, self._lock:
            self._hosts.pop(name, None)
        self.ask(core.host("DELETE", name))

    def _keep(self) -> None:
        while not self._closed.wait(self._keep_every_s):
            with self._lock:
                names = list(self._hosts)
            for name in names:
                # A host that is deregistered meanwhile must not be registered again.
                with self._keeping, suppress(CoordinatorError):  # asked again soon; the coordinator may be away
                    if name in self._hosts:
                        self._keep_every_s = core.keep_alive_every_s(self._kept(name))

    def _kept(self, name: str) -> dict[str, Any]:
        try:
            return self.ask(core.host("PUT", name, "/alive"), patience_s=0)
        except CoordinatorRefused:
            return self.ask(core.registration(name, self._hosts.get(name)), patience_s=0)

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
        """Ask to move chunks; `options`: `priority`, `kind` ("write", "read", "copy") and `sources`, as in the
        interface. With a `name` that was submitted before, the same request. Raises Refused.
        """
        fields = core.request_fields(writer, chunks, replicas, placement, options)
        return CoordinatorRequest(self, self.ask(core.submission(self._random, name, fields)))

    def request(self, name: str) -> dict[str, Any]:
        """A request as the coordinator sees it. Raises NotFound."""
        return self.ask(core.request("GET", name))

    def cancel(self, name: str) -> None:
        """Give a request up."""
        self.ask(core.request("DELETE", name))

    def report_done(self, name: str, chunk: int, attempt: int) -> bool:
        """A chunk is on all its replicas; whether that was news."""
        return bool(self.ask(core.report(name, chunk, "done", {"attempt": attempt}))["counted"])

    def report_failed(self, name: str, chunk: int, attempt: int, suspects: Sequence[str] = ()) -> bool:
        """A chunk could not be moved; whether that was news."""
        body = {"attempt": attempt, "suspects": list(suspects)}
        return bool(self.ask(core.report(name, chunk, "failed", body))["counted"])

    def status(self) -> dict[str, Any]:
        """What goes on."""
        return self.ask(ApiRequest("GET", "/v1/status"))

    def topology(self) -> dict[str, Any]:
        """The network that is planned on."""
        return self.ask(ApiRequest("GET", "/v1/topology"))

    # ---- questions and answers

    def ask(self, question: ApiRequest, *, patience_s: float | None = None) -> dict[str, Any]:
        """Ask until there is an answer. Raises Refused, Unavailable, NotUnderstood."""
        patience_s = self._patience_s if patience_s is None else patience_s
        backoff = core.Backoff(self._random, patience_s)
        while True:
            try:
                return core.understood(*self._once(question))
            except (OSError, HTTPException, CoordinatorUnavailable) as error:
                delay_s = backoff.after(error, time.monotonic(), f"{question.method} {self.url}{question.path}")
            if self._closed.wait(delay_s):
                raise CoordinatorUnavailable(f"{question.method} {question.path}: the client was closed")

    def _once(self, question: ApiRequest) -> tuple[int, bytes]:
        if self._closed.is_set():
            raise CoordinatorError("the client is closed")
        with self._lock:
            used = self._idle.pop() if self._idle else None
        try:
            return self._asked(used or self._new(), question)
        except (OSError, HTTPException) as error:
            self._close_idle()  # as old, and as dead when the coordinator was restarted
            if used is None or isinstance(error, TimeoutError) or self._closed.is_set():
                raise
        return self._asked(self._new(), question)

    def _asked(self, connection: HTTPConnection, question: ApiRequest) -> tuple[int, bytes]:
        """Ask on a connection that no other thread has; it is idle afterwards, or closed."""
        with self._lock:
            self._busy.add(connection)
        again = False
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(self._timeout_s + question.wait_s)
            if self._closed.is_set():
                raise CoordinatorError("the client is closed")
            headers = question.headers(self._at.authority, self._token)
            connection.request(question.method, question.path, question.content() or None, headers)
            answer = connection.getresponse()
            content = answer.read(core.MAX_ANSWER_BYTES + 1)
            if len(content) > core.MAX_ANSWER_BYTES:
                raise NotUnderstood(f"an answer of more than {core.MAX_ANSWER_BYTES} bytes")
            if answer.length:
                raise IncompleteRead(content, answer.length)
            again = not answer.will_close
            return answer.status, content
        finally:
            with self._lock:
                self._busy.discard(connection)
                again = again and not self._closed.is_set()
                if again:
                    self._idle.append(connection)
            if not again:
                connection.close()

    def _new(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._at.host, self._at.port, timeout=self._timeout_s)
        return HTTPSConnection(self._at.host, self._at.port, timeout=self._timeout_s, context=self._tls)

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def raise_unless_finished(name: str, state: str) -> None:
    """Raise what a request's end means, unless it is finished."""
    if state == "cancelled":
        raise RequestCancelled(f"request {name!r} was cancelled, or its writer was lost")
    if state == "failed":
        raise RequestFailed(f"request {name!r} was given up: too many attempts, or no path")
