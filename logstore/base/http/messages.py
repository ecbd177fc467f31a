"""HTTP requests and responses as values, and the limits of a server.

Invariants: a request that reaches a handler is complete and within the limits; every limit has a reason. The defaults
are those of the coordinator.
"""

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from logstore.base.addresses import is_loopback

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits of a server. All times in seconds."""

    max_header_bytes: int = 16 * 1024
    """Request line and headers; ours need a few hundred bytes."""
    max_body_bytes: int = 1 << 20
    """Enough for a request for 10,000 chunks with their sources."""
    max_small_body_bytes: int = 64 * 1024
    """The limit of all other requests, and of every request without the token if the coordinator has one."""
    max_connections: int = 4096
    """Enough for 1,000 writers with a long poll and a report each, and for people."""
    max_connections_per_address: int = 512
    """The limit of one address other than loopback, so that one host cannot exclude the others."""
    header_s: float = 10.0
    """The time from a request's first byte to the end of its headers; also that of a TLS handshake."""
    body_s: float = 30.0
    """The time to receive a request's body."""
    send_s: float = 30.0
    """The time in which a client must take an answer."""
    idle_s: float = 120.0
    """The time between requests; longer than a long poll, so that a waiting writer keeps its second connection."""
    handshakes_per_s: float = math.inf
    """TLS handshakes of all clients together; more wait for their turn."""
    gives_way: bool = False
    """Beyond a limit of connections: the new one gets the place of the one that has sent or taken nothing for longest,
    instead of a 503.
    """
    reserved_connections: int = 0
    """Beyond `max_connections`, for clients whose request is urgent. Others get a 503 there, once they have asked."""
    silent_s: float = 0.25
    """A connection whose client has sent and taken nothing for so long is given up before a reserved one is used."""


class HttpRequest(NamedTuple):
    """A request with its whole body. `target`: path and query as sent, percent-encoded. Header names are lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    client: str


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
MayWait = Callable[[HttpRequest], bool]
"""Whether a request may take long, so that the server watches for a client that disconnects meanwhile."""
IsUrgent = Callable[[HttpRequest], bool]
"""Whether a request is answered on a reserved connection."""
TakesLarge = Callable[[str, str, Mapping[str, str]], bool]
"""Whether a request with this method, target and headers may have a large body; else it must be small."""


def json_response(status: int, value: object, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """An answer in JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Half a surrogate pair, which a client's JSON may contain as an escape, has no bytes in UTF-8: it stays an escape.
    return HttpResponse(status, text.encode(errors="backslashreplace") + b"\n", JSON, headers or {})


def error_response(
    status: int, message: str, *, field_name: str | None = None, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """An error in JSON: {"error", "field"?}."""
    value = {"error": message or HTTPStatus(status).phrase}
    if field_name is not None:
        value["field"] = field_name
    return json_response(status, value, headers)


def names_this_machine(host: str | None) -> bool:
    """Whether a Host header names this machine by a loopback name; HTTP/1.0 needs no Host header.

    A web page may give this machine a name of its own domain, so that the browser lets it read the answers.
    """
    try:
        return host is None or is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
