"""A Spark driver of its own, for tests that kill it: `python driver.py SETTINGS.json`.

Runs Visits over the input that there is, with faults, to its end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.microbatch.faults import Faults, load  # noqa: E402
from tests.microbatch.world import World  # noqa: E402
from tests.support.spark_session import start_spark  # noqa: E402 - the path comes first


def main() -> None:
    """Run the query to its end."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    base = Path(settings["directory"])
    spark = start_spark(base / "local")
    world = World(spark, settings["address"], settings["name"], base, create=False)
    faults = Faults(
        base / "fired", load(base / "faults.json"), driver_pid=os.getpid(), sidecar_pid_file=str(base / "sidecar.pid")
    )
    query = world.query(rows_per_batch=settings["rows_per_batch"]).option("extentLimit", 100).probe(faults)
    world.run(query)
    spark.stop()


if __name__ == "__main__":
    main()
