"""The guide's commands for hosts of their own make a cluster that serves who logs in, on loopback addresses."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from logstore.testing.ports import free_port
from logstore.testing.processes import etcd_answers
from tests.metadata.support import needs_etcd
from tests.support.limits import PATIENCE_S
from tests.support.programs import PYTHON_PATH
from tests.support.sidecar import ROOT
from tests.support.waiting import until

PAGE = ROOT / "docs" / "cluster.md"
PASSWORD = "a word of many letters"
HOSTS = ("a", "b", "c")
pytestmark = [
    needs_etcd,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl is installed: apt-get install openssl"),
]


def commands() -> list[str]:
    """Those of the section, each on one line."""
    section = (
        PAGE.read_text(encoding="utf-8").partition("\n### On hosts of their own\n")[2].partition("\n| setting |")[0]
    )
    lines = [line.strip() for line in section.replace("\\\n", "").splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


class Places:
    """Addresses that are free here in place of the page's."""

    def __init__(self) -> None:
        self.etcd = f"127.0.0.1:{free_port()}"
        self._kafka = {host: f"127.0.0.1:{free_port()}" for host in HOSTS}
        self._links = {host: f"127.0.0.1:{free_port()}" for host in HOSTS}

    def words(self, command: str, host: str = "a") -> list[str]:
        """The words of a command, for one of the hosts: the page shows those of host a."""
        here = command.replace("10.0.0.9:2379", self.etcd).replace("10.0.0.1:9092", self._kafka[host])
        here = here.replace("10.0.0.1:9099", self._links[host]).replace("10.0.0.1", "127.0.0.1")
        for shown, own in (
            ("--host-name a ", f"--host-name {host} "),
            ("--node-id 1 ", f"--node-id {HOSTS.index(host) + 1} "),
            ("--data-dir data ", f"--data-dir data-{host} "),
            ("/CN=a ", f"/CN={host} "),
            ("DNS:a,", f"DNS:{host},"),
            ("a-key.pem", f"{host}-key.pem"),
            (" a.pem", f" {host}.pem"),
        ):
            here = here.replace(shown, own)
        words = shlex.split(here)
        return [sys.executable, "-m", "logstore.cli", *words[1:]] if words[0] == "cairn" else words


@contextmanager
def running(words: Sequence[str], directory: Path, log: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the page, which is ended in the end; standard error goes to a file."""
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    with (
        (directory / log).open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            words, cwd=directory, env=environment, text=True, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def run(words: Sequence[str], directory: Path, asked: str = "") -> str:
    """What a command prints; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(
        words,
        cwd=directory,
        env=environment,
        input=asked,
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def properties() -> str:
    """The file with the login of the first user, as docs/security.md shows it."""
    (shown,) = [
        block.partition("\n```")[0]
        for block in (ROOT / "docs" / "security.md").read_text(encoding="utf-8").split("```properties\n")[1:]
    ]
    return shown.replace('"alice"', '"admin"').replace('"…"', f'"{PASSWORD}"').replace("/etc/cairn/ca.pem", "hosts.pem")


def test_the_commands_for_hosts_of_their_own_make_a_cluster(tmp_path: Path) -> None:
    """Each is given as it stands, but for addresses and names of files: three hosts see each other over links with
    TLS, and a client with the first user's login is told of all of them.
    """
    etcd, certificate, user, serve, look = commands()
    places, peer = Places(), f"http://127.0.0.1:{free_port()}"
    alone = ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    for host in HOSTS:
        run(places.words(certificate, host), tmp_path)
    trusted = "".join((tmp_path / f"{host}.pem").read_text(encoding="utf-8") for host in HOSTS)
    (tmp_path / "hosts.pem").write_text(trusted, encoding="utf-8")
    (tmp_path / "admin.properties").write_text(properties(), encoding="utf-8")
    with ExitStack() as stack:
        store = stack.enter_context(running([*places.words(etcd), *alone], tmp_path, "etcd.log"))
        assert etcd_answers(places.etcd, PATIENCE_S, lambda: store.poll() is None), (tmp_path / "etcd.log").read_text()
        run(places.words(user), tmp_path, f"{PASSWORD}\n")
        hosts = [stack.enter_context(running(places.words(serve, host), tmp_path, f"{host}.log")) for host in HOSTS]
        for host, process in zip(HOSTS, hosts, strict=True):
            assert process.stdout is not None
            assert process.stdout.readline().startswith("cairn ready"), (tmp_path / f"{host}.log").read_text()

        def alive() -> list[str]:
            shown = json.loads(run([*places.words(look), "--json", "--timeout", str(PATIENCE_S)], tmp_path))
            return sorted(entry["host"] for entry in shown["hosts"] if entry["state"] == "alive")

        until(lambda: alive() == [*HOSTS], "three hosts that live")
