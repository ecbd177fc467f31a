"""`cairn user` and the requests behind it, offline and online; what is kept of a password."""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
import trio

from logstore.access.entries import LedgerEntries
from logstore.client.blocking import Client, parse_addresses
from logstore.client.commands import followed_security_of
from logstore.client.errors import SecurityFailed, Unavailable
from logstore.client.security import ClientSecurity as Security
from logstore.client.security import SaslSecurity
from logstore.errors import CorruptFile
from logstore.kafka.security.credentials import (
    MECHANISMS,
    ScramCredential,
    UnacceptableCredential,
    check_name,
    credential_of_password,
    is_password_of,
)
from logstore.kafka.security.login import Authenticator, LoginSettings
from logstore.kafka.security.users import CredentialName, Users
from logstore.log.jobs import JobQueue
from logstore.log.ledger import Ledger
from logstore.testing.faults import EIO
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from tests.security.conftest import PASSWORD, USER, Secured, cairn
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

SALT = bytes(range(32))


def open_users(disk: SimDisk, secret: bytes = bytes(32)) -> tuple[Users, JobQueue]:
    """The users on a simulated disk."""
    queue = JobQueue(1)
    return Users(LedgerEntries(Ledger.open(disk, "users", queue.ready)), lambda size: secret[:size]), queue


def run(queue: JobQueue, disk: SimDisk) -> None:
    """Do the disk's work."""
    while (job := queue.next_job()) is not None:
        queue.finished(job, job.run(disk))


def new_disk() -> SimDisk:
    """A disk with a ledger directory."""
    disk = SimDisk()
    disk.make_directory("ledger")
    return disk


def test_a_wrong_password_costs_as_much_for_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password is hashed once, with as many iterations, for a user and for a name that is no user's."""
    hashed: list[tuple[str, int]] = []
    original = hashlib.pbkdf2_hmac

    def counted(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        hashed.append((hash_name, iterations))
        return original(hash_name, password, salt, iterations)

    disk = new_disk()
    users, queue = open_users(disk)
    for mechanism, iterations in zip(MECHANISMS, (5000, 7000), strict=True):
        credential = credential_of_password(mechanism, "pencil", SALT, iterations)
        users.change([], {CredentialName("alice", mechanism): credential})
        run(queue, disk)
    login = Authenticator(users, LoginSettings(), RecordedReports())
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    for name in ("alice", "nobody", "", "é" * 300):
        assert not trio.run(login.is_password, CredentialName(name, users.password_mechanism(name)), b"pen")
    assert hashed == [hashed[0]] * 4
    assert trio.run(login.is_password, CredentialName("alice", users.password_mechanism("alice")), b"pencil")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_credential_knows_its_password_and_nothing_else(mechanism: str) -> None:
    """It tells the password from others, reads back as it was written, and shows no secret."""
    credential = credential_of_password(mechanism, "pencil", SALT, 4096)
    assert is_password_of(mechanism, credential, b"pencil")
    assert not is_password_of(mechanism, credential, b"pencil ")
    assert ScramCredential.decode(credential.encode(), "user") == credential
    assert repr(credential) == "ScramCredential(iterations=4096)"
    assert b"pencil" not in credential.encode()


def test_credentials_are_those_of_the_rfc() -> None:
    """RFC 7677's example: its stored key and server key give the signature that it prints."""
    import base64
    import hashlib
    import hmac

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_of_password("SCRAM-SHA-256", "pencil", salt, 4096)
    message = (
        "n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,"
        "i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    signature = hmac.digest(credential.server_key, message.encode(), "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert len(credential.stored_key) == hashlib.sha256().digest_size


@pytest.mark.parametrize("password", ["", "\u0007bell", "\ufb00 ligature", "x" * 1025])
def test_passwords_that_clients_would_hash_differently_are_refused(password: str) -> None:
    """Empty, too long, forbidden by SASLprep or changed by it; the message does not show the password."""
    with pytest.raises(UnacceptableCredential) as raised:
        credential_of_password("SCRAM-SHA-512", password, SALT, 4096)
    assert not password or password not in str(raised.value)


@pytest.mark.parametrize("name", ["", "x" * 256, "\u0007", "\uff21", "\u06271", "*", "ANONYMOUS"])
def test_names_that_no_login_could_give_are_refused(name: str) -> None:
    """Empty, too long, forbidden by SASLprep or changed by it, and those that mean others in access control lists."""
    with pytest.raises(UnacceptableCredential):
        check_name(name)
    assert check_name("a,b=c/d é") == "a,b=c/d é"


def test_users_outlive_a_restart_and_decoys_stay() -> None:
    """What a ticket acknowledged is there after a restart; what a name that is no user's is told stays the same."""
    disk = new_disk()
    users, queue = open_users(disk, b"a" * 64)
    name = CredentialName("a/b", "SCRAM-SHA-256")
    ticket = users.change((), {name: credential_of_password(name.mechanism, "pencil", SALT, 5000)})
    assert users.names() == []
    assert users.is_empty
    run(queue, disk)
    ticket.result()
    nobody = CredentialName("nobody", "SCRAM-SHA-256")
    decoy, is_user = users.credential_or_decoy(nobody)
    assert (is_user, decoy.iterations, len(decoy.salt)) == (False, 5000, len(SALT))
    again, queue = open_users(disk, b"b" * 64)
    assert again.names() == ["a/b"]
    assert not again.is_empty
    assert again.credential_or_decoy(nobody) == (decoy, False)
    assert again.credential_or_decoy(name)[1]
    again.change([name], {})
    run(queue, disk)
    assert again.names() == open_users(disk)[0].names() == []
    assert again.is_empty


def credential(iterations: int, salt: bytes = SALT) -> ScramCredential:
    """A credential of another form."""
    return ScramCredential(iterations, salt, bytes(64), bytes(64))


def test_new_users_change_few_decoys() -> None:
    """Where users have credentials of different forms, a name that is no user's keeps its decoy while users are added,
    or takes the form that has become more frequent; who asks again and again does not learn which names are decoys.
    """
    disk = new_disk()
    users, queue = open_users(disk)
    forms = {"few": credential(4096), "many": credential(8192, b"0123456789abcdefghijklmno")}

    def add(form: str, count: int) -> None:
        users.change(
            (), {CredentialName(f"{form}{len(users) + n}", "SCRAM-SHA-512"): forms[form] for n in range(count)}
        )
        run(queue, disk)

    def decoys() -> list[tuple[int, bytes]]:
        found = (users.credential_or_decoy(CredentialName(f"nobody{n}", "SCRAM-SHA-512"))[0] for n in range(200))
        return [(decoy.iterations, decoy.salt) for decoy in found]

    add("few", 10)
    add("many", 10)
    before = decoys()
    assert {iterations for iterations, _ in before} == {4096, 8192}
    add("many", 2)
    after = decoys()
    assert all(new[0] == 8192 for old, new in zip(before, after, strict=True) if old != new)
    assert sum(old != new for old, new in zip(before, after, strict=True)) < 30
    reopened, _ = open_users(disk)
    users = reopened
    assert decoys() == after


def test_a_login_looks_at_no_list_of_users() -> None:
    """What a login and each request ask does not walk over all users, of whom there may be 10,000."""
    disk = new_disk()
    users, queue = open_users(disk)
    users.change((), {CredentialName(f"user{n}", "SCRAM-SHA-512"): credential(4096) for n in range(3)})
    run(queue, disk)
    assert len(users) == 3
    users._users = Unwalkable(users._users)
    assert users.is_empty is False
    for name in ("user1", "nobody"):
        assert users.password_mechanism(name) == "SCRAM-SHA-512"
        assert users.credential_or_decoy(CredentialName(name, "SCRAM-SHA-512"))[1] is (name == "user1")
    users._users = dict(users._users.items())
    users.change([CredentialName(f"user{n}", "SCRAM-SHA-512") for n in range(3)], {})
    run(queue, disk)
    assert (len(users), users.is_empty) == (0, True)
    assert users.credential_or_decoy(CredentialName("nobody", "SCRAM-SHA-512"))[0].iterations == 4096


class Unwalkable(dict[str, dict[str, ScramCredential]]):
    """A dictionary that nobody walks over."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all users are walked over")


def test_a_user_that_the_disk_refused_is_none() -> None:
    """A change that is not durable does not count."""
    disk = new_disk()
    users, queue = open_users(disk)
    disk.fault_for = lambda call: EIO if call.kind == "sync" else None
    ticket = users.change((), {CredentialName("a", "SCRAM-SHA-256"): ScramCredential(4096, SALT, SALT, SALT)})
    run(queue, disk)
    assert ticket.error is not None
    assert users.names() == []


def test_a_damaged_entry_is_named_without_its_secret() -> None:
    """The error names the user, not the bytes."""
    for data in (b"", b"{}", b"[]", b'{"iterations": 1, "salt": "!", "stored_key": "", "server_key": ""}'):
        with pytest.raises(CorruptFile, match="user 'x'") as raised:
            ScramCredential.decode(data, "user 'x'")
        assert "stored_key" not in str(raised.value)


# ---- the command


def command_config(secured: Secured, path: Path, user: str = USER, password: str = PASSWORD) -> Path:
    """A properties file for the SASL_SSL listener."""
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    path.write_text(
        "# as Kafka's tools take it\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism : SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'    username="{user}" password="{escaped}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.certificates.ca}\n"
    )
    return path


def client_of(secured: Secured, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> Client:
    """A client of the SASL_PLAINTEXT listener."""
    security = Security(None, SaslSecurity(mechanism, user, password))
    return Client(parse_addresses(secured.address("SASL_PLAINTEXT")), limit_s=PATIENCE_S, security=security)


def test_users_of_a_sidecar_that_runs(secured: Secured, tmp_path: Path) -> None:
    """Added with a password from standard input, listed, given another password, removed; each counts for the next
    login.
    """
    where = ("--servers", secured.address("SASL_SSL"), "--command-config", str(command_config(secured, tmp_path / "c")))
    added = cairn("user", "add", "dora=x,y", *where, text="first\n")
    assert (added.returncode, added.stdout) == (0, "added: dora=x,y, SCRAM-SHA-512, SCRAM-SHA-256\n"), added.stderr
    with client_of(secured, "dora=x,y", "first") as client:
        client.topics()
    (tmp_path / "password").write_text("hunter22\nnot this line\n")
    again = cairn(
        *("user", "add", "dora=x,y", "--mechanism", "SCRAM-SHA-512", "--iterations", "4096", *where),
        *("--password-file", str(tmp_path / "password")),
    )
    assert again.returncode == 0, again.stderr
    shown = cairn("user", "list", *where).stdout.splitlines()
    assert "dora=x,y: SCRAM-SHA-512 (4096 iterations), SCRAM-SHA-256 (16384 iterations)" in shown
    listed = json.loads(cairn("user", *where, "--json", "--timeout", str(PATIENCE_S)).stdout)["users"]
    mechanisms = [("SCRAM-SHA-512", 4096), ("SCRAM-SHA-256", 16384)]
    assert {
        "user": "dora=x,y",
        "mechanisms": [{"mechanism": name, "iterations": iterations} for name, iterations in mechanisms],
    } in listed
    with pytest.raises(SecurityFailed, match="invalid credentials"), client_of(secured, "dora=x,y", "first") as client:
        client.topics()
    with client_of(secured, "dora=x,y", "hunter22") as client:
        client.topics()
        removed = cairn("user", "remove", "dora=x,y", *where)
        assert (removed.returncode, removed.stdout) == (0, "removed: dora=x,y\n"), removed.stderr
        client.topics()  # what is logged in stays so
    with pytest.raises(SecurityFailed), client_of(secured, "dora=x,y", "hunter22") as client:
        client.topics()
    gone = cairn("user", "remove", "dora=x,y", *where)
    assert gone.returncode == 1
    assert "there is no user 'dora=x,y'" in gone.stderr
    assert "hunter22" not in secured.sidecar.log() + added.stderr + again.stderr


def test_a_program_that_runs_follows_its_login(secured: Secured, tmp_path: Path) -> None:
    """Each new connection logs in with what the file has by then; a file that cannot be used, and one without a login,
    leave the former one in use. What is logged in stays so.
    """
    where = ("--servers", secured.address("SASL_SSL"), "--command-config", str(command_config(secured, tmp_path / "c")))

    def give(password: str) -> None:
        added = cairn("user", "add", "fay", *where, text=f"{password}\n")
        assert added.returncode == 0, added.stderr

    give("first")
    path = command_config(secured, tmp_path / "fay", "fay", "first")
    security = followed_security_of(argparse.Namespace(command_config=path))
    with Client(parse_addresses(secured.address("SASL_SSL")), limit_s=PATIENCE_S, security=security) as client:
        for text in ("nonsense", "", "security.protocol=SSL\n"):
            path.write_text(text)
            client.close()
            client.topics()
        command_config(secured, path, "fay", "another")
        client.topics()
        give("another")
        client.close()
        client.topics()
        give("third")
        client.close()
        with pytest.raises(SecurityFailed, match="invalid credentials"):
            client.topics()
    path.unlink()
    assert repr(security).count("first") == 0


def test_a_data_directory_in_use_is_refused(secured: Secured) -> None:
    """Offline, a directory that a sidecar has open is not touched."""
    refused = cairn("user", "add", "eve", "--data-dir", str(secured.sidecar.data_dir), text="x\n")
    assert refused.returncode == 1
    assert "in use by another sidecar" in refused.stderr
    assert "omit --data-dir and give --servers HOST:PORT" in refused.stderr


def test_nothing_of_a_password_is_on_disk(secured: Secured) -> None:
    """Neither the password nor its base 64 is in any file of the data directory."""
    import base64

    files = [path for path in secured.sidecar.data_dir.rglob("*") if path.is_file()]
    assert any("users" in path.name for path in files)
    for path in files:
        content = path.read_bytes()
        assert PASSWORD.encode() not in content
        assert base64.b64encode(PASSWORD.encode()) not in content
        assert path.stat().st_mode & 0o077 == 0


def test_another_admin_client_manages_users(secured: Secured) -> None:
    """librdkafka's admin client sets, describes and removes a credential; errors are each user's own."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": secured.address("PLAINTEXT")})
    module = confluent_kafka.admin
    info = module.ScramCredentialInfo(module.ScramMechanism.SCRAM_SHA_256, 4096)
    wrong = module.ScramCredentialInfo(module.ScramMechanism.SCRAM_SHA_256, 100)
    done = admin.alter_user_scram_credentials(
        [
            module.UserScramCredentialUpsertion("frank", info, b"swordfish"),
            module.UserScramCredentialUpsertion("grace", wrong, b"swordfish"),
            module.UserScramCredentialDeletion("heidi", module.ScramMechanism.SCRAM_SHA_512),
        ]
    )
    done["frank"].result(PATIENCE_S)
    for user, code in (("grace", 93), ("heidi", 91)):
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            done[user].result(PATIENCE_S)
        assert raised.value.args[0].code() == code
    with client_of(secured, "frank", "swordfish", "SCRAM-SHA-256") as client:
        client.topics()
    described = admin.describe_user_scram_credentials(["frank"])["frank"].result(PATIENCE_S)
    assert [(one.mechanism, one.iterations) for one in described.scram_credential_infos] == [
        (module.ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    removal = module.UserScramCredentialDeletion("frank", module.ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([removal])["frank"].result(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.describe_user_scram_credentials(["frank"])["frank"].result(PATIENCE_S)


def test_a_change_is_reported_with_the_principal_that_made_it(secured: Secured) -> None:
    """Who logged in is `User:NAME`; who showed a certificate is its subject; anybody else is ANONYMOUS."""
    files = secured.certificates
    trust: dict[str, str] = {"ssl.ca.location": str(files.ca)}
    shown = {"ssl.certificate.location": str(files.client_chain), "ssl.key.location": str(files.client_key)}
    login = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    ways: dict[str, dict[str, str]] = {
        f"User:{USER}": {"security.protocol": "SASL_SSL", **trust, **login},
        "CN=carol": {"security.protocol": "SSL", **trust, **shown},
        "User:ANONYMOUS": {"security.protocol": "SSL", **trust},
    }
    module = confluent_kafka.admin
    info = module.ScramCredentialInfo(module.ScramMechanism.SCRAM_SHA_256, 4096)
    waiting = threading.Event()
    for number, (principal, config) in enumerate(ways.items()):
        user = f"made-{number}"
        where = secured.address(config["security.protocol"])
        admin = module.AdminClient({"bootstrap.servers": where, **config})
        change = module.UserScramCredentialUpsertion(user, info, b"swordfish")
        admin.alter_user_scram_credentials([change])[user].result(PATIENCE_S)
        lines: list[str] = []
        for _ in range(PATIENCE_S * 20):
            lines = [line for line in secured.sidecar.log().splitlines() if f"users={user} " in line]
            if lines:
                break
            waiting.wait(0.05)
        assert principal in lines[0]


def test_why_a_login_failed_is_said_plainly(secured: Secured) -> None:
    """A wrong password and an unknown user are one plain reason in the log, of SCRAM as of PLAIN."""
    with pytest.raises(SecurityFailed), client_of(secured, USER, "wrong") as client:
        client.topics()
    until(lambda: "the password is wrong, or there is no such user (The client keys" in secured.sidecar.log(), "why")


def test_a_client_without_tls_is_told_of_tls(secured: Secured) -> None:
    """At a listener with TLS, whose end of the connection is all that it hears; it is not told to start a sidecar."""
    security = Security(None, SaslSecurity("SCRAM-SHA-512", USER, PASSWORD))
    address = parse_addresses(secured.address("SASL_SSL"))
    with (
        Client(address, limit_s=0.5, request_timeout_s=PATIENCE_S, security=security) as client,
        pytest.raises(Unavailable, match=r"may require other TLS or login .*security.protocol=SASL_SSL\)$"),
    ):
        client.topics()


def test_a_listener_that_nobody_can_log_in_to_is_named(tmp_path: Path) -> None:
    """A SASL listener and no user: the sidecar starts, and says how a user is added."""
    with Sidecar(tmp_path / "data", protocol="SASL_PLAINTEXT") as sidecar:
        until(lambda: "event=no_users" in sidecar.log(), "it says so")
        assert f"cairn user add NAME --data-dir {tmp_path / 'data'}" in sidecar.log()
