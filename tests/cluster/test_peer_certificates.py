"""A host of a cluster follows the files of its certificate for links, as it does with those for clients."""

import signal
import threading
import time
from pathlib import Path

import trustme

from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar


def write(authority: trustme.CA, path: Path) -> None:
    """A new certificate with the host's name, put in the place of the one before."""
    fresh = path.with_suffix(".new")
    authority.issue_cert("a").private_key_and_cert_chain_pem.write_to_path(fresh)
    fresh.replace(path)


def until_said(sidecar: Sidecar, event: str, count: int) -> None:
    """Wait until the host has reported an event so often."""
    deadline_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while sidecar.log().count(event) < count:
        assert time.monotonic() < deadline_s, f"{event}: not {count} times in\n{sidecar.log()}"
        pause.wait(0.05)


def test_certificates_of_links_are_loaded_again(tmp_path: Path) -> None:
    """Files that were replaced are loaded by themselves, and at once at SIGHUP; files that cannot be used are said."""
    authority = trustme.CA()
    certificate, ca = tmp_path / "a.pem", tmp_path / "ca.pem"
    write(authority, certificate)
    authority.cert_pem.write_to_path(ca)
    flags = (
        "--cluster", f"sqlite:{tmp_path / 'metadata'}", "--host-name", "a", "--node-id", "1",
        "--peer-listen", "127.0.0.1:0", "--peer-certificate", str(certificate), "--peer-ca", str(ca),
    )  # fmt: skip
    with Sidecar(tmp_path / "data", *flags) as sidecar:
        write(authority, certificate)
        until_said(sidecar, "certificates_loaded", 1)
        sidecar.process.send_signal(signal.SIGHUP)
        until_said(sidecar, "certificates_loaded", 2)
        certificate.write_text("no certificate")
        sidecar.process.send_signal(signal.SIGHUP)
        until_said(sidecar, "certificates_unusable", 1)
        assert sidecar.terminate() == 0
