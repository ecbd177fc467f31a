"""Every decoder that bytes of strangers or of damaged disks reach, with inputs that nobody would send.

The short run changes seeds at random and measures the memory of each call; the long run is guided by coverage.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tracemalloc
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from logstore.kafka.rights.table import RULES
from tests.fuzz.interface import MAX_CALL_BYTES
from tests.fuzz.mutations import inputs
from tests.fuzz.targets import table

ROOT: Final = Path(__file__).resolve().parents[2]
TARGETS: Final = table()
SHORT_RUNS, LONG_RUNS = 150, 100_000
FIRST_TARGET, FIRST_RUNS = "control-sealed", 1_000
needs_atheris = pytest.mark.skipif(
    find_spec("atheris") is None, reason="needs atheris: pip install --require-hashes -r tests/fuzz/requirements.lock"
)
DEEP: Final = b"[" * 100_000
DEFECTS: Final = (
    ("control-sealed", "attempts"),
    ("etcd-answer", b'{"header":{"revision":1e999}}'),
    ("tiered-chunk", b'{"v":1,"next":1e999,"newest":5,"written":6,"place":"c/t/0","attempt":"0","producers":null}'),
    ("tiered-chunk", DEEP),
    ("replica-note", b'{"v":1,"base":1e999,"proven":[1,2,3],"sealed":true}'),
    ("replica-note", DEEP),
    ("reader", b'{"group":"g","acknowledged_ms":1,"positions":[],"released":[],"run_number":1e999}'),
    ("generation", DEEP),
    ("registration-sealed", b'{"v":1,"copies":[2,1],"owner":["a","1"],"epoch":1e999,"open":null,"sealed":[0]}'),
    ("acl-key", DEEP),
    ("quota-key", DEEP),
    ("group-offset", DEEP),
)
"""Inputs that once raised what their targets do not allow."""


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_arrives_is_decoded_or_refused(name: str) -> None:
    """A decoder returns or raises its own error, within MAX_CALL_BYTES, for seeds that are changed at random."""
    target = TARGETS[name]
    for data in target.seeds:  # what a first call loads is not its memory
        with suppress(*target.errors):
            target.call(data)
    for data in inputs(target.seeds, random.Random(zlib.crc32(name.encode())), SHORT_RUNS):
        tracemalloc.start()
        try:
            with suppress(*target.errors):
                target.call(data)
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak <= MAX_CALL_BYTES, f"{name} took {peak} bytes for {data.hex()}"


@pytest.mark.parametrize(("name", "data"), DEFECTS, ids=lambda each: each if isinstance(each, str) else "")
def test_what_was_found_is_refused(name: str, data: bytes | str) -> None:
    """Numbers beyond all numbers, lists that nest without end, and numbers in place of lists are damage by name."""
    target = TARGETS[name]
    if isinstance(data, str):
        data = target.seeds[0].replace(b'"attempts":["a"]', b'"attempts":12345')
    with suppress(*target.errors):
        target.call(data)


def test_every_request_has_a_target() -> None:
    """A request that is served is fuzzed."""
    names = list(TARGETS)
    for key in RULES:
        assert any(name.startswith((f"request-{key}-", f"own-request-{key}")) for name in names), key


def run_guided(artifacts: Path, runs: int, *targets: str) -> None:
    """Fuzz targets, all if none is named, by the program with atheris, and look at what came of each."""
    seed = random.SystemRandom().randrange(1, 1 << 31)
    command = [sys.executable, "-m", "tests.fuzz.engine", "--runs", str(runs), "--seed", str(seed)]
    finished = subprocess.run(
        [*command, "--artifacts", str(artifacts), *targets], cwd=ROOT, check=False, text=True, capture_output=True
    )
    results = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    failed = {result["target"]: result["log"] for result in results if result["failed"]}
    assert not failed, f"seed {seed}"
    assert {result["target"] for result in results} == set(targets or TARGETS), finished.stderr[-4000:]
    assert all(result["executed"] >= runs for result in results), results


@needs_atheris
def test_guided_by_coverage_for_a_moment(tmp_path: Path) -> None:
    """Inputs of one target that are made from those that reached more: the program of the long run works here."""
    run_guided(tmp_path, FIRST_RUNS, FIRST_TARGET)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@needs_atheris
def test_guided_by_coverage(tmp_path: Path) -> None:
    """LONG_RUNS inputs of each target, each new one made from those that reached more, find nothing."""
    run_guided(tmp_path, LONG_RUNS)
