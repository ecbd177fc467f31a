"""The protocol of the coordinator's clients: requests, the meaning of answers, retries.

Invariants:
* Sans-I/O: no sockets, no clock, no waiting.
* Every request may be sent again without harm: a submission always has a name, and a report names its attempt.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

from scheduler.client.addresses import why
from scheduler.client.errors import CoordinatorUnavailable, LedElsewhere, NotUnderstood, refusal

DEFAULT_URL = "http://127.0.0.1:9880"
POLL_S = 30.0
"""How long the coordinator holds a request for events until there are any."""
POLL_OF_SEVERAL_S = 5.0
"""The same where it has several addresses: so long it takes at most to notice that the host of the leader is gone."""
TIMEOUT_S = 10.0
"""How long an answer may take beyond that."""
PATIENCE_S = 60.0
"""How long a request is sent again while the coordinator does not answer: a restart takes less."""
FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0
MAX_ANSWER_BYTES = 64 << 20
KEEP_ALIVES_PER_DEADLINE = 3
_TOO_SLOW = 408
_ELSEWHERE = (307, 308)
_JSON = "application/json"


class ApiRequest(NamedTuple):
    """A request to the coordinator. `wait_s`: how long the coordinator may hold it before it answers."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    wait_s: float = 0.0

    def content(self) -> bytes:
        """The bytes of the body."""
        return b"" if self.body is None else json.dumps(self.body, separators=(",", ":")).encode()

    def headers(self, authority: str, token: str | None) -> dict[str, str]:
        """All headers. Without a body there is no Content-Type and no Content-Length."""
        headers = {"Host": authority, "Accept": _JSON}
        if self.body is not None:
            headers |= {"Content-Type": _JSON, "Content-Length": str(len(self.content()))}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers


class CoordinatorAnswer(NamedTuple):
    """An answer over HTTP: status, content, and the values of the headers Location and Retry-After, "" if missing."""

    status: int
    content: bytes
    location: str = ""
    retry_after: str = ""


class QueuePlace(NamedTuple):
    """A place in the queue: the requests and chunks ahead, and the proven bound on the wait.

    The next chunk starts after at most `starts_within_chunks` times the longest time that a chunk takes.
    """

    requests_ahead: int
    chunks_ahead: int
    starts_within_chunks: int


# ---- requests


def submission(
    random: Random,
    name: str | None,
    writer: str | None,
    chunks: int,
    replicas: int,
    placement: Sequence[str] | None,
    options: Mapping[str, Any],
) -> ApiRequest:
    """Submit a request. A request without a name is named here, so that the submission can be sent twice."""
    fields = {"writer": writer, "chunks": chunks, "replicas": replicas, **options}
    if placement is not None:
        fields["placement"] = list(placement)
    if fields.get("sources") is not None:
        fields["sources"] = [list(hosts) for hosts in fields["sources"]]
    given = {key: value for key, value in fields.items() if value is not None}
    return ApiRequest("POST", "/v1/requests", {"name": name or f"request-{random.getrandbits(96):024x}", **given})


def registration(name: str, address: str | None) -> ApiRequest:
    """Register a host."""
    return ApiRequest("POST", "/v1/hosts", {"name": name, "address": address})


def host(method: str, name: str, resource: str = "") -> ApiRequest:
    """A request about a host, or about a resource below it (`/alive`)."""
    return ApiRequest(method, f"/v1/hosts/{quote(name, safe='')}{resource}")


def request(method: str, name: str, body: Mapping[str, Any] | None = None) -> ApiRequest:
    """A request about a submitted request."""
    return ApiRequest(method, f"/v1/requests/{quote(name, safe='')}", body)


def events(name: str, after: int, wait_s: float) -> ApiRequest:
    """Wait for the events of a request that follow event number `after`."""
    return ApiRequest("GET", f"/v1/requests/{quote(name, safe='')}/go?after={after}&wait_s={wait_s:g}", None, wait_s)


def done(name: str, chunk: int, attempt: int) -> ApiRequest:
    """Report that a chunk is on all its replicas."""
    return _report(name, chunk, "done", {"attempt": attempt})


def failed(name: str, chunk: int, attempt: int, suspects: Sequence[str]) -> ApiRequest:
    """Report that a chunk could not be moved."""
    return _report(name, chunk, "failed", {"attempt": attempt, "suspects": list(suspects)})


def _report(name: str, chunk: int, result: str, body: Mapping[str, Any]) -> ApiRequest:
    return ApiRequest("POST", f"/v1/requests/{quote(name, safe='')}/chunks/{chunk}/{result}", body)


STATUS = ApiRequest("GET", "/v1/status")
TOPOLOGY = ApiRequest("GET", "/v1/topology")


# ---- answers


def parse_answer(answer: CoordinatorAnswer) -> dict[str, Any]:
    """The values of an answer.

    Raises CoordinatorRefused, CoordinatorUnavailable (the request is worth another try), NotUnderstood.
    """
    status, content, location, retry_after = answer
    if status in _ELSEWHERE:
        raise LedElsewhere(location)
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if status >= 500 or status == _TOO_SLOW:
        # The answer may come from a gateway before the coordinator, which has messages of its own.
        message = value.get("error", value) if isinstance(value, dict) else "no words of a coordinator's"
        seconds = min(float(retry_after), MAX_DELAY_S) if retry_after.isascii() and retry_after.isdigit() else 0.0
        raise CoordinatorUnavailable(f"the answer was {status}: {message}", seconds)
    if not isinstance(value, dict):
        raise NotUnderstood(f"the answer (status {status}) is not a JSON object: is this a coordinator's address?")
    if status < 300:
        return value
    raise refusal(status, str(value.get("error", value)), value.get("field"))


def keep_alive_every_s(view: Mapping[str, Any]) -> float:
    """Seconds between two keep-alives of a host, from the newest answer about the host."""
    return (view["deadline_ms"] or 1000) / 1000 / KEEP_ALIVES_PER_DEADLINE


class Backoff:
    """The delays between the tries of one request, with jitter; tries end `patience_s` after the first failure."""

    def __init__(self, random: Random, patience_s: float) -> None:
        self._random = random
        self._patience_s = patience_s
        self._end_s: float | None = None
        self._delay_s = FIRST_DELAY_S

    def after(self, error: Exception, now_s: float, operation: str) -> float:
        """Seconds to wait after this failure. Raises CoordinatorUnavailable when no time is left for another try."""
        if self._end_s is None:
            # Not from the first try on: the coordinator may have held the request for long, as it was asked to.
            self._end_s = now_s + self._patience_s
        if now_s >= self._end_s:
            raise CoordinatorUnavailable(f"{operation}: {why(error)}") from error
        delay_s = self._delay_s * (0.5 + self._random.random())
        if isinstance(error, CoordinatorUnavailable):
            delay_s = max(delay_s, error.retry_after_s)
        self._delay_s = min(2 * self._delay_s, MAX_DELAY_S)
        return min(delay_s, max(0.0, self._end_s - now_s))


def place(view: Mapping[str, Any]) -> QueuePlace | None:
    """The place in the queue that the coordinator's view of a request names."""
    return None if view["place"] is None else QueuePlace(**view["place"])
