"""How each client's own suite runs against a server that serves already, and what its output says.

Invariants: a suite's tests are those that need a broker; what its own files mark as local, or as a test of their mock
broker, is not counted. A test that neither passes nor is skipped by the suite itself has failed, also one that hangs or
takes the whole program with it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.harness.jars import kafka_class_path
from tests.client_suites import sources

CLAIMED_VERSION = "4.2.0"
"""The Kafka that a suite takes the server for."""
TEST_SECONDS = 240
"""After this, a test of librdkafka's counts as failed; the longest takes some 60 s."""
SUITE_SECONDS = 1800
AT_ONCE = 3
FRANZ_GO_RECORDS = "20000"
"""Records of each of franz-go's larger tests; its own default of 500,000 takes an hour."""


@dataclass
class Outcome:
    """The names of a suite's tests, by what became of them."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    def add(self, found: Mapping[str, str]) -> None:
        """Add tests and their results: "passed", "failed" or "skipped"."""
        for name, result in found.items():
            getattr(self, result).add(name)


def run_program(
    command: list[str], cwd: Path, log: Path, environment: Mapping[str, str], seconds: float
) -> tuple[int, str]:
    """Run a program with its output in `log`; its exit code (-9 after that many seconds) and its output."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    return code, log.read_text(encoding="utf-8", errors="replace")


# ---- kafka-python

_SERVICE = '''"""What the tests import and the source distribution leaves out: a server that runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass

    stop = close


class SpawnedService:
    def __init__(self, *arguments, **options):
        raise RuntimeError("these tests run against a server that is there")
'''


def kafka_python(bootstrap: str, logs: Path, only: str | None) -> Outcome:
    """kafka-python's integration tests; those of SASL and TLS need a server that they start, and are left out."""
    source = sources.kafka_python(sys.executable)
    (source / "test" / "__init__.py").touch()
    (source / "test" / "service.py").write_text(_SERVICE)
    report = logs / "kafka-python.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["--timeout", str(TEST_SECONDS), "--timeout-method", "signal", f"--junitxml={report}"]
    command += ["test/integration", "--ignore=test/integration/test_ssl_integration.py"]
    command += ["--ignore=test/integration/test_sasl_integration.py", *(["-k", only] if only else [])]
    environment = {
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": CLAIMED_VERSION,
        "KAFKA_ROOT": str(source),
        "PYTHONPATH": ".",
    }
    run_program(command, source, logs / "kafka-python.log", environment, SUITE_SECONDS)
    outcome = Outcome()
    outcome.add(junit_results(report) if report.exists() else {"the whole suite": "failed"})
    return outcome


def junit_results(report: Path) -> dict[str, str]:
    """Tests and results in pytest's report."""
    found: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[case.get("name", "?")] = result
    return found


# ---- franz-go

_GO_RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)
_GO_BEGUN = re.compile(r"^=== RUN +(\S+)$", re.MULTILINE)
_GO_TEST = re.compile(r"^func (Test\w+)\(.*?^}", re.MULTILINE | re.DOTALL)
_ASKS_BROKER = re.compile(
    r"\b(adm|getSeedBrokers|internalTopic|newTestClient|testChainETL|testClientOpts|tmp(Share)?Group"
    r"|tmp(Named)?Topic(Partitions)?)\("
)
"""What those of franz-go's tests call that talk to a server; the others bring a server of their own, or need none."""
_RESULTS = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


def franz_go(bootstrap: str, logs: Path, only: str | None) -> Outcome:
    """franz-go's tests that talk to a server."""
    folder, program = sources.franz_go()
    names = {name for path in folder.glob("*_test.go") for name in broker_tests(path.read_text(encoding="utf-8"))}
    names = {name for name in names if only is None or only in name}
    environment = {"KGO_SEEDS": bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": FRANZ_GO_RECORDS}
    outcome = Outcome()
    # A test that hangs ends the program, so those that hang where there are no transactions have one of their own.
    apart = {name for name in names if "Txn" in name}
    for number, part in enumerate((names - apart, *({name} for name in sorted(apart)))):
        if part:
            seconds = TEST_SECONDS if number else SUITE_SECONDS
            pattern = f"^({'|'.join(sorted(part))})$"
            command = [str(program), "-test.v", f"-test.timeout={seconds}s", "-test.run", pattern]
            _, output = run_program(command, folder, logs / f"franz-go-{number}.log", environment, seconds + 10)
            outcome.add(go_results(output))
    return outcome


def broker_tests(source: str) -> Iterable[str]:
    """The tests in a Go file that talk to a server."""
    for found in _GO_TEST.finditer(source):
        if _ASKS_BROKER.search(found[0]):
            yield found[1]


def go_results(output: str) -> dict[str, str]:
    """Tests and results in the output of Go's tests; what began and has no result has failed."""
    found = {name: "failed" for name in _GO_BEGUN.findall(output) if "/" not in name}
    found.update({name: _RESULTS[result] for result, name in _GO_RESULT.findall(output)})
    return found


# ---- librdkafka

_RDKAFKA_TEST = re.compile(r"_TEST\((\d{4})_\w+,\s*([A-Z0-9_ |]+)")
_NOT_FOR_BROKERS = re.compile("TEST_F_LOCAL|TEST_F_MANUAL")
_SCRIPTS = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
_RDKAFKA_RESULT = re.compile(r"(\d{4}_\w+) +\|.*?(PASSED|FAILED|SKIPPED)(.*)")


def librdkafka(bootstrap: str, logs: Path, only: str | None) -> Outcome:
    """librdkafka's tests that need a broker, each number in a process of its own, in librdkafka's quick mode."""
    folder = sources.librdkafka() / "tests"
    configuration = logs / "librdkafka.conf"
    configuration.write_text(f"bootstrap.servers={bootstrap}\n")
    numbers = broker_numbers((folder / "test.c").read_text(encoding="utf-8"))
    environment = {
        "BROKERS": bootstrap,
        "KAFKA_PATH": str(kafka_scripts(logs / "kafka")),
        "RDKAFKA_TEST_CONF": str(configuration),
        "TEST_KAFKA_VERSION": CLAIMED_VERSION,
        "LD_LIBRARY_PATH": f"{folder.parent / 'src'}:{folder.parent / 'src-cpp'}",
    }

    def one(number: str) -> dict[str, str]:
        log = logs / f"librdkafka-{number}.log"
        command = ["./test-runner", "-L", "-Q", "-K", "-p1"]
        code, output = run_program(command, folder, log, {**environment, "TESTS": number}, TEST_SECONDS)
        found = rdkafka_results(output)
        return found if found or not code else {number: "failed"}

    outcome = Outcome()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(one, [number for number in numbers if only is None or only in number]):
            outcome.add(found)
    return outcome


def kafka_scripts(directory: Path) -> Path:
    """What the tests call of a Kafka installation: scripts that start its Java tools. Raises KafkaUnavailable."""
    (directory / "bin").mkdir(parents=True)
    java = f'exec java -XX:TieredStopAtLevel=1 -cp "{kafka_class_path()}"'
    for name, main_class in _SCRIPTS.items():
        script = directory / "bin" / name
        script.write_text(f'#!/bin/sh\n{java} {main_class} "$@"\n')
        script.chmod(0o755)
    return directory


def broker_numbers(source: str) -> list[str]:
    """The numbers of librdkafka's tests that are not all local or for people, in the order of its table."""
    flags: dict[str, list[str]] = {}
    for number, words in _RDKAFKA_TEST.findall(source):
        flags.setdefault(number, []).append(words)
    return [number for number, words in flags.items() if not all(_NOT_FOR_BROKERS.search(one) for one in words)]


def rdkafka_results(output: str) -> dict[str, str]:
    """Tests and results in the summary of librdkafka's tests; what it filters out by its flags is not counted."""
    found: dict[str, str] = {}
    for name, result, why in _RDKAFKA_RESULT.findall(output):
        if "Filtered" not in why:
            found[name] = result.lower()
    return found


SUITES = {"franz-go": franz_go, "kafka-python": kafka_python, "librdkafka": librdkafka}
