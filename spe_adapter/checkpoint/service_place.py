"""The files of the I/O service, below a state directory, and the start of the service.

    STATE_DIRECTORY/.io-service/   lock (flock of the one service), socket, status.json, troubles.json, log

Invariants:
* One service per state directory: the lock is taken before the process is started and handed to the process, so that
  many tasks at once start one service.
* The service is no child of its starter: the starter neither waits for it nor keeps it from ending. It inherits the
  lock and its log file, nothing else.
* What nobody hears is kept in a file of at most MAX_KEPT_BYTES, which the service takes when it starts and at each of
  its rounds: an idle query sends no other note.
* `notify` never blocks and never raises for what the service or its directory may be like.
"""

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from logstore.base.directory import DIRECTORY_MODE, FILE_MODE
from spe_adapter.checkpoint.datagram import EpochNote, encode_note
from spe_adapter.checkpoint.errors import ServiceRefused

DIRECTORY: Final = ".io-service"
LOCK: Final = "lock"
SOCKET: Final = "socket"
STATUS: Final = "status.json"
LOG: Final = "log"
OLD_LOG: Final = ".old"
MAX_LOG_BYTES: Final = 1 << 20
"""A longer log is renamed, when a service starts and while it runs; so there are two files at most."""
NOTES: Final = "notes"
"""Notes that nobody heard, a line each."""
MAX_KEPT_BYTES: Final = 1 << 20
LOCK_OPTION: Final = "--lock-descriptor"
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def place_of(state_directory: Path) -> Path:
    """The service's directory."""
    return state_directory / DIRECTORY


def notify(state_directory: Path, note: EpochNote, command: Sequence[str] | None = None) -> bool:
    """Send a note to the service of a state directory, which is started if it does not run.

    False: the note was not heard (the service starts, or is behind) and is kept for the service, if there is room.
    `command`: what to start, by default this release's service. The state directory is the caller's own, as
    `spe_adapter.state` checks.
    """
    try:
        data = encode_note(note)
        place = place_of(state_directory)
        if _send(place, data):
            return True
        place.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        _keep(place, data)
        start(state_directory, command)
    except (OSError, ServiceRefused):
        return False
    return False


def _send(place: Path, data: bytes) -> bool:
    """Send a datagram; False if nobody listens, or the queue is full."""
    try:
        descriptor = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(data, socket_path(descriptor))
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        return False
    finally:
        os.close(descriptor)
    return True


def _keep(place: Path, data: bytes) -> None:
    """Add a note to the file of notes, unless the file is full or the service reads it just now. Raises OSError."""
    descriptor = os.open(place / NOTES, _OPEN | os.O_APPEND, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_size + len(data) < MAX_KEPT_BYTES:
            os.write(descriptor, data + b"\n")
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def kept_notes(state_directory: Path) -> list[bytes]:
    """The notes that nobody heard, in their order; none if the file cannot be read. The file is empty afterwards."""
    try:
        descriptor = os.open(place_of(state_directory) / NOTES, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        if not os.fstat(descriptor).st_size:
            return []
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        data = os.pread(descriptor, MAX_KEPT_BYTES, 0)
        os.ftruncate(descriptor, 0)
    except OSError:  # a task writes; the next round reads
        return []
    finally:
        os.close(descriptor)
    return data.splitlines()


def socket_path(directory: int) -> str:
    """The socket's path through an open directory: a path of any length fits into an address."""
    return f"/proc/self/fd/{directory}/{SOCKET}"


def start(state_directory: Path, command: Sequence[str] | None = None) -> bool:
    """Start the service unless it runs; whether a process was started. Raises OSError."""
    place = place_of(state_directory)
    place.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    lock = os.open(place / LOCK, _OPEN, FILE_MODE)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _spawn(place, lock, [*(command or (sys.executable, "-m", "spe_adapter.checkpoint")), str(state_directory)])
    finally:
        os.close(lock)
    return True


def _spawn(place: Path, lock: int, command: Sequence[str]) -> None:
    log = place / LOG
    with suppress(FileNotFoundError):
        if log.stat().st_size > MAX_LOG_BYTES:
            log.rename(log.with_suffix(OLD_LOG))
    paths = [os.path.abspath(path) for path in sys.path]
    target = os.open(log, _OPEN | os.O_APPEND, FILE_MODE)
    try:
        # The shell goes at once, so that the service is nobody's child but the system's.
        subprocess.run(  # noqa: S603 - our own command
            ["/bin/sh", "-c", '"$@" &', "sh", *command, LOCK_OPTION, str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            pass_fds=[lock],
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            check=False,
        )
    finally:
        os.close(target)


def turn_log(state_directory: Path) -> None:
    """Go on in a new file if the log that this process writes is too long. Without such a log nothing happens."""
    path, own = place_of(state_directory) / LOG, os.fstat(2)
    if own.st_size <= MAX_LOG_BYTES:
        return
    with suppress(OSError):
        if not os.path.samestat(path.stat(), own):
            return
        path.rename(path.with_suffix(OLD_LOG))
        target = os.open(path, _OPEN | os.O_APPEND, FILE_MODE)
        try:
            for stream in (1, 2):
                os.dup2(target, stream)
        finally:
            os.close(target)


def hold_lock(state_directory: Path, descriptor: int | None) -> int:
    """The lock of the service: the one that its starter handed over, or a new one. Raises ServiceRefused, OSError."""
    place = place_of(state_directory)
    place.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    path = place / LOCK
    if descriptor is None:
        descriptor = os.open(path, _OPEN, FILE_MODE)
    else:
        os.set_inheritable(descriptor, False)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ServiceRefused(f"{path} is locked: an I/O service runs for {state_directory} already") from error
    if not os.path.samestat(os.fstat(descriptor), path.stat()):
        os.close(descriptor)
        raise ServiceRefused(f"{path} was replaced while the service started")
    return descriptor


def listen(state_directory: Path) -> socket.socket:
    """The service's socket, readable and writable for its user alone. The lock is held."""
    place = place_of(state_directory)
    (place / SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchmod(listening.fileno(), FILE_MODE)  # a socket gets its file's mode from its own
        listening.bind(socket_path(directory))
        os.chmod(place / SOCKET, FILE_MODE)
    except BaseException:
        listening.close()
        raise
    finally:
        os.close(directory)
    return listening
