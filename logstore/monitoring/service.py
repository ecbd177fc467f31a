"""Answers the requests of a sidecar's HTTP listener.

Invariants:
* Only GET and HEAD are answered, and nothing that is asked changes anything.
* No answer permits another site to read it: there is no CORS, and on a loopback address a request whose Host header
  names another machine is refused, as a page of that name's owner may have sent it.
* Long answers are made on a thread, one at a time, so the event loop goes on meanwhile. However many clients ask, and
  however often, requests and long answers take a bounded share of the processor (REQUESTS_PER_S, RESTS).
* `/health` and `/ready` wait behind no other requests, and have connections that no others have.
* A fault in an answer costs this answer (500) and a line in the log, never the sidecar.
"""

import math
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import trio

from logstore.base import prometheus
from logstore.base.errors import FieldError
from logstore.base.fields import Integer, from_text, nearest, shown
from logstore.base.http.messages import (
    HttpRequest,
    HttpResponse,
    HttpSettings,
    error_response,
    json_response,
    names_this_machine,
)
from logstore.events import PAGE_CRASHED
from logstore.monitoring.health import Phase
from logstore.monitoring.metrics import Look, read_all
from logstore.monitoring.page import StatusPage
from logstore.monitoring.sampler import Sampler
from logstore.monitoring.status import DEFAULT_LIMIT, MAX_LIMIT, Wanted, status

LIMITS: Final = HttpSettings(
    max_header_bytes=8 * 1024,
    max_body_bytes=1024,
    max_small_body_bytes=1024,
    max_connections=64,
    max_connections_per_address=16,
    header_s=5.0,
    body_s=5.0,
    send_s=10.0,
    idle_s=75.0,
    handshakes_per_s=50.0,
    gives_way=True,
    reserved_connections=64,
)
"""Enough for some Prometheus servers and pages; a connection idles for longer than Prometheus waits between
scrapes. A handshake takes 1 to 2 ms of the event loop. The reserved connections are for `/health` and `/ready`.
"""
OK, BAD_REQUEST, NOT_FOUND, METHOD_NOT_ALLOWED, INTERNAL_ERROR, UNAVAILABLE = 200, 400, 404, 405, 500, 503
REQUESTS_PER_S: Final = 200
"""Of all clients together, and as many that are urgent; more wait for their turn. A request takes some 0.3 ms of the
event loop.
"""
URGENT: Final = ("/health", "/ready")
BURST: Final = 50
"""Requests that need not wait after a quiet time."""
RESTS: Final = 9
"""A long answer that took a millisecond to make is followed by 9 without one: at most a tenth of the processor."""
MAX_QUERY_FIELDS: Final = 8
MAX_SEARCH_CHARACTERS: Final = 249
"""As long as a topic's name may be."""
COMMON_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}

Query = Mapping[str, str]
T = TypeVar("T")


def is_urgent(request: HttpRequest) -> bool:
    """Whether a request asks for a short answer that those need who decide whether the sidecar lives on."""
    return request.target.partition("?")[0] in URGENT


class _RequestTurns:
    """Spreads requests over time: BURST at once after a quiet time, REQUESTS_PER_S of them."""

    def __init__(self) -> None:
        self._turn_s = -math.inf

    async def wait(self) -> None:
        """Wait for the turn of a request."""
        now_s = trio.current_time()
        self._turn_s = max(self._turn_s, now_s - BURST / REQUESTS_PER_S) + 1 / REQUESTS_PER_S
        await trio.sleep_until(max(now_s, self._turn_s))


class Monitoring:
    """The handler of the listener. `own_only`: refuse requests whose Host header names another machine."""

    def __init__(self, sampler: Sampler, version: str, *, own_only: bool) -> None:
        self._sampler = sampler
        self._watched = sampler.watched
        self._version = version
        self._own_only = own_only
        self._page = StatusPage.load()
        self._rendering = trio.Lock()
        self._render_at_s = -math.inf
        self._turns, self._urgent_turns = _RequestTurns(), _RequestTurns()
        self._routes: dict[str, Callable[[Query], Awaitable[HttpResponse]]] = {
            "/": self._show_page,
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/status.json": self._status,
        }

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer a request, when it is its turn."""
        try:
            await (self._urgent_turns if is_urgent(request) else self._turns).wait()
            response = await self._answer(request)
        except FieldError as error:
            response = error_response(BAD_REQUEST, str(error), field_name=error.field)
        except Exception as error:  # noqa: BLE001  a fault of ours must not cost the operator the other answers
            self._watched.events(PAGE_CRASHED, trace="".join(traceback.format_exception(error)))
            response = error_response(INTERNAL_ERROR, "a fault of the sidecar's; its log says more")
        return HttpResponse(
            response.status, response.body, response.content_type, {**COMMON_HEADERS, **response.headers}
        )

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if self._own_only and not names_this_machine(request.headers.get("host")):
            return error_response(
                BAD_REQUEST,
                f"Host={shown(request.headers['host'])}: this address serves 127.0.0.1 and localhost only",
                field_name="Host",
            )
        if request.method not in ("GET", "HEAD"):
            message = f"{request.method[:20]} is not possible here; GET is"
            return error_response(METHOD_NOT_ALLOWED, message, headers={"Allow": "GET, HEAD"})
        try:
            parts = urlsplit(request.target)
            pairs = parse_qsl(parts.query, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
        except ValueError:
            return error_response(
                BAD_REQUEST, f"the target cannot be read: at most {MAX_QUERY_FIELDS} fields, in UTF-8"
            )
        route = self._routes.get(parts.path)
        if route is None:
            known = list(self._routes)
            return error_response(
                NOT_FOUND, f"no such path{nearest(parts.path[:100], known)}; there are {', '.join(known)}"
            )
        return await route(dict(pairs))

    async def _show_page(self, _: Query) -> HttpResponse:
        headers = {"Content-Security-Policy": self._page.policy}
        return HttpResponse(OK, self._page.body, "text/html; charset=utf-8", headers)

    async def _health(self, _: Query) -> HttpResponse:
        """200 while the process lives and its disk takes what is written; 503 with the disk's error else."""
        error = self._watched.served.engine.disk_error
        value = {
            "status": "ok" if error is None else "failing",
            "phase": self._watched.health.phase.value,
            "disk": {"writable": error is None, "error": error},
            "loop": {"worst_lag_ms": round(1000 * self._watched.health.worst_lag_s, 1)},
        }
        return json_response(OK if error is None else UNAVAILABLE, value)

    async def _ready(self, _: Query) -> HttpResponse:
        """200 once all is recovered and listens, until the sidecar stops; 503 else."""
        phase = self._watched.health.phase
        return json_response(OK if phase is Phase.READY else UNAVAILABLE, {"status": phase.value})

    async def _metrics(self, _: Query) -> HttpResponse:
        now, _before = await self._sampler.snapshot()
        look = Look(self._watched, now, self._version)
        body = await self._render(lambda: prometheus.text(read_all(look)).encode(errors="backslashreplace"))
        return HttpResponse(OK, body, prometheus.CONTENT_TYPE)

    async def _status(self, query: Query) -> HttpResponse:
        limit = int(from_text(Integer(1, MAX_LIMIT), query.get("limit", str(DEFAULT_LIMIT)), "limit"))
        search = query.get("search", "")
        if len(search) > MAX_SEARCH_CHARACTERS:
            raise FieldError("search", f"search: at most {MAX_SEARCH_CHARACTERS} characters")
        now, before = await self._sampler.snapshot()
        look = Look(self._watched, now, self._version)
        return await self._render(lambda: json_response(OK, status(look, before, Wanted(search, limit))))

    async def _render(self, work: Callable[[], T]) -> T:
        """Make an answer on a thread, and let the next one wait so long that all take a bounded share."""
        async with self._rendering:
            await trio.sleep_until(max(trio.current_time(), self._render_at_s))
            begun_s = trio.current_time()
            try:
                return await trio.to_thread.run_sync(work)
            finally:
                now_s = trio.current_time()
                self._render_at_s = now_s + RESTS * (now_s - begun_s)
