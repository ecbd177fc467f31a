"""The SASL login of one connection: SaslHandshake names a mechanism, SaslAuthenticate carries its messages.

Invariants:
* Every wrong login gets the same answer, in the same time after the same delay, whatever was wrong with it: the name,
  the password, or the form of a message.
* `LoginState` is the state of the login; every change of it is in TRANSITIONS. After a failure nothing is served.
* PLAIN, which sends the password itself, is offered on encrypted connections only.
* Nothing that a client sends as its secret, or as the name of a user that there is not, is reported.

Sources: RFC 5802 and RFC 7677 (SCRAM, by the package scramp), RFC 4616 (PLAIN), KIP-43 and KIP-152 (in Kafka).
"""

import enum
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import trio
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.base.events import Report
from logstore.base.states import following
from logstore.events import LOGIN_FAILED
from logstore.kafka.api_types import Api, Caller
from logstore.kafka.security.credentials import (
    MAX_NAME_BYTES,
    MAX_PASSWORD_BYTES,
    MECHANISMS,
    SCRAM_ROOM,
    WrongLogin,
    is_password_of,
)
from logstore.kafka.security.principals import principal_of_user
from logstore.kafka.security.users import CredentialName, Users
from logstore.kafka.wire import respond

HANDSHAKE_KEY: Final = 17
AUTHENTICATE_KEY: Final = 36
LOGIN_KEYS: Final = frozenset((HANDSHAKE_KEY, AUTHENTICATE_KEY))
PLAIN: Final = "PLAIN"
MAX_TOKEN_BYTES: Final = 4096
"""Of one message of a mechanism: room for the longest name and password."""
MAX_FRAME_BYTES: Final = 64 * 1024
"""Of a request before the login is done."""
PASSWORD_CHECKS: Final = 2
"""Threads that hash the passwords of PLAIN logins."""

SHOWN_CHARACTERS: Final = 200
"""Of why a login failed, in the report."""


class LoginState(enum.Enum):
    """Where a login is."""

    STARTED = "started"
    """Nothing is known of the client; it may ask for versions, or name a mechanism."""
    MECHANISM_CHOSEN = "mechanism chosen"
    CHALLENGED = "challenged"
    """The client has named a user and must now prove that it knows the password."""
    DONE = "done"
    FAILED = "failed"


class LoginEvent(enum.Enum):
    """What changes the state of a login."""

    CHOSEN = "known mechanism"
    CHALLENGE = "first message of SCRAM"
    PROVEN = "right proof or password"
    REFUSED = "wrong or out of order"


TRANSITIONS: Final[Mapping[tuple[LoginState, LoginEvent], LoginState]] = {
    (LoginState.STARTED, LoginEvent.CHOSEN): LoginState.MECHANISM_CHOSEN,
    (LoginState.STARTED, LoginEvent.REFUSED): LoginState.FAILED,
    (LoginState.MECHANISM_CHOSEN, LoginEvent.CHALLENGE): LoginState.CHALLENGED,
    (LoginState.MECHANISM_CHOSEN, LoginEvent.PROVEN): LoginState.DONE,
    (LoginState.MECHANISM_CHOSEN, LoginEvent.REFUSED): LoginState.FAILED,
    (LoginState.CHALLENGED, LoginEvent.PROVEN): LoginState.DONE,
    (LoginState.CHALLENGED, LoginEvent.REFUSED): LoginState.FAILED,
}


class LoginSettings(NamedTuple):
    """`mechanisms` are offered, in this order; a wrong login is answered `failure_delay_s` seconds later."""

    mechanisms: tuple[str, ...] = (*MECHANISMS, PLAIN)
    failure_delay_s: float = 0.1


class Authenticator:
    """What all logins of a sidecar share."""

    def __init__(self, users: Users, settings: LoginSettings, report: Report) -> None:
        self.users = users
        self.settings = settings
        self.report = report
        self._checks = trio.CapacityLimiter(PASSWORD_CHECKS)
        if not users.is_empty:
            import_module(SCRAM_ROOM)  # now, when nobody waits for the loop

    async def is_password(self, name: CredentialName, password: bytes) -> bool:
        """Whether a user has this password; as slow for a name that is no user's."""
        credential, is_user = self.users.credential_or_decoy(name)
        check = partial(is_password_of, name.mechanism, credential, password)
        return await trio.to_thread.run_sync(check, limiter=self._checks) and is_user


class Login:
    """The login of one connection."""

    def __init__(self, authenticator: Authenticator, host: str, *, is_encrypted: bool) -> None:
        self._authenticator = authenticator
        self._host = host
        offered = authenticator.settings.mechanisms
        self.mechanisms = tuple(name for name in offered if is_encrypted or name != PLAIN)
        self._state = LoginState.STARTED
        self._mechanism = ""
        self._scram: Any = None
        """The exchange of SCRAM that is under way."""
        self._user = ""

    @property
    def state(self) -> LoginState:
        """Where the login is."""
        return self._state

    @property
    def principal(self) -> str:
        """Who has logged in; only once the login is done."""
        return principal_of_user(self._user)

    def _move(self, event: LoginEvent) -> None:
        self._state = following(TRANSITIONS, self._state, event, "login")

    async def handle(self, request: Any) -> ResponsePayload:
        """The answer to a decoded SaslHandshake or SaslAuthenticate. After it, `state` says how to go on."""
        if request.__api_key__ == HANDSHAKE_KEY:
            return await self._handshake(request)
        return await self._authenticate(request)

    async def _handshake(self, request: Any) -> ResponsePayload:
        error = ErrorCode.none
        if self._state is not LoginState.STARTED:
            error = ErrorCode.illegal_sasl_state
        elif request.mechanism not in self.mechanisms:
            error = ErrorCode.unsupported_sasl_mechanism
        if error is ErrorCode.none:
            self._mechanism = request.mechanism
            self._move(LoginEvent.CHOSEN)
        else:
            await self._refuse(f"SaslHandshake is answered with {error.name.upper()}")
        return await respond(request, {"error_code": error, "mechanisms": self.mechanisms})

    async def _authenticate(self, request: Any) -> ResponsePayload:
        if self._state not in (LoginState.MECHANISM_CHOSEN, LoginState.CHALLENGED):
            await self._refuse("SaslAuthenticate came before SaslHandshake")
            message = "SaslAuthenticate request received without a SaslHandshake before it"
            return await respond(request, {"error_code": ErrorCode.illegal_sasl_state, "error_message": message})
        try:
            answer = await self._next_message(request.auth_bytes)
        except WrongLogin as error:
            await self._refuse(str(error)[:SHOWN_CHARACTERS])
            message = (
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
            return await respond(
                request, {"error_code": ErrorCode.sasl_authentication_failed, "error_message": message}
            )
        return await respond(request, {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer})

    async def _refuse(self, why: str) -> None:
        """Note the failure, and answer no sooner than a client that guesses would like."""
        is_known = bool(self._authenticator.users.credentials_of(self._user))
        self._move(LoginEvent.REFUSED)
        self._authenticator.report(
            LOGIN_FAILED,
            client=self._host,
            mechanism=self._mechanism or "none",
            user=self._user if is_known else "unknown",
            why=why,
        )
        await trio.sleep(self._authenticator.settings.failure_delay_s)

    async def _next_message(self, message: bytes) -> bytes:
        """Take the client's next message; returns the answer to it. Raises WrongLogin."""
        if len(message) > MAX_TOKEN_BYTES:
            raise WrongLogin(f"a message of {len(message)} bytes; {MAX_TOKEN_BYTES} are allowed")
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise WrongLogin("a message that is not UTF-8") from None
        if self._mechanism == PLAIN:
            await self._plain(text)
            return b""
        if self._scram is None:
            _check_name_lengths(text)
            self._scram = import_module(SCRAM_ROOM).ScramExchange(self._mechanism, self._credential)
            answer: str = self._scram.first(text)
            self._move(LoginEvent.CHALLENGE)
            return answer.encode()
        answer = self._scram.final(text)
        if not self._authenticator.users.credential_or_decoy(CredentialName(self._user, self._mechanism))[1]:
            raise WrongLogin("the user has been removed")
        self._move(LoginEvent.PROVEN)
        return answer.encode()

    def _credential(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        """What the exchange asks for."""
        self._user = user
        found, _ = self._authenticator.users.credential_or_decoy(CredentialName(user, self._mechanism))
        return found.salt, found.stored_key, found.server_key, found.iterations

    async def _plain(self, message: str) -> None:
        parts = message.split("\0")
        if len(parts) != 3:
            raise WrongLogin("a PLAIN message without its three parts")
        on_behalf_of, self._user, password = parts
        if not self._user or not password or len(password.encode()) > MAX_PASSWORD_BYTES:
            raise WrongLogin("a PLAIN message without a user or a password, or with a longer one than there are")
        mechanism = self._authenticator.users.password_mechanism(self._user)
        is_right = await self._authenticator.is_password(CredentialName(self._user, mechanism), password.encode())
        if not is_right or on_behalf_of not in ("", self._user):
            raise WrongLogin("the password is wrong, or there is no such user")
        self._move(LoginEvent.PROVEN)


def _check_name_lengths(first: str) -> None:
    """Raise WrongLogin if a first message of SCRAM has a longer name than a user may have: to prepare (SASLprep) 4,000
    characters takes the event loop 15 ms, for a client that nobody knows.
    """
    for part in first.split(","):
        if len(part.replace("=2C", ",").replace("=3D", "=").encode()) > len("n=") + MAX_NAME_BYTES:
            raise WrongLogin(f"a name or a nonce of more than {MAX_NAME_BYTES} bytes")


def login_apis() -> list[Api]:
    """The requests of a login, where there is none: on a listener without SASL, and after it is done."""
    return [Api(HANDSHAKE_KEY, 1, 1, _no_login), Api(AUTHENTICATE_KEY, 0, 2, _no_login)]


async def _no_login(request: Any, _: Caller) -> ResponsePayload:
    message = "there is no login under way on this connection"
    return await respond(request, {"error_code": ErrorCode.illegal_sasl_state, "error_message": message})
