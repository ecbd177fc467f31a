"""A host of a cluster follows the files of its certificate for links, as it does with those for clients."""

import signal
from pathlib import Path

import pytest
import trio
import trustme

from logstore.base import certificates
from logstore.base.certificate_events import CERTIFICATES_LOADED, CERTIFICATES_UNUSABLE
from logstore.base.certificates import CHECK_S, followed
from logstore.base.tls import PeerTls, TlsFiles
from logstore.testing.clock import ManualClock
from logstore.testing.reports import RecordedReports
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import PAUSE_S, until


class PeerFiles:
    """A host's certificate for links, and the authority that all hosts trust."""

    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self.certificate, self.ca = directory / "a.pem", directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)
        self.renew()

    def renew(self) -> None:
        """A new certificate with the host's name, put in the place of the one before."""
        fresh = self.certificate.with_suffix(".new")
        self._authority.issue_cert("a").private_key_and_cert_chain_pem.write_to_path(fresh)
        fresh.replace(self.certificate)


@pytest.fixture
def files(tmp_path: Path) -> PeerFiles:
    """The files of host a."""
    return PeerFiles(tmp_path)


def until_said(sidecar: Sidecar, event: str, count: int) -> None:
    """Wait until the host has reported an event so often."""
    until(lambda: sidecar.log().count(event) >= count, lambda: f"{event}: not {count} times in\n{sidecar.log()}")


async def test_files_that_were_replaced_are_loaded_by_themselves(files: PeerFiles, autojump_clock: object) -> None:
    """They are looked at every ten seconds, and loaded if they have changed; files that cannot be used leave what was
    loaded before in use.
    """
    tls, reports = PeerTls(TlsFiles(str(files.certificate), client_ca=str(files.ca))), RecordedReports()

    async def reported(*names: str) -> None:
        while reports.names() != list(names):  # noqa: ASYNC110  time is virtual
            await trio.sleep(1)

    loaded, unusable = CERTIFICATES_LOADED.name, CERTIFICATES_UNUSABLE.name
    assert CHECK_S <= 10
    async with trio.open_nursery() as nursery:
        first = tls.context
        never = trio.sleep_forever
        assert followed(((None, never), (tls, never)), nursery, ManualClock(), reports) == [tls]
        await trio.sleep(3 * CHECK_S)
        assert reports.names() == []
        files.renew()
        await reported(loaded)
        second = tls.context
        files.certificate.write_text("no certificate")
        await reported(loaded, unusable)
        assert tls.context is second is not first
        files.renew()
        await reported(loaded, unusable, loaded)
        assert tls.context is not second
        nursery.cancel_scope.cancel()


async def test_a_failure_has_files_looked_at_soon(files: PeerFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that fails, as while a certificate is refused, does not wait ten seconds for the one that has taken
    its place; as long as connections fail, the files are looked at again and again.
    """
    monkeypatch.setattr(certificates, "CHECK_S", PATIENCE_S)
    tls, reports, failed = PeerTls(TlsFiles(str(files.certificate), client_ca=str(files.ca))), RecordedReports(), 0

    async def failure() -> None:
        nonlocal failed
        failed += 1

    with trio.fail_after(PATIENCE_S / 2):
        async with trio.open_nursery() as nursery:
            followed([(tls, failure)], nursery, ManualClock(), reports)
            for count in (1, 2):
                files.renew()
                while reports.names() != [CERTIFICATES_LOADED.name] * count:  # noqa: ASYNC110
                    await trio.sleep(PAUSE_S)
            nursery.cancel_scope.cancel()
    assert failed >= 2


def test_a_hangup_has_a_host_load_them(tmp_path: Path, files: PeerFiles) -> None:
    """At once, at SIGHUP, the files that it follows; files that cannot be used are said."""
    flags = (
        "--cluster", f"sqlite:{tmp_path / 'metadata'}", "--host-name", "a", "--node-id", "1",
        "--peer-listen", "127.0.0.1:0", "--peer-certificate", str(files.certificate), "--peer-ca", str(files.ca),
    )  # fmt: skip
    with Sidecar(tmp_path / "data", *flags) as sidecar:
        files.renew()
        sidecar.process.send_signal(signal.SIGHUP)
        until_said(sidecar, "certificates_loaded", 1)
        files.certificate.write_text("no certificate")
        sidecar.process.send_signal(signal.SIGHUP)
        until_said(sidecar, "certificates_unusable", 1)
        assert sidecar.terminate() == 0
