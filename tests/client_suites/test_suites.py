"""What the runner of clients' own suites makes of their sources and outputs, and of what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client_suites import sources
from tests.client_suites.suites import (
    Outcome,
    broker_numbers,
    broker_tests,
    go_results,
    junit_results,
    rdkafka_results,
    run_program,
)
from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def test_librdkafkas_table_is_understood() -> None:
    """Numbers with a test that needs a broker are run; local tests, and those for people, are not."""
    table = """
    _TEST(0001_multiobj, 0),
    _TEST(0004_conf, TEST_F_LOCAL),
    _TEST(0022_consume_batch, 0),
    _TEST(0022_consume_batch_local, TEST_F_LOCAL),
    _TEST(0028_long_topicnames,
          TEST_F_KNOWN_ISSUE,
          TEST_BRKVER(0, 9, 0, 0)),
    _TEST(8000_idle, TEST_F_MANUAL),
    """
    assert broker_numbers(table) == ["0001", "0022", "0028"]


def test_librdkafkas_summary_is_understood() -> None:
    """Each test's result counts, and what was filtered out by the flags of the run does not."""
    summary = (
        "|\x1b[32m <MAIN>                    |     PASSED |   1.207s \x1b[0m|\n"
        "|\x1b[32m 0022_consume_batch        |     PASSED |   1.062s \x1b[0m|\n"
        "|\x1b[36m 0022_consume_batch_local  |    SKIPPED |   0.000s \x1b[0m| Filtered due to negative test flags\n"
        "|\x1b[36m 0097_ssl_verify           |    SKIPPED |   0.000s \x1b[0m| Test requires SSL support\n"
        "|\x1b[31m 0011_produce_batch        |     FAILED |   9.000s \x1b[0m|\n"
    )
    assert rdkafka_results(summary) == {
        "0022_consume_batch": "passed",
        "0097_ssl_verify": "skipped",
        "0011_produce_batch": "failed",
    }


def test_gos_output_is_understood() -> None:
    """A test that began and has no result has failed; parts of a test do not count."""
    output = (
        "=== RUN   TestOne\n=== RUN   TestOne/part\n    --- PASS: TestOne/part (0.00s)\n--- PASS: TestOne (0.00s)\n"
        "=== RUN   TestTwo\n--- SKIP: TestTwo (0.00s)\n=== RUN   TestThree\n--- FAIL: TestThree (1.00s)\n"
        "=== RUN   TestHangs\npanic: test timed out\n"
    )
    assert go_results(output) == {
        "TestOne": "passed",
        "TestTwo": "skipped",
        "TestThree": "failed",
        "TestHangs": "failed",
    }


def test_gos_tests_that_need_a_broker_are_found() -> None:
    """A test that makes a topic or a client with the suite's own servers counts, one with a server of its own not."""
    source = (
        "func TestBroker(t *testing.T) {\n\ttopic, cleanup := tmpTopicPartitions(t, 3)\n}\n\n"
        "func TestSeeds(t *testing.T) {\n\tcl, _ := NewClient(getSeedBrokers())\n}\n\n"
        "func TestAlone(t *testing.T) {\n\tring := newRing()\n}\n"
    )
    assert list(broker_tests(source)) == ["TestBroker", "TestSeeds"]


def test_pytests_report_is_understood(tmp_path: Path) -> None:
    """Failures and errors have failed, skips are skipped, the rest has passed."""
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><failure/></testcase>'
        '<testcase name="c"><skipped/></testcase><testcase name="d"><error/></testcase></testsuite></testsuites>'
    )
    found = junit_results(report)
    assert found == {"a": "passed", "b": "failed", "c": "skipped", "d": "failed"}
    outcome = Outcome()
    outcome.add(found)
    assert (outcome.passed, outcome.failed, outcome.skipped) == ({"a"}, {"b", "d"}, {"c"})


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    """A program that takes longer than it may is killed with all that it started, and what it printed is kept."""
    script = "import subprocess, sys; print('begun', flush=True); subprocess.run(['sleep', '1000'])"
    for limit_s in (1.0, 10.0, float(PATIENCE_S)):  # how long a program takes to begin is the machine's affair
        code, output = run_program([sys.executable, "-c", script], tmp_path, tmp_path / "log", {}, limit_s)
        assert code == -9
        if output:
            break
    assert output == "begun\n"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Without its compiler on the path, a suite cannot run: the exit code is 2, and the message names the program."""
    with pytest.raises(sources.Missing, match="no there-is-no-such-program on the path"):
        sources.run(["there-is-no-such-program"], tmp_path)
    command = [sys.executable, "-m", "tests.client_suites", "franz-go", "--bootstrap", "127.0.0.1:1"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot run franz-go's tests: no go on the path" in done.stderr
