"""Links with mutual TLS: each end proves by its certificate that it is the host that it says it is."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio
import trustme

from logstore.base.addresses import Address
from logstore.base.errors import AddressError, TlsError
from logstore.base.tls import PeerTls, TlsFiles
from logstore.base.x509 import certificate_names
from logstore.cluster.links.hello import Hello, encode_hello
from logstore.replica.messages import Message
from logstore.replica.registrations import Member
from tests.cluster.links_world import LinkedHost, append, know, linked, look
from tests.cluster.raw_links import NOWHERE, is_ended, opened


def files_of(directory: Path, authority: trustme.CA, *names: str, key: str = "host") -> TlsFiles:
    """PEM files of a host with these names in its certificate."""
    issued = authority.issue_cert(*names)
    chain, ca = directory / f"{key}.pem", directory / f"{key}-ca.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(chain)
    authority.cert_pem.write_to_path(ca)
    return TlsFiles(str(chain), client_ca=str(ca))


def secured(directory: Path, authority: trustme.CA, name: str, *names: str) -> LinkedHost:
    """A host whose certificate has these names, or its own."""
    return LinkedHost(name, tls=PeerTls(files_of(directory, authority, *(names or (name,)), key=name), name))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Signs the certificates of the cluster."""
    return trustme.CA()


async def test_messages_over_tls(tmp_path: Path, authority: trustme.CA) -> None:
    """Messages of every size arrive in order through TLS, and the end of a host is noticed as without."""
    a, b = secured(tmp_path, authority, "a"), secured(tmp_path, authority, "b", "other", "b")
    async with linked(a, b):
        sent: list[Message] = [
            look(1),
            append(b"x" * 100_000, bytes(3_000_000)),
            *(look(number) for number in range(500)),
            append(),
        ]
        for message in sent:
            a.links.send("b", message)
            b.links.send("a", message)
        await a.seen.until(lambda: len(a.seen.messages) == len(sent))
        await b.seen.until(lambda: len(b.seen.messages) == len(sent))
        assert a.seen.messages == [("b", message) for message in sent]
        assert b.seen.messages == [("a", message) for message in sent]
        await b.stop()
        await a.seen.until(lambda: ("refused", "b") in a.seen.news)
        assert a.seen.news[:3] == [("connected", "b"), ("lost", "b"), ("refused", "b")]


async def test_the_certificate_of_another_host(tmp_path: Path, authority: trustme.CA) -> None:
    """A host that uses another host's certificate is refused by both: by whom it connects to, and by who connects."""
    a, b = secured(tmp_path, authority, "a"), secured(tmp_path, authority, "b", "c", "*.example", "b")
    false = LinkedHost("b", tls=PeerTls(files_of(tmp_path, authority, "c", "bb", key="false"), "c"))
    async with trio.open_nursery() as nursery:
        for host in (a, false):
            await host.start(nursery)
        know(a, false)
        why = "the certificate of host 'b' names ['bb', 'c']: give it one whose DNS names have the host's name"
        assert (await a.seen.event("peer_not_reached"))["why"] == why
        assert (await a.seen.event("link_closed"))["why"] == why
        assert not a.links.is_reachable("b")
        assert not false.links.is_reachable("a")
        await b.start(nursery)
        know(a, b)
        await a.until_connected(["b"])
        nursery.cancel_scope.cancel()


async def test_the_certificate_of_another_authority(tmp_path: Path, authority: trustme.CA) -> None:
    """A certificate with the right name, of an authority that is not the cluster's, is refused by both ends."""
    a = secured(tmp_path, authority, "a")
    false = secured(tmp_path, trustme.CA(), "b")
    async with trio.open_nursery() as nursery:
        for host in (a, false):
            await host.start(nursery)
        know(a, false)
        trouble = await a.seen.event("peer_not_reached")
        assert "no TLS handshake: the server's certificate is refused: " in str(trouble["why"])
        nursery.cancel_scope.cancel()


async def test_strangers_without_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    """Without a certificate, or without TLS, nothing of a hello is read."""
    a = secured(tmp_path, authority, "a")
    async with linked(a):
        a.links.set_peers({"raw": NOWHERE})
        hello = encode_hello(Hello("cluster1", Member("raw", NOWHERE.disk), "a"))
        plain = await opened(a)
        await plain.send_all(hello)
        assert await is_ended(plain)
        await a.seen.event("link_closed")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        context.check_hostname = False
        stream = trio.SSLStream(await opened(a), context)
        await stream.do_handshake()
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(hello)
            await stream.receive_some(1)
        await a.seen.until(lambda: [name for name, _ in a.seen.events].count("link_closed") == 2)
        assert [fields["why"] for name, fields in a.seen.events if name == "link_closed"] == [
            "no TLS handshake: wrong version number",
            "no TLS handshake: peer did not return a certificate",
        ]


async def test_the_own_certificate_has_the_own_name(tmp_path: Path, authority: trustme.CA) -> None:
    """A host does not start with a certificate of another host: nobody would let it in."""
    with pytest.raises(TlsError, match=r"a\.pem' names \['b'\], not this host, 'a'"):
        secured(tmp_path, authority, "a", "b")


async def test_plain_links_are_for_loopback() -> None:
    """Without TLS a host neither listens on an address that others reach, nor connects to one."""
    a = LinkedHost("a")
    with pytest.raises(AddressError, match=r"not for 0\.0\.0\.0:0: give TLS files"):
        await a.links.serve(Address("0.0.0.0", 0))
    async with linked(a):
        a.links.set_peers({"b": NOWHERE._replace(address=Address("192.0.2.1", 9100))})
        assert "192.0.2.1:9100 is not a loopback address" in str((await a.seen.event("peer_not_reached"))["why"])


async def test_certificates_that_change(tmp_path: Path, authority: trustme.CA) -> None:
    """New files count for new connections, in both directions; connections that exist stay. Files that do not fit
    change nothing, nor does a certificate that is another host's.
    """
    tls = PeerTls(files_of(tmp_path, authority, "a", key="a"), "a")
    a, b = LinkedHost("a", tls=tls), secured(tmp_path, authority, "b")
    async with linked(a, b) as nursery:
        (tmp_path / "a.pem").write_text("no certificate")
        before = tls.context, tls.client_context
        with pytest.raises(TlsError):
            tls.reload(force=True)
        files_of(tmp_path, authority, "c", key="a")
        with pytest.raises(TlsError, match=r"names \['c'\], not this host, 'a'"):
            tls.reload(force=True)
        assert (tls.context, tls.client_context) == before
        files_of(tmp_path, authority, "a", "more", key="a")
        assert tls.reload(force=True)
        assert tls.context is not before[0]
        assert tls.client_context is not before[1]
        a.links.send("b", look(1))
        await b.seen.until(lambda: ("a", look(1)) in b.seen.messages)
        await b.stop()
        await a.seen.until(lambda: ("refused", "b") in a.seen.news)
        await b.start(nursery)
        await a.until_connected(["b"])
        await b.until_connected(["a"])


def test_names_as_they_are_written(authority: trustme.CA) -> None:
    """Only DNS names count, letter by letter; addresses and other kinds of names do not."""
    issued = authority.issue_cert("rack-1.host-2", "10.0.0.1", "someone@example.org", common_name="c")
    der = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
    assert certificate_names(der) == {"rack-1.host-2"}
    with pytest.raises(TlsError, match="cannot be read"):
        certificate_names(der[:100])
