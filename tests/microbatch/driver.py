"""A Spark driver of its own, for tests that kill it: `python driver.py SETTINGS.json`.

Runs Visits over the input that there is, with faults, to its end. With `options` of checkpoints a batch begins when the
checkpoints of the one before have ended (`Paced`), and each life notes how its partitions obtained their state.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from spe_adapter.checkpoint.service import read_status  # noqa: E402
from spe_adapter.microbatch import checkpoint_watch, registration  # noqa: E402
from spe_adapter.microbatch.epoch import Step  # noqa: E402 - the path comes first
from tests.microbatch.checkpoint_steps import is_alive  # noqa: E402
from tests.microbatch.faults import Faults, load  # noqa: E402
from tests.microbatch.world import World, ended  # noqa: E402
from tests.support.spark_session import start_spark  # noqa: E402 - the path comes first
from tests.support.waiting import until  # noqa: E402

if TYPE_CHECKING:
    from spe_adapter.microbatch.query import StatefulQuery

PARTITIONS = 2


class Pace:
    """Lets a batch begin when the I/O service has dealt with the notes of the batch before, or was killed.

    A note to a service that does not run is lost and starts the service: then the batch begins when it runs, or was
    killed, since the note of the other partition may have come in time.
    """

    def __init__(self, state: Path, notes: Path, struck: Path) -> None:
        self._state = state
        self._notes = notes
        self._struck = struck
        self._kills = 0
        self._epoch: int | None = None
        self._service: int | None = None
        """The service that ran when the batch before began."""
        self.query: StatefulQuery | None = None

    def __call__(self, epoch: int) -> None:
        """Wait until the batch of this epoch may begin."""
        if self._epoch is not None:
            self.note()
            if self._service is None:
                until(
                    lambda: self._running() is not None or self._kills_now() > self._kills,
                    "a service that the tasks have started",
                )
            else:
                until(lambda: self._running() != self._service or self._has_ended(), "the end of the checkpoints")
            self._service = self._running()
        self._kills = self._kills_now()
        self._epoch = epoch

    def note(self) -> None:
        """How the partitions obtained their state in the epoch before."""
        until(lambda: self.query is not None and self.query.progress is not None, "the progress of an epoch")
        assert self.query is not None
        progress = self.query.progress
        assert progress is not None
        with self._notes.open("a") as target:
            target.write(json.dumps(dict(progress.how)) + "\n")

    def _kills_now(self) -> int:
        return self._struck.stat().st_size if self._struck.exists() else 0

    def _status(self) -> dict[str, Any]:
        return read_status(self._state) or {"process": 0, "units": []}

    def _running(self) -> int | None:
        process = int(self._status()["process"])
        return process if process and is_alive(process) else None

    def _has_ended(self) -> bool:
        """Whether the checkpoints of the epoch before have come to an end in both partitions."""
        assert self._epoch is not None
        units = self._status()["units"]
        ended = [one for one in units if one["epoch"] >= self._epoch and not one["running"] and "state" in one]
        return len(ended) == PARTITIONS


_PACES: dict[str, Pace] = {}
"""Of this process; a probe is pickled with the tasks, and a query is not."""


class Paced(Faults):
    """Faults, in a driver whose batches keep a pace."""

    def __call__(self, step: Step, epoch: int, partition: int) -> None:
        """See Probe."""
        if step == "driver before tasks":
            _PACES["query"](epoch)
        super().__call__(step, epoch, partition)


def main() -> None:
    """Run the query to its end."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    base = Path(settings["directory"])
    options = settings.get("options", {})
    spark = start_spark(base / "local")
    world = World(spark, settings["address"], settings["name"], base, create=False)
    kind = Paced if options else Faults
    faults = kind(
        base / "fired", load(base / "faults.json"), driver_pid=os.getpid(), sidecar_pid_file=str(base / "sidecar.pid")
    )
    query = world.query(rows_per_batch=settings["rows_per_batch"]).option("extentLimit", 100).probe(faults)
    if options:
        registration.ACKNOWLEDGE_S = 0.0  # type: ignore[attr-defined]
        checkpoint_watch.WATCH_S = 0.0  # type: ignore[misc]
        pace = _PACES["query"] = Pace(world.state, base / "obtained", base / "struck")
        pace.query = world.start(query.options(**options).trigger(availableNow=True))
        if ended(pace.query).progress is not None:  # the life before may have died behind its last epoch
            pace.note()
    else:
        world.run(query)
    spark.stop()


if __name__ == "__main__":
    main()
