"""The SCRAM exchange of one login, and SASLprep, by the package scramp (RFC 5802, RFC 7677, RFC 4013).

Invariant: whatever is wrong with a client's message, it is a WrongLogin; scramp's messages are about the form, or say
only that a proof is wrong.
"""

from collections.abc import Callable

from scramp import ScramException, ScramMechanism
from scramp.utils import saslprep

from logstore.kafka.security.credentials import WrongLogin

Credential = tuple[bytes, bytes, bytes, int]
"""Salt, stored key, server key and iterations of a user."""


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
            raise WrongLogin(str(error)) from error

    def final(self, text: str) -> str:
        """The answer to the client's proof, if that is right. Raises WrongLogin."""
        try:
            self._server.set_client_final(text)
            return str(self._server.get_server_final())
        except ScramException as error:
            raise WrongLogin(str(error)) from error


def prepared(text: str) -> str | None:
    """The text as SASLprep writes it; None: it may not be used."""
    try:
        return str(saslprep(text))
    except (ScramException, UnicodeError, IndexError):
        return None
