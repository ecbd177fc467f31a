"""Clients of a coordinator follow the files of their certificates: in sidecars with a tier, in queries, in programs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import trustme

from logstore.base.addresses import Address
from logstore.base.certificate_events import CERTIFICATES_LOADED, CERTIFICATES_UNUSABLE
from logstore.base.events import ignore
from logstore.base.system import SystemClock
from logstore.testing.ports import free_port
from logstore.testing.reports import RecordedReports
from scheduler.client import CoordinatorClient, CoordinatorError
from scheduler.client.tls import client_tls
from scheduler.client.trio_client import TrioCoordinatorClient
from scheduler.coordinator.front_settings import Security, server_tls
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.running import ServeSettings, opened
from scheduler.coordinator.service import CoordinatorEnvironment
from scheduler.coordinator.testing import in_thread
from scheduler.topology import racks


class Coordinators:
    """Coordinators at one address, one after the other, each with authorities of its own, and a client's files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._listen = Address("127.0.0.1", free_port())
        self.url = f"https://{self._listen}"
        self.ca, self.client = directory / "ca.pem", directory / "client.pem"
        self._authority = trustme.CA()

    def new_authority(self) -> None:
        """From the next coordinator on another authority counts, for it and for its clients."""
        self._authority = trustme.CA()

    def new_files(self) -> None:
        """Files that the next coordinator accepts, in the places of the client's."""
        self._authority.cert_pem.write_to_path(self.ca)
        self._authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(self.client)

    @contextmanager
    def serve(self) -> Iterator[None]:
        """A coordinator, which wants a certificate of its clients."""
        certificate, key, trusted = (self._directory / f"{name}.pem" for name in ("server", "key", "trusted"))
        issued = self._authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(certificate)
        self._authority.cert_pem.write_to_path(trusted)
        settings = ServeSettings(self._listen, security=Security(tls=server_tls(certificate, key, trusted)))
        topology = racks([4, 4], 4)
        clock, random = SystemClock(), Random(0)
        environment = CoordinatorEnvironment(topology, make_planner("paper", topology), clock, random, ignore)
        with opened(self._directory / "data") as metadata, in_thread(environment, metadata, settings):
            yield


def test_a_client_goes_on_with_new_certificates(tmp_path: Path) -> None:
    """A client that runs shows the certificate, and trusts the authorities, that its files have when it connects. Files
    that cannot be used leave the former in use, which is reported once.
    """
    coordinators, reports = Coordinators(tmp_path), RecordedReports()
    coordinators.new_files()
    tls = client_tls(str(coordinators.ca), str(coordinators.client), reports)
    with CoordinatorClient(coordinators.url, ca_file=tls, patience_s=0) as client:
        with coordinators.serve():
            assert client.status()
        whole = coordinators.client.read_bytes()
        coordinators.client.write_bytes(whole[: len(whole) // 2])
        for _ in range(2):
            with coordinators.serve():
                assert client.status()
        assert reports.names() == [CERTIFICATES_UNUSABLE.name]
        coordinators.new_authority()
        with coordinators.serve():
            with pytest.raises(CoordinatorError):
                client.status()
            coordinators.new_files()
            assert client.status()
        assert reports.names() == [CERTIFICATES_UNUSABLE.name, CERTIFICATES_LOADED.name]


async def test_a_client_on_trio_goes_on_with_new_certificates(tmp_path: Path) -> None:
    """As with threads: the next connection is made by what the files have then."""
    coordinators = Coordinators(tmp_path)
    coordinators.new_files()
    tls = client_tls(str(coordinators.ca), str(coordinators.client))
    async with TrioCoordinatorClient(coordinators.url, ca_file=tls, patience_s=0) as client:
        with coordinators.serve():
            assert await client.status()
        coordinators.new_authority()
        coordinators.new_files()
        with coordinators.serve():
            assert await client.status()


def test_a_file_of_authorities_is_followed_without_a_context(tmp_path: Path) -> None:
    """`ca_file` by its name is followed too: authorities that are taken out of it are trusted no longer."""
    coordinators = Coordinators(tmp_path)
    coordinators.new_files()
    with CoordinatorClient(coordinators.url, ca_file=coordinators.ca, patience_s=0) as client:
        trustme.CA().cert_pem.write_to_path(coordinators.ca)
        with coordinators.serve(), pytest.raises(CoordinatorError, match="certificate verify failed"):
            client.status()
