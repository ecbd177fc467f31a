"""What a host that may lead answers: with its coordinator while it leads, with the leader's URL while another does.

| the host | answer |
|---|---|
| leads | its coordinator's |
| knows the leader | 307 and `Location`: the same target at the leader |
| neither, or is not sure that it leads | 503 and `Retry-After` |

Invariants: health and metrics are the host's own (`Route.local`). Where a token is needed, a client without it is not
told where the leader is.
"""

from collections import Counter
from typing import Final, Protocol

from logstore.base.http.messages import HttpRequest, HttpResponse, error_response, json_response
from scheduler.coordinator import metrics
from scheduler.coordinator.api import PROMETHEUS
from scheduler.coordinator.dispatch import BAD_REQUEST, UNAVAILABLE, ClientCheck, Dispatch, api_error_response, route_of
from scheduler.coordinator.errors import ApiError

OK: Final = 200
TEMPORARY_REDIRECT: Final = 307
AWAITS_STATE: Final = "this host is to lead, and has no state yet from the metadata store: its log says why"
NETWORK_DIFFERS: Final = "the leader plans on another network than this host would: give all hosts the same file"
NO_LEADER: Final = "no coordinator leads at the moment: ask again, here or at another host"


class Leads(Protocol):
    """Who leads (`Candidate`)."""

    @property
    def leads(self) -> bool:
        """Whether this host does."""

    @property
    def leader_url(self) -> str:
        """Where another host does, as far as is known; "": nobody does, or this host."""

    @property
    def awaited(self) -> str:
        """What this host waits for, to lead; "": nothing."""


class Networks(Protocol):
    """The networks of this host and of the leader (`ComparedNetworks`)."""

    @property
    def differ(self) -> bool:
        """Whether this host stands by with another network than the leader's."""


class Front:
    """Answers every request. `candidate` and `dispatch` are set when they are there."""

    def __init__(self, clients: ClientCheck, traffic: metrics.Traffic) -> None:
        self._clients = clients
        self._traffic = traffic
        self.candidate: Leads | None = None
        self.networks: Networks | None = None
        self.dispatch: Dispatch | None = None
        """While this host has a coordinator."""
        self.answered: Counter[tuple[str, int]] = Counter()
        """See `Dispatch`; those of a host that stands by have the operation `standby`."""

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        candidate, dispatch = self.candidate, self.dispatch
        if dispatch is not None and candidate is not None and candidate.leads:
            return await dispatch(request)
        try:
            response = self._stand_by(request, "" if candidate is None else candidate.leader_url)
        except ApiError as error:
            response = api_error_response(error)
        self.answered["standby", response.status] += 1
        return response

    def _stand_by(self, request: HttpRequest, leader_url: str) -> HttpResponse:
        """Raises ApiError."""
        route = route_of(request.method, request.target)
        if route is None or not route.free:
            self._clients.check(request)
        if route is not None and route.local:
            return self._own(route.operation, leader_url)
        if not leader_url:
            raise ApiError(UNAVAILABLE, NO_LEADER)
        if not request.target.startswith("/"):
            raise ApiError(BAD_REQUEST, "the target must be a path, such as /v1/status")
        return error_response(
            TEMPORARY_REDIRECT,
            f"this host stands by: ask {leader_url}",
            headers={"Location": leader_url + request.target},
        )

    def _own(self, operation: str, leader_url: str) -> HttpResponse:
        """What this host says of itself while it does not lead."""
        awaits_state = self.candidate is not None and bool(self.candidate.awaited)
        differs = self.networks is not None and self.networks.differ
        if operation == "getMetrics":
            text = metrics.standby_text(self._traffic, awaits_state=awaits_state, network_differs=differs)
            return HttpResponse(OK, text.encode(), PROMETHEUS)
        if awaits_state:
            return json_response(UNAVAILABLE, {"status": "failing", "why": AWAITS_STATE})
        if not leader_url:
            return json_response(UNAVAILABLE, {"status": "failing"})
        return json_response(OK, {"status": "standby", **({"why": NETWORK_DIFFERS} if differs else {})})
