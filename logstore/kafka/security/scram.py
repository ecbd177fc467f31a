"""The SCRAM exchange of one login, and SASLprep, by the package scramp (RFC 5802, RFC 7677, RFC 4013).

Invariant: whatever is wrong with a client's message, it is a WrongLogin; its text has nothing of what the client sent.
"""

from collections.abc import Callable
from typing import Final

from scramp import ScramException, ScramMechanism
from scramp.utils import saslprep

from logstore.kafka.security.credentials import WrongLogin

Credential = tuple[bytes, bytes, bytes, int]
"""Salt, stored key, server key and iterations of a user."""
SAID_BY_SCRAMP: Final = frozenset(
    {
        "Duplicate attributes not allowed in message",
        "GS2 flag must be one of ('y', 'n', 'p=')",
        "Invalid base 64 encoding",
        "Nonce contains invalid characters",
        "Received GS2 flag 'p' which indicates that the client requires channel binding, but the server does not",
        "Server nonce doesn't match.",
        "The GS2 authzid must be empty",
        "The channel bindings don't match.",
        "The client keys don't match.",
        "The client sent a malformed first message",
        "The username cannot be empty",
    }
)
"""Sentences of the package scramp that are reported as they are. Others may quote what the client sent."""


PLAIN_WORDS: Final = {
    "The client keys don't match.": "the password is wrong, or there is no such user",
    "Server nonce doesn't match.": "the client repeats its own nonce, as librdkafka before 2.6.1 does",
}
"""What sentences of scramp mean for an operator."""


class ScramExchange:
    """The server's side; `credential` is asked for that of the user whom the client's first message names."""

    def __init__(self, mechanism: str, credential: Callable[[str], Credential]) -> None:
        self._server = ScramMechanism(mechanism).make_server(credential)

    def first(self, text: str) -> str:
        """The answer to the client's first message. Raises WrongLogin."""
        try:
            self._server.set_client_first(text)
            return str(self._server.get_server_first())
        except ScramException as error:
            raise WrongLogin(why_refused(error)) from error

    def final(self, text: str) -> str:
        """The answer to the client's proof, if that is right. Raises WrongLogin."""
        try:
            self._server.set_client_final(text)
            return str(self._server.get_server_final())
        except ScramException as error:
            why, plain = why_refused(error), PLAIN_WORDS.get(str(error.args[0]) if error.args else "")
            raise WrongLogin(why if plain is None else f"{plain} ({why})") from error


def prepared(text: str) -> str | None:
    """The text as SASLprep writes it; None: it may not be used."""
    try:
        return str(saslprep(text))
    except (ScramException, UnicodeError, IndexError):
        return None


def why_refused(error: ScramException) -> str:
    """What is reported of a login that failed: a fixed text of scramp's, with its error code."""
    sentence = str(error.args[0]) if error.args else ""
    code = "other-error" if error.server_error is None else error.server_error.value
    return f"{sentence if sentence in SAID_BY_SCRAMP else 'a message of SCRAM in a wrong form'}: {code}"
