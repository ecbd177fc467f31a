"""Network addresses: host and port, read from and written as `HOST:PORT`.

Invariants: an IPv6 host stands in brackets where a port follows it; a written address reads as the same address. No
name is looked up here.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from logstore.base.errors import AddressError

MAX_PORT: Final = 65_535


class Address(NamedTuple):
    """A host and a port; port 0 of a listener means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int | None = None) -> Address:
    """The address of `HOST:PORT` or `[IPv6]:PORT`; with a default port, also of a host alone. Raises AddressError."""
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon or (":" in host and not host.startswith("[")):
        host, port = text, "" if default_port is None else str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and len(port) <= len(str(MAX_PORT))
    if not host or not is_number or int(port) > MAX_PORT:
        raise AddressError(f"{text!r} is no address: use HOST:PORT, such as 127.0.0.1:9092 or [::1]:9092")
    return Address(host, int(port))


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is, without its zone; an IPv4 address mapped into IPv6 as IPv4. None: a name."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host: `localhost` or a loopback address. Other names are not looked up."""
    address = ip_of(host)
    return host == "localhost" if address is None else address.is_loopback
