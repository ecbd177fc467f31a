"""Finds the route of an HTTP request, checks the request's values, and turns the route's answer into HTTP.

Invariants:
* Every request gets an answer: 4xx if the client is to blame, with the `field` to change if one can be named.
* A fault of the coordinator costs one answer (500) and one line in the log, never the service.
* Tokens are compared in constant time, before anything else of a request is looked at.
* Where no token is needed, a web page in a browser cannot use the coordinator.
"""

import hmac
import json
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import trio

from logstore.base.errors import FieldError
from logstore.base.events import Report
from logstore.base.fields import Object, from_text, nearest, plain, shown
from logstore.base.http.messages import (
    JSON,
    HttpRequest,
    HttpResponse,
    error_response,
    json_response,
    names_this_machine,
)
from scheduler.coordinator.api import ROUTES
from scheduler.coordinator.errors import ApiError, StoreError
from scheduler.coordinator.log_events import REQUEST_CRASHED
from scheduler.coordinator.routes import Route
from scheduler.errors import PlacementError, RequestError

BAD_REQUEST = 400
UNAUTHORIZED = 401
NOT_FOUND = 404
METHOD_NOT_ALLOWED = 405
LENGTH_REQUIRED = 411
UNSUPPORTED_MEDIA_TYPE = 415
INTERNAL_ERROR = 500
UNAVAILABLE = 503
RETRY_AFTER_S = 1
MAX_QUERY_FIELDS = 16
MAX_ERROR_CHARACTERS, MAX_FIELD_CHARACTERS = 2000, 300
"""As the OpenAPI document says."""
PARSED_AT_ONCE_BYTES = 32 * 1024
"""A larger body is parsed in a thread: it would block the event loop for tens of milliseconds."""


class ApiCall(NamedTuple):
    """A checked request, as a handler gets it."""

    parameters: Mapping[str, Any]
    query: Mapping[str, Any]
    body: Mapping[str, Any]
    client: str


class Reply(NamedTuple):
    """A handler's answer: a value for JSON, or a text."""

    status: int
    value: object


Operation = Callable[[ApiCall], Awaitable[Reply]]


class ClientCheck:
    """Whether a client may ask. `token` None: no client needs a token.

    `own_only`: a request whose Host header names another machine is refused.
    """

    def __init__(self, token: str | None = None, *, own_only: bool = False) -> None:
        self._token = None if token is None else token.encode()
        self._own_only = own_only

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers may ask for more than /health."""
        if self._token is None:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token)

    def takes_large(self, method: str, target: str, headers: Mapping[str, str]) -> bool:
        """Whether a request may have a large body: its route says so, and the client has the token."""
        route = route_of(method, target)
        return route is not None and route.large and self.knows(headers)

    def check(self, request: HttpRequest) -> None:
        """Raises ApiError if the client may not ask."""
        if self._own_only and not names_this_machine(request.headers.get("host")):
            raise ApiError(
                BAD_REQUEST,
                f"Host={shown(request.headers['host'])}: without a token this coordinator serves 127.0.0.1 and "
                "localhost only; use one of these names, or start it with --token-file",
                "Host",
            )
        if not self.knows(request.headers):
            raise ApiError(
                UNAUTHORIZED,
                "the token is missing or wrong: this coordinator wants Authorization: Bearer TOKEN (--token-file of "
                "commands)",
                headers={"WWW-Authenticate": "Bearer"},
            )


def may_wait(request: HttpRequest) -> bool:
    """Whether the route of a request waits for events, so that its answer may take long."""
    route = route_of(request.method, request.target)
    return route is not None and route.waits


class Dispatch:
    """Answers HTTP requests of clients that may ask with the operations of a service."""

    def __init__(
        self,
        operations: Mapping[str, Operation],
        report: Report,
        clients: ClientCheck,
        answered: Counter[tuple[str, int]] | None = None,
    ) -> None:
        missing = {route.operation for route in ROUTES} - set(operations)
        if missing:
            raise LookupError(f"no handler for {', '.join(sorted(missing))}")
        self._operations = operations
        self._report = report
        self._clients = clients
        self.answered: Counter[tuple[str, int]] = Counter() if answered is None else answered
        """The number of answers of each operation, by status; `none`: the request had no route."""

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        operation = "none"
        try:
            segments, query = _split(request.target)
            route, parameters = self._route(request, segments)
            operation = route.operation
            if not route.free:
                self._clients.check(request)
            call = ApiCall(
                {name: from_text(part.type, parameters[name], name) for name, part in route.parameters.items()},
                _query(route, query),
                await _body(route, request),
                request.client,
            )
            response = _response(route, await self._operations[operation](call))
        except Exception as error:  # noqa: BLE001  a fault of ours must not cost the other clients their service
            response = self._error(operation, error)
        self.answered[operation, response.status] += 1
        return response

    def _route(self, request: HttpRequest, segments: list[str]) -> tuple[Route, dict[str, str]]:
        method = "GET" if request.method == "HEAD" else request.method
        allowed: list[str] = []
        for route in ROUTES:
            parameters = _match(route.path, segments)
            if parameters is not None:
                if route.method == method:
                    return route, parameters
                allowed.append(route.method)
        self._clients.check(request)  # a client without the token learns nothing about paths
        if allowed:
            raise ApiError(
                METHOD_NOT_ALLOWED,
                f"{method[:20]} is not possible here; {', '.join(allowed)} is",
                headers={"Allow": ", ".join([*allowed, "HEAD"] if "GET" in allowed else allowed)},
            )
        path = "/" + "/".join(segments)
        raise ApiError(
            NOT_FOUND, f"no such path{nearest(path, [one.path for one in ROUTES])}; /openapi.json lists them all"
        )

    def _error(self, operation: str, error: Exception) -> HttpResponse:
        match error:
            case ApiError():
                return api_error_response(error)
            case RequestError() | FieldError():
                return error_response(
                    BAD_REQUEST, plain(str(error))[:MAX_ERROR_CHARACTERS], field_name=_plain(error.field)
                )
            case StoreError():
                return error_response(UNAVAILABLE, str(error), headers={"Retry-After": str(RETRY_AFTER_S)})
            case PlacementError():
                return error_response(BAD_REQUEST, str(error), field_name="placement")
        trace = "".join(traceback.format_exception(error))
        self._report(REQUEST_CRASHED, operation=operation, trace=trace)
        return error_response(INTERNAL_ERROR, "a bug in the coordinator; see its log")


def api_error_response(error: ApiError) -> HttpResponse:
    """The answer to a request that is refused."""
    later = {"Retry-After": str(RETRY_AFTER_S)} if error.status == UNAVAILABLE else {}
    return error_response(
        error.status,
        plain(error.message)[:MAX_ERROR_CHARACTERS],
        field_name=_plain(error.field),
        headers={**later, **error.headers},
    )


def _plain(field: str | None) -> str | None:
    return None if field is None else plain(field)[:MAX_FIELD_CHARACTERS]


def _split(target: str) -> tuple[list[str], str]:
    """The decoded segments of the path, and the query."""
    try:
        parts = urlsplit(target)
        if not parts.path.startswith("/"):
            raise ApiError(BAD_REQUEST, "the target must be a path, such as /v1/status")
        decoded = [unquote_to_bytes(segment).decode("utf-8") for segment in parts.path[1:].split("/")]
    except ValueError as error:
        raise ApiError(BAD_REQUEST, "the path is not percent-encoded UTF-8") from error
    return decoded, parts.query


def route_of(method: str, target: str) -> Route | None:
    """The route of a request that is not checked yet; None without one."""
    try:
        segments, _ = _split(target)
    except ApiError:
        return None
    method = "GET" if method == "HEAD" else method
    meant = (route for route in ROUTES if route.method == method and _match(route.path, segments) is not None)
    return next(meant, None)


def _match(path: str, segments: list[str]) -> dict[str, str] | None:
    pattern = path[1:].split("/")
    if len(pattern) != len(segments):
        return None
    found: dict[str, str] = {}
    for expected, actual in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            found[expected[1:-1]] = actual
        elif expected != actual:
            return None
    return found


def _query(route: Route, query: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as error:
        raise ApiError(BAD_REQUEST, f"the query cannot be read: at most {MAX_QUERY_FIELDS} fields, in UTF-8") from error
    values: dict[str, object] = {}
    for name, text in pairs:
        part = route.query.fields.get(name)
        if name in values:
            raise FieldError(name, f"{name}: appears twice in the query")
        values[name] = text if part is None else from_text(part.type, text, name)
    return route.query.check(values, "")


async def _body(route: Route, request: HttpRequest) -> dict[str, Any]:
    if route.body is None:
        # An empty object is accepted: some clients cannot send an empty body.
        return _parsed(Object("nothing"), request.body) if request.body.strip() else {}
    if not request.body:
        raise ApiError(LENGTH_REQUIRED, f"a body in JSON is needed, with {', '.join(route.body.fields)}")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        # This also keeps web pages from posting here: browsers send this type only with permission.
        raise ApiError(
            UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type={shown(kind)}: must be {JSON}; add the header Content-Type: {JSON}, "
            f"with curl: -H 'Content-Type: {JSON}'",
            "Content-Type",
        )
    if len(request.body) <= PARSED_AT_ONCE_BYTES:
        return _parsed(route.body, request.body)
    # The interpreter switches back to the event loop every few milliseconds.
    return await trio.to_thread.run_sync(_parsed, route.body, request.body)


def _parsed(record: Object, body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(BAD_REQUEST, f"the body is not JSON: {str(error)[:200]}") from error
    return record.check(value, "")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise FieldError(name[:200], f"{name[:200]}: appears twice")
        found[name] = value
    return found


def _no_constant(text: str) -> object:
    raise ApiError(BAD_REQUEST, f"the body is not JSON: {text} is not a number there")


def _response(route: Route, reply: Reply) -> HttpResponse:
    answer = route.answers[reply.status]
    if answer.type is None:
        return HttpResponse(reply.status, str(reply.value).encode(), answer.content_type)
    return json_response(reply.status, reply.value)
