"""`python -m spe_adapter.continuous`: a fragment by its name, progress as lines, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import trustme

from spe_adapter.continuous import Options
from spe_adapter.continuous.calibration import measured_costs
from tests.continuous.processes import Work, create, described, expected, produce
from tests.continuous.test_kills import consumed
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT, Sidecar

ROWS = [(b"key-%d" % (number % 9), number) for number in range(700)]
HERE = "tests.continuous.test_program"

FRAGMENT = described(Work("", "program", 0))
"""What the program is told to run."""


def run(address: str, *more: str, fragment: str = f"{HERE}:FRAGMENT") -> subprocess.Popen[str]:
    """The program as a process, with further arguments."""
    command = [sys.executable, "-m", "spe_adapter.continuous", fragment, "--servers", address, "--report-s", "0", *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_the_program_runs_and_ends_when_told(tmp_path: Path) -> None:
    """It says what it recovered and commits what there is; after SIGTERM it exits with 0. Also where it measures costs
    for the cost-benefit policy first, of which nothing stays in the topic.
    """
    with Sidecar(tmp_path / "data") as sidecar:
        create(sidecar.address, "in")
        produce(sidecar.address, "in", ROWS)
        for life in range(2):
            with run(sidecar.address, *(("--mtbf-s", "3600") if life else ())) as process:
                assert process.stdout is not None
                recovered = json.loads(process.stdout.readline())
                assert recovered["event"] == "recovered"
                assert (recovered["epoch"] > 0) == (life > 0)
                records = len(ROWS) if life else 0
                while records < len(ROWS):
                    epoch = json.loads(process.stdout.readline())
                    assert epoch["event"] == "epoch"
                    records = epoch["records"]
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0
        costs = measured_costs(FRAGMENT, 0, Options(sidecar.address))
        assert min(costs.footprint_s, costs.footprint_bytes, costs.tuple_s, costs.record_s) > 0
        assert consumed(sidecar.address, "out-program") == expected(ROWS)


def test_settings_of_checkpoints_are_taken(tmp_path: Path) -> None:
    """All settings have flags; each line of an epoch says how the checkpoints stand. Flags without a place for
    checkpoints, and an address that is none, are refused with exit code 1.
    """
    (tmp_path / "token").write_text("secret")
    ca, host = tmp_path / "ca.pem", tmp_path / "host.pem"
    authority = trustme.CA()
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("host").private_key_and_cert_chain_pem.write_to_path(host)
    (tmp_path / "sink").touch()  # nothing can be written there
    flags = {
        "checkpoint-coordinator": "https://127.0.0.1:1",
        "checkpoint-coordinator-token": str(tmp_path / "token"),
        "checkpoint-coordinator-ca": str(ca),
        "checkpoint-coordinator-certificate": str(host),
        "checkpoint-plans": "http://127.0.0.1:1",
        "checkpoint-plans-token": str(tmp_path / "token"),
        "checkpoint-every-s": "3600",
        "checkpoint-user": "somebody",
        "checkpoint-replicas": "2",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    place = ("--checkpoints", (tmp_path / "sink").as_uri())
    with Sidecar(tmp_path / "data") as sidecar:
        create(sidecar.address, "in")
        produce(sidecar.address, "in", ROWS)
        with run(sidecar.address, *place, *words) as process:
            assert process.stdout is not None
            process.stdout.readline()
            epoch = json.loads(process.stdout.readline())
            assert (epoch["checkpoint_epoch"], epoch["checkpoint_error"]) == (-1, "")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        for refused, why in ((words, "--checkpoints URL"), ([*place, "--checkpoint-coordinator", "c:1"], "'c:1'")):
            with run(sidecar.address, *refused) as process:
                assert process.wait(PATIENCE_S) == 1
                assert process.stderr is not None
                assert why in process.stderr.read()


def test_a_fragment_that_is_none_is_refused(tmp_path: Path) -> None:
    """The message says what was found under the name; the exit code is 1."""
    for name, message in ((f"{HERE}:ROWS", "is a list"), ("no.such.module:x", "names no fragment"), ("x", "write")):
        with run("127.0.0.1:1", fragment=name) as process:
            assert process.wait(PATIENCE_S) == 1
            assert process.stderr is not None
            assert message in process.stderr.read()
