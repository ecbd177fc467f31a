"""A cluster as it stands in a network: three hosts on one etcd, links and clients by TLS, logins, rights for each user.

The tests share the cluster, and leave it as they found it.
"""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from logstore.format.records import Record, encode_batch
from logstore.testing.ports import free_ports
from tests.metadata.support import EtcdMember, etcd_members, go_on, needs_etcd, stop
from tests.security.conftest import cairn
from tests.security.raw_client import RawClient
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT, Sidecar
from tests.support.waiting import until

pytestmark = [needs_etcd, pytest.mark.clients]
ADMIN, PASSWORD, TOPIC = "admin", "correct horse", "orders"
NAMES = ("a", "b", "c")
FAILED: Final = "event=member_failed "
TRIALS: Final = 50


@dataclass
class SecuredCluster:
    """The hosts by name, their files, and their etcd."""

    directory: Path
    etcd: EtcdMember
    authority: trustme.CA
    peer_ports: dict[str, int]
    hosts: dict[str, Sidecar]

    @property
    def ca(self) -> Path:
        """The authority of all certificates."""
        return self.directory / "ca.pem"

    @property
    def url(self) -> str:
        """The metadata store."""
        return f"etcd://{self.etcd.client.removeprefix('http://')}"

    def issue(self, name: str, *names: str) -> Path:
        """Put a certificate with its key in the place of the one before; it is there as a whole."""
        fresh, path = self.directory / f"{name}.new", self.directory / f"{name}.pem"
        self.authority.issue_cert(*names).private_key_and_cert_chain_pem.write_to_path(fresh)
        fresh.replace(path)
        return path

    def sidecar(self, name: str, number: int, *names: str) -> Sidecar:
        """A host that is not started, with these names in the certificate of its links."""
        flags = (
            "--cluster", self.url, "--host-name", name, "--node-id", str(number),
            "--peer-listen", f"127.0.0.1:{self.peer_ports[name]}",
            "--peer-certificate", str(self.issue(f"peer-{name}", *names)), "--peer-ca", str(self.ca),
            "--tls-certificate", str(self.issue(f"client-{name}", "127.0.0.1")),
            "--super-users", f"User:{ADMIN}",
        )  # fmt: skip
        return Sidecar(self.directory / f"data-{name}", *flags, protocol="SASL_SSL")

    def settings(self, user: str, *names: str) -> dict[str, Any]:
        """Settings of a client that is told of these hosts, or of all."""
        return {
            "bootstrap.servers": ",".join(self.hosts[name].address for name in names or NAMES),
            "security.protocol": "SASL_SSL", "ssl.ca.location": str(self.ca), "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user, "sasl.password": PASSWORD, "log_level": 0,
        }  # fmt: skip

    def admin(self, *names: str) -> AdminClient:
        """An admin client of the administrator."""
        return AdminClient(self.settings(ADMIN, *names))

    def command_config(self, user: str = ADMIN) -> Path:
        """A user's properties file."""
        path = self.directory / f"{user}.properties"
        path.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.ca}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{PASSWORD}";\n'
        )
        return path

    def tls(self) -> ssl.SSLContext:
        """The context of a client."""
        return ssl.create_default_context(cafile=self.ca)

    def log(self) -> str:
        """What all hosts have said."""
        return "".join(host.log() for host in self.hosts.values())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """A cluster whose first user was added before its first host; the topic has a partition for each host."""
    directory = tmp_path_factory.mktemp("cluster")
    ports = dict(zip((*NAMES, "d"), free_ports(4), strict=True))
    with ExitStack() as stack:
        (etcd,) = stack.enter_context(etcd_members(directory))
        made = SecuredCluster(directory, etcd, trustme.CA(), ports, {})
        made.authority.cert_pem.write_to_path(made.ca)
        added = cairn("user", "add", ADMIN, "--cluster", made.url, text=f"{PASSWORD}\n")
        assert added.returncode == 0, added.stderr
        for number, name in enumerate(NAMES, 1):
            made.hosts[name] = made.sidecar(name, number, name)
            stack.push(made.hosts[name])  # ends it, started or not
        for host in made.hosts.values():
            host.begin()
        for host in made.hosts.values():
            host.wait_ready()
        for name in NAMES:
            until(lambda name=name: members_by(made, name) == len(NAMES), f"all are members, as {name} knows")  # type: ignore[misc]
        admin = made.admin()
        for outcome in admin.create_topics([NewTopic(TOPIC, 3, 3)]).values():
            outcome.result(PATIENCE_S)
        yield made
        for host in made.hosts.values():
            assert PASSWORD not in host.log()


def members_by(made: SecuredCluster, name: str) -> int:
    """How many hosts the cluster has, as this host tells its clients."""
    with RawClient(made.hosts[name].port, made.tls()) as client:
        client.choose("PLAIN")
        client.token(f"\0{ADMIN}\0{PASSWORD}")
        return len(client.ask(3, 12, topics=[], allow_auto_topic_creation=False).brokers)


class GaveUp(Exception):
    """There is no answer, and none is waited for."""


def produced(
    made: SecuredCluster, user: str, *names: str, partition: int = 0, gives_up: Callable[[], bool] = lambda: False
) -> KafkaError | None:
    """The error of one record, None if it was acknowledged. Raises GaveUp."""
    errors: list[KafkaError | None] = []
    settings = made.settings(user, *names)
    producer = Producer({**settings, "message.timeout.ms": int(PATIENCE_S * 1000)})
    producer.produce(TOPIC, b"x", partition=partition, on_delivery=lambda error, _: errors.append(error))
    until(lambda: not producer.flush(0.1) or gives_up(), "an answer")
    if not errors:
        producer.purge()
        raise GaveUp
    return errors[0]


def test_users_and_rights_count_on_every_host(cluster: SecuredCluster) -> None:
    """A user that is added on one host logs in on another; it may do nothing until a list that a third host has stored
    allows it, and nothing again once the list and the user are removed.
    """
    config = ("--command-config", str(cluster.command_config()))
    here = ("--servers", cluster.hosts["a"].address, *config)
    added = cairn("user", "add", "bob", "--iterations", "4096", *here, text=f"{PASSWORD}\n")
    assert added.returncode == 0, added.stderr
    until(lambda: is_forbidden(cluster, "bob", "b"), "bob may not write")
    rule = (
        ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, "User:bob", "*", AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    allowed, removal = AclBinding(*rule), AclBindingFilter(*rule)
    admin = cluster.admin("c")
    admin.create_acls([allowed])[allowed].result(PATIENCE_S)
    until(lambda: all(produced(cluster, "bob", "a", partition=each) is None for each in range(3)), "bob may write")
    # Whichever host is asked: it may not have heard of the list yet, and finds nothing to delete then.
    until(lambda: admin.delete_acls([removal])[removal].result(PATIENCE_S) == [allowed], "the list is deleted")
    until(lambda: all(is_forbidden(cluster, "bob", "a", each) for each in range(3)), "bob may not write any more")
    listed = cairn("user", "list", "--cluster", cluster.url)
    assert listed.stdout.splitlines()[1].startswith("bob: ")
    removed = cairn("user", "remove", "bob", "--servers", cluster.hosts["c"].address, *config)
    assert removed.returncode == 0, removed.stderr
    assert "bob" not in cairn("user", "list", "--cluster", cluster.url).stdout
    until(lambda: not is_logged_in(cluster, "b", "bob"), "b knows no bob")


def test_who_may_not_forget_producers_is_told_so(cluster: SecuredCluster) -> None:
    """A user without the right is told which right is missing, and not that the stream waits for nothing."""
    here = ("--servers", cluster.hosts["a"].address, "--command-config")
    added = cairn(
        "user", "add", "eva", "--iterations", "4096", *here, str(cluster.command_config()), text=f"{PASSWORD}\n"
    )
    assert added.returncode == 0, added.stderr
    rule = AclBinding(
        ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, "User:eva", "*", AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin = cluster.admin("a")
    admin.create_acls([rule])[rule].result(PATIENCE_S)
    until(lambda: is_logged_in(cluster, "a", "eva"), "a knows eva")
    stream = f"{TOPIC}:0"
    for user, told in (("eva", "User:eva may not ALTER the cluster"), (ADMIN, "waits for no unreadable chunk")):
        config = str(cluster.command_config(user))
        done = cairn("topics", "forget-producers", stream, "--confirm", stream, *here, config)
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr


def is_forbidden(made: SecuredCluster, user: str, name: str, partition: int = 0) -> bool:
    """Whether a host that is asked first, or who leads, says that the user may not write."""
    error = produced(made, user, name, partition=partition)
    return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def is_logged_in(made: SecuredCluster, name: str, user: str) -> bool:
    """Whether a user can log in at a host, by PLAIN."""
    with RawClient(made.hosts[name].port, made.tls()) as client:
        assert client.choose("PLAIN") is ErrorCode.none
        return bool(client.token(f"\0{user}\0{PASSWORD}").error_code is ErrorCode.none)


def test_rights_outlast_etcd(cluster: SecuredCluster) -> None:
    """While etcd stands still, users log in on every host and write; nobody else logs in."""
    assert any(is_served_without_etcd(cluster) for _ in range(TRIALS)), "a member failed each time"
    assert produced(cluster, ADMIN) is None


def is_served_without_etcd(made: SecuredCluster) -> bool:
    """Freeze etcd, and look. False if a host took another one for failed meanwhile, as where the machine stands still
    for a moment: what that one has to confirm waits until etcd is back.
    """
    for partition in range(len(NAMES)):
        assert produced(made, ADMIN, partition=partition) is None
    failures = made.log().count(FAILED)
    stop(made.etcd)
    try:
        for number, name in enumerate(NAMES):
            assert is_logged_in(made, name, ADMIN)
            assert not is_logged_in(made, name, "nobody")
            gives_up = lambda: made.log().count(FAILED) > failures  # noqa: E731
            assert produced(made, ADMIN, name, partition=number, gives_up=gives_up) is None
    except GaveUp:
        return False
    finally:
        go_on(made.etcd)
    return True


def serial_of(made: SecuredCluster, port: int, name: str) -> bytes:
    """The certificate that a listener shows; it is asked as a host with the certificate for links would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(made.ca)
    context.load_cert_chain(made.directory / f"peer-{name}.pem")
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection,
        context.wrap_socket(connection) as tls,
    ):
        return tls.getpeercert(binary_form=True) or b""


def test_certificates_are_exchanged(cluster: SecuredCluster) -> None:
    """New certificates for links and clients are shown after SIGHUP; records are acknowledged by every host."""
    ports = (cluster.hosts["a"].port, cluster.peer_ports["a"])
    before = [serial_of(cluster, port, "a") for port in ports]
    assert produced(cluster, ADMIN) is None
    cluster.issue("peer-a", "a")
    cluster.issue("client-a", "127.0.0.1")
    cluster.hosts["a"].process.send_signal(signal.SIGHUP)
    for port, old in zip(ports, before, strict=True):
        until(lambda port=port, old=old: serial_of(cluster, port, "a") != old, "another certificate")  # type: ignore[misc]
    for partition in range(3):
        assert produced(cluster, ADMIN, partition=partition) is None


@pytest.mark.parametrize("names", [("x",), ("b",)], ids=["of nobody", "of another host"])
def test_a_host_with_a_wrong_certificate(cluster: SecuredCluster, names: tuple[str, ...]) -> None:
    """A host whose certificate has not its name does not start, and the refusal says which names it has."""
    host = cluster.sidecar("d", 4, *names)
    done = subprocess.run(host.command(), capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert f"the certificate for links names {list(names)}, not this host, 'd'" in done.stderr


def test_strangers_at_the_listeners_of_links(cluster: SecuredCluster) -> None:
    """Half-open connections, garbage, oversized frames and certificates of others cost their own connections: members
    stay members, and every host acknowledges records.
    """
    stranger = trustme.CA().issue_cert("a")
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    own.check_hostname, own.verify_mode = False, ssl.CERT_NONE
    stranger.configure_cert(own)
    member = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    member.check_hostname = False
    member.load_verify_locations(cluster.ca)
    member.load_cert_chain(cluster.directory / "peer-b.pem")
    with ExitStack() as stack:
        for name in NAMES:
            port = cluster.peer_ports[name]
            for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(1 << 16)):
                half_open = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
                with suppress(OSError):
                    half_open.sendall(sent)
            for context, sent in ((own, b"CLNK"), (member, b"CLNK\xff\xff" + bytes(1 << 20)), (member, bytes(1 << 20))):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
                with suppress(OSError):
                    stack.enter_context(context.wrap_socket(connection)).sendall(sent)
        for partition in range(3):
            assert produced(cluster, ADMIN, partition=partition) is None
        for name in NAMES:
            until(lambda name=name: members_by(cluster, name) == len(NAMES), f"all are members, as {name} knows")  # type: ignore[misc]
    until(lambda: "link_closed" in cluster.log(), "a closed connection is reported")


def test_a_refusal_names_the_leader(cluster: SecuredCluster) -> None:
    """A producer that asks a host which does not lead the partition is told who does, under the address of the listener
    that it uses: the same as Metadata tells.
    """
    batch = bytes(encode_batch([Record(0, 1_700_000_000_000, None, b"x", ())]))

    def asked(name: str, key: int, version: int, **values: Any) -> Any:
        with RawClient(cluster.hosts[name].port, cluster.tls()) as client:
            client.choose("PLAIN")
            client.token(f"\0{ADMIN}\0{PASSWORD}")
            return client.ask(key, version, **values)

    def leader_of_first() -> int:
        topics = [{"topic_id": None, "name": TOPIC}]
        shown = asked("a", 3, 12, topics=topics, allow_auto_topic_creation=False)
        return next(int(part.leader_id) for part in shown.topics[0].partitions if part.partition_index == 0)

    found: list[tuple[int, Any]] = []

    def is_refused() -> bool:
        """Streams may move to another owner while all hosts are new."""
        leader = leader_of_first()
        number = next(each for each in range(1, 4) if each != leader)
        topic_data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}]
        values = {"transactional_id": None, "acks": -1, "timeout": timedelta(seconds=1), "topic_data": topic_data}
        answer = asked(NAMES[number - 1], 0, 10, **values)
        (refused,) = answer.responses[0].partition_responses
        found.append((number, answer))
        return refused.error_code is ErrorCode.not_leader_or_follower and refused.current_leader.leader_id > 0

    until(is_refused, "a host that does not lead the partition knows who does")
    number, answer = found[-1]
    leader = answer.responses[0].partition_responses[0].current_leader.leader_id
    (endpoint,) = answer.node_endpoints
    assert leader != number
    assert (endpoint.node_id, endpoint.host) == (leader, "127.0.0.1")
    assert endpoint.port == cluster.hosts[NAMES[leader - 1]].port


def test_a_directory_with_users_of_its_own(cluster: SecuredCluster, tmp_path: Path) -> None:
    """A data directory that has users, as a first version's hosts have, is refused with what to do about them."""
    added = cairn("user", "add", "eve", "--data-dir", str(tmp_path / "data"), text=f"{PASSWORD}\n")
    assert added.returncode == 0, added.stderr
    host = cluster.sidecar("d", 4, "d")
    host.data_dir = tmp_path / "data"
    done = subprocess.run(host.command(), capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "has its own users, eve," in done.stderr
    assert "cairn user add NAME --cluster URL" in done.stderr
    removed = cairn("user", "remove", "eve", "--data-dir", str(tmp_path / "data"))
    assert removed.returncode == 0, removed.stderr
