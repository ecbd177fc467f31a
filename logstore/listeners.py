"""Where a sidecar listens: listeners of Kafka's protocol and of HTTP, from the texts of flags and of the file.

Invariant: without `insecure`, what can be reached from other machines is encrypted, and its clients say who they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from logstore.base.addresses import Address, is_loopback, parse_address
from logstore.base.errors import AddressError
from logstore.errors import ConfigError
from logstore.kafka.security.protocols import SecurityProtocol
from logstore.kafka.server import Listener


class HttpListener(NamedTuple):
    """An address that is served by HTTP, or by HTTPS with the certificates of the sidecar."""

    address: Address
    is_encrypted: bool = False


def parse_listeners(
    listen: Sequence[str], advertise: Sequence[str], *, insecure: bool, requires_certificate: bool = False
) -> tuple[Listener, ...]:
    """Parse listeners, each `HOST:PORT` or `PROTOCOL://HOST:PORT`. `requires_certificate`: TLS clients must show one.

    Raises ConfigError; without `insecure` also for an address other than loopback that is not encrypted, or whose
    clients need not say who they are.
    """
    if len(advertise) > len(listen):
        raise ConfigError(f"{len(advertise)} advertised addresses for {len(listen)} listeners; at most one for each")
    listeners: list[Listener] = []
    for number, text in enumerate(listen):
        protocol, place = _protocol(text)
        address = _address(place)
        is_safe = protocol.is_encrypted and (protocol.needs_login or requires_certificate)
        if not insecure and not is_safe and not is_loopback(address.host):
            raise ConfigError(
                f"{text} can be reached from other machines, without TLS and authentication: use SASL_SSL://{address}, "
                f"or SSL://{address} with --tls-client-auth required; or listen on 127.0.0.1; or add --insecure if the "
                "network is private"
            )
        host, port = _address(advertise[number]) if number < len(advertise) else (None, None)
        listeners.append(Listener(address.host, address.port, host, port, protocol))
    return tuple(listeners)


def _protocol(text: str) -> tuple[SecurityProtocol, str]:
    """A listener's protocol, and its address."""
    name, mark, place = text.rpartition("://")
    if not mark:
        return SecurityProtocol.PLAINTEXT, text
    try:
        return SecurityProtocol(name.strip().upper()), place
    except ValueError:
        known = ", ".join(protocol.value for protocol in SecurityProtocol)
        raise ConfigError(f"{text}: there is no protocol {name!r}; use one of {known}") from None


def parse_http(name: str, text: str) -> HttpListener:
    """Parse `HOST:PORT`, `http://HOST:PORT` or `https://HOST:PORT`. `name` is the setting's. Raises ConfigError."""
    scheme, mark, place = text.rpartition("://")
    if mark and scheme.strip().lower() not in ("http", "https"):
        raise ConfigError(f"--{name} {text}: there is no protocol {scheme!r}; use http or https")
    return HttpListener(_address(place), scheme.strip().lower() == "https")


def parse_monitoring(values: Mapping[str, Any], *, insecure: bool) -> HttpListener | None:
    """Where metrics and the status page are served; None for an empty text. Raises ConfigError, also for an address
    other than loopback whose clients need no certificate, unless `insecure` is set: what is served there names topics,
    groups and queries.
    """
    if not values["http"]:
        return None
    found = parse_http("http", values["http"])
    is_safe = found.is_encrypted and values["tls_client_auth"] == "required"
    if not insecure and not is_safe and not is_loopback(found.address.host):
        raise ConfigError(
            f"--http {values['http']} can be reached from other machines, without TLS and authentication: use "
            f"https://{found.address} with --tls-client-auth required; or listen on 127.0.0.1; or add --insecure if "
            "the network is private"
        )
    return found


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except AddressError as error:
        raise ConfigError(str(error)) from error
