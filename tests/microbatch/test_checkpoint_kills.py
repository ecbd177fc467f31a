"""kill -9 at the steps of a checkpoint, below a real Spark: of the I/O service, and of the whole host, whose memory may
go with it. The results are exact, and the state comes from checkpoints, as the log does not have all of it any more.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from scheduler.coordinator.testing import running
from spe_adapter.microbatch.epoch import STEPS as EPOCH_STEPS
from spe_adapter.microbatch.epoch import Step
from tests.microbatch.below import EAGER_FLAGS
from tests.microbatch.checkpoint_steps import STEPS, CheckpointStep, StepFault, SteppedCoordinator, stepped
from tests.microbatch.faults import Fault, kill_family, save
from tests.microbatch.operators import expected_of, rows_of
from tests.microbatch.world import World, by_key
from tests.support.hdfs.layout import loopback_nodes, network
from tests.support.limits import PATIENCE_S, PROGRAM_S
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic

pytestmark = [pytest.mark.spark, pytest.mark.crash]

DRIVER = Path(__file__).with_name("driver.py")
ROWS = 40
KEYS = 20
NODES = loopback_nodes(4, racks=2)
CLEANED = {"retention.ms": "-1", "segment.bytes": "4096"}
"""Results stay; records of state go with each small chunk that is sealed."""
LAST_STEP: Step = "driver after commit"
TASK_STEPS: tuple[Step, ...] = tuple(step for step in EPOCH_STEPS if step.startswith("task"))
SERVICE_STEPS: tuple[CheckpointStep, ...] = ("frozen", "written", "sealed", "registered", "acknowledged")


class Lives:
    """A query over `epochs` batches, whose driver is started again after each death of its host."""

    def __init__(self, directory: Path, sidecar: Sidecar, epochs: int) -> None:
        self.directory = directory
        self.sink = directory / "sink"
        self.made = rows_of(epochs, ROWS, KEYS)
        self.world = World(None, sidecar.address, "visits", directory)
        self.deaths = 0
        self._driver: subprocess.Popen[bytes] | None = None
        create_topic(sidecar.address, self.world.topic, 2, CLEANED)
        for rows in self.made:
            self.world.feed(rows)

    def kill_host(self) -> None:
        """Spark ends, with all that it has started."""
        assert self._driver is not None
        kill_family(self._driver.pid)

    def run(self, url: str, faults: Sequence[Fault] = ()) -> None:
        """Run the query to its end. With each odd death the host's memory is lost."""
        save(self.directory / "faults.json", faults)
        options = {
            "checkpoints": self.sink.as_uri(), "checkpointCoordinator": url, "checkpointHost": NODES[0].name,
            "checkpointReplicas": 2, "checkpointMinState": 0, "checkpointEvery": "1s", "checkpointMinEvery": "50ms",
            "checkpointWeight": 1e9, "stateHistory": "recovery", "extentLimit": 1_000_000,
        }  # fmt: skip
        settings = {
            "directory": str(self.directory), "address": self.world.address, "name": "visits",
            "rows_per_batch": ROWS, "options": options,
        }  # fmt: skip
        (self.directory / "settings.json").write_text(json.dumps(settings))
        while self._lived():
            self.deaths += 1
            if self.deaths % 2:
                shutil.rmtree(self.world.state, ignore_errors=True)
        shutil.rmtree(self.world.state)  # ends the service

    def _lived(self) -> bool:
        """One life; whether it ended by a kill."""
        said = self.directory / "driver.log"
        with said.open("wb") as log:
            command = [sys.executable, str(DRIVER), str(self.directory / "settings.json")]
            self._driver = process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            status = process.wait(PROGRAM_S)
        finally:
            kill_family(process.pid)
            process.wait(PATIENCE_S)
        assert status in (0, -9), said.read_text(errors="replace")[-20000:]
        return status != 0

    def obtained(self) -> list[dict[str, int]]:
        """How the partitions obtained their state, epoch by epoch."""
        return [json.loads(line) for line in (self.directory / "obtained").read_text().splitlines()]


def go_through(directory: Path, strikes: Sequence[StepFault], epochs: int, faults: Sequence[Fault] = ()) -> Lives:
    """Run a query through these kills; check that all happened and that the results are exact."""
    with (
        Sidecar(directory / "data", *EAGER_FLAGS) as sidecar,
        running(network(NODES, 4)) as url,
    ):
        lives = Lives(directory, sidecar, epochs)
        coordinator = SteppedCoordinator(url, strikes, lives.kill_host, directory / "struck")
        with stepped(coordinator) as tapped:
            lives.run(tapped, faults)
        assert coordinator.fired == list(strikes)
        assert by_key(lives.world.told()) == by_key(expected_of(lives.made))
    return lives


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_checkpoints_whose_writer_dies_at_every_step(tmp_path: Path) -> None:
    """The service dies at each of the five steps, at the last one with the whole host: the next life begins with the
    pages of checkpoints, in a partition whose checkpoints were not all killed. How many batches the five kills take
    depends on the machine: nine to fifteen.
    """
    strikes = [StepFault("host" if step == "acknowledged" else "service", step) for step in SERVICE_STEPS]
    lives = go_through(tmp_path, strikes, 30)
    assert lives.deaths == 1
    assert any("checkpoint" in how for how in lives.obtained()), list(map(str, lives.obtained()))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_hosts_that_die_at_every_step(tmp_path: Path) -> None:
    """Spark and the service die together at each step, and once Spark alone between a commit and what it acknowledges.
    Every second host keeps its memory.
    """
    lives = go_through(tmp_path, [StepFault("host", step) for step in STEPS], 40, [Fault("driver", LAST_STEP, 35)])
    assert lives.deaths == len(STEPS) + 1
    assert {"checkpoint": 2} in lives.obtained()


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [1, 2])
def test_many_kills_of_tasks_services_and_hosts(tmp_path: Path, seed: int) -> None:
    """Services and hosts at random steps of their checkpoints, tasks and workers at random steps of their epochs."""
    print(f"seed {seed}")
    chance = Random(seed)
    strikes = [StepFault(chance.choice(("service", "service", "host")), chance.choice(STEPS)) for _ in range(10)]
    hurt = [
        Fault(chance.choice(("task", "worker")), chance.choice(TASK_STEPS), batch) for batch in range(2, 55, 5)
    ]  # fmt: skip
    lives = go_through(tmp_path, strikes, 60, hurt)
    assert lives.deaths == sum(strike.victim == "host" for strike in strikes)
    assert any("checkpoint" in how for how in lives.obtained())
