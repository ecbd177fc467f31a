"""Stopping: everything that was taken is answered and written down, and the next start finds nothing to repair."""

import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from logstore.format.records import Record, encode_batch
from tests.kafka.front_driver import NOW_MS
from tests.kafka.wire_client import FETCH, WireClient, fetch_values
from tests.security.conftest import make_certificates, tls_flags
from tests.support.limits import PATIENCE_S
from tests.support.newcomers import ANSWERED, REFUSED, RESET, connect, newcomers, served
from tests.support.sidecar import Sidecar

WAITING = 40
"""Clients in the backlog."""


def batch(size: int = 100) -> bytes:
    """A batch of one record."""
    return bytes(encode_batch([Record(0, NOW_MS, None, b"x" * size)]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Exit status 0 with idle and waiting clients connected; reopened, nothing is cut and everything is there."""
    with Sidecar(tmp_path) as sidecar, WireClient(sidecar.port) as client, WireClient(sidecar.port) as waiting:
        client.create_topic("orders")
        for _ in range(10):
            assert client.produce("orders", batch()).error == 0
        waiting.send(FETCH, 11, **fetch_values("orders", 10, max_wait_ms=60_000))
        sidecar.process.send_signal(number)
        assert sidecar.process.wait(PATIENCE_S) == 0
        assert waiting.receive_frame() == b""
        assert "event=stopped" in sidecar.log()
        sidecar.kill()
        sidecar.restart()
        assert_nothing_to_repair(sidecar)
        with WireClient(sidecar.port) as again:
            assert again.latest("orders") == 10


def test_another_signal_does_not_cut_the_stop_short(tmp_path: Path) -> None:
    """A second signal before the end, as of a second Ctrl-C or an impatient script: the last steps are taken all the
    same, and the exit status is 0. Both are there when the process runs on, so the second is never too late.
    """
    with Sidecar(tmp_path) as sidecar, WireClient(sidecar.port) as client:
        client.create_topic("orders")
        assert client.produce("orders", batch()).error == 0
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            sidecar.process.send_signal(number)
        assert sidecar.process.wait(PATIENCE_S) == 0
        assert "event=stopped" in sidecar.log()


def test_a_hangup_changes_nothing(tmp_path: Path) -> None:
    """SIGHUP, as a closed terminal or a log rotation sends it, is named in the log; clients are served as before."""
    with Sidecar(tmp_path, "--log-format", "json") as sidecar, WireClient(sidecar.port) as client:
        client.create_topic("orders")
        for _ in range(3):
            sidecar.process.send_signal(signal.SIGHUP)
            assert client.produce("orders", batch()).error == 0
        assert sidecar.terminate() == 0
        assert '"event": "hangup_ignored"' in sidecar.log()


def assert_nothing_to_repair(sidecar: Sidecar) -> None:
    """The last start cut, lost and rebuilt nothing."""
    said = sidecar.log()
    for event in ("torn_end_cut", "append_group_without_end_cut", "offsets_lost", "rebuilt", "level=warning"):
        assert event not in said


def test_a_stop_under_load_answers_what_it_appended(tmp_path: Path) -> None:
    """With pipelined producers cut off in the middle, acked is what is there: nothing is lost, nothing is left
    unanswered.
    """
    with Sidecar(tmp_path) as sidecar:
        with WireClient(sidecar.port) as client:
            client.create_topic("orders")
        connections = [WireClient(sidecar.port) for _ in range(4)]
        senders = [threading.Thread(target=send_for_ever, args=(connection,)) for connection in connections]
        for sender in senders:
            sender.start()
        acked = [connection.receive_produced().error for connection in connections for _ in range(50)].count(0)
        assert acked == 200
        sidecar.process.send_signal(signal.SIGTERM)
        for connection in connections:
            acked += count_answers(connection)
        assert sidecar.process.wait(PATIENCE_S) == 0
        for sender, connection in zip(senders, connections, strict=True):
            sender.join(PATIENCE_S)
            connection.__exit__(None, None, None)
        sidecar.kill()
        sidecar.restart()
        assert_nothing_to_repair(sidecar)
        with WireClient(sidecar.port) as client:
            assert client.latest("orders") == acked


def send_for_ever(connection: WireClient) -> None:
    """Produce until the server does not want more."""
    try:
        while True:
            connection.send_produce("orders", batch(1000))
    except OSError:
        pass


def count_answers(connection: WireClient) -> int:
    """How many whole answers are left before the server ends the connection."""
    count = 0
    while connection.receive_frame():
        count += 1
    return count


def test_nobody_is_accepted_once_it_stops(tmp_path: Path) -> None:
    """After SIGTERM the port is free for the next sidecar, which starts on the same address at once."""
    with Sidecar(tmp_path) as sidecar:
        assert sidecar.terminate() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", sidecar.port), timeout=PATIENCE_S)
        sidecar.restart()
        assert sidecar.terminate() == 0


LEFT_AT_THE_END = """
import gc, sys
from logstore.cli import main
status = main(sys.argv[1:])
print(len(gc.get_objects()))
sys.exit(status)
"""


def test_the_end_does_not_search_the_streams_for_garbage(tmp_path: Path) -> None:
    """Streams that were made in this life are left to the operating system: 20,000 of them took a second to search."""
    command = [sys.executable, "-c", LEFT_AT_THE_END, "serve", "--data-dir", str(tmp_path), "--kafka", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split("kafka=")[1].split()[0]
        with WireClient(int(address.rpartition(":")[2])) as client:
            client.create_topic("orders", partitions=2000)
        process.terminate()
        left = int(process.stdout.read())
        assert process.wait(PATIENCE_S) == 0
    assert left < 2000


@pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning")  # Python's own, of a socket that was reset before
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_who_comes_at_the_moment_of_a_stop_sees_no_end(tmp_path: Path, protocol: str) -> None:
    """Clients that connect while the process stands still wait in the backlog of a sidecar that stops when it goes on;
    others come and go meanwhile. All are answered, refused or reset, and no connection ends before its first answers.
    """
    made = make_certificates(tmp_path)
    flags = tls_flags(made) if protocol == "SSL" else ()
    context = ssl.create_default_context(cafile=made.ca) if protocol == "SSL" else None
    with Sidecar(tmp_path / "data", *flags, protocol=protocol) as sidecar:
        with newcomers(sidecar.port, 4, context) as seen:
            sidecar.process.send_signal(signal.SIGSTOP)
            waiting = [connect(sidecar.port) for _ in range(WAITING)]
            for number in (signal.SIGTERM, signal.SIGCONT):
                sidecar.process.send_signal(number)
            found = Counter(served(sock, context) for sock in waiting)
        assert sidecar.process.wait(PATIENCE_S) == 0
    assert found[ANSWERED] > 0
    assert found.keys() | seen.keys() <= {ANSWERED, REFUSED, RESET}
