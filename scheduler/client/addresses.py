"""The addresses of a coordinator, and the order in which a request is sent to them: of several, one leads.

Invariants:
* Sans-I/O: no sockets, no clock.
* A request, and with it the token, goes only to addresses that the user gave. Another address in an answer is named in
  the error, and never asked. All addresses are http, or all https: no answer leads a request from https to http.
* A round asks each address at most once. Its time is bounded as if there were one address: `timeout_s`, and once the
  time for which the coordinator was asked to hold the request.
* A host that refuses the token hides no leader: while tokens are changed host by host, another may accept it. The token
  is wrong when every address refuses it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from scheduler.client.errors import CoordinatorError, CoordinatorUnavailable, LedElsewhere, Unauthorized

DEFAULT_PORT: Final = 9880
PORTS: Final = {"http": 80, "https": 443}
"""Where an answer means that names no port."""
MAX_ADDRESSES: Final = 16
FIRST_SHARE: Final = 0.5
"""Of the time that is left, while there are other addresses: a host that is gone, or frozen, answers nothing."""


class Url(NamedTuple):
    """The address of a coordinator."""

    tls: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        """As it is written in settings."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"


def parse_url(text: str) -> Url:
    """An address of the form http://HOST:PORT or https://HOST:PORT. Raises CoordinatorError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise CoordinatorError(f"{text!r} is not an address of a coordinator: write http://HOST:PORT")
    return Url(parts.scheme == "https", parts.hostname, DEFAULT_PORT if port is None else port)


def parse_addresses(text: str) -> tuple[Url, ...]:
    """One address, or several with commas between them, each once. Raises CoordinatorError."""
    found = tuple(dict.fromkeys(parse_url(part.strip()) for part in text.split(",")))
    if len(found) > MAX_ADDRESSES:
        raise CoordinatorError(f"{len(found)} addresses of a coordinator: at most {MAX_ADDRESSES} are taken")
    if len({url.tls for url in found}) > 1:
        raise CoordinatorError(
            f"{text!r}: some addresses are http and some https; write the same for all, so that nobody is sent from "
            "the one to the other"
        )
    return found


def leader_in(location: str) -> Url | None:
    """The address in an answer that names the leader; None if it is none."""
    try:
        parts = urlsplit(location)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in PORTS or not parts.hostname:
        return None
    return Url(parts.scheme == "https", parts.hostname, PORTS[parts.scheme] if port is None else port)


class AddressRound:
    """One round over the addresses for one request. `at`: where it goes now; `first` the number of the first address,
    `now_s` when the round begins, `wait_s` for how long the coordinator may hold the request.
    """

    def __init__(self, addresses: Sequence[Url], first: int, now_s: float, timeout_s: float, wait_s: float) -> None:
        self.first = first
        self.at, *self._left = [*addresses[first:], *addresses[:first]]
        self._known = frozenset(addresses)
        self._wait_s = wait_s
        self._end_s = now_s + timeout_s + wait_s
        self._said: list[str] = []
        self._refusals = 0
        """How many addresses refused the token."""
        self._retry_after_s = 0.0

    def connect_limit_s(self, now_s: float) -> float:
        """How long connecting to this address may take."""
        left_s = max(0.0, self._end_s - self._wait_s - now_s)
        return left_s * FIRST_SHARE if self._left else left_s

    def limit_s(self, now_s: float) -> float:
        """How long the answer of this address may take from now on."""
        return self._wait_s + self.connect_limit_s(now_s)

    def goes_on(self, error: Exception, now_s: float) -> bool:
        """Note that this address gave no answer that counts, and go on to the next one, first to the one that is said
        to lead. False: the round is over, because all were asked or no time is left.
        """
        leader = leader_in(error.location) if isinstance(error, LedElsewhere) else None
        if isinstance(error, CoordinatorUnavailable):
            self._retry_after_s = max(self._retry_after_s, error.retry_after_s)
        self._refusals += isinstance(error, Unauthorized)
        advice = "" if leader is None or leader in self._known else ", which is none of the addresses given: add it"
        self._said.append(f"{self.at}: {why(error)}{advice}")
        if not self._left or self._end_s - self._wait_s <= now_s:
            return False
        if leader in self._left:
            self._left.remove(leader)
            self._left.insert(0, leader)
        self.at = self._left.pop(0)
        return True

    def outcome(self, error: Exception) -> Exception:
        """The error of a round that is over, `error` being the last: with one address that, else what each said. It is
        Unauthorized only if every address refused the token.
        """
        if len(self._known) == 1 and not isinstance(error, LedElsewhere):
            return error
        if isinstance(error, Unauthorized) and self._refusals == len(self._known):
            return Unauthorized(error.status, "; ".join(self._said), error.field)
        return CoordinatorUnavailable("; ".join(self._said), self._retry_after_s)


def why(error: BaseException) -> str:
    """An error as a reason in another one."""
    cause = "" if error.__cause__ is None else str(error.__cause__)
    return str(error) or cause or type(error).__name__
