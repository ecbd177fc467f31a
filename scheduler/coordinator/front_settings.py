"""Where a coordinator listens, and who may ask it: what a host of a cluster needs that only stands by, too.

Invariant: nothing that plans is loaded for it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from logstore.base.addresses import Address, is_loopback
from logstore.base.errors import TlsError
from logstore.base.http.messages import HttpSettings
from logstore.base.tls import ServerTls, TlsFiles
from scheduler.coordinator.dispatch import ClientCheck
from scheduler.coordinator.errors import StartError

DATABASE = "coordinator.db"
DRAIN_S = 5.0
"""How long a stop waits for the answers in work."""
DEFAULT_LISTEN = Address("127.0.0.1", 9880)
MIN_TOKEN_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Security:
    """Access control. `insecure`: explicitly allow any client on any address."""

    token: str | None = None
    tls: ServerTls | None = None
    insecure: bool = False

    def check(self, listen: Address) -> None:
        """Raises StartError if clients from another machine could reach this address without TLS, or with neither a
        token nor a certificate of their own.
        """
        is_safe = self.tls is not None and (self.token is not None or self.tls.requires_certificate)
        if not is_loopback(listen.host) and not self.insecure and not is_safe:
            raise StartError(
                f"{listen} can be reached from other machines: give a certificate, a key, and a file with a token or "
                "the authorities of clients' certificates (cairn coordinate: --tls-cert, --tls-key, --token-file, "
                "--tls-client-ca; cairn serve: --coordinator https://…, --tls-certificate, --coordinator-token-file, "
                "--tls-client-auth required); or listen on 127.0.0.1; or say --insecure if the network is private"
            )

    @property
    def clients(self) -> ClientCheck:
        """Which clients may ask."""
        return ClientCheck(self.token, own_only=self.own_only)

    @property
    def own_only(self) -> bool:
        """Whether clients need nothing but to run on this machine."""
        has_certificates = self.tls is not None and self.tls.requires_certificate
        return self.token is None and not has_certificates and not self.insecure


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """Where to listen, and who may ask."""

    listen: Address = DEFAULT_LISTEN
    http: HttpSettings = field(default_factory=HttpSettings)
    security: Security = field(default_factory=Security)


def read_token(path: Path) -> str:
    """A token from its file. Raises StartError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"token file {path}: {getattr(error, 'strerror', None) or 'must be ASCII'}") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise StartError(f"token file {path}: a token has at least {MIN_TOKEN_CHARACTERS} characters and no blanks")
    return token


def server_tls(certificate: Path, key: Path, client_ca: Path | None = None) -> ServerTls:
    """The TLS of a server; with `client_ca`, every client shows a certificate of these authorities.

    Raises StartError.
    """
    try:
        if client_ca is None:
            return ServerTls(TlsFiles(str(certificate), str(key)))
        return ServerTls(TlsFiles(str(certificate), str(key), "", str(client_ca), "required"))
    except TlsError as error:
        raise StartError(f"--tls-cert, --tls-key, --tls-client-ca: {error}") from error
