"""What both clients share: questions, what answers mean, when to try again, and a writer's view of its request.

Invariants:
* Sans-I/O: no sockets, no clock, no waiting.
* Every question can be asked again without harm: a submission always has a name, reports name their attempt.
* A go that was handed out is handed out again only in a new attempt.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from scheduler.client.errors import CoordinatorError, NotUnderstood, CoordinatorUnavailable, refusal

DEFAULT_URL = "http://127.0.0.1:9880"
DEFAULT_PORT = 9880
POLL_S = 30.0
"""How long one question for events waits at the coordinator."""
TIMEOUT_S = 10.0
"""How long an answer may take beyond that."""
PATIENCE_S = 60.0
"""How long a question is asked again while nobody answers: a coordinator's restart and more."""
FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0
MAX_ANSWER_BYTES = 64 << 20
KEEP_ALIVES_PER_DEADLINE = 3
_TOO_SLOW = 408
_JSON = "application/json"


class Url(NamedTuple):
    """Where a coordinator is."""

    tls: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """For the Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(text: str) -> Url:
    """An address of the form http://HOST:PORT or https://HOST:PORT. Raises CoordinatorError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise CoordinatorError(f"{text!r} is no address of a coordinator: write http://HOST:PORT")
    return Url(parts.scheme == "https", parts.hostname, DEFAULT_PORT if port is None else port)


class ApiRequest(NamedTuple):
    """A question. `wait_s`: how long the coordinator may take on purpose."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    wait_s: float = 0.0

    def content(self) -> bytes:
        """The body's bytes."""
        return b"" if self.body is None else json.dumps(self.body, separators=(",", ":")).encode()

    def headers(self, authority: str, token: str | None) -> dict[str, str]:
        """All headers; a question without a body says nothing of one."""
        headers = {"Host": authority, "Accept": _JSON}
        if self.body is not None:
            headers |= {"Content-Type": _JSON, "Content-Length": str(len(self.content()))}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers


class QueuePlace(NamedTuple):
    """A place in the queue: requests and chunks that come first, and the proven bound: it waits at most
    `starts_within_chunks` times as long as a chunk takes.
    """

    requests_ahead: int
    chunks_ahead: int
    starts_within_chunks: int


# ---- questions


def submission(random: Random, name: str | None, fields: Mapping[str, Any]) -> ApiRequest:
    """Submit a request; without a name it gets one here, so that it can be sent twice."""
    given = {key: value for key, value in fields.items() if value is not None}
    return ApiRequest("POST", "/v1/requests", {"name": name or f"request-{random.getrandbits(96):024x}", **given})


def registration(name: str, address: str | None) -> ApiRequest:
    """Register a host."""
    return ApiRequest("POST", "/v1/hosts", {"name": name, "address": address})


def host(method: str, name: str, what: str = "") -> ApiRequest:
    """Something about a host."""
    return ApiRequest(method, f"/v1/hosts/{quote(name, safe='')}{what}")


def request(method: str, name: str, body: Mapping[str, Any] | None = None) -> ApiRequest:
    """Something about a request."""
    return ApiRequest(method, f"/v1/requests/{quote(name, safe='')}", body)


def events(name: str, after: int, wait_s: float) -> ApiRequest:
    """Wait for a request's events."""
    return ApiRequest("GET", f"/v1/requests/{quote(name, safe='')}/go?after={after}&wait_s={wait_s:g}", None, wait_s)


def report(name: str, chunk: int, what: str, body: Mapping[str, Any]) -> ApiRequest:
    """Report on a chunk: `done` or `failed`."""
    return ApiRequest("POST", f"/v1/requests/{quote(name, safe='')}/chunks/{chunk}/{what}", body)


# ---- answers


def understood(status: int, content: bytes) -> dict[str, Any]:
    """What an answer says. Raises Refused, Unavailable (worth trying again), NotUnderstood."""
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if status >= 500 or status == _TOO_SLOW:
        # Perhaps from something between us and the coordinator, which says in words of its own that it is away.
        message = value.get("error", value) if isinstance(value, dict) else "no words of a coordinator's"
        raise CoordinatorUnavailable(f"the answer was {status}: {message}")
    if not isinstance(value, dict):
        raise NotUnderstood(f"the answer (status {status}) is no JSON object: is this a coordinator's address?")
    if status < 300:
        return value
    raise refusal(status, str(value.get("error", value)), value.get("field"))


def keep_alive_every_s(view: Mapping[str, Any]) -> float:
    """How often a host must say that it lives, by the newest answer to it."""
    return (view["deadline_ms"] or 1000) / 1000 / KEEP_ALIVES_PER_DEADLINE


class Backoff:
    """How long to wait before a question's next try, with jitter; an end `patience_s` after its first failure."""

    def __init__(self, random: Random, patience_s: float) -> None:
        self._random = random
        self._patience_s = patience_s
        self._end_s: float | None = None
        self._delay_s = FIRST_DELAY_S

    def after(self, error: Exception, now_s: float, what: str) -> float:
        """Seconds to wait now that this went wrong. Raises Unavailable when patience is over."""
        if self._end_s is None:
            # Not from the question on: that may have waited long for news, as it was meant to.
            self._end_s = now_s + self._patience_s
        if now_s >= self._end_s:
            raise CoordinatorUnavailable(f"{what}: {str(error) or error.__cause__ or type(error).__name__}") from error
        delay_s = self._delay_s * (0.5 + self._random.random())
        self._delay_s = min(2 * self._delay_s, MAX_DELAY_S)
        return min(delay_s, max(0.0, self._end_s - now_s))


# ---- a writer's view of its request


class GoEvent(NamedTuple):
    """Move chunk `chunk` now: `hosts[0]` sends it to `hosts[1]`, and so on; `addresses` where they are known."""

    chunk: int
    attempt: int
    hosts: tuple[str, ...]
    addresses: tuple[str | None, ...]


class RequestProgress:
    """What a writer has been told: which gos hold, the last event, and how it ended."""

    def __init__(self, view: Mapping[str, Any]) -> None:
        self.name = str(view["request"])
        self.state = str(view["state"])
        self.after = int(view["last_event"])
        self.first: list[GoEvent] = [_go(event) for event in view["go"]]

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("finished", "cancelled", "failed")

    def take(self, answer: Mapping[str, Any]) -> Iterator[tuple[str, GoEvent | None]]:
        """The new events of an answer, in order: ("go" or "revoked", the go), or the end and None."""
        for event in answer["events"]:
            if event["number"] <= self.after:
                continue
            self.after = event["number"]
            if event["event"] in ("go", "revoked"):
                self.state = "running"
                yield event["event"], _go(event)
            else:
                self.state = event["event"]
                yield self.state, None
        if not answer["events"] and answer["state"] in ("finished", "cancelled", "failed"):
            self.state = answer["state"]


def _go(event: Mapping[str, Any]) -> GoEvent:
    return GoEvent(event["chunk"], event["attempt"], tuple(event["hosts"]), tuple(event["addresses"]))


def place(view: Mapping[str, Any]) -> QueuePlace | None:
    """The place in the queue that a view names."""
    return None if view["place"] is None else QueuePlace(**view["place"])


def request_fields(
    writer: str | None, chunks: int, replicas: int, placement: Sequence[str] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """A submission's fields from a client's arguments."""
    fields = {"writer": writer, "chunks": chunks, "replicas": replicas, **options}
    if placement is not None:
        fields["placement"] = list(placement)
    if fields.get("sources") is not None:
        fields["sources"] = [list(one) for one in fields["sources"]]
    return fields
