"""A real sidecar whose calls of the operating system fail: syncs, renames, opens, unlinks and cuts of files, by libfiu.

libfiu stands in front of the C library. Python's `os.pwritev` calls `pwritev2`, which libfiu does not know, so failed
and short writes are the simulated disk's, in `tests/crash`.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kill9.test_kill9 import PARTITIONS, Load, check_plain
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

LIBRARIES: Final = [Path("/usr/lib/fiu", name) for name in ("fiu_run_preload.so", "fiu_posix_preload.so")]
pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(
        which("fiu-ctrl") is None or not all(path.exists() for path in LIBRARIES),
        reason="needs libfiu: apt-get install fiu-utils libfiu-dev",
    ),
]
EIO, ENOSPC, EMFILE = 5, 28, 24
FAULTS: Final = (
    ("posix/io/sync/fdatasync", EIO),
    ("posix/io/sync/fdatasync", ENOSPC),
    ("posix/io/sync/fsync", EIO),
    ("posix/io/dir/rename", EIO),
    ("posix/io/oc/open", EMFILE),
    ("posix/io/rw/ftruncate", EIO),
    ("posix/io/dir/unlink", EIO),
)
ROUNDS, LONG_ROUNDS = 4, 60
KEPT_UNANSWERED: Final = 2_500
"""More than the queue of the producer holds: of its records that were sent before, all are answered."""


class FailingSidecar(Sidecar):
    """A sidecar whose calls fail when told."""

    def __init__(self, data_dir: Path, pipes: str, *flags: str) -> None:
        super().__init__(data_dir, *flags)
        self._pipes = pipes
        self.environment = {"LD_PRELOAD": " ".join(map(str, LIBRARIES)), "FIU_CTRL_FIFO": pipes}

    def tell(self, command: str) -> None:
        """A command of fiu-ctrl. Raises CalledProcessError, TimeoutExpired."""
        subprocess.run(["fiu-ctrl", "-f", self._pipes, "-c", command, str(self.pid)], check=True, timeout=PATIENCE_S)

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process.poll() is None


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[FailingSidecar]:
    """A running sidecar with a topic of small chunks, so that files are made and cut all the time."""
    running = FailingSidecar(tmp_path / "data", str(tmp_path / "fiu"))
    with running:
        admin = AdminClient({"bootstrap.servers": running.address, "log_level": 0})
        topic = NewTopic("plain", num_partitions=PARTITIONS, replication_factor=1, config={"segment.bytes": "20000"})
        for future in admin.create_topics([topic]).values():
            future.result(PATIENCE_S)
        yield running


def acked(load: Load) -> int:
    """How many records were acknowledged."""
    return sum(map(len, load.acked))


def proceed(load: Load, sidecar: FailingSidecar, what: str) -> None:
    """Wait until more records were sent than the producer keeps unanswered, or the process has ended."""
    wanted = sum(load.sent) + KEPT_UNANSWERED
    until(lambda: sum(load.sent) > wanted or not sidecar.is_alive, what)


def taken_again(load: Load, what: str) -> None:
    """Wait until more records are acknowledged."""
    before = acked(load)
    until(lambda: acked(load) > before, what)


@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_when_calls_fail(sidecar: FailingSidecar, pytestconfig: pytest.Config) -> None:
    """Whatever calls fail, the sidecar refuses or goes on or ends; started again without faults it has every
    acknowledged record at its offset, in order, and takes new ones.
    """
    seed = random.SystemRandom().randrange(1 << 32)
    chosen = random.Random(seed)
    load = Load(sidecar.address, "plain", idempotent=False)
    load.start()
    try:
        assert load.delivering.wait(PATIENCE_S)
        for _ in range(LONG_ROUNDS if pytestconfig.getoption("--long") else ROUNDS):
            name, number = chosen.choice(FAULTS)
            chance = chosen.choice((0.02, 0.2, 1.0))
            sidecar.tell(f"enable_random name={name},probability={chance},failinfo={number}")
            proceed(load, sidecar, f"seed {seed}: records are sent")
            if sidecar.is_alive and chosen.random() < 0.5:
                sidecar.tell(f"disable name={name}")
            sidecar.kill()
            sidecar.restart()
            taken_again(load, f"seed {seed}: records are taken again after {name} failed")
    finally:
        load.stop()
    assert check_plain(load, sidecar.address), f"seed {seed}"


def test_a_sync_that_fails_acknowledges_nothing(sidecar: FailingSidecar) -> None:
    """While every sync of data fails with EIO, no record is acknowledged, and the process lives and says why. What was
    synced before the log says so is answered while the producer goes on for the first time.
    """
    load = Load(sidecar.address, "plain", idempotent=False)
    load.start()
    try:
        assert load.delivering.wait(PATIENCE_S)
        sidecar.tell(f"enable name=posix/io/sync/fdatasync,failinfo={EIO}")
        until(lambda: "Input/output error" in sidecar.log(), "the log says what failed")
        proceed(load, sidecar, "the producer goes on")
        before = acked(load)
        proceed(load, sidecar, "the producer goes on and on")
        assert acked(load) == before
        assert sidecar.is_alive
    finally:
        sidecar.kill()
        sidecar.restart()
        load.stop()
    check_plain(load, sidecar.address)
