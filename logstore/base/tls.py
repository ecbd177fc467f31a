"""The TLS side of a server, or of a host among its peers: certificate, key and authorities, loaded from PEM files.

Invariants:
* TLS 1.2 is the oldest version. There is no compression, no renegotiation and no session ticket, so every connection
  proves itself anew: a session cannot outlive the certificate or the authority that it was made with.
* A context is complete or there is none: files that do not fit together raise TlsError, and the context that was loaded
  before stays in use.
* A host's certificate among its peers has the host's name, each time that it is loaded.
* A client's certificate is checked by OpenSSL against `client_ca` alone, never against the system's authorities.
"""

import ssl
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

from logstore.base.errors import TlsError
from logstore.base.followed_files import FollowedFiles

MAX_NAMES: Final = 10
"""Of a certificate's names, so many are said."""
VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
"""What `TlsFiles.oldest_version` may be."""
CLIENT_CERTIFICATES: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
"""What `TlsFiles.client_certificates` may be; Kafka's `ssl.client.auth` has the same values."""
CIPHERS_BEFORE_1_3: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2, those with forward secrecy and authenticated encryption. Those of TLS 1.3 are all of this kind."""
CERTIFICATES_ROOM: Final = "logstore.base.x509"
"""Loaded only where there is a certificate: what reads it takes 2 MB."""


class TlsFiles(NamedTuple):
    """The files of a server. `certificate` has the chain, own certificate first; an empty text is no file."""

    certificate: str
    key: str = ""
    """Empty: the key is in the file of the certificate."""
    key_password_file: str = ""
    client_ca: str = ""
    client_certificates: str = "none"
    oldest_version: str = "1.2"


class ServerTls:
    """The context of new connections. Raises TlsError if the files cannot be used. Reads files, so it blocks."""

    side = "listeners"
    """Whose certificates log lines speak of."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._followed = FollowedFiles((files.certificate, files.key, files.key_password_file, files.client_ca))
        self.context = self._load()
        self.expires_ms: int | None = import_module(CERTIFICATES_ROOM).expiry_ms(files.certificate)
        """When the server's own certificate ends, in ms since the Unix epoch; None if its file does not tell."""

    @property
    def requires_certificate(self) -> bool:
        """Whether a client without a certificate of a known authority is refused."""
        return self.context.verify_mode is ssl.CERT_REQUIRED

    def reload(self, *, force: bool = False) -> bool:
        """Load the files again if one of them has changed, or with `force`; returns whether they were loaded.

        Connections that exist keep their context. Files that cannot be used are loaded again each time; TlsError is
        raised once for each state of them, and each time with `force`; the old context stays.
        """
        states = self._followed.states()
        if self._followed.is_loaded(states) and not force:
            return False
        try:
            self.context = self._load()
        except TlsError:
            if not self._followed.refuse(states) and not force:
                return False
            raise
        self._followed.load(states)
        self.expires_ms = import_module(CERTIFICATES_ROOM).expiry_ms(self._files.certificate)
        return True

    def _load(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[files.oldest_version]
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.set_ciphers(CIPHERS_BEFORE_1_3)
        self._load_chain(context)
        if CLIENT_CERTIFICATES[files.client_certificates] is not ssl.CERT_NONE:
            self._load_authorities(context)
        context.verify_mode = CLIENT_CERTIFICATES[files.client_certificates]
        return context

    def _load_chain(self, context: ssl.SSLContext) -> None:
        files = self._files
        password = _password(files.key_password_file)
        try:
            read_whole(files.certificate, files.key)
            # An empty password, instead of none, keeps OpenSSL from asking for one at the terminal.
            context.load_cert_chain(files.certificate, files.key or None, password or b"")
        except OSError as error:  # ssl.SSLError is one
            if isinstance(error, ssl.SSLError) and not files.key and not _has_key(files.certificate):
                raise TlsError(
                    f"there is no private key in tls-certificate {files.certificate!r}: give tls-key"
                ) from error
            raise TlsError(
                f"tls-certificate {files.certificate!r} with tls-key {files.key or files.certificate!r} cannot be "
                f"used: {tls_reason(error)}; give PEM files with a matching certificate and key"
            ) from error

    def _load_authorities(self, context: ssl.SSLContext) -> None:
        try:
            read_whole(self._files.client_ca)
            context.load_verify_locations(self._files.client_ca)
        except OSError as error:
            raise TlsError(
                f"tls-client-ca {self._files.client_ca!r} cannot be used: {tls_reason(error)}; give a PEM file with "
                "the CAs of client certificates"
            ) from error


class PeerTls(ServerTls):
    """The contexts of a host that takes connections from its peers and makes connections to them, all with one
    certificate, which both ends must have, and which has the name of this `host`. Raises TlsError; blocks.

    OpenSSL checks that `client_ca` has signed the other end's certificate; whose it is, the caller checks
    (`logstore.base.x509.certificate_names`).
    """

    side = "links"
    client_context: ssl.SSLContext

    def __init__(self, files: TlsFiles, host: str) -> None:
        self._host = host
        super().__init__(files._replace(client_certificates="required"))

    def _load(self) -> ssl.SSLContext:
        server_context = super()._load()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = VERSIONS[self._files.oldest_version]
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_ciphers(CIPHERS_BEFORE_1_3)
        context.check_hostname = False  # a host of a cluster has a name of its own, which need not be in any DNS
        context.verify_mode = ssl.CERT_REQUIRED
        self._load_chain(context)
        self._load_authorities(context)
        self._check_name()  # behind the loading: a file that changes in between is loaded again
        self.client_context = context
        return server_context

    def _check_name(self) -> None:
        """Each time: a certificate that another host's was copied over would be refused by all others."""
        room, path = import_module(CERTIFICATES_ROOM), self._files.certificate
        names: frozenset[str] = room.certificate_names(room.first_certificate(path))
        if self._host not in names:
            raise TlsError(
                f"peer-certificate {path!r} names {sorted(names)[:MAX_NAMES]}, not this host, {self._host!r}: give "
                "it one whose DNS names have the host's name"
            )


def read_whole(*names: str) -> None:
    """Read files, before OpenSSL does it. Raises OSError.

    OpenSSL reads through the C library, whose `exit` waits for all readers (glibc since 2.41): while a file system
    hangs, the process could not end. A thread that waits in Python keeps nobody from ending.
    """
    for name in names:
        if name:
            with open(name, "rb") as file:
                file.read()


def _has_key(name: str) -> bool:
    """Whether a PEM file has a private key. Raises OSError."""
    with open(name, "rb") as file:
        return b"PRIVATE KEY-----" in file.read()


def _password(path: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise TlsError(f"tls-key-password-file {path!r} cannot be read: {tls_reason(error)}") from error


def tls_reason(error: OSError) -> str:
    """OpenSSL's reason, or the operating system's."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM file").lower().replace("_", " ")
    return error.strerror or str(error)
