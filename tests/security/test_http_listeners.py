"""TLS and mutual TLS on the listeners that speak HTTP: metrics and the status page, and the coordinator."""

from __future__ import annotations

import http.client
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from logstore.monitoring.service import LIMITS
from scheduler.client import CoordinatorClient, CoordinatorUnavailable, Unauthorized
from tests.coordinator.support import topology_file
from tests.monitoring.support import Answer
from tests.security.conftest import Certificates, make_certificates, tls_flags, write_server
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

TOKEN = "a-secret-of-twenty-four"


def client_context(found: Certificates, *, shows: bool) -> ssl.SSLContext:
    """A client that knows the authority; `shows`: and has a certificate of its own."""
    context = ssl.create_default_context(cafile=str(found.ca))
    if shows:
        context.load_cert_chain(str(found.client))
    return context


def port_of(sidecar: Sidecar, name: str) -> int:
    """The port of a listener in the ready line."""
    return int(sidecar.ready_line.split(f" {name}=")[1].split()[0].rsplit(":", 1)[1])


def ask(port: int, path: str, context: ssl.SSLContext) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read().decode())
    finally:
        connection.close()


@contextmanager
def watched(directory: Path, client_auth: str) -> Iterator[tuple[Sidecar, Certificates]]:
    """A sidecar whose metrics are served by HTTPS."""
    found = make_certificates(directory)
    flags = ("--http", "https://127.0.0.1:0", *tls_flags(found, client_auth))
    with Sidecar(directory / "data", *flags) as sidecar:
        yield sidecar, found


def test_metrics_over_tls(tmp_path: Path) -> None:
    """The ready line says https; every path is answered over TLS, and nothing in the clear."""
    with watched(tmp_path, "none") as (sidecar, found):
        port, context = port_of(sidecar, "https"), client_context(found, shows=False)
        for path in ("/", "/metrics", "/health", "/ready", "/status.json"):
            assert ask(port, path, context).status == 200
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"cairn_" not in plain.recv(1 << 16)
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(port, "/metrics", ssl.create_default_context())


def test_metrics_over_mutual_tls(tmp_path: Path) -> None:
    """Who shows a certificate of the authority is answered; who shows none, or another authority's, is not."""
    (tmp_path / "other").mkdir()
    other = make_certificates(tmp_path / "other")
    with watched(tmp_path, "required") as (sidecar, found):
        port = port_of(sidecar, "https")
        assert "cairn_ready 1" in ask(port, "/metrics", client_context(found, shows=True)).text
        stranger = client_context(found, shows=False)
        for context in (stranger, client_context(found, shows=False)):
            if context is not stranger:
                context.load_cert_chain(str(other.client))
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                ask(port, "/metrics", context)


def test_metrics_show_a_new_certificate_after_a_hangup(tmp_path: Path) -> None:
    """SIGHUP loads the certificates of this listener too."""
    with watched(tmp_path, "none") as (sidecar, found):
        port, context = port_of(sidecar, "https"), client_context(found, shows=False)

        def serial() -> int:
            plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                shown = secured.getpeercert(binary_form=True)
            assert shown is not None
            return x509.load_der_x509_certificate(shown).serial_number

        before = serial()
        write_server(found, found.authority.issue_cert("127.0.0.1"))
        sidecar.process.send_signal(signal.SIGHUP)
        until(lambda: serial() != before, "the new certificate is shown")


def test_handshakes_that_never_end_give_way(tmp_path: Path) -> None:
    """However many connections say nothing, or half of a handshake, the next client is answered."""
    with watched(tmp_path, "none") as (sidecar, found), ExitStack() as stack:
        port, context = port_of(sidecar, "https"), client_context(found, shows=False)
        for number in range(2 * LIMITS.max_connections):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            held.sendall((b"", b"\x16\x03\x01\x02\x00\x01")[number % 2])
        assert ask(port, "/health", context).status == 200
        assert "connection_refused" not in sidecar.log()


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_a_sidecars_coordinator_over_tls(tmp_path: Path, client_auth: str) -> None:
    """It has the sidecar's certificates; a client needs the token, and a certificate where that is required."""
    found = make_certificates(tmp_path)
    network, _ = topology_file(tmp_path)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    flags = ("--coordinate", str(network), "--coordinator", "https://127.0.0.1:0", "--coordinator-token-file")
    with Sidecar(tmp_path / "data", *flags, str(token), *tls_flags(found, client_auth)) as sidecar:
        url = f"https://127.0.0.1:{port_of(sidecar, 'coordinator')}"
        needs = client_auth == "required"
        with CoordinatorClient(url, token=TOKEN, ca_file=client_context(found, shows=needs)) as client:
            assert [go.done() for go in client.submit("r1h1", chunks=1).goes()] == [True]
        without_token = CoordinatorClient(url, ca_file=client_context(found, shows=needs))
        with without_token, pytest.raises(Unauthorized):
            without_token.status()
        if needs:
            without_certificate = CoordinatorClient(url, token=TOKEN, ca_file=found.ca, patience_s=0)
            with without_certificate, pytest.raises(CoordinatorUnavailable):
                without_certificate.status()
        assert sidecar.terminate() == 0
        assert TOKEN not in sidecar.log()
