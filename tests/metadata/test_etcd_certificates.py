"""Certificates for etcd are replaced while hosts run: what stands lives on, what is new has the new ones."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio
import trustme

from logstore.base.certificate_events import CERTIFICATES_LOADED, CERTIFICATES_UNUSABLE
from logstore.base.certificates import reload_certificates
from logstore.base.metadata.errors import MetadataUnavailable
from logstore.base.metadata.etcd.settings import EtcdTls
from logstore.base.metadata.etcd.store import open_etcd
from logstore.base.metadata.held_lease import HeldLease
from logstore.testing.metadata_contract import committed, put
from tests.cluster_processes.test_peer_certificates import until_said
from tests.metadata.support import EtcdMember, Reports, etcd_members, etcd_store, needs_etcd, settings_for
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

pytestmark = needs_etcd
LEASE_S = 60


class Authorities:
    """Files of an etcd, which trusts an authority for its clients, and of a client of it.

    etcd asks itself by its own certificate, so it trusts that one's authority as well.
    """

    def __init__(self, directory: Path) -> None:
        self._server, self._clients = trustme.CA(), trustme.CA()
        self.ca, self.client = directory / "ca.pem", directory / "client.pem"
        self._trusted, server, key = directory / "trusted.pem", directory / "server.pem", directory / "key.pem"
        issued = self._server.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(server)
        self._server.cert_pem.write_to_path(self.ca)
        self._trust()
        self.options = [
            "--cert-file", str(server), "--key-file", str(key), "--client-cert-auth",
            "--trusted-ca-file", str(self._trusted),
        ]  # fmt: skip
        self.new_client()

    def revoke(self) -> None:
        """Have an etcd that starts from now on trust another authority for its clients, and no longer the former."""
        self._clients = trustme.CA()
        self._trust()

    def new_client(self) -> None:
        """A certificate of the authority that counts, put in the place of the client's."""
        fresh = self.client.with_suffix(".new")
        self._clients.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(fresh)
        fresh.replace(self.client)

    def _trust(self) -> None:
        self._trusted.write_bytes(self._server.cert_pem.bytes() + self._clients.cert_pem.bytes())

    @property
    def tls(self) -> EtcdTls:
        """The client's files."""
        return EtcdTls(str(self.ca), str(self.client))


@pytest.fixture
def authorities(tmp_path: Path) -> Authorities:
    """Authorities with their files."""
    return Authorities(tmp_path)


@pytest.fixture
def member(tmp_path: Path, authorities: Authorities) -> Iterator[EtcdMember]:
    """An etcd that asks for certificates."""
    with etcd_members(tmp_path, options=authorities.options, scheme="https") as members:
        yield members[0]


async def test_a_revoked_authority_ends_neither_lease_nor_watch(authorities: Authorities, member: EtcdMember) -> None:
    """A client's certificate is replaced; then etcd starts anew and refuses the former authority. A store that runs
    goes on, its lease and its watch too; one with the certificate of before is refused.
    """
    reports = Reports()
    former = authorities.client.read_bytes()
    async with etcd_store([member], reports, tls=authorities.tls) as store, trio.open_nursery() as nursery:
        lease = HeldLease(store, LEASE_S)
        await nursery.start(lease.run)
        begin = await committed(store, put("a", b"1"))
        async with store.watch("", begin - 1) as watch:
            assert (await watch.receive()).revision == begin
            assert store.tls is not None
            authorities.revoke()
            authorities.new_client()
            await reload_certificates(store.tls, reports, force=False)
            assert CERTIFICATES_LOADED.name in reports.names
            assert await committed(store, put("a", b"2")) == begin + 1  # over the connection that stands
            assert (await watch.receive()).revision == begin + 1
            member.kill()
            member.start()
            with trio.fail_after(PATIENCE_S):
                assert await committed(store, put("a", b"3")) == begin + 2
                assert (await watch.receive()).revision == begin + 2
                assert (await store.keep_alive(lease.lease_id)).ttl_s == LEASE_S
            assert lease.held
        nursery.cancel_scope.cancel()
    authorities.client.write_bytes(former)
    async with open_etcd(settings_for([member], tls=authorities.tls, patience_s=0.3), Random(0), reports) as refused:
        with trio.fail_after(PATIENCE_S), pytest.raises(MetadataUnavailable):
            await refused.get("a")


async def test_files_that_cannot_be_used_change_nothing(authorities: Authorities, member: EtcdMember) -> None:
    """A half-written certificate, and authorities that are none, are reported; new connections go on with what was
    loaded, until files come that can be used.
    """
    reports = Reports()
    async with etcd_store([member], reports, tls=authorities.tls) as store:
        assert store.tls is not None
        for path in (authorities.client, authorities.ca):
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 3])
            await reload_certificates(store.tls, reports, force=False)
            await reload_certificates(store.tls, reports, force=False)
            member.kill()
            member.start()
            with trio.fail_after(PATIENCE_S):
                await store.get("a")
            path.write_bytes(whole)
            await reload_certificates(store.tls, reports, force=False)
        said = [name for name in reports.names if name in (CERTIFICATES_LOADED.name, CERTIFICATES_UNUSABLE.name)]
        assert said == [CERTIFICATES_UNUSABLE.name, CERTIFICATES_LOADED.name] * 2


def flags_of(member: EtcdMember, authorities: Authorities) -> tuple[str, ...]:
    """Flags of a host of a cluster on this etcd."""
    return (
        "--cluster", member.client.replace("https", "etcds"), "--etcd-ca", str(authorities.ca),
        "--etcd-certificate", str(authorities.client), "--host-name", "a", "--node-id", "1",
        "--peer-listen", "127.0.0.1:0", "--lease-s", str(LEASE_S),
    )  # fmt: skip


def test_a_host_goes_on_when_the_authority_of_its_certificate_is_revoked(
    tmp_path: Path, authorities: Authorities, member: EtcdMember
) -> None:
    """A host of a cluster loads its new certificate for etcd by itself or at SIGHUP, says so, and goes on without a new
    start and with its lease when etcd no longer trusts the former authority.
    """
    with Sidecar(tmp_path / "data", *flags_of(member, authorities)) as sidecar:
        authorities.revoke()
        authorities.new_client()
        sidecar.process.send_signal(signal.SIGHUP)
        until_said(sidecar, "certificates_loaded", 1)
        away, back = (sidecar.log().count(event) for event in ("metadata_away", "metadata_back"))
        member.kill()
        until_said(sidecar, "metadata_away", away + 1)
        member.start()
        until_said(sidecar, "metadata_back", back + 1)
        assert sidecar.log().count("cluster_joined") == 1
        assert "cluster_left" not in sidecar.log()
        assert sidecar.terminate() == 0


def test_a_host_that_etcd_refuses_starts_when_its_certificate_is_right(
    tmp_path: Path, authorities: Authorities, member: EtcdMember
) -> None:
    """A host whose certificate etcd does not trust waits, and says so; it is ready when its file has one that etcd
    trusts, without a new start.
    """
    right = authorities.client.read_bytes()
    trustme.CA().issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(authorities.client)
    sidecar = Sidecar(tmp_path / "data", *flags_of(member, authorities))

    def mend() -> None:
        until_said(sidecar, "metadata_away", 1)
        authorities.client.write_bytes(right)

    mending = threading.Thread(target=mend)
    mending.start()
    with sidecar:
        mending.join()
        assert "event=certificates_loaded of=etcd" in sidecar.log()
        assert sidecar.terminate() == 0
