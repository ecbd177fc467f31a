"""Who may talk to it: loopback, or TLS and a token, or everybody if that is said in so many words."""

from __future__ import annotations

import argparse
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

from logstore.base.addresses import Address, parse_address
from logstore.base.events import ignore
from logstore.base.system import SystemClock
from logstore.errors import ConfigError
from logstore.testing.ports import free_port
from logstore.tier.running import open_tier
from logstore.tier.settings import HdfsPlace, PlanAccess, TierSettings
from scheduler.client import BadRequest, CoordinatorClient, CoordinatorError, CoordinatorUnavailable, Unauthorized
from scheduler.client.core import ApiRequest
from scheduler.client.trio_client import TrioCoordinatorClient
from scheduler.coordinator import command
from scheduler.coordinator.errors import StartError
from scheduler.coordinator.front_settings import Security, read_token, server_tls
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.running import ServeSettings, opened
from scheduler.coordinator.service import CoordinatorEnvironment
from scheduler.coordinator.testing import in_thread
from scheduler.topology import racks
from spe_adapter.checkpoint.settings import CheckpointSettings, open_coordinator
from spe_adapter.tools import checkpoints_command
from tests.coordinator.support import ask, topology_file
from tests.support.limits import PATIENCE_S

TOKEN = "a-secret-of-twenty-four"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of one's own for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=coordinator", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-addext", "keyUsage=digitalSignature,keyCertSign"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture
def secured(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[str]:
    """A coordinator behind TLS that wants a token."""
    topology = racks([4, 4], 4)
    settings = ServeSettings(Address("127.0.0.1", 0), security=Security(TOKEN, server_tls(*certificate)))
    environment = CoordinatorEnvironment(topology, make_planner("paper", topology), SystemClock(), Random(0), ignore)
    with opened(tmp_path) as metadata, in_thread(environment, metadata, settings) as url:
        yield url


def test_tls_and_a_token(secured: str, certificate: tuple[Path, Path]) -> None:
    """With both, everything works; without the token nothing but /health, not even whether a path exists."""
    with CoordinatorClient(secured, token=TOKEN, ca_file=certificate[0]) as client:
        assert [go.done() for go in client.submit("r1h1", chunks=2).goes()] == [True, True]
    with CoordinatorClient(secured, token=TOKEN + "\n", ca_file=certificate[0]) as client:
        assert client.status(), "the text of the token's file as it is"
        with pytest.raises(BadRequest, match="name") as caught:
            client.call(ApiRequest("POST", "/v1/requests", {"name": "x" * 100_000}))
        assert caught.value.status == 400
    with CoordinatorClient(secured, ca_file=certificate[0]) as client, pytest.raises(BadRequest) as caught:
        client.call(ApiRequest("POST", "/v1/requests", {"name": "x" * 100_000}))
    assert caught.value.status == 413
    for wrong in (None, "", TOKEN[:-1], TOKEN + "x", "ä"):
        with CoordinatorClient(secured, token=wrong, ca_file=certificate[0]) as client:
            for path in ("/v1/status", "/v1/nothing", "/", "/metrics", "/openapi.json"):
                with pytest.raises(Unauthorized, match="Bearer"):
                    client.call(ApiRequest("GET", path))
            assert client.call(ApiRequest("GET", "/health")) == {"status": "ok"}


async def test_the_trio_client_speaks_tls(secured: str, certificate: tuple[Path, Path]) -> None:
    """The same over trio; a server that cannot prove who it is gets no token."""
    async with TrioCoordinatorClient(secured, token=TOKEN + "\n", ca_file=certificate[0]) as client:
        assert (await client.status())["planner"] == "paper"
    async with TrioCoordinatorClient(secured, token=TOKEN, patience_s=0) as client:
        with pytest.raises(CoordinatorUnavailable, match="certif"):
            await client.status()


def test_a_stranger_is_not_trusted(secured: str) -> None:
    """A certificate that nobody vouched for is refused by the blocking client too."""
    with (
        CoordinatorClient(secured, token=TOKEN, patience_s=0) as client,
        pytest.raises(CoordinatorUnavailable, match="certif"),
    ):
        client.status()


async def test_plain_bytes_on_a_tls_port_do_no_harm(secured: str, certificate: tuple[Path, Path]) -> None:
    """Who does not speak TLS is closed; the next who does is served."""
    host, _, port = secured.removeprefix("https://").rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with stream:
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
    async with TrioCoordinatorClient(secured, token=TOKEN, ca_file=certificate[0]) as client:
        assert await client.status()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.1.2.3:9880", "somewhere:9880"])
def test_other_machines_are_kept_out_by_default(listen: str, certificate: tuple[Path, Path]) -> None:
    """Beyond loopback: TLS with a token or clients' certificates, or `insecure`; TLS or a token alone is not enough."""
    tls, mutual = server_tls(*certificate), server_tls(*certificate, certificate[0])
    for security in (Security(), Security(token=TOKEN), Security(tls=tls)):
        with pytest.raises(StartError, match="--insecure"):
            security.check(parse_address(listen))
    for security in (Security(insecure=True), Security(TOKEN, tls), Security(tls=mutual)):
        security.check(parse_address(listen))
    for local in ("127.0.0.1:0", "[::1]:0", "localhost:0"):
        Security().check(parse_address(local))


def test_the_command_refuses_to_be_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What prevents a start is one clear line and status 2, and nothing is made on disk."""
    path, _ = topology_file(tmp_path)
    for flags, said in (
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--tls-cert", "x"], "must be given together"),
        (["--tls-client-ca", "x"], "needs --tls-cert"),
        (["--topology", str(tmp_path / "x.toml")], "x.toml"),
        (["--finish-fraction", "2"], "finish_fraction"),
        (["--token-file", str(path.parent / "none")], "none"),
    ):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        given = ["--topology", str(path), "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", *flags]
        assert command.main(parser.parse_args(given)) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        assert line.startswith("cairn: ")
        assert said in line
    assert not (tmp_path / "data").exists()


def test_tokens_are_checked(tmp_path: Path) -> None:
    """A token file that is missing, short or no text is named."""
    path = tmp_path / "token"
    with pytest.raises(StartError, match="token: No such file"):
        read_token(path)
    for bad in (b"", b"short", b"two words that are long enough", b"\xff" * 30):
        path.write_bytes(bad)
        with pytest.raises(StartError, match=str(path)):
            read_token(path)
    path.write_text(TOKEN + "\n")
    assert read_token(path) == TOKEN
    with pytest.raises(StartError, match="--tls-key"):
        server_tls(path, path)


def test_clients_check_addresses() -> None:
    """The same for a client's URL."""
    for text in ("", "ftp://x", "http://", "http://x:y", "http://x/path", "x:1"):
        with pytest.raises(CoordinatorError, match="http://HOST:PORT"):
            CoordinatorClient(text)
    assert CoordinatorClient("http://[::1]:1")._addresses[0].authority == "[::1]:1"


def test_a_page_in_a_browser_cannot_post(tmp_path: Path) -> None:
    """What a foreign page may send without asking (a plain form or text) changes nothing.

    Nor can it call this machine by a name of its own, and so be at home here.
    """
    topology = racks([4, 4], 4)
    environment = CoordinatorEnvironment(topology, make_planner("paper", topology), SystemClock(), Random(0), ignore)
    with opened(tmp_path) as metadata, in_thread(environment, metadata, ServeSettings(Address("127.0.0.1", 0))) as url:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            body = b'{"writer":"r1h1","chunks":1}'
            assert ask(url, "POST", "/v1/requests", body=body, Content_Type=kind).status == 415
        assert ask(url, "OPTIONS", "/v1/requests").status == 405
        for method, path, value in (("POST", "/v1/requests", {"writer": "r1h1", "chunks": 1}), ("GET", "/", None)):
            for host in ("page.example:9880", "127.0.0.1.page.example", "10.0.0.1", "[", ""):
                answer = ask(url, method, path, value, Host=host)
                assert (answer.status, answer.json()["field"]) == (400, "Host"), host
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9880", "[::1]:5"):
            assert ask(url, "GET", "/v1/status", Host=host).status == 200
        assert ask(url, "GET", "/health", Host="page.example").status == 200
        assert ask(url, "GET", "/v1/status").json()["requests"] == {}


def test_mutual_tls_without_a_token(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """With authorities of clients' certificates, who shows one is served, and who shows none is not."""
    topology = racks([4, 4], 4)
    security = Security(tls=server_tls(*certificate, certificate[0]))
    environment = CoordinatorEnvironment(topology, make_planner("paper", topology), SystemClock(), Random(0), ignore)
    settings = ServeSettings(Address("127.0.0.1", 0), security=security)
    context = ssl.create_default_context(cafile=certificate[0])
    context.load_cert_chain(*certificate)
    with opened(tmp_path) as metadata, in_thread(environment, metadata, settings) as url:
        with CoordinatorClient(url, ca_file=context) as client:
            assert client.status()
        stranger = CoordinatorClient(url, ca_file=certificate[0], patience_s=0)
        with stranger, pytest.raises(CoordinatorUnavailable):
            stranger.status()


def test_the_tier_shows_its_certificate(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """The settings of the tier name authorities and a certificate, for all addresses; files that cannot be used are
    named at the start.
    """
    both, secret = tmp_path / "both.pem", tmp_path / "secret"
    both.write_text(certificate[0].read_text() + certificate[1].read_text())
    secret.write_text("secret of the plan table")
    topology = racks([4, 4], 4)
    environment = CoordinatorEnvironment(topology, make_planner("paper", topology), SystemClock(), Random(0), ignore)
    security = Security(tls=server_tls(*certificate, certificate[0]))
    settings = ServeSettings(Address("127.0.0.1", 0), security=security)
    with opened(tmp_path / "data") as metadata, in_thread(environment, metadata, settings) as url:
        urls = f"https://127.0.0.1:{free_port()},{url}"
        access = PlanAccess(urls, "", "r1h1", "http://127.0.0.1:1", str(secret), str(certificate[0]), str(both))
        turns = open_tier(TierSettings(HdfsPlace("http://127.0.0.1:1", "/cairn"), planned=access)).turns
        assert len(turns.run(lambda turn: turn.chain)) == 3
        turns.close()
    unusable = replace(access, coordinator_certificate_file=str(secret))
    with pytest.raises(ConfigError, match=f"{secret}.*give PEM files"):
        open_tier(TierSettings(HdfsPlace("http://127.0.0.1:1", "/cairn"), planned=unusable))


def test_writers_of_checkpoints_show_their_certificate(
    tmp_path: Path, certificate: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings of checkpoints, and `cairn checkpoints`, name authorities and a certificate; files that cannot be
    used are named.
    """
    both = tmp_path / "both.pem"
    both.write_bytes(certificate[0].read_bytes() + certificate[1].read_bytes())
    topology = racks([4, 4], 4)
    settings = ServeSettings(Address("127.0.0.1", 0), security=Security(tls=server_tls(*certificate, certificate[0])))
    environment = CoordinatorEnvironment(topology, make_planner("paper", topology), SystemClock(), Random(0), ignore)
    with opened(tmp_path / "data") as metadata, in_thread(environment, metadata, settings) as url:
        given = CheckpointSettings(
            tmp_path.as_uri(), coordinator=url, host="r1h1",
            coordinator_ca_file=str(certificate[0]), coordinator_certificate_file=str(both),
        )  # fmt: skip
        client = open_coordinator(given)
        assert client is not None
        with client:
            assert client.status()
        parser = argparse.ArgumentParser()
        checkpoints_command.add_arguments(parser)
        flags = ["list", "--coordinator", url, "--ca-file", str(certificate[0]), "--certificate-file"]
        assert checkpoints_command.main(parser.parse_args([*flags, str(both)])) == 0
        assert checkpoints_command.main(parser.parse_args([*flags, str(tmp_path / "none.pem")])) == 1
        assert "none.pem" in capsys.readouterr().err


def test_the_command_follows_its_certificates(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """SIGHUP has a coordinator load its certificates again, and say so; it goes on, and ends with status 0."""
    path, _ = topology_file(tmp_path)
    command_line = [sys.executable, "-m", "logstore.cli", "coordinate", "--topology", str(path)]
    command_line += ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    command_line += ["--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("cairn ready coordinator=")
        process.send_signal(signal.SIGHUP)
        line = next(line for line in process.stderr if "certificates" in line)
        assert "event=certificates_loaded" in line
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
