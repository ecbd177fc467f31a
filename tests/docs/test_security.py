"""docs/security.md does what it says: a sidecar for a network, with the page's certificates, users and client."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.kafka.api_types import BrokerSettings
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
HOST, ADDRESS = "queue.example.org", "queue.example.org:9092"
PASSWORDS = {"alice": "alice's own", "bob": "bob's own"}


def commands(section: str) -> list[str]:
    """The commands of a section, as a person would type them."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def properties(directory: Path) -> str:
    """The page's properties file, for alice and an authority in `directory`."""
    (text,) = re.findall(r"^```properties\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return text.replace("…", PASSWORDS["alice"]).replace("/etc/cairn/ca.pem", str(directory / "ca.pem"))


def shell(command: str, directory: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """What a command of the page prints, run in `directory`."""
    command = re.sub(r"^cairn ", f"{sys.executable} -m logstore.cli ", command)
    return subprocess.run(
        ["sh", "-c", command],
        cwd=directory, env=environment(), input=text, text=True, timeout=PATIENCE_S, check=False, capture_output=True,
    )  # fmt: skip


def environment() -> dict[str, str]:
    """Ours, with this checkout in front."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_the_first_sidecar_for_a_network(tmp_path: Path) -> None:
    """The section's commands in their order: certificates, the first user, the sidecar, a second user, his rights, a
    record, which is refused before he has them.
    """
    authority, certificate, first, serve, second, rights, produce = commands("A first sidecar for a network")
    for command in (authority, certificate):
        done = shell(command.replace(HOST, "localhost"), tmp_path)
        assert done.returncode == 0, done.stderr
    assert shell(first, tmp_path, f"{PASSWORDS['alice']}\n").returncode == 0
    flags = re.findall(r"(--(?:tls|super)-\S+) (\S+)", serve)
    paths = [word if word.startswith("User:") else str(tmp_path / word) for _, word in flags]
    words = [word for (flag, _), path in zip(flags, paths, strict=True) for word in (flag, path)]
    assert [flag for flag, _ in flags] == ["--tls-certificate", "--tls-key", "--super-users"]
    (tmp_path / "client.properties").write_text(properties(tmp_path), encoding="utf-8")
    with Sidecar(tmp_path / "data", *words, "--advertise", "localhost:0", protocol="SASL_SSL") as sidecar:
        address = f"localhost:{sidecar.port}"
        done = shell(second.replace(ADDRESS, address), tmp_path, f"{PASSWORDS['bob']}\n")
        assert done.returncode == 0, done.stderr
        by_bob = produce.replace(ADDRESS, address).replace("…", f'"{PASSWORDS["bob"]}"')
        assert "authorization failed" in shell(by_bob, tmp_path).stderr.lower()
        done = shell(rights.replace(ADDRESS, address), tmp_path)
        assert done.returncode == 0, done.stderr
        written = shell(by_bob, tmp_path)
        assert written.returncode == 0, written.stderr


@pytest.mark.parametrize("page", ["security.md", "operations.md"])
def test_limits_of_connections_are_told_as_they_are(page: str) -> None:
    """Both pages give the defaults beside the names of their settings, and so does the table of settings."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    broker = BrokerSettings()
    for name, value in (
        ("max-connections", broker.max_connections),
        ("max-connections-per-address", broker.max_connections_per_address),
    ):
        assert re.search(rf"\b{value:,}\b[^.]*\(`{name}`\)|`{name}` \({value:,}\)", text), name
        assert f"| `{name}` | `{value}` |" in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
