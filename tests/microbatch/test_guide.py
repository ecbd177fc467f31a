"""The guide's code runs as it stands, one block after the other, and does what the guide says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import PROGRAM_S
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic, produce, read_all

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
GUIDE_ADDRESS = "127.0.0.1:9092"
LAST_WORDS = """
for query in (averages, alarms):
    query.processAllAvailable()
print("progress", averages.progress.windows, alarms.progress.windows)
for query in (averages, alarms):
    query.stop()
"""
SETTINGS = """
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "512m")
session.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
session.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # quicker at the start
session.config("spark.sql.session.timeZone", "UTC").getOrCreate().sparkContext.setLogLevel("OFF")
"""

pytestmark = pytest.mark.spark


def payment(customer: str, amount: float, paid: str) -> bytes:
    """One record of the guide's topic."""
    return json.dumps({"customer": customer, "amount": amount, "paid": paid}).encode()


def test_the_guide_runs(tmp_path: Path) -> None:
    """Every Python block of the guide's first part, in order, in one program: averages close, the alarm is raised, the
    harness agrees.
    """
    first_part = GUIDE.split("## Duplicates in the sink")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", first_part, flags=re.MULTILINE | re.DOTALL)
    with Sidecar(tmp_path / "data") as sidecar:
        create_topic(sidecar.address, "payments", 1)
        produce(
            sidecar.address,
            "payments",
            [
                payment("c7", 10, "2026-01-01T10:00:30Z"),
                payment("c7", 20, "2026-01-01T10:04:30Z"),
                payment("c8", 5, "2026-01-01T10:04:40Z"),
                payment("c7", 500, "2026-01-01T10:09:00Z"),
            ],
        )
        script = tmp_path / "guide.py"
        script.write_text(SETTINGS + "\n".join(blocks).replace(GUIDE_ADDRESS, sidecar.address) + LAST_WORDS)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        ran = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path, env=environment, text=True, timeout=PROGRAM_S, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout[-4000:]
        assert "progress 1 2" in ran.stdout
        averages = sorted(json.loads(row.value or b"")["average"] for row in read_all(sidecar.address, "averages"))
        alarms = [json.loads(row.value or b"") for row in read_all(sidecar.address, "alarms")]
    assert averages == [5.0, 15.0]
    assert [(alarm["customer"], alarm["amount"], alarm["mean"]) for alarm in alarms] == [("c7", 500.0, 15.0)]
