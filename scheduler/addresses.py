"""Network addresses of the scheduler's services: host and port, read from and written as `HOST:PORT`.

Invariant: an IPv6 host stands in brackets where a port follows it; what was written reads the same.
"""

from ipaddress import ip_address
from typing import Final, NamedTuple

from scheduler.errors import AddressError

MAX_PORT: Final = 65_535


class Address(NamedTuple):
    """A host and a port; to listen on port 0 is to listen on any free one."""

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
        raise AddressError(f"{text!r} is no address: use HOST:PORT, such as 127.0.0.1:9880 or [::1]:9880")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other: `localhost` or a loopback address. Other names are not looked up."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
