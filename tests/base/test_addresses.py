"""Addresses: what is read, what is written, and which hosts only this machine reaches."""

import pytest

from logstore.base.addresses import Address, canonical_host, is_loopback, parse_address
from logstore.base.errors import AddressError


def test_a_default_port_stands_for_a_missing_port() -> None:
    """Names, IPv4 and IPv6, with and without a port."""
    found = [parse_address(text, 5) for text in ("h", "h:6", "10.0.0.1:7", "[::1]:8", "[::1]", "::1")]
    assert found == [("h", 5), ("h", 6), ("10.0.0.1", 7), ("::1", 8), ("::1", 5), ("::1", 5)]
    assert str(Address("::1", 8)) == "[::1]:8"
    for bad in (
        "", ":5", "h:", "h:x", "h:70000", "[]:4", "a:b:c", "h:80:90", "::1:9092", "fe80::1:9092", "[::1]x:80", "[::1",
        "::1]", "[::1]]:4",
    ):  # fmt: skip
        with pytest.raises(AddressError, match="is not an address"):
            parse_address(bad, 5)


@pytest.mark.parametrize("text", ["", "9880", "host", "host:", "host:99999", "host:x", ":1", "::1", "[::1]", "host:٣"])
def test_addresses_are_checked(text: str) -> None:
    """What is not HOST:PORT is named."""
    with pytest.raises(AddressError, match="HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("::ffff:10.0.0.1", False)],
)  # fmt: skip
def test_loopback_is_known(host: str, local: bool) -> None:
    """Which addresses only this machine reaches."""
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("192.0.2.1", "192.0.2.1"),
        ("*", "*"),
        ("queue.example.org", "queue.example.org"),
    ],
)
def test_hosts_have_one_form(host: str, shown: str) -> None:
    """Addresses are compared in one form, in which a form that is shown stays as it is."""
    assert canonical_host(host) == shown == canonical_host(shown)
