"""The I/O service as a process: started by a note, writes what tasks leave in a state directory, ends by itself."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from logstore.testing.processes import freeze
from spe_adapter.checkpoint.bases import stored_bases
from spe_adapter.checkpoint.datagram import MAX_DATAGRAM_BYTES, EpochNote, decode_note, encode_note
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.errors import ServiceRefused
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.service import read_status
from spe_adapter.checkpoint.service_place import (
    LOCK,
    LOG,
    MAX_KEPT_BYTES,
    MAX_LOG_BYTES,
    NOTES,
    OLD_LOG,
    SOCKET,
    kept_notes,
    notify,
    place_of,
)
from spe_adapter.checkpoint.settings import CheckpointSettings, settings_of
from spe_adapter.checkpoint.troubles import trouble_of
from spe_adapter.state.query import usage
from spe_adapter.state.versions import StateDirectory
from tests.state.conftest import OPERATOR, QUERY, SCHEMA, note_of, windows_of
from tests.state.history import long_history
from tests.support.limits import PATIENCE_S

HISTORY = long_history(3000, 6)
TAGS = [step.tag for step in HISTORY.steps]
UNIT = Unit(QUERY, 0)
NOTHING = ("/bin/true",)
"""Is started in the place of a service, and ends at once."""
EAGER = PolicySettings(every_s=0.0, min_every_s=0.0, min_state_bytes=0)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A state directory; a service that is left is ended."""
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    yield path
    status = read_status(path)
    if status is not None and is_service(status["process"]):
        os.kill(status["process"], signal.SIGTERM)
        wait_until(lambda: not is_service(status["process"]), "the end of the service")


def is_service(process: int) -> bool:
    """Whether the process is an I/O service that runs."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
    return b"spe_adapter.checkpoint" in command


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for what must come."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        Event().wait(0.05)
    return found


def settings(sink: Path, **values: Any) -> dict[str, Any]:
    """Settings as a task sends them."""
    return CheckpointSettings(sink.as_uri(), policy=EAGER, **values).described()


def advance(root: Path, version: int) -> None:
    """A task brings the base to a version."""
    directory = StateDirectory(root, QUERY, 1 << 28, seed=3)
    with directory.open(0, SCHEMA, OPERATOR, TAGS[version], HISTORY.loader(TAGS[version], steps=True)):
        pass


def told(root: Path, sink: Path, version: int) -> bool:
    """The task's note at the end of its epoch."""
    return notify(root, EpochNote(UNIT, TAGS[version].epoch, 1000, 1 << 20, settings(sink)))


def is_checkpointed(root: Path, sink: Path, version: int) -> bool:
    """Whether the version, of which the service is told, is the newest checkpoint."""
    return told(root, sink, version) and newest(sink) == TAGS[version].epoch


def newest(sink: Path) -> int:
    """The epoch of the newest checkpoint, -1 without one."""
    return max((found.described.tag.epoch for found in stored_bases(Finder(DirectorySink(sink)), UNIT)), default=-1)


@pytest.mark.crash
def test_a_note_starts_the_service_which_checkpoints_and_a_lost_state_comes_back(root: Path, tmp_path: Path) -> None:
    """Many tasks start one service; each version is checkpointed; state that is lost comes back from there."""
    sink = tmp_path / "sink"
    advance(root, 0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: told(root, sink, 0), range(16)))
    wait_until(lambda: told(root, sink, 0) and read_status(root), "the service")
    process = read_status(root)["process"]  # type: ignore[index]
    for version in range(3):
        advance(root, version)
        wait_until(partial(is_checkpointed, root, sink, version), "a checkpoint")
    assert (place_of(root) / LOG).read_text().count("service_started") == 1
    assert read_status(root)["process"] == process  # type: ignore[index]
    assert not [used for used in usage(root) if used.query != QUERY]

    other = tmp_path / "other"
    log = HISTORY.loader(TAGS[4], steps=True)
    bases = Finder(DirectorySink(sink))
    with StateDirectory(other, QUERY, 1 << 28, seed=4).open(
        0, SCHEMA, OPERATOR, TAGS[4], log, lambda: stored_bases(bases, UNIT)
    ) as state:
        assert state.how == "checkpoint"
        assert windows_of(state.base) == HISTORY.at(TAGS[4])
        assert state.note == note_of(TAGS[4])

    (unit,) = wait_until(
        lambda: [shown for shown in read_status(root)["units"] if shown.get("checkpoint_epoch") == TAGS[2].epoch],  # type: ignore[index]
        "the status",
    )
    assert unit["query"] == QUERY
    assert unit["checkpoint_bytes"] > 0
    place = place_of(root)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((place / SOCKET).stat().st_mode) == 0o600
    descriptors = [os.readlink(f"/proc/{process}/fd/{number}") for number in (0, 1, 2)]
    assert descriptors == ["/dev/null", str(place / LOG), str(place / LOG)]
    assert os.getpriority(os.PRIO_PROCESS, process) >= 10
    assert os.getsid(process) != os.getsid(0)


def test_the_note_that_starts_the_service_is_heard(root: Path, tmp_path: Path) -> None:
    """A query that goes idle with the epoch that started the service: its base is checkpointed, and what the base does
    not have yet counts as log behind the checkpoint. The note before, whose service came to nothing, is heard as well.
    """
    sink = tmp_path / "sink"
    advance(root, 0)
    assert not notify(root, EpochNote(UNIT, TAGS[0].epoch, 1000, 1 << 20, settings(sink)), NOTHING)
    wait_until(lambda: is_free(root), "an end of what was started")
    assert not notify(root, EpochNote(UNIT, TAGS[1].epoch, 77, 1 << 20, settings(sink)))
    wait_until(lambda: newest(sink) == TAGS[0].epoch, "a checkpoint")
    wait_until(
        lambda: (
            [(one["epoch"], one["log_bytes"]) for one in shown(root) if one.get("checkpoint")] == [(TAGS[1].epoch, 77)]
        ),
        "a status with the newest note",
    )
    assert not (place_of(root) / NOTES).read_bytes()


def is_free(root: Path) -> bool:
    """Whether nothing that was started holds the lock."""
    with (place_of(root) / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def shown(root: Path) -> list[dict[str, Any]]:
    """The units in the status of the service."""
    status = read_status(root)
    return [] if status is None else status["units"]


def test_kept_notes_are_bounded_and_read_once(root: Path, tmp_path: Path) -> None:
    """Without a service that reads them: as many as there is room for, in their order, and never the same again."""
    notes = [EpochNote(UNIT, epoch, 1, 1, settings(tmp_path)) for epoch in range(3)]
    assert not any(notify(root, note, NOTHING) for note in notes)
    assert [decode_note(data) for data in kept_notes(root)] == notes
    assert kept_notes(root) == []
    file = place_of(root) / NOTES
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_bytes(b"x" * MAX_KEPT_BYTES)
    assert not notify(root, notes[0], NOTHING)
    assert file.stat().st_size == MAX_KEPT_BYTES
    file.unlink()
    file.mkdir()
    assert not notify(root, notes[0], NOTHING)
    assert kept_notes(root) == []


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_service_that_ends_while_it_writes_harms_nobody(root: Path, tmp_path: Path, number: int) -> None:
    """Ended in the middle of a slow checkpoint: tasks change the base, and the next service writes the next version."""
    sink = tmp_path / "sink"
    advance(root, 0)
    slow = EpochNote(UNIT, TAGS[0].epoch, 1000, 1 << 20, settings(sink, max_bytes_per_s=1000))
    wait_until(
        lambda: notify(root, slow) and list(sink.glob("*/*.tmp")) and read_status(root),
        "a chunk that is being written, and a status",
    )
    process = read_status(root)["process"]  # type: ignore[index]
    os.kill(process, number)
    wait_until(lambda: not is_service(process), "the end of the service")
    assert newest(sink) == -1
    advance(root, 1)
    wait_until(partial(is_checkpointed, root, sink, 1), "a checkpoint")
    (found,) = stored_bases(Finder(DirectorySink(sink)), UNIT)
    # A kill leaves files, whose number is not used again; an orderly end removes them.
    assert found.manifest.seq == (2 if number == signal.SIGKILL else 1)


def test_the_service_ends_when_idle_and_when_its_directory_is_gone(root: Path, tmp_path: Path) -> None:
    """Idle: exit status 0 and no socket. Directory gone: it ends by itself."""
    command = [sys.executable, "-m", "spe_adapter.checkpoint", str(root)]
    done = subprocess.run([*command, "--idle-s", "0.1"], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert "idle for" in done.stderr
    assert not (place_of(root) / SOCKET).exists()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until((place_of(root) / SOCKET).exists, "the socket")
        second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert second.returncode == 2
        assert "runs for" in second.stderr
        place_of(root).rename(tmp_path / "gone")
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "its directory is gone" in errors


def test_a_service_whose_directory_was_made_anew_leaves_the_other_service_alone(root: Path, tmp_path: Path) -> None:
    """The directory is moved away and another service starts in a new one: the first one ends, the second one stays."""
    command = [sys.executable, "-m", "spe_adapter.checkpoint", str(root)]
    socket_file = place_of(root) / SOCKET
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        wait_until(socket_file.exists, "the socket")
        freeze(first.pid)
        try:
            place_of(root).rename(tmp_path / "gone")
            second = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            wait_until(socket_file.exists, "the second socket")
        finally:
            os.kill(first.pid, signal.SIGCONT)
        try:
            assert first.wait(PATIENCE_S) == 0
            assert socket_file.exists()
        finally:
            second.terminate()
            assert second.wait(PATIENCE_S) == 0


def test_the_log_is_bounded_while_a_service_runs(root: Path, tmp_path: Path) -> None:
    """A log that is too long is renamed, and the service goes on in a new one."""
    sink = tmp_path / "sink"
    advance(root, 1)
    wait_until(lambda: told(root, sink, 1), "the service")
    log = place_of(root) / LOG
    os.truncate(log, MAX_LOG_BYTES + 1)
    notify(root, EpochNote(Unit("bad", 0), 1, 1, 1, {}))
    wait_until(lambda: log.with_suffix(OLD_LOG).exists() and log.exists(), "a new log")
    notify(root, EpochNote(Unit("bad", 1), 1, 1, 1, {}))
    wait_until(lambda: "bad.1" in log.read_text(), "a line in the new log")
    assert log.stat().st_size < 10_000


def test_notes_that_are_not_understood_change_nothing(root: Path, tmp_path: Path) -> None:
    """Bad bytes, bad settings and an unknown sink are log lines; the service goes on for others."""
    sink = tmp_path / "sink"
    advance(root, 1)
    wait_until(lambda: told(root, sink, 1), "the service")
    surrogate = encode_note(EpochNote(Unit("\ud800", 0), 1, 1, 1, settings(sink)))
    wait_until(lambda: told(root, sink, 1) and read_status(root), "a status")
    process = read_status(root)["process"]  # type: ignore[index]
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender:
        for data in (b"", b"x", b"{}", b"[" * 5000, b'{"v":1}', b'{"v":2}', b"\xff" * 60_000, surrogate):
            sender.sendto(data, str(place_of(root) / SOCKET))
    bad: list[dict[str, Any]] = [
        {"sink": "ftp://x"},
        {"sink": sink.as_uri(), "unknown": 1},
        {},
        {"sink": 5},
        {"sink": sink.as_uri(), "host": "h", "coordinator": 5},
        {"sink": "hdfs://127.0.0.1:1/x", "plans": "127.0.0.1:1", "plans_token_file": 1},
        {"sink": "file:///tmp/%00"},
    ]
    for values in bad:
        notify(root, EpochNote(Unit("bad", 0), 1, 1, 1, values))
    missing = EpochNote(Unit("no such query", 7), 1, 1, 1 << 30, settings(sink))
    notify(root, missing)
    log = place_of(root) / LOG
    wait_until(lambda: {"datagram_refused", "unit_refused"} <= set(re.findall(r"\w+", log.read_text())), "both lines")
    wait_until(lambda: told(root, sink, 1) and newest(sink) == TAGS[1].epoch, "a checkpoint")
    assert read_status(root)["process"] == process  # type: ignore[index]


def test_a_unit_that_is_refused_is_said(root: Path, tmp_path: Path) -> None:
    """A token file that is missing on this host: the status names the unit and the file, and so do the tasks that ask.
    When the file is there, the unit is served, and nothing is said any more.
    """
    token = tmp_path / "no such token"
    values = CheckpointSettings(
        (tmp_path / "sink").as_uri(),
        coordinator="http://127.0.0.1:1",
        coordinator_token_file=str(token),
        host="h",
    ).described()
    note = EpochNote(UNIT, 1, 1, 1, values)
    assert trouble_of(root, UNIT) == ""
    said = wait_until(lambda: notify(root, note) and trouble_of(root, UNIT), "trouble")
    assert str(token) in said
    (refused,) = wait_until(lambda: (read_status(root) or {}).get("refused"), "the status")
    assert (refused["query"], refused["partition"], refused["error"]) == (UNIT.query, UNIT.partition, said)
    assert trouble_of(root, Unit(QUERY, 1)) == ""
    token.write_text("secret")
    wait_until(lambda: notify(root, note) and not trouble_of(root, UNIT), "an end of the trouble")
    wait_until(lambda: read_status(root)["refused"] == [], "a status without it")  # type: ignore[index]
    wait_until(lambda: [one["query"] for one in shown(root)] == [QUERY], "a status with the unit")


def test_notes_are_bounded_and_come_back(tmp_path: Path) -> None:
    """A note comes back as it was; one that is too long is refused before it is sent, and `notify` says False."""
    note = EpochNote(UNIT, 5, 6, 7, settings(tmp_path), 8, 0.5)
    assert decode_note(encode_note(note)) == note
    assert settings_of(note.settings).policy == EAGER
    long = note._replace(unit=Unit("q" * MAX_DATAGRAM_BYTES, 0))
    with pytest.raises(ServiceRefused, match="too long"):
        encode_note(long)
    assert not notify(tmp_path, long)
    assert not notify(tmp_path / "missing", note)
    for fields in ({"epoch": -1}, {"epoch": True}, {"unit": ["q"]}, {"settings": 3}, {"unit": ["q", 10**9]}):
        changed = json.loads(encode_note(note)) | fields
        with pytest.raises(ServiceRefused):
            decode_note(json.dumps(changed).encode())
