"""kill −9 of a whole Spark (driver, JVM, workers) at each step of an epoch's commit; each record is there once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from logstore.format.epoch_api import EPOCH_COMMIT, STAGE
from tests.datasource.driver import run
from tests.datasource.proxy import Moment, Proxy, Trap
from tests.datasource.test_sink import assert_one_execution_per_task, keys
from tests.support.limits import PATIENCE_S, PROGRAM_S
from tests.support.sidecar import Sidecar
from tests.support.streams import assert_exactly_once, create_topic, produce, read_all

pytestmark = [pytest.mark.spark, pytest.mark.crash]

DRIVER = Path(__file__).with_name("driver.py")

# Where each life of the driver ends. The one after EPOCH_COMMIT has committed but not told anyone; the next life starts
# with the same epoch again. The one before STAGE of a later epoch ends between two commits.
DEATHS: tuple[tuple[int, Moment, int], ...] = (
    (STAGE, "before", 1),
    (STAGE, "after", 2),
    (EPOCH_COMMIT, "before", 1),
    (EPOCH_COMMIT, "after", 2),
)


class Driver:
    """A Spark driver as a process, with all that it starts."""

    def __init__(self, address: str, proxy: str, checkpoint: Path, local: Path) -> None:
        command = [sys.executable, str(DRIVER), address, proxy, str(checkpoint), str(local)]
        self._log_path = local.parent / "driver.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ})
        self._lock = threading.Lock()

    def kill(self) -> bool:
        """SIGKILL to the driver, its JVM and all workers, none left to clean up; True for a trap: nothing is held
        back.
        """
        with self._lock:
            try:
                family = [psutil.Process(self._process.pid)]
                family += family[0].children(recursive=True)
            except psutil.NoSuchProcess:
                return True
            for process in family:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
        return True

    def wait(self) -> int:
        """The exit code: −9 if it was killed."""
        try:
            return self._process.wait(PROGRAM_S)
        finally:
            self.kill()
            self._process.wait(PATIENCE_S)

    def log(self) -> str:
        """What it said."""
        return self._log_path.read_text(errors="replace")[-20000:]


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(DEATHS[3:], id="after the commit"),
        pytest.param(DEATHS, id="at each step", marks=pytest.mark.slow),
    ],
)
def test_a_driver_killed_within_commits(
    spark: SparkSession, tmp_path: Path, deaths: Sequence[tuple[int, Moment, int]]
) -> None:
    """Several lives of one query on one checkpoint, all but the last ended within a commit; the result is exact. The
    last one is in the shared session.
    """
    checkpoint, local = tmp_path / "checkpoint", tmp_path / "local"
    with Sidecar(tmp_path / "data") as sidecar, Proxy(sidecar.port) as proxy:
        create_topic(sidecar.address, "in", partitions=2)
        create_topic(sidecar.address, "out", partitions=2)
        for partition in range(2):
            produce(sidecar.address, "in", keys(2000 * partition, 2000 * partition + 2000), partition=partition)
        for api_key, moment, nth in deaths:
            driver = Driver(sidecar.address, proxy.address, checkpoint, local)
            trap = Trap(api_key, moment, driver.kill, nth)
            proxy.set(trap)
            status = driver.wait()
            assert trap.fired.is_set(), driver.log()
            assert status == -9, driver.log()
        proxy.set(None)
        run(spark, sidecar.address, proxy.address, checkpoint)
        rows = read_all(sidecar.address, "out")
        assert_exactly_once((row.key for row in rows), keys(0, 4000))
        assert_one_execution_per_task(rows)


def test_a_driver_that_was_replaced_cannot_commit(spark: SparkSession, tmp_path: Path) -> None:
    """A driver hangs just before it commits; another, in the shared session, takes over its checkpoint and finishes;
    the first wakes up, and fails.
    """
    checkpoint = tmp_path / "checkpoint"
    replaced = threading.Event()
    with Sidecar(tmp_path / "data") as sidecar, Proxy(sidecar.port) as proxy:
        create_topic(sidecar.address, "in", partitions=2)
        create_topic(sidecar.address, "out", partitions=2)
        produce(sidecar.address, "in", keys(0, 2000))
        trap = Trap(EPOCH_COMMIT, "before", lambda: replaced.wait(2 * PROGRAM_S), nth=2, again=True)
        proxy.set(trap)
        zombie = Driver(sidecar.address, proxy.address, checkpoint, tmp_path / "local")
        try:
            assert trap.fired.wait(PROGRAM_S), zombie.log()
            run(spark, sidecar.address, sidecar.address, checkpoint)
        finally:
            replaced.set()
            status = zombie.wait()
        assert status not in (0, -9), zombie.log()
        assert "FencedIncarnation" in zombie.log()
        rows = read_all(sidecar.address, "out")
        assert_exactly_once((row.key for row in rows), keys(0, 2000))
        assert_one_execution_per_task(rows)
