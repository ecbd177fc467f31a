"""One sidecar with every kind of secured listener, its certificates made on the fly, and its users."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from logstore.kafka.api_types import ANONYMOUS
from logstore.kafka.security.subjects import principal_of_certificate
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT, Sidecar

USER, PASSWORD = "alice", "correct horse, battery=staple"
SECURE_PROTOCOLS = ("SASL_SSL", "SSL", "SASL_PLAINTEXT", "PLAINTEXT")


def cairn(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """A `cairn` command, with `text` as its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "logstore.cli", *words],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=False,
    )


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, a server's and a client's certificate with their keys."""

    directory: Path
    authority: trustme.CA
    ca: Path
    server: Path
    server_key: Path
    client: Path
    """Certificate chain and key in one file."""
    client_chain: Path
    client_key: Path

    def principal(self) -> str:
        """The principal of the client's certificate."""
        return principal_of_certificate(ssl.PEM_cert_to_DER_cert(self.client_chain.read_text(encoding="ascii")))


def make_certificates(directory: Path) -> Certificates:
    """A new authority and what it has signed."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost", "::1")
    client = authority.issue_cert("client@example.org", common_name="carol", organization_name="Queues, Inc.")
    found = Certificates(
        directory,
        authority,
        *(directory / f"{name}.pem" for name in ("ca", "server", "server-key", "client", "client-chain", "client-key")),
    )
    authority.cert_pem.write_to_path(found.ca)
    write_server(found, server)
    client.private_key_and_cert_chain_pem.write_to_path(found.client)
    client.private_key_pem.write_to_path(found.client_key)
    for number, blob in enumerate(client.cert_chain_pems):
        blob.write_to_path(found.client_chain, append=number > 0)
    return found


def write_server(found: Certificates, server: trustme.LeafCert) -> None:
    """Put a server's certificate and key where a sidecar looks for them."""
    server.private_key_pem.write_to_path(found.server_key)
    for number, blob in enumerate(server.cert_chain_pems):
        blob.write_to_path(found.server, append=number > 0)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The certificates of the session's sidecar."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls_flags(certificates: Certificates, client_auth: str = "requested") -> tuple[str, ...]:
    """Flags of a sidecar with these certificates."""
    return (
        *("--tls-certificate", str(certificates.server), "--tls-key", str(certificates.server_key)),
        *("--tls-client-ca", str(certificates.ca), "--tls-client-auth", client_auth),
    )


@dataclass(frozen=True)
class Secured:
    """A sidecar that runs, and the ports of its listeners by protocol."""

    sidecar: Sidecar
    ports: dict[str, int]
    certificates: Certificates

    def address(self, protocol: str) -> str:
        """HOST:PORT of a listener."""
        return f"127.0.0.1:{self.ports[protocol]}"


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Secured]:
    """A sidecar with a listener of each protocol and the user USER, added before its first start. Whoever its tests
    log in as may do everything: what each principal may do is for the tests of access control.
    """
    data_dir = tmp_path_factory.mktemp("secured") / "data"
    added = cairn("user", "add", USER, "--data-dir", str(data_dir), text=f"{PASSWORD}\n")
    assert added.returncode == 0, added.stderr
    assert PASSWORD not in added.stdout
    others = [flag for protocol in SECURE_PROTOCOLS[1:] for flag in ("--kafka", f"{protocol}://127.0.0.1:0")]
    allowed = ("--super-users", ";".join([f"User:{USER}", ANONYMOUS, certificates.principal()]))
    with Sidecar(data_dir, *tls_flags(certificates), *others, *allowed, protocol=SECURE_PROTOCOLS[0]) as sidecar:
        ports = [int(part.rpartition(":")[2]) for part in sidecar.ready_line.split() if part.startswith("kafka=")]
        yield Secured(sidecar, dict(zip(SECURE_PROTOCOLS, ports, strict=True)), certificates)
        assert PASSWORD not in sidecar.log()
