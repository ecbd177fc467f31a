"""The part of the clients that neither sends nor waits: their settings, and the objects that they hand out.

`blocking` and `trio_client` add the connections, the waiting and the keep-alives.

Invariants:
* Nothing here opens a connection or knows a clock.
* A writer gets a go only once; the same chunk comes again only in a new attempt.
"""

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Generic, TypeVar

from scheduler.client import core
from scheduler.client.addresses import AddressRound, Url, parse_addresses
from scheduler.client.core import ApiRequest, QueuePlace
from scheduler.client.errors import RequestCancelled, RequestFailed
from scheduler.client.tls import client_tls

ENDS = ("finished", "cancelled", "failed")


class BaseGo:
    """A chunk that may be moved now: `hosts[0]` sends it to `hosts[1]`, which forwards it to `hosts[2]`, and so on.

    `addresses` are those of the hosts, None where unknown.
    """

    __slots__ = ("addresses", "attempt", "chunk", "hosts", "request", "revoked")

    def __init__(self, request: str, event: Mapping[str, Any]) -> None:
        self.request = request
        self.chunk = int(event["chunk"])
        self.attempt = int(event["attempt"])
        self.hosts: tuple[str, ...] = tuple(event["hosts"])
        self.addresses: tuple[str | None, ...] = tuple(event["addresses"])
        self.revoked = False
        """Becomes true when the chunk is planned again or its request ends: stop, the attempt no longer counts."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.request!r}, chunk={self.chunk}, attempt={self.attempt}, hosts={self.hosts})"
        )


GoType = TypeVar("GoType", bound=BaseGo)


class BaseRequest(Generic[GoType]):
    """A request that this client submitted.

    `state` (waiting, running, finished, cancelled or failed) and `place` are those of the last answer.
    """

    def __init__(self, view: Mapping[str, Any], make_go: Callable[[Mapping[str, Any]], GoType]) -> None:
        self.name = str(view["request"])
        self.state = str(view["state"])
        self.place: QueuePlace | None = core.place(view)
        self._make_go = make_go
        self._open: dict[int, GoType] = {}
        self._after = int(view["last_event"])
        """The number of the last event that was taken."""
        self._first: list[Mapping[str, Any]] = view["go"]
        self._ready: list[GoType] = []
        """Gos that came while a writer waited for the first one."""

    @property
    def has_go(self) -> bool:
        """Whether a go is there that `goes` has not given yet."""
        return bool(self._first or self._ready)

    def _first_goes(self) -> list[GoType]:
        """The gos that came with the submission, and while a writer waited; each is returned once."""
        first, self._first = self._first, []
        ready, self._ready = self._ready, []
        return [*(self._opened(event) for event in first), *ready]

    def _next_events(self, poll_s: float) -> ApiRequest | None:
        """The request for more events; None: it finished. Raises RequestCancelled, RequestFailed."""
        if self.state == "cancelled":
            raise RequestCancelled(f"request {self.name!r} was cancelled, or its writer was lost")
        if self.state == "failed":
            raise RequestFailed(f"request {self.name!r} was given up: too many attempts, or no path")
        return None if self.state == "finished" else core.events(self.name, self._after, poll_s)

    def _new_goes(self, answer: Mapping[str, Any], on_revoked: Callable[[GoType], None] | None) -> Iterator[GoType]:
        """The gos of an answer, while its revocations are passed to `on_revoked`. Repeated events are skipped."""
        for event in answer["events"]:
            if event["number"] <= self._after:
                continue
            self._after = event["number"]
            if event["event"] not in ("go", "revoked"):
                self.state = event["event"]
                return
            self.state = "running"
            if event["event"] == "go":
                yield self._opened(event)
            else:
                self._revoke(event, on_revoked)
        if not answer["events"] and answer["state"] in ENDS:
            self.state = answer["state"]

    def _opened(self, event: Mapping[str, Any]) -> GoType:
        go = self._open[event["chunk"]] = self._make_go(event)
        return go

    def _revoke(self, event: Mapping[str, Any], on_revoked: Callable[[GoType], None] | None) -> None:
        go = self._open.get(event["chunk"])
        if go is not None and go.attempt == event["attempt"]:
            go.revoked = True
            if on_revoked is not None:
                on_revoked(go)


class BaseClient(ABC):
    """The settings of a client. `url`: the coordinator's address, or several with commas between them. `token` and
    `ca_file` are those that the coordinator was started with; in place of the file a context may be given, with a
    certificate of the client if the coordinator wants one. A file that changes is read again before the next
    connection (`client_tls`). In place of the token may be given what gives it, which is called before each request:
    it must not raise (`logstore.base.secret_files.SecretFile`).

    `timeout_s`: how long connecting, or an answer, may take, of all addresses together; `patience_s`: how long a
    request is sent again from its first failure on; `poll_s`: how long the coordinator holds a request for events.
    Raises CoordinatorError.
    """

    def __init__(
        self,
        url: str = core.DEFAULT_URL,
        *,
        token: str | Callable[[], str] | None = None,
        ca_file: Path | str | ssl.SSLContext | None = None,
        timeout_s: float = core.TIMEOUT_S,
        patience_s: float = core.PATIENCE_S,
        poll_s: float | None = None,
        random: Random | None = None,
    ) -> None:
        self.url = url
        self._addresses = parse_addresses(url)
        self._first = 0
        """The number of the address that a request is sent to first: the last one that answered as a leader does."""
        usual_s = core.POLL_S if len(self._addresses) == 1 else core.POLL_OF_SEVERAL_S
        self.poll_s = usual_s if poll_s is None else poll_s
        self._token = token
        if not self._addresses[0].tls:
            self._tls = None
        elif isinstance(ca_file, ssl.SSLContext):
            self._tls = ca_file
        else:
            self._tls = client_tls(str(ca_file or ""), "") or ssl.create_default_context()
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._random = random or SystemRandom()
        self._hosts: dict[str, str | None] = {}
        """The addresses of the hosts that are kept alive."""
        self._keep_every_s = 1.0
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Set the attributes of the subclass."""

    def _headers(self, at: Url, request: ApiRequest) -> dict[str, str]:
        token = self._token() if callable(self._token) else self._token
        return request.headers(at.authority, None if token is None else token.strip())

    def _round(self, request: ApiRequest, now_s: float) -> AddressRound:
        return AddressRound(self._addresses, self._first, now_s, self._timeout_s, request.wait_s)

    def _note_leader(self, at: Url) -> None:
        """This address has answered as a leader does."""
        self._first = self._addresses.index(at)

    def _note_failure(self, asked: AddressRound) -> None:
        """No address has answered as a leader does: the next round begins with another one."""
        if self._first == asked.first:  # else another thread has found the leader meanwhile, or moved on
            self._first = (self._first + 1) % len(self._addresses)

    def _backoff(self, patience_s: float | None) -> core.Backoff:
        return core.Backoff(self._random, self._patience_s if patience_s is None else patience_s)

    def _operation(self, request: ApiRequest) -> str:
        """A request as error messages name it."""
        where = self.url if len(self._addresses) == 1 else ""
        return f"{request.method} {where}{request.path}"
