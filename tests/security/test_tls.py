"""Certificates that change, principals of certificates, and records through a socket that takes little at a time."""

from __future__ import annotations

import errno
import os
import signal
import socket
import ssl
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from logstore.base.certificates import LoadedTls
from logstore.base.client_tls import ClientTls
from logstore.base.connected_socket import HandshakeFailed
from logstore.base.errors import TlsError
from logstore.base.tls import ServerTls, TlsFiles
from logstore.base.tls_handshakes import MAX_BYTES, Handshakes
from logstore.base.tls_socket import TlsSocket
from logstore.kafka.security.subjects import principal_of_certificate
from tests.security.conftest import Certificates, make_certificates, tls_flags, write_server
from tests.security.raw_client import RawClient
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar


def files_of(found: Certificates, **values: str) -> TlsFiles:
    """The server's files of a test."""
    return TlsFiles(str(found.server), str(found.server_key))._replace(**values)


# ---- files


def test_a_changed_certificate_is_loaded_and_a_bad_one_is_not(tmp_path: Path) -> None:
    """Files that do not fit are named and change nothing; once they fit, new connections use them."""
    found = make_certificates(tmp_path)
    tls = ServerTls(files_of(found))
    first = tls.context
    assert not tls.reload()
    other = trustme.CA().issue_cert("127.0.0.1")
    other.private_key_pem.write_to_path(found.server_key)
    with pytest.raises(TlsError, match=r"server.pem.*key values mismatch"):
        tls.reload()
    assert not tls.reload()  # said once for each state of the files
    assert tls.context is first
    found.server.write_text("no certificate")
    with pytest.raises(TlsError, match="cannot be used"):
        tls.reload()
    write_server(found, found.authority.issue_cert("127.0.0.1"))
    assert tls.reload()
    assert tls.context is not first
    os.remove(found.server)
    with pytest.raises(TlsError, match="No such file"):
        tls.reload(force=True)


def test_files_that_could_not_be_read_for_a_moment_are_loaded_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process has no descriptor left when its certificate is renewed: nobody has to write the files again.
    The reason is said once.
    """
    found = make_certificates(tmp_path)
    server = ServerTls(files_of(found))
    client = ClientTls(server._load, (str(found.server), str(found.server_key)), side="etcd")
    both: tuple[LoadedTls, ...] = (server, client)
    for tls in both:
        with monkeypatch.context() as patches:
            patches.setattr("logstore.base.tls.read_whole", refuse_to_read)
            write_server(found, found.authority.issue_cert("127.0.0.1"))
            with pytest.raises(TlsError, match="Too many open files"):
                tls.reload()
            assert not tls.reload()
        assert tls.reload()
        assert not tls.reload()


def refuse_to_read(*_: str) -> None:
    """As `read_whole` where the process has no descriptor left."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_key_with_a_password(tmp_path: Path) -> None:
    """The password comes from a file; without it, or with another, the key is refused, and nobody is asked for it."""
    found = make_certificates(tmp_path)
    key = serialization.load_pem_private_key(found.server_key.read_bytes(), None)
    found.server_key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"sesame"),
        )
    )
    secret = tmp_path / "password"
    secret.write_text("sesame\n")
    assert not ServerTls(files_of(found, key_password_file=str(secret))).requires_certificate
    secret.write_text("other")
    for refused in (str(secret), ""):
        with pytest.raises(TlsError) as raised:
            ServerTls(files_of(found, key_password_file=refused))
        assert "sesame" not in str(raised.value)
    with pytest.raises(TlsError, match="tls-key-password-file"):
        ServerTls(files_of(found, key_password_file=str(tmp_path / "missing")))


def serial(port: int, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a sidecar shows."""
    with RawClient(port, context) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        shown = client.socket.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


def test_a_sidecar_shows_its_new_certificate_after_a_hangup(tmp_path: Path) -> None:
    """SIGHUP loads certificates; a bad one is reported and the old one stays; connections that are open go on."""
    found = make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(found.ca))
    with Sidecar(tmp_path / "data", *tls_flags(found), protocol="SSL") as sidecar:
        before = serial(sidecar.port, context)
        with RawClient(sidecar.port, context) as client:
            assert client.is_served()
            found.server.write_text("no certificate")
            _hang_up(sidecar, "certificates_unusable")
            assert serial(sidecar.port, context) == before
            write_server(found, found.authority.issue_cert("127.0.0.1"))
            _hang_up(sidecar, "certificates_loaded")
            assert serial(sidecar.port, context) != before
            assert client.is_served()
        assert sidecar.terminate() == 0


def test_a_stop_does_not_wait_for_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    """While the file of a certificate gives nothing, as on a file system that hangs, a sidecar serves and stops."""
    found = make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(found.ca))
    with Sidecar(tmp_path / "data", *tls_flags(found), protocol="SSL") as sidecar:
        found.server.unlink()
        os.mkfifo(found.server)
        os.kill(sidecar.pid, signal.SIGHUP)
        with found.server.open("wb"):  # opened once the sidecar has opened it to read
            with RawClient(sidecar.port, context) as client:
                assert client.is_served()
            assert sidecar.terminate() == 0


def _hang_up(sidecar: Sidecar, event: str) -> None:
    """Send SIGHUP and wait for the event's line."""
    os.kill(sidecar.pid, signal.SIGHUP)
    waiting = threading.Event()
    for _ in range(PATIENCE_S * 20):
        if event in sidecar.log():
            return
        waiting.wait(0.05)
    raise AssertionError(f"no {event} in the log:\n{sidecar.log()}")


# ---- principals


def certificate(names: list[x509.RelativeDistinguishedName]) -> bytes:
    """A certificate with that subject, as DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(names)
    from datetime import UTC, datetime, timedelta

    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.DER)


def rdn(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.RelativeDistinguishedName:
    """A part of a name."""
    return x509.RelativeDistinguishedName([x509.NameAttribute(*pair) for pair in pairs])


SUBJECTS = [
    ([], "User:ANONYMOUS"),
    ([rdn((NameOID.COMMON_NAME, "alice"))], "User:CN=alice"),
    (
        [
            rdn((NameOID.COUNTRY_NAME, "US")),
            rdn((NameOID.ORGANIZATION_NAME, "Sun, Inc.")),
            rdn((NameOID.ORGANIZATIONAL_UNIT_NAME, "TEST")),
            rdn((NameOID.COMMON_NAME, "alice")),
        ],
        "User:CN=alice,OU=TEST,O=Sun\\, Inc.,C=US",
    ),
    ([rdn((NameOID.COMMON_NAME, ' #a+b"c\\d<e>;='))], 'User:CN=\\ #a\\+b\\"c\\\\d\\<e\\>\\;='),
    ([rdn((NameOID.COMMON_NAME, "a ")), rdn((NameOID.DOMAIN_COMPONENT, "org"))], "User:DC=org,CN=a\\ "),
    ([rdn((NameOID.EMAIL_ADDRESS, "a@b"))], "User:1.2.840.113549.1.9.1=#1603614062"),
    ([rdn((NameOID.COMMON_NAME, "alice,CN=root"))], "User:CN=alice\\,CN=root"),
]


@pytest.mark.parametrize(("names", "principal"), SUBJECTS, ids=[principal for _, principal in SUBJECTS])
def test_a_subject_is_written_as_java_writes_it(names: list[x509.RelativeDistinguishedName], principal: str) -> None:
    """Last part first, with RFC 2253's escapes: a value cannot pass for another part of a name."""
    assert principal_of_certificate(certificate(names)) == principal


# ---- the socket


async def test_large_answers_pass_a_client_that_reads_slowly(tmp_path: Path) -> None:
    """Parts of many sizes arrive whole and in order, though the socket takes a little at a time, in both versions."""
    found = make_certificates(tmp_path)
    tls = ServerTls(files_of(found))
    parts = [bytes([number % 251]) * size for number, size in enumerate((1, 0, 70_000, 3, 1 << 20, 16_384, 5, 300_000))]
    whole = b"".join(parts)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        ours, theirs = socket.socketpair()
        for side in (ours, theirs):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        context = ssl.create_default_context(cafile=str(found.ca))
        context.minimum_version = context.maximum_version = version
        server = TlsSocket(ours, tls.context, Handshakes())
        got = bytearray()
        rests: list[int] = []
        is_full = threading.Event()

        def note(rest: int, rests: list[int] = rests, is_full: threading.Event = is_full) -> None:
            rests.append(rest)
            is_full.set()

        def read(
            theirs: socket.socket = theirs,
            context: ssl.SSLContext = context,
            got: bytearray = got,
            is_full: threading.Event = is_full,
        ) -> None:
            with context.wrap_socket(theirs, server_hostname="127.0.0.1") as client:
                client.sendall(b"request" * 10_000)
                is_full.wait(PATIENCE_S)  # so that the socket has taken what it can
                while piece := client.recv(5000):
                    got += piece

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.to_thread.run_sync, read))
            with trio.fail_after(PATIENCE_S):
                await server.handshake()
                buffer = bytearray(1000)
                received = b""
                while len(received) < 70_000:
                    received += bytes(buffer[: await server.receive(memoryview(buffer))])
                assert received == b"request" * 10_000
                await server.send(parts, PATIENCE_S, note)
                server.end_sending()
        server.close()
        assert bytes(got) == whole
        assert rests == sorted(rests, reverse=True)
        assert rests[0] > 0


async def test_a_farewell_that_was_found_without_a_wait_is_found_again(tmp_path: Path) -> None:
    """Who has asked whether more has come, and found the end, is told of the end again: no byte follows a farewell."""
    found = make_certificates(tmp_path)
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context(cafile=str(found.ca))
    server = TlsSocket(ours, ServerTls(files_of(found)).context, Handshakes())

    def say_farewell() -> None:
        with context.wrap_socket(theirs, server_hostname="127.0.0.1") as client:
            client.sendall(b"request")
            client.unwrap()  # and wait for the other end's

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.to_thread.run_sync, say_farewell))
        with trio.fail_after(PATIENCE_S):
            await server.handshake()
            target = memoryview(bytearray(100))
            assert await server.receive(target) == len(b"request")
            while server.receive_nowait(target) != 0:
                await server.wait_data()
            assert await server.receive(target) == 0
            server.end_sending()
    server.close()


# ---- handshakes that are not done


def half_a_hello(size: int) -> bytes:
    """The first `size` bytes of a ClientHello that says that it has 100,000."""
    message = b"\x01" + (100_000).to_bytes(3, "big") + b"\x03\x03" + bytes(size)
    pieces = [message[at : at + 16_000] for at in range(0, size, 16_000)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


async def test_half_open_handshakes_hold_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    """Those that hold most are given up when all hold too much; an honest one beside them gets through."""
    found = make_certificates(tmp_path)
    tls = ServerTls(files_of(found))
    limit_bytes, hello = 256 * 1024, half_a_hello(60_000)
    handshakes = Handshakes(limit_bytes)
    most = 0
    failures: list[str] = []

    async def serve(sock: socket.socket) -> None:
        with pytest.raises(HandshakeFailed) as failed:
            await TlsSocket(sock, tls.context, handshakes).handshake()
        failures.append(str(failed.value))

    def honest(theirs: socket.socket) -> None:
        context = ssl.create_default_context(cafile=str(found.ca))
        context.wrap_socket(theirs, server_hostname="127.0.0.1").close()

    with ExitStack() as stack, trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            clients = []
            for number in range(1, 21):
                ours, theirs = (stack.enter_context(side) for side in socket.socketpair())
                clients.append(theirs)
                nursery.start_soon(serve, ours)
                await trio.to_thread.run_sync(theirs.sendall, hello)
                while handshakes.total_bytes < number * len(hello):
                    await trio.lowlevel.checkpoint()
                    most = max(most, handshakes.held_bytes)
            assert most <= limit_bytes
            ours, theirs = (stack.enter_context(side) for side in socket.socketpair())
            async with trio.open_nursery() as pair:
                pair.start_soon(partial(trio.to_thread.run_sync, honest, theirs))
                await TlsSocket(ours, tls.context, handshakes).handshake()
            assert failures
            assert all("gives way" in why for why in failures)
            for client in clients:
                client.close()
    assert handshakes.held_bytes == 0
    assert len(failures) == len(clients)


async def test_the_handshakes_that_hold_most_end() -> None:
    """However many there are: the bytes of all stay below the limit, and small ones are not touched."""
    handshakes = Handshakes(10_000)
    with ExitStack() as stack:
        small = [stack.enter_context(handshakes.one()) for _ in range(20)]
        large = [stack.enter_context(handshakes.one()) for _ in range(50)]
        for handshake in (*small, *large):
            handshakes.received(handshake, 1000 if handshake in large else 100)
            assert handshakes.held_bytes <= 10_000
        assert not any(handshake.scope.cancel_called for handshake in small)
        ended = [handshake.scope.cancel_called for handshake in large]
        assert ended == sorted(ended, reverse=True), "the oldest first"
        with pytest.raises(HandshakeFailed, match="more than"):
            handshakes.received(small[0], MAX_BYTES)


def test_a_certificate_without_its_key_is_named(tmp_path: Path) -> None:
    """A file that has the certificate alone, and no key given: the error asks for the key."""
    found = make_certificates(tmp_path)
    with pytest.raises(TlsError, match=r"there is no private key in tls-certificate '.*server.pem': give tls-key"):
        ServerTls(TlsFiles(str(found.server)))
