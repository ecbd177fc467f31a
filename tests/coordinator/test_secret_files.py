"""Tokens and passwords are as new as their files, at the coordinator and at who asks it, without a new start."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from logstore.base.accepted_secrets import CHECK_S, MAX_FORMER, OVERLAP_S
from logstore.base.addresses import Address
from logstore.base.certificate_events import SECRET_LOADED, SECRET_UNUSABLE
from logstore.base.errors import CairnError
from logstore.base.events import Report, ignore
from logstore.base.secret_files import SecretFile
from logstore.base.system import SystemClock
from logstore.testing.reports import RecordedReports
from logstore.tier.running import open_tier
from logstore.tier.settings import HdfsPlace, PlanAccess, TierSettings
from scheduler.client import CoordinatorClient, Unauthorized
from scheduler.coordinator.dispatch import ClientCheck
from scheduler.coordinator.front_settings import Security
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.running import ServeSettings, opened
from scheduler.coordinator.service import CoordinatorEnvironment
from scheduler.coordinator.testing import in_thread
from scheduler.coordinator.tokens import AcceptedTokens
from scheduler.hdfs.plan_table import PlanTable
from scheduler.topology import racks
from spe_adapter.checkpoint.settings import CheckpointSettings, open_coordinator
from tests.coordinator.support import topology_file
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

TOKENS = tuple(f"the token with number {number}".replace(" ", "-") for number in range(8))


def write(path: Path, text: str) -> None:
    """Put a text in a file, as a whole, and as another file than before."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


# ---- what a client sends


def text_of(path: Path) -> str:
    """What a file has. Raises CairnError."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CairnError(f"{path}: {error}") from error


def secret(path: Path, report: Report = ignore) -> SecretFile:
    """The secret in a file."""
    return SecretFile(lambda: text_of(path), str(path), report, setting="token")


def test_a_secret_is_what_its_file_has_now(tmp_path: Path) -> None:
    """A new text is sent from then on; a file that is empty, not UTF-8 or gone leaves the former one in use, and is
    reported once; no report has the secret.
    """
    path, reports = tmp_path / "token", RecordedReports()
    write(path, TOKENS[0])
    sent = secret(path, reports)
    assert (sent(), sent(), reports.names()) == (TOKENS[0], TOKENS[0], [])
    write(path, TOKENS[1])
    assert (sent(), sent(), reports.names()) == (TOKENS[1], TOKENS[1], [SECRET_LOADED.name])
    write(path, "\n")
    assert (sent(), sent(), reports.names()[1:]) == (TOKENS[1], TOKENS[1], [SECRET_UNUSABLE.name])
    path.write_bytes(b"\xff\xfe not UTF-8")
    assert (sent(), sent(), reports.names()[2:]) == (TOKENS[1], TOKENS[1], [SECRET_UNUSABLE.name])
    path.unlink()
    assert (sent(), sent(), reports.names()[3:]) == (TOKENS[1], TOKENS[1], [SECRET_UNUSABLE.name])
    write(path, TOKENS[2])
    assert (sent(), reports.names()[4:]) == (TOKENS[2], [SECRET_LOADED.name])
    assert all(token not in str(reports.events) for token in TOKENS)
    with pytest.raises(CairnError):
        secret(tmp_path / "none")


def test_a_file_that_can_be_read_again_counts(tmp_path: Path) -> None:
    """Whatever kept it from being read is no part of the state of the file, such as too many open files at that moment:
    it is read until it can be, without anybody writing it again, and is reported once.
    """
    path, reports, errors = tmp_path / "token", RecordedReports(), list[str]()

    def text() -> str:
        if errors:
            raise CairnError(errors[0])
        return text_of(path)

    write(path, TOKENS[0])
    sent = SecretFile(text, str(path), reports, setting="token")
    write(path, TOKENS[1])
    errors.append("too many open files")
    assert (sent(), sent(), reports.names()) == (TOKENS[0], TOKENS[0], [SECRET_UNUSABLE.name])
    errors.clear()
    assert (sent(), sent(), reports.names()[1:]) == (TOKENS[1], TOKENS[1], [SECRET_LOADED.name])


@contextmanager
def by_hand(url: str, path: Path) -> Iterator[Callable[[], object]]:
    """Asks with a client that was given the file's secret."""
    with CoordinatorClient(url, token=secret(path), patience_s=0) as client:
        yield client.status


@contextmanager
def by_checkpoints(url: str, path: Path) -> Iterator[Callable[[], object]]:
    """Asks as who writes checkpoints does."""
    given = CheckpointSettings("file:///nowhere", coordinator=url, host="r1h1", coordinator_token_file=str(path))
    client = open_coordinator(given)
    assert client is not None
    with client:
        yield client.status


@contextmanager
def by_tier(url: str, path: Path) -> Iterator[Callable[[], object]]:
    """Asks as the tier of a sidecar does."""
    access = PlanAccess(url, str(path), "r1h1", "http://127.0.0.1:1", str(path), "", "")
    turns = open_tier(TierSettings(HdfsPlace("http://127.0.0.1:1", "/cairn"), planned=access)).turns
    with closing(turns):
        yield lambda: turns.run(lambda turn: turn.chain)


@pytest.mark.parametrize("asking", [by_hand, by_checkpoints, by_tier])
def test_who_asks_a_coordinator_sends_the_token_of_its_file(
    tmp_path: Path, asking: Callable[[str, Path], AbstractContextManager[Callable[[], object]]]
) -> None:
    """A client that runs is refused with the former token, and served from the moment on at which its file is right."""
    path = tmp_path / "token"
    write(path, TOKENS[0])
    topology = racks([4, 4], 4)
    environment = CoordinatorEnvironment(topology, make_planner("paper", topology), SystemClock(), Random(0), ignore)
    settings = ServeSettings(Address("127.0.0.1", 0), security=Security(token=TOKENS[1]))
    with (
        opened(tmp_path / "data") as metadata,
        in_thread(environment, metadata, settings) as url,
        asking(url, path) as ask,
    ):
        with pytest.raises(CairnError, match="token is missing or wrong"):
            ask()
        write(path, TOKENS[1])
        assert ask()


def test_a_plan_table_is_sent_the_token_of_its_file(tmp_path: Path) -> None:
    """Each call has the token that the file has then."""
    path, sent = tmp_path / "token", list[str | None]()

    class Handler(http.server.BaseHTTPRequestHandler):
        """Notes tokens."""

        def do_GET(self) -> None:
            sent.append(self.headers["Authorization"])
            body = json.dumps({"run": "r", "plans": [], "used": 0, "refused": 0}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Say nothing."""

    write(path, TOKENS[0])
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with PlanTable(f"http://127.0.0.1:{server.server_port}", secret(path)) as table:
            table.plans()
            write(path, TOKENS[1])
            table.plans()
        server.shutdown()
    assert sent == [f"Bearer {TOKENS[0]}", f"Bearer {TOKENS[1]}"]


@pytest.mark.parametrize("text", ["\ufeff" + TOKENS[0], "one\ntwo", "a\x00b", "caf\u00e9"])
@pytest.mark.parametrize("asking", [by_checkpoints, by_tier])
def test_what_no_header_takes_is_no_token(
    tmp_path: Path, text: str, asking: Callable[[str, Path], AbstractContextManager[Callable[[], object]]]
) -> None:
    """As what an editor saves with a mark of its own, or a file with two lines: it is refused at the start, and changes
    nothing later.
    """
    path = tmp_path / "token"
    write(path, text)
    with pytest.raises(CairnError, match="token"), asking("http://127.0.0.1:1", path):
        pass


# ---- what a coordinator accepts


def knows(check: ClientCheck) -> list[int]:
    """The numbers of the tokens with which a client may ask."""
    return [number for number, token in enumerate(TOKENS) if check.knows({"authorization": f"Bearer {token}"})]


def test_both_tokens_are_accepted_for_a_while(tmp_path: Path) -> None:
    """The new one from the look on that finds it, the former for OVERLAP_S more; a file that cannot be used changes
    nothing and is reported once; a token that comes back is no former one.
    """
    path, reports, clock = tmp_path / "token", RecordedReports(), MockClock()
    write(path, TOKENS[0])
    tokens = AcceptedTokens(path)
    check = ClientCheck(tokens)

    async def look(after_s: float) -> list[int]:
        clock.jump(after_s)
        await tokens._look(reports)
        return knows(check)

    async def run() -> None:
        assert await look(0) == [0]
        write(path, TOKENS[1])
        assert knows(check) == [0]
        assert await look(CHECK_S) == [0, 1]
        write(path, "short")
        assert await look(CHECK_S) == await look(CHECK_S) == [0, 1]
        assert await look(OVERLAP_S - 2 * CHECK_S - 1) == [0, 1]
        assert await look(1) == [1]
        write(path, TOKENS[2])
        assert await look(CHECK_S) == [1, 2]
        write(path, TOKENS[1])
        assert await look(CHECK_S) == [1, 2]
        assert await look(OVERLAP_S) == [1]
        for number in range(2, 8):
            write(path, TOKENS[number])
            await look(0)
        assert knows(check) == list(range(7 - MAX_FORMER, 8))

    trio.run(run, clock=clock)
    assert reports.names()[:2] == [SECRET_LOADED.name, SECRET_UNUSABLE.name]
    assert reports.names().count(SECRET_UNUSABLE.name) == 1
    assert all(token not in str(reports.events) for token in TOKENS)


def test_a_former_token_ends_where_the_file_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that hangs makes no token live longer. What it holds when it goes on counts from then on, and the
    token before it for OVERLAP_S from then.
    """
    path, clock, hangs = tmp_path / "token", MockClock(), threading.Event()
    write(path, TOKENS[0])
    tokens = AcceptedTokens(path)
    check, states = ClientCheck(tokens), tokens._followed.states

    def hang() -> object:
        hangs.wait()
        return states()

    async def run() -> None:
        write(path, TOKENS[1])
        await tokens._look(ignore)
        assert knows(check) == [0, 1]
        monkeypatch.setattr(tokens._followed, "states", hang)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tokens._look, ignore)
            await trio.lowlevel.checkpoint()
            clock.jump(OVERLAP_S)
            assert knows(check) == [1]
            write(path, TOKENS[2])
            hangs.set()
        assert knows(check) == [1, 2]

    trio.run(run, clock=clock)


def test_the_command_follows_its_token(tmp_path: Path) -> None:
    """A coordinator that runs takes a new token at SIGHUP, and the former one beside it."""
    topology, _ = topology_file(tmp_path)
    path = tmp_path / "token"
    write(path, TOKENS[0])
    command_line = [sys.executable, "-m", "logstore.cli", "coordinate", "--topology", str(topology)]
    command_line += ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--token-file", str(path)]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = process.stdout.readline()
        url = f"http://{ready.split()[2].partition('=')[2]}"
        with CoordinatorClient(url, token=TOKENS[1], patience_s=0) as client, pytest.raises(Unauthorized):
            client.status()
        write(path, TOKENS[1])
        process.send_signal(signal.SIGHUP)
        line = next(line for line in process.stderr if "secret" in line)
        assert "event=secret_loaded of=token-file former_accepted_s=600" in line
        for token in TOKENS[:2]:
            with CoordinatorClient(url, token=token, patience_s=0) as client:
                assert client.status()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("in_cluster", [False, True], ids=["alone", "cluster"])
def test_a_coordinator_in_a_sidecar_follows_its_token(tmp_path: Path, *, in_cluster: bool) -> None:
    """At SIGHUP of the sidecar the new token is accepted, and the former one beside it; of a host of a cluster too."""
    topology, _ = topology_file(tmp_path)
    path = tmp_path / "token"
    write(path, TOKENS[0])
    flags = ["--coordinate", str(topology), "--coordinator", "127.0.0.1:0", "--coordinator-token-file", str(path)]
    if in_cluster:
        metadata = f"sqlite:{tmp_path / 'metadata'}"
        flags += ["--cluster", metadata, "--host-name", "a", "--node-id", "0", "--peer-listen", "127.0.0.1:0"]
    with Sidecar(tmp_path / "data", *flags) as sidecar:
        url = "http://" + sidecar.ready_line.split("coordinator=")[1].split()[0]
        write(path, TOKENS[1])
        os.kill(sidecar.pid, signal.SIGHUP)
        until(lambda: "event=secret_loaded of=token-file" in sidecar.log(), sidecar.log)
        for token in TOKENS[:2]:
            with CoordinatorClient(url, token=token, patience_s=PATIENCE_S) as client:
                assert client.status()
        with CoordinatorClient(url, token=TOKENS[2], patience_s=0) as client, pytest.raises(Unauthorized):
            client.status()
