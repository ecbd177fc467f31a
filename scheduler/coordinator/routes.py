"""What a table of routes is made of: routes, their answers, and the errors that every route may answer with.

Invariant: nothing here knows a route; the tables of `api` and of the rooms below do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from logstore.base.fields import Field, Object, Optional, String, Type
from logstore.base.http.messages import JSON

EMPTY = Object("Empty")
ERROR = Object(
    "Error",
    {
        "error": Field(String(2000), "what is wrong and what to do"),
        "field": Field(Optional(String(300, 0)), "the field to change, where there is one", None),
    },
)


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """A successful answer of a route; `type` None: text of `content_type`."""

    says: str
    type: Type | None
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path. `waits`: waits for events; `free`: needs no token; `large`: its body may be large;
    `local`: a host of a cluster that stands by answers it itself.
    """

    method: str
    path: str
    operation: str
    says: str
    answers: Mapping[int, RouteAnswer]
    parameters: Mapping[str, Field] = field(default_factory=dict)
    query: Object = EMPTY
    body: Object | None = None
    errors: tuple[int, ...] = ()
    waits: bool = False
    free: bool = False
    large: bool = False
    local: bool = False

    def statuses(self) -> frozenset[int]:
        """Every status that the route can answer with."""
        common = set(COMMON_ERRORS) - ({401} if self.free else set()) - ({307} if self.local else set())
        if self.body is not None:
            common |= {411, 415}
        return frozenset({*self.answers, *self.errors, *common})


ERRORS: Mapping[int, str] = {
    307: "this host of a cluster stands by: ask at `Location`, with the same method and body",
    400: "a field is missing, unknown or not what it may be; `field` names it",
    401: "a bearer token is missing or wrong",
    404: "there is no such request, chunk, host, unit or checkpoint",
    405: "the path has no such method",
    408: "the request was not complete in time",
    409: "it conflicts with the current state",
    411: "a body is needed",
    413: "the body is too large",
    415: "the body must be application/json",
    431: "the headers are too large",
    500: "a bug in the coordinator; see its log",
    507: "the state of the cluster is full: try again when other requests have ended",
    503: "not now: the queue is full, nothing can be stored, no host leads, or the coordinator stops; try again",
}
COMMON_ERRORS = (307, 400, 401, 408, 413, 431, 500, 503)
