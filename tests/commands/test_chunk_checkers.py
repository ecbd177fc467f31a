"""`cairn verify` in several processes: the same findings in the same order, and no process outlives the command."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logstore.base.directory import locked_directory
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.format.batch import patch_base
from logstore.format.records import Record, encode_batch
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 7
LONG_BATCH_BYTES = 64 << 20
LONG_BATCHES = 2000
SMALL_SHARES = """
import sys
import logstore.commands.chunk_checkers as checkers
checkers.SHARE_BYTES, checkers.SHARE_PIECES, checkers.NOTICE_BYTES = 3000, 3, 100
from logstore.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command with shares of a few chunks, so that little data needs several processes."""


def until(happened: Callable[[], bool]) -> None:
    """Wait for what a process does; a test's time limit is the end of patience."""
    while not happened():
        threading.Event().wait(0.01)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with many small chunks."""
    data_dir = tmp_path_factory.mktemp("directory") / "data"
    with Sidecar(data_dir, "--segment-bytes", "1024") as sidecar:
        with Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S) as client:
            client.create_topic("t", PARTITIONS)
            for number in range(6 * PARTITIONS):
                batch = bytes(encode_batch([Record(0, 1_700_000_000_000 + number, None, bytes(400))]))
                client.produce(TopicPartition("t", number % PARTITIONS), batch)
        assert sidecar.terminate() == 0
    return data_dir


def checked(data_dir: Path, processes: int) -> dict[str, Any]:
    """What a check says, but for its time."""
    words = ("verify", str(data_dir), "--json", "--processes", str(processes))
    finished = subprocess.run(
        [sys.executable, "-c", SMALL_SHARES, *words], cwd=ROOT, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert finished.returncode in (0, 1), finished.stderr.decode()
    found: dict[str, Any] = json.loads(finished.stdout)
    del found["seconds"]
    return found


def test_the_same_findings_in_the_same_order(data_dir: Path, tmp_path: Path) -> None:
    """With one, two and five processes, of an intact directory and of one with damage in many chunks."""
    assert checked(data_dir, 3)["damaged"] is False
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", data_dir, copy], check=True)
    logs = sorted(copy.glob("streams/t.*/*/*.log"))
    assert len(logs) > 2 * PARTITIONS
    for path in random.Random(5).sample([path for path in logs if path.stat().st_size], PARTITIONS):
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    alone = checked(copy, 1)
    assert len(alone["findings"]) >= PARTITIONS
    assert alone == checked(copy, 2) == checked(copy, 5)


# ---- the ends


def make_long(data_dir: Path, directory: Path) -> list[Path]:
    """A copy of a directory in which two chunks take a minute to check: batches of zeros, which are holes."""
    subprocess.run(["cp", "-r", data_dir, directory], check=True)
    batch = encode_batch([Record(0, 1_700_000_000_000, None, bytes(LONG_BATCH_BYTES))])
    head = bytearray(batch.rstrip(b"\0"))
    longest = []
    for partition in range(2):
        last = max(directory.glob(f"streams/t.*/{partition}/*.log"))
        longest.append(last)
        with last.open("wb") as file:
            for number in range(LONG_BATCHES):
                patch_base(head, 0, int(last.stem) + number, 0)
                file.seek(number * len(batch))
                file.write(head)
            file.truncate(LONG_BATCHES * len(batch))
        last.with_suffix(".index").unlink(missing_ok=True)
    return longest


@pytest.fixture(scope="module")
def long_dir(data_dir: Path) -> Path:
    """Such a directory."""
    make_long(data_dir, data_dir.with_name("long"))
    return data_dir.with_name("long")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_reading(pid: int) -> bool:
    """Whether a process has a chunk open."""
    try:
        return any(entry.resolve().suffix == ".log" for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


@contextmanager
def running(long_dir: Path, processes: int) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A check that has begun to read, and the processes that read; it is over when the block ends."""
    command = [sys.executable, "-m", "logstore.cli", "verify", str(long_dir), "--processes", str(processes)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stderr=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        readers: list[int] = []

        def all_read() -> bool:
            assert process.poll() is None, process.communicate()
            readers[:] = children(process.pid) if processes > 1 else [process.pid]
            return len(readers) == processes and all(is_reading(pid) for pid in readers)

        try:
            until(all_read)
            yield process, readers
        finally:
            process.kill()


def is_there(pid: int) -> bool:
    """Whether a process exists, and is not a dead one that nobody has asked about yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_ends_a_check(long_dir: Path, processes: int) -> None:
    """Interrupted in the middle of a large file: status 130, soon, no traceback, and no process is left."""
    with running(long_dir, processes) as (process, readers):
        os.killpg(process.pid, signal.SIGINT)  # to all at once, as a terminal does
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    until(lambda: not any(is_there(pid) for pid in readers))


def test_a_killed_check_leaves_no_process_and_no_lock(long_dir: Path) -> None:
    """Kill -9 of the command: its processes end by themselves, and a sidecar could start on the directory."""
    with running(long_dir, 2) as (process, readers):
        process.kill()
        process.wait()
        until(lambda: not any(is_there(pid) for pid in readers))
    with locked_directory(long_dir, "sidecar"):
        pass


def test_a_lost_process_is_told(long_dir: Path) -> None:
    """A process that the kernel kills: status 2, since not all was checked, and a line that says so."""
    with running(long_dir, 2) as (process, readers):
        os.kill(readers[0], signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert "ended with status -9" in err
    assert "Traceback" not in err
    until(lambda: not any(is_there(pid) for pid in readers))
