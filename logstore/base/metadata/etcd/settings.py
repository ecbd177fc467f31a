"""Where an etcd is, and how long to wait for it.

Invariant: settings are checked when they are made; a wrong one is a FieldError that names it.
"""

import ssl
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from logstore.base.errors import FieldError, TlsError
from logstore.base.fields import refuse
from logstore.base.metadata.errors import InvalidMetadataCall
from logstore.base.metadata.interface import check_key
from logstore.base.tls import read_whole, tls_reason

MAX_ENDPOINTS: Final = 16


class EtcdTls(NamedTuple):
    """PEM files: the authority of etcd's certificate, and a client's certificate and key ("": none)."""

    ca: str
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """The context of connections. Reads the files. Raises TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            read_whole(self.ca)
            context.load_verify_locations(self.ca)
        except OSError as error:
            raise TlsError(f"etcd-ca {self.ca!r} cannot be used: {tls_reason(error)}; give a PEM file") from error
        if self.certificate:
            try:
                read_whole(self.certificate, self.key)
                context.load_cert_chain(self.certificate, self.key or None, b"")
            except OSError as error:
                raise TlsError(
                    f"etcd-certificate {self.certificate!r} with etcd-key {self.key or self.certificate!r} cannot be "
                    f"used: {tls_reason(error)}; give PEM files with a matching certificate and key"
                ) from error
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """`namespace` stands before every key: clusters that share an etcd have different ones."""

    endpoints: tuple[str, ...]
    namespace: str = "/cairn/"
    user: str = ""
    password: str = ""
    tls: EtcdTls | None = None
    """None: the system's authorities, for endpoints with https."""
    attempt_s: float = 2.0
    """How long to wait for one answer of one endpoint, while all answers come quickly."""
    longest_attempt_s: float = 5.0
    """How long at most where answers are seen to be slow; not below `attempt_s`."""
    patience_s: float = 10.0
    """How long a call tries all endpoints before it fails."""
    watch_idle_s: float = 1.0
    """How long a watch may be quiet before its endpoint is asked whether it is alive."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.endpoints) <= MAX_ENDPOINTS:
            raise FieldError("etcd-endpoints", f"etcd-endpoints: {len(self.endpoints)} given; 1 to {MAX_ENDPOINTS} are")
        for endpoint in self.endpoints:
            _check_endpoint(endpoint)
        try:
            check_key(self.namespace)
        except InvalidMetadataCall:
            raise refuse("etcd-namespace", self.namespace, "must have visible ASCII characters") from None
        for name in ("attempt_s", "longest_attempt_s", "patience_s", "watch_idle_s"):
            if not getattr(self, name) > 0:
                raise refuse(f"etcd-{name}", getattr(self, name), "must be above 0")


def _check_endpoint(endpoint: str) -> None:
    allowed = "must be http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:  # a port that is no number
        usable = False
    if not usable or parts.path or parts.query or parts.fragment or parts.username is not None:
        raise refuse("etcd-endpoints", endpoint, allowed)
