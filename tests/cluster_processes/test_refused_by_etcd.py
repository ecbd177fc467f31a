"""A real host whose etcd refuses it for a while: its process goes on, and so does all else when the refusal is over."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.coordinator.support import topology_file
from tests.metadata.support import EtcdMember, etcd_members, needs_etcd
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

USERS = (
    ("user", "add", "root:root"), ("user", "grant-role", "root", "root"),
    ("user", "add", "cairn:secret"), ("role", "add", "cairn"), ("user", "grant-role", "cairn", "cairn"),
    ("role", "grant-permission", "cairn", "readwrite", "/cairn/", "--prefix=true"), ("auth", "enable"),
)  # fmt: skip
pytestmark = [
    needs_etcd,
    pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl is installed: apt-get install etcd-client"),
]


def etcdctl(member: EtcdMember, *words: str, user: str = "", typed: str = "") -> None:
    """Run etcd's own tool; `typed` is its standard input."""
    patience = ("--dial-timeout", f"{PATIENCE_S}s", "--command-timeout", f"{PATIENCE_S}s")
    command = ["etcdctl", "--endpoints", member.client, *patience, *(("--user", user) if user else ()), *words]
    subprocess.run(command, input=typed.encode(), env={"ETCDCTL_API": "3"}, capture_output=True, check=True)


def test_a_host_whose_password_etcd_refuses_goes_on(tmp_path: Path) -> None:
    """etcd has a new password before the host's file has it: whatever the host asks is refused, also whether quiet
    watches are alive, and also to its coordinator. Once the file has it, topics can be made again, by the same process.
    """
    password = tmp_path / "password"
    password.write_text("secret", encoding="utf-8")
    topology, _ = topology_file(tmp_path)
    with etcd_members(tmp_path) as (member,):
        for words in USERS:
            etcdctl(member, *words)
        flags = ["--cluster", member.client.replace("http", "etcd"), "--host-name", "a", "--node-id", "0"]
        flags += ["--peer-listen", "127.0.0.1:0", "--etcd-user", "cairn", "--etcd-password-file", str(password)]
        flags += ["--coordinate", str(topology), "--coordinator", "127.0.0.1:0"]
        with Sidecar(tmp_path / "data", *flags) as host:
            until(lambda: "event=coordinator_leads" in host.log(), host.log)
            change = ("user", "passwd", "cairn", "--interactive=false")
            etcdctl(member, *change, user="root:root", typed="second\n")
            # A second line comes five seconds behind the first one: by then each watch has asked.
            until(lambda: host.process.poll() is not None or host.log().count("event=metadata_unusable") > 1, host.log)
            assert host.process.poll() is None
            password.write_text("second", encoding="utf-8")
            until(lambda: "event=secret_loaded of=etcd-password-file" in host.log(), host.log)
            create = ("topics", "create", "orders", "--servers", host.address)
            until(lambda: cairn(*create).status == 0, host.log)
            assert host.process.poll() is None
