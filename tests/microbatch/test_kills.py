"""kill −9 at the steps of an epoch: of a task's Python worker, of the whole Spark, of the sidecar. The result is exact.

Every key is told each of its values once: a lost epoch, a doubled one, or one that started from the wrong state would
show in the counts.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spe_adapter.microbatch.epoch import STEPS, Step
from tests.microbatch.faults import Fault, Faults, Victim, kill_family, save
from tests.microbatch.operators import expected_of, rows_of
from tests.microbatch.world import World, by_key
from tests.support.limits import PATIENCE_S, PROGRAM_S
from tests.support.sidecar import Sidecar

pytestmark = [pytest.mark.spark, pytest.mark.crash]

DRIVER = Path(__file__).with_name("driver.py")
ROWS = 40
KEYS = 20
TASK_STEPS: tuple[Step, ...] = tuple(step for step in STEPS if step.startswith("task"))


@contextmanager
def undying(sidecar: Sidecar, pid_file: Path) -> Iterator[None]:
    """Start the sidecar again on its port whenever it dies, as whatever supervises it would. While it is dead there is
    no pid file.
    """
    over = threading.Event()

    def tell() -> None:
        whole = pid_file.with_suffix(".new")
        whole.write_text(str(sidecar.pid))
        whole.rename(pid_file)

    tell()

    def watch() -> None:
        while not over.is_set():
            process = sidecar.process
            if over.wait(0.05) or process.poll() is None:
                continue
            pid_file.unlink()
            sidecar.kill()  # it is dead: this lets go of its pipes
            sidecar.restart()
            tell()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_tasks_and_workers_that_die_at_every_step(world: World, tmp_path: Path) -> None:
    """Attempts that failed or were killed at any step are tried again; what they left behind is never used."""
    victims: tuple[Victim, ...] = ("task", "worker")
    pairs = [(victim, step) for step in TASK_STEPS for victim in victims]
    faults = [Fault(victim, step, batch) for batch, (victim, step) in enumerate(pairs, start=1)]
    epochs = rows_of(len(faults) + 3, ROWS, KEYS)
    for rows in epochs:
        world.feed(rows)
    probe = Faults(tmp_path / "fired", faults)
    world.run(world.query(rows_per_batch=ROWS).option("extentLimit", 100).probe(probe))
    assert probe.fired() == set(range(len(faults)))
    assert by_key(world.told()) == by_key(expected_of(epochs))


def test_a_sidecar_that_dies_at_every_step(spark: SparkSession, tmp_path: Path) -> None:
    """A sidecar killed at any step of an epoch comes back; tasks and driver go on with it."""
    steps = [step for step in STEPS if step != "task started"]
    faults = [Fault("sidecar", step, batch) for batch, step in enumerate(steps, start=1)]
    epochs = rows_of(len(faults) + 3, ROWS, KEYS)
    pid_file = tmp_path / "sidecar.pid"
    with Sidecar(tmp_path / "data") as sidecar, undying(sidecar, pid_file):
        world = World(spark, sidecar.address, "visits", tmp_path)
        for rows in epochs:
            world.feed(rows)
        probe = Faults(tmp_path / "fired", faults, sidecar_pid_file=str(pid_file))
        world.run(world.query(rows_per_batch=ROWS).option("extentLimit", 100).probe(probe))
        assert probe.fired() == set(range(len(faults)))
        assert by_key(world.told()) == by_key(expected_of(epochs))


def lives(
    directory: Path, sidecar: Sidecar, faults: Sequence[Fault], epochs: int, spark: SparkSession | None = None
) -> None:
    """Run a query through the faults, with a new driver after each death; check what it has told. `spark`: the session
    of the driver behind the last death; None: that is a process of its own, too.
    """
    made = rows_of(epochs, ROWS, KEYS)
    world = World(None, sidecar.address, "visits", directory)
    for rows in made:
        world.feed(rows)
    save(directory / "faults.json", faults)
    settings = {
        "directory": str(directory), "address": sidecar.address, "name": "visits", "rows_per_batch": ROWS,
    }  # fmt: skip
    (directory / "settings.json").write_text(json.dumps(settings))
    deaths, due = 0, sum(fault.victim == "driver" for fault in faults)
    log_path = directory / "driver.log"
    while spark is None or deaths < due:
        with log_path.open("wb") as log:
            command = [sys.executable, str(DRIVER), str(directory / "settings.json")]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            status = process.wait(PROGRAM_S)
        finally:
            kill_family(process.pid)
            process.wait(PATIENCE_S)
        if status == 0:
            break
        assert status == -9, log_path.read_text(errors="replace")[-20000:]
        deaths += 1
    if spark is not None:
        world = World(spark, sidecar.address, "visits", directory, create=False)
        world.run(world.query(rows_per_batch=ROWS).option("extentLimit", 100))
    assert deaths == due
    assert {int(path.name) for path in (directory / "fired").iterdir()} == set(range(len(faults)))
    assert by_key(world.told()) == by_key(expected_of(made))


DEATHS = [Fault("driver", "driver after commit", 2), Fault("driver", "task after delta", 5)]


@pytest.mark.parametrize("faults", [DEATHS[:1], pytest.param(DEATHS, marks=pytest.mark.slow)], ids=["once", "twice"])
def test_a_driver_that_dies_between_the_commits(spark: SparkSession, tmp_path: Path, faults: list[Fault]) -> None:
    """The epoch is committed but Spark does not know: the next driver is handed the batch again, and drops it. One that
    died before the commit makes the epoch anew, from the state of the one before. The last driver has the shared
    session.
    """
    with Sidecar(tmp_path / "data") as sidecar:
        lives(tmp_path, sidecar, faults, faults[-1].batch + 3, spark)


def faults_of(seed: int, epochs: int, each: int) -> list[Fault]:
    """Random faults, at most one in three epochs, each kind of victim `each` times."""
    chance = random.Random(seed)
    batches = chance.sample(range(1, epochs - 1, 3), 4 * each)
    victims: tuple[Victim, ...] = ("worker", "task", "driver", "sidecar")
    faults = []
    for index, batch in enumerate(sorted(batches)):
        victim = victims[index % len(victims)]
        steps = TASK_STEPS if victim in ("worker", "task") else STEPS
        faults.append(Fault(victim, chance.choice(steps), batch))
    return faults


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_epochs_of_kills(tmp_path: Path, seed: int) -> None:
    """Worker, task, driver and sidecar, at random steps of 120 epochs."""
    faults = faults_of(seed, 120, 7)
    pid_file = tmp_path / "sidecar.pid"
    with Sidecar(tmp_path / "data") as sidecar, undying(sidecar, pid_file):
        lives(tmp_path, sidecar, faults, 120)
