"""etcd with TLS, clients' certificates, and users with rights."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from logstore.base.events import ignore
from logstore.base.metadata.errors import MetadataRefused, MetadataUnavailable
from logstore.base.metadata.etcd.settings import EtcdTls
from logstore.base.metadata.etcd.store import EtcdMetadataStore, open_etcd
from logstore.base.secret_files import SecretFile
from logstore.testing.metadata_contract import committed, put
from tests.metadata.support import EtcdMember, asks_to_keep_leases, etcd_members, etcd_store, needs_etcd, settings_for
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S

pytestmark = needs_etcd

USERS = (
    ("user", "add", "root:root"), ("user", "grant-role", "root", "root"),
    ("user", "add", "cairn:secret"), ("role", "add", "cairn"), ("user", "grant-role", "cairn", "cairn"),
    ("role", "grant-permission", "cairn", "readwrite", "/cairn/", "--prefix=true"), ("auth", "enable"),
)  # fmt: skip


async def test_tls_and_client_certificates(tmp_path: Path) -> None:
    """With the right authority and a client's certificate all works, from the command line too; without either, nothing
    does, by name.
    """
    authority, stranger = trustme.CA(), trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    client = authority.issue_cert("client.example")
    files = {}
    for name, blob in (("ca", authority.cert_pem), ("stranger", stranger.cert_pem), ("key", server.private_key_pem)):
        files[name] = str(tmp_path / f"{name}.pem")
        blob.write_to_path(files[name])
    for name, issued in (("server", server), ("client", client)):
        files[name] = str(tmp_path / f"{name}.pem")
        for number, blob in enumerate((issued.private_key_pem, *issued.cert_chain_pems)):
            blob.write_to_path(files[name], append=number > 0)
    options = [
        "--cert-file", files["server"], "--key-file", files["key"], "--client-cert-auth",
        "--trusted-ca-file", files["ca"],
    ]  # fmt: skip
    with etcd_members(tmp_path, options=options, scheme="https") as members:
        async with etcd_store(members, tls=EtcdTls(files["ca"], files["client"])) as store:
            revision = await committed(store, put("a", b"1"))
            async with store.watch("", revision - 1) as watch:
                assert (await watch.receive()).revision == revision
        url = members[0].client.replace("https", "etcds")
        words = ("user", "list", "--cluster", url, "--etcd-ca", files["ca"], "--etcd-certificate", files["client"])
        listed = await trio.to_thread.run_sync(lambda: cairn(*words))
        assert (listed.status, listed.out) == (0, "there are no users\n"), listed.err
        for tls, said in (
            (EtcdTls(files["stranger"], files["client"]), "certificate verify failed"),
            (EtcdTls(files["ca"]), "did not answer"),  # etcd closes the connection
        ):
            settings = settings_for(members, tls=tls, patience_s=0.3)
            async with open_etcd(settings, Random(0), ignore) as refused:
                while said not in await why_unavailable(refused):  # where a handshake takes longer
                    pass


async def why_unavailable(store: EtcdMetadataStore) -> str:
    """In which words a call fails; one call of as many as there may be."""
    with trio.fail_after(PATIENCE_S), pytest.raises(MetadataUnavailable) as caught:
        await store.get("a")
    return str(caught.value)


async def etcdctl(member: EtcdMember, *words: str, user: str = "", typed: str = "") -> None:
    """Run etcd's own tool; `typed` is its standard input."""
    login: Sequence[str] = ("--user", user) if user else ()
    patience = ("--dial-timeout", f"{PATIENCE_S}s", "--command-timeout", f"{PATIENCE_S}s")
    command = ["etcdctl", "--endpoints", member.client, *patience, *login, *words]
    await trio.run_process(
        command, stdin=typed.encode(), env={"ETCDCTL_API": "3"}, capture_stdout=True, capture_stderr=True
    )


@pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl is installed: apt-get install etcd-client")
async def test_users_and_rights(tmp_path: Path) -> None:
    """A user with rights on the namespace works, also before etcd asks for users, and after its token has ended."""
    options = ["--auth-token-ttl", "1"]
    with etcd_members(tmp_path, options=options) as members:
        (member,) = members
        login: dict[str, Any] = {"user": "cairn", "password": "secret"}
        async with etcd_store(members, **login) as store:
            for words in (
                ("user", "add", "root:root"), ("user", "grant-role", "root", "root"),
                ("user", "add", "cairn:secret"), ("role", "add", "cairn"), ("user", "grant-role", "cairn", "cairn"),
                ("role", "grant-permission", "cairn", "readwrite", "/cairn/", "--prefix=true"), ("auth", "enable"),
            ):  # fmt: skip
                await etcdctl(member, *words)
            # It had learned that no user is needed.
            begin = await committed(store, put("a", b"1"))
            for _ in range(2):
                member.kill()
                member.start()  # etcd's simple tokens do not outlive it
                with trio.fail_after(PATIENCE_S):
                    async with store.watch("", begin - 1) as watch:
                        assert (await watch.receive()).revision == begin
            member.kill()
            member.start()
            with trio.fail_after(PATIENCE_S):
                assert (await store.get("a")).entry is not None
                assert await committed(store, put("a", b"2")) == begin + 1
        wrongs: list[tuple[dict[str, Any], str]] = [
            ({"user": "cairn", "password": "wrong"}, "check user and password"),
            ({}, "give a user with rights"),
            ({**login, "namespace": "/other/"}, "give a user with rights on '/other/'"),
        ]
        for wrong, said in wrongs:
            async with open_etcd(settings_for(members, **wrong), Random(0), ignore) as refused:
                with pytest.raises(MetadataRefused, match=said):
                    await refused.get("a")
                with trio.fail_after(PATIENCE_S):
                    async with refused.watch("", begin) as watch:
                        with pytest.raises(MetadataRefused, match=said):
                            await watch.receive()


@pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl is installed: apt-get install etcd-client")
async def test_a_password_is_as_new_as_its_file(tmp_path: Path) -> None:
    """Once the file has the new password, etcd may have it: its tokens end then, and the store logs in by what the file
    has. Where etcd has it first, the store is refused until the file has it, and then goes on. A lease is kept
    alive meanwhile, where etcd wants no login for that.
    """
    path = tmp_path / "password"
    path.write_text("secret", encoding="utf-8")
    login = {"user": "cairn", "password": SecretFile(path.read_text, str(path), ignore, setting="etcd-password-file")}
    with etcd_members(tmp_path) as members:
        (member,) = members
        for words in USERS:
            await etcdctl(member, *words)
        change = ("user", "passwd", "cairn", "--interactive=false")
        async with open_etcd(settings_for(members, **login), Random(0), ignore) as store:
            await committed(store, put("a", b"1"))
            lease = await store.grant_lease(60)
            path.write_text("second", encoding="utf-8")
            await etcdctl(member, *change, user="root:root", typed="second\n")
            await committed(store, put("a", b"2"))
            await etcdctl(member, *change, user="root:root", typed="the-third\n")
            with pytest.raises(MetadataRefused, match="check user and password"):
                await store.get("a")
            if asks_to_keep_leases(member):
                with pytest.raises(MetadataRefused, match="check user and password"):
                    await store.keep_alive(lease.lease_id)
            else:
                assert await store.keep_alive(lease.lease_id) == lease
            path.write_text("the-third", encoding="utf-8")
            assert await store.keep_alive(lease.lease_id) == lease
            await committed(store, put("a", b"3"))
            found = (await store.get("a")).entry
            assert found is not None
            assert found.value == b"3"


@pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl is installed: apt-get install etcd-client")
async def test_tokens_that_end_with_each_change_of_a_user(tmp_path: Path) -> None:
    """An etcd whose tokens (JWT) name the revision of its users: whoever is changed there, calls and watches go on."""
    key = ec.generate_private_key(ec.SECP256R1())
    files = {"pub-key": tmp_path / "public.pem", "priv-key": tmp_path / "private.pem"}
    pem = serialization.Encoding.PEM
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    files["pub-key"].write_bytes(public)
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files["priv-key"].write_bytes(private)
    words = ",".join(f"{name}={path}" for name, path in files.items())
    with etcd_members(tmp_path, options=["--auth-token", f"jwt,{words},sign-method=ES256,ttl=10m"]) as members:
        (member,) = members
        for words_of_user in USERS:
            await etcdctl(member, *words_of_user)
        async with etcd_store(members, user="cairn", password="secret") as store:
            revision = await committed(store, put("a", b"1"))
            async with store.watch("", revision) as watch:
                for number in range(3):
                    await etcdctl(member, "user", "add", f"other{number}:x", user="root:root")
                    found = (await store.get("a")).entry
                    assert found is not None
                    await etcdctl(member, "user", "add", f"another{number}:x", user="root:root")
                    newer = await committed(store, put("a", b"%d" % number))
                    with trio.fail_after(PATIENCE_S):
                        assert (await watch.receive()).revision == newer
