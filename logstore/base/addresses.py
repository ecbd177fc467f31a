"""Network addresses: host and port, read from and written as `HOST:PORT`.

Invariants: an IPv6 host stands in brackets where a port follows it; a written address reads as the same address. No
name is looked up here.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from logstore.base.errors import AddressError

MAX_PORT: Final = 65_535
ANY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104  recognised, not listened on
LOOPBACK: Final = "loopback"
"""The group of all loopback addresses."""
_NETWORK_BYTES: Final = 8
_ADDRESS: Final = re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<plain>[^:\[\]]+))(?::(?P<port>[^:]*))?")


class Address(NamedTuple):
    """A host and a port; port 0 of a listener means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int | None = None) -> Address:
    """The address of `HOST:PORT` or `[IPv6]:PORT`; with a default port, also of a host alone. Raises AddressError.

    An IPv6 host alone may go without brackets, unless its last group could be meant as a port: `::1:9092`.
    """
    found = _ADDRESS.fullmatch(text)
    host, port = ("", "") if found is None else (found["bracketed"] or found["plain"], found["port"] or "")
    if found is None and _is_ipv6(text) and not _is_ipv6(text.rpartition(":")[0]):
        host = text
    port = str(default_port) if not port and host and default_port is not None and not text.endswith(":") else port
    is_number = port.isascii() and port.isdigit() and len(port) <= len(str(MAX_PORT))
    if not host or not is_number or int(port) > MAX_PORT:
        raise AddressError(f"{text!r} is not an address: use HOST:PORT, such as 127.0.0.1:9092 or [::1]:9092")
    return Address(host, int(port))


def _is_ipv6(host: str) -> bool:
    return ":" in host and ip_of(host) is not None


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is, without its zone; an IPv4 address mapped into IPv6 as IPv4. None: a name."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def canonical_host(host: str) -> str:
    """A host in the form in which hosts are compared: an IP address as `ip_of` has it, in its shortest form; a name as
    it is. A listener on all IPv6 addresses names its IPv4 clients `::ffff:192.0.2.1`; Java writes `0:0:0:0:0:0:0:1`.
    """
    address = ip_of(host)
    return host if address is None else str(address)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host: `localhost` or a loopback address. Other names are not looked up."""
    address = ip_of(host)
    return host == "localhost" if address is None else address.is_loopback


def address_group(host: str) -> str:
    """The key of all hosts that count as one address where clients are counted: loopback is one, and so is an IPv6 /64
    network, because a host that has one address of it can use all.
    """
    address = ip_of(host)
    if address is None:
        return host
    if address.is_loopback:
        return LOOPBACK
    return address.packed[:_NETWORK_BYTES].hex() if isinstance(address, IPv6Address) else str(address)
