"""The ledger: what was acknowledged survives a kill, and a power cut while the next life opens the file."""

from __future__ import annotations

import contextlib

import pytest

from logstore.log import ledger as module
from logstore.log.jobs import JobQueue
from logstore.log.ledger import Ledger
from logstore.testing.driver import JobDriver
from logstore.testing.faults import FileCall
from logstore.testing.simdisk import Coverage, CrashBounds, SimDisk

KEY = "key"


class Killed(Exception):
    """The process is gone."""


def kill_before(disk: SimDisk, kind: str) -> None:
    """Kill the process before its next call of a kind."""

    def check(call: FileCall) -> None:
        if call.kind == kind:
            raise Killed

    disk.before_call = check


def rolled_and_killed() -> SimDisk:
    """A ledger that was killed after the rename of its new file and before the sync of the directory."""
    disk = SimDisk(unit_bytes=64)
    disk.make_directory(module.DIRECTORY)
    disk.sync_directory("")
    queue = JobQueue(8)
    ledger = Ledger.open(disk, "map", queue.ready)
    driver = JobDriver(queue, disk)
    for number in range(3):
        ticket = ledger.put({KEY: b"%d" % number * 40})
        driver.run()
        ticket.result()
    kill_before(disk, "sync_directory")
    with pytest.raises(Killed):
        for _ in range(100):
            ledger.put({KEY: b"new" * 40})
            driver.run()
    disk.before_call = None
    return disk.kill_state()


def test_a_power_cut_while_a_killed_ledger_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next life must not remove the old file before the new file's name is durable: whatever names the power cut
    keeps, all that was acknowledged is there.
    """
    monkeypatch.setattr(module, "ROLL_BYTES", 64)
    states = 0
    for kind in ("remove", "sync_directory"):
        for skipped in range(3):
            disk = rolled_and_killed()
            left = skipped

            def check(call: FileCall, kind: str = kind) -> None:
                nonlocal left
                if call.kind == kind:
                    if left == 0:
                        raise Killed
                    left -= 1

            disk.before_call = check
            with contextlib.suppress(Killed):
                Ledger.open(disk, "map", lambda _: None)
            disk.before_call = None
            for crashed in disk.crash_states(CrashBounds(states=4096, file_states=4096), Coverage()):
                states += 1
                assert Ledger.open(crashed, "map", lambda _: None).get(KEY) in (b"2" * 40, b"new" * 40), crashed.origin
    assert states
