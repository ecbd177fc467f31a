"""One client's connection: bytes to requests, answers to bytes, with a deadline for every activity.

Invariants:
* h11 parses HTTP; invalid HTTP gets one 4xx, and the connection ends.
* A request whose end is ambiguous gets 400, and the connection ends.
* The limits of headers and bodies are checked before they are buffered; a body whose length exceeds the limit is not
  read.
* Requests of one connection are answered one after the other; the next is not read before the last is answered.
* A client that stops sending or receiving loses its connection, and affects no other client.
"""

import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol

import h11
import trio

from logstore.base.http.messages import (
    Handler,
    HttpRequest,
    HttpResponse,
    HttpSettings,
    MayWait,
    TakesLarge,
    error_response,
)

RECEIVE_BYTES = 16 * 1024
PAYLOAD_TOO_LARGE = 413
TOO_SLOW = 408
BAD_REQUEST = 400
CONTINUE = 100
NO_SUCH_VERSION = 505
VERSIONS = (b"1.0", b"1.1")
LINGER_S = 0.5
"""How long further bytes of a refused client are discarded, so that it receives the answer and not a reset."""
LINGER_BYTES = 4 << 20


REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class HttpStream(Protocol):
    """The part of a trio stream that a connection uses, with TLS or without."""

    async def send_all(self, data: bytes) -> None:
        """Send everything."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive some bytes; empty at the end."""

    async def aclose(self) -> None:
        """Close."""


class RequestRejected(Exception):
    """The request is rejected with `status` and a reason; the connection ends after the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpConnection:
    """Serves one client until it leaves, breaks a rule, or the server drains."""

    def __init__(
        self,
        stream: HttpStream,
        client: str,
        settings: HttpSettings,
        handler: Handler,
        may_wait: MayWait,
        takes_large: TakesLarge = lambda *_: True,
        handshake: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._stream = stream
        self._handshake = handshake
        self._settings = settings
        self._handler = handler
        self._may_wait = may_wait
        self._takes_large = takes_large
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=settings.max_header_bytes)
        # One scope for all deadlines of the connection: each activity sets its deadline.
        self._scope = trio.CancelScope()
        self._doing = "idle"
        self._stopping = False
        self._gone = False
        self.client = client
        """The address of the client."""
        self.since_s = trio.current_time()
        """When the present activity began."""

    @property
    def may_give_way(self) -> bool:
        """Whether the connection waits for its client, and not for its handler."""
        return self._doing != "work"

    def give_way(self) -> None:
        """End at once, without an answer: another client needs the place."""
        self._gone = True
        self._scope.cancel()

    def stop(self) -> None:
        """Answer the request in work, then close; close at once if there is none."""
        self._stopping = True
        if self._doing in ("idle", "handshake"):
            self._scope.cancel()

    async def run(self) -> None:
        """Serve until the connection ends. Never raises, whatever the client does."""
        try:
            with self._scope:
                if self._handshake is not None:
                    self._do("handshake", self._settings.header_s)
                    await self._handshake()
                while not self._stopping and await self._one():
                    pass
            if self._scope.cancelled_caught and self._doing in ("headers", "body"):
                limit_s = self._settings.header_s if self._doing == "headers" else self._settings.body_s
                message = f"the {self._doing} took longer than {limit_s:g} s"
                with trio.move_on_after(self._settings.send_s):
                    await self._refuse(TOO_SLOW, message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except h11.LocalProtocolError:
            pass  # the client left in the middle of its answer

    def _do(self, what: str, limit_s: float) -> None:
        """Set the connection's activity and the deadline for it."""
        self._doing = what
        self.since_s = trio.current_time()
        self._scope.deadline = self.since_s + limit_s

    async def _one(self) -> bool:
        """Serve one request; returns whether another may follow on the connection."""
        try:
            request = await self._request()
        except RequestRejected as rejected:
            await self._refuse(rejected.status, str(rejected))
            return False
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, f"this is not valid HTTP: {error}")
            return False
        if request is None:
            return False
        self._do("work", math.inf)
        response = await self._handle(request)
        if response is None:
            return False
        await self._answer(response, head=request.method == "HEAD")
        if self._stopping or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    # ---- receiving

    async def _request(self) -> HttpRequest | None:
        """The next request; None if the client sends no more."""
        event: object = self._http.next_event()
        if event is h11.NEED_DATA and self._http.trailing_data[0] == b"":
            self._do("idle", self._settings.idle_s)
            await self._receive()
            event = self._http.next_event()
        if event is h11.NEED_DATA:
            self._do("headers", self._settings.header_s)
            while event is h11.NEED_DATA:
                await self._receive()
                event = self._http.next_event()
        if not isinstance(event, h11.Request):
            return None
        if event.http_version not in VERSIONS:
            raise RequestRejected(NO_SUCH_VERSION, "only HTTP/1.1 is supported")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        if "transfer-encoding" in headers and ("content-length" in headers or event.http_version == b"1.0"):
            # RFC 9112, 6.1: a proxy in between may have read another end of the body.
            raise RequestRejected(BAD_REQUEST, "Transfer-Encoding cannot be combined with Content-Length or HTTP/1.0")
        method, target = event.method.decode("ascii"), event.target.decode("ascii")
        limits = self._settings
        large = self._takes_large(method, target, headers)
        body = await self._body(headers, limits.max_body_bytes if large else limits.max_small_body_bytes)
        return HttpRequest(method, target, headers, body, self.client)

    async def _body(self, headers: dict[str, str], limit: int) -> bytes:
        length = headers.get("content-length", "0")
        if len(length) > len(str(limit)) or int(length) > limit:
            raise RequestRejected(PAYLOAD_TOO_LARGE, f"a body of {length[:20]} bytes; at most {limit} are accepted")
        self._do("body", self._settings.body_s)
        if self._http.they_are_waiting_for_100_continue:
            await self._stream.send_all(
                self._http.send(h11.InformationalResponse(status_code=CONTINUE, headers=[])) or b""
            )
        body = bytearray()
        while True:
            event: object = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._receive()
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > limit:
                    raise RequestRejected(PAYLOAD_TOO_LARGE, f"the body exceeds {limit} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)
            else:
                raise RequestRejected(BAD_REQUEST, "the connection ended within the body")

    async def _receive(self) -> None:
        data = await self._stream.receive_some(RECEIVE_BYTES)
        self._gone = self._gone or not data
        self._http.receive_data(bytes(data))

    # ---- handling

    async def _handle(self, request: HttpRequest) -> HttpResponse | None:
        """The answer; None if the client left before it was ready."""
        if not self._may_wait(request) or self._gone:
            return await self._handler(request)
        response: HttpResponse | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            response = await self._handler(request)
            nursery.cancel_scope.cancel()
        return response

    async def _watch(self, work: trio.CancelScope) -> None:
        """Stop the handler when the client leaves. Reads at most once: early bytes belong to the next request."""
        try:
            await self._receive()
        except trio.BrokenResourceError:
            self._gone = True
        if self._gone:
            work.cancel()

    # ---- sending

    async def _answer(self, response: HttpResponse, *, head: bool = False) -> None:
        headers = [("Content-Type", response.content_type), ("Content-Length", str(len(response.body)))]
        headers += [("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), *response.headers.items()]
        if self._stopping:
            headers.append(("Connection", "close"))
        data = (
            self._http.send(
                h11.Response(status_code=response.status, headers=headers, reason=REASONS.get(response.status, b""))
            )
            or b""
        )
        if response.body and not head:
            data += self._http.send(h11.Data(data=response.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        self._do("answer", self._settings.send_s)
        await self._stream.send_all(data)

    async def _refuse(self, status: int, message: str) -> None:
        """Answer an invalid request, if the client still listens, and discard further bytes for a moment."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or self._gone:
            return
        self._stopping = True
        await self._answer(error_response(status, message))
        self._do("linger", 2 * LINGER_S)
        taken = 0
        with trio.move_on_after(LINGER_S):
            while taken < LINGER_BYTES:
                data = await self._stream.receive_some(RECEIVE_BYTES)
                if not data:
                    return
                taken += len(data)
