"""The whole test run: the checks, then pytest in parts, each with a time it should stay within; a table at the end.

`./run test` calls it. Each part is a process of its own, so that what one leaves in memory cannot help or hurt another.
The parts run in two lanes beside each other, those of a lane one after another; the lane of Spark, when it has no more
parts of its own, takes those of the other lane that wait. Four processors and more have a third lane. A part's output
is shown when it has ended, and once a minute how far the running ones are; a part that runs alone is shown as it runs.
The last line counts everything: `N passed, N failed, N skipped`. The exit code is 1 if anything failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import IO, Final
from xml.etree import ElementTree as ET

from tests.support import spark_classes

ROOT = Path(__file__).resolve().parents[1]

ROOMS = ("logstore", "scheduler", "spe_adapter", "pyspark_cairn", "tests", "benchmarks")
LONG_TEST_S = 3600  # what one test may take in a long run
AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}
"""pip compiles what it installs: a machine that forbids compiled modules would add 0.2 s to each start of a program."""
RULE_CHARACTERS = 100
SHOW_S = 60


class Lane(Enum):
    """Never are there two Sparks at the same time, and what computes beside one gives way to it.

    Spark gives a Python process ten seconds to start, which no setting changes.
    """

    SPARK = 0
    COMPUTE = 10
    """The value is the niceness."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the run: folders below tests/ for pytest; `checks` has none.

    Budgets are for two cores with both lanes at work, and something else that keeps one busy for half of the time.
    """

    name: str
    folders: tuple[str, ...]
    budget_s: int
    long_budget_s: int
    lane: Lane
    is_alone: bool = False
    """Whether it waits until both lanes have ended: what else is at work would be in its figures."""


CORE = (
    *("access", "base", "disk", "format", "kafka", "client", "codec", "commands", "verify"),
    *("topology", "calibration", "peace", "simulation", "cec", "pages"),
)
STATE = ("state", "operators", "checkpoint", "continuous")
SERVICES = ("coordinator", "metadata", "monitoring", "sidecar", "kill9", "preloaded")
PARTS = (
    Part("checks", (), 90, 120, Lane.COMPUTE),
    Part("static", ("static",), 90, 90, Lane.COMPUTE),
    Part("crash", ("crash",), 480, 60 * 60, Lane.COMPUTE),
    Part("log", ("epochs", "log", "replica"), 420, 60 * 60, Lane.COMPUTE),
    Part("state", STATE, 300, 60 * 60, Lane.COMPUTE),
    Part("services", SERVICES, 600, 30 * 60, Lane.COMPUTE),
    Part("core", CORE, 360, 60 * 60, Lane.COMPUTE),
    Part("hosts", ("cluster", "whole"), 220, 60 * 60, Lane.COMPUTE),
    Part("rest", (), 260, 3 * 60 * 60, Lane.COMPUTE),
    Part("spark", ("datasource",), 540, 30 * 60, Lane.SPARK),
    Part("stateful", ("microbatch",), 420, 30 * 60, Lane.SPARK),
    Part("processes", ("cluster_processes",), 200, 60 * 60, Lane.SPARK),
    Part("clients", ("foreign_clients",), 105, 30 * 60, Lane.SPARK),
    Part("programs", ("benchmarks", "demo", "docs", "security"), 300, 30 * 60, Lane.SPARK),
    Part("figures", ("figures",), 10, 4 * 60 * 60, Lane.SPARK, is_alone=True),
)

CLUSTER: Final = {"cluster": ("hosts", "processes")}
"""What is asked for by one name, and runs side by side."""
NAMES: Final = (*(part.name for part in PARTS), *CLUSTER)

CHECKS = (
    ("ruff check", ("ruff", "check", ".")),
    ("ruff format", ("ruff", "format", "--check", "--quiet", ".")),
    ("mypy", ("mypy", *(room for room in ROOMS if any((ROOT / room).rglob("*.py"))))),
    ("import-linter", (str(Path(sys.executable).parent / "lint-imports"), "--no-cache")),
)


@dataclass(slots=True)
class Outcome:
    """What one part did."""

    name: str
    budget_s: int
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0


def headline(text: str) -> None:
    """Announce what comes."""
    print(f"\n──── {text} ".ljust(RULE_CHARACTERS, "─"), flush=True)


def run_checks(outcome: Outcome, output: IO[str]) -> None:
    """Run the linters and the type checker; all of them, even if one fails."""
    for name, command in CHECKS:
        print(f"{name} …", file=output, flush=True)
        finished = subprocess.run(
            [sys.executable, "-m", *command] if command[0] in {"ruff", "mypy"} else command,
            cwd=ROOT,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if finished.returncode:
            outcome.failed += 1
            print(finished.stdout, file=output, flush=True)
        else:
            outcome.passed += 1


def count(outcome: Outcome, report: Path, exit_code: int) -> None:
    """Add pytest's own count; a run that died without a report counts as one failure."""
    if not report.exists():
        outcome.failed += 1
        return
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    total, errors, failures, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "errors", "failures", "skipped")
    )
    outcome.failed += errors + failures
    outcome.skipped += skipped
    outcome.passed += max(0, total - errors - failures - skipped)
    if exit_code and not outcome.failed:
        outcome.failed += 1


def folders_of(part: Part) -> list[Path]:
    """The part's folders; `rest` has all that no other part names."""
    tests = ROOT / "tests"
    if part.name != "rest":
        return [tests / folder for folder in part.folders]
    named = {folder for other in PARTS for folder in other.folders}
    return sorted(
        path for path in tests.iterdir() if path.is_dir() and path.name not in named and any(path.rglob("test_*.py"))
    )


def run_pytest(part: Part, outcome: Outcome, options: Sequence[str], output: IO[str]) -> None:
    """Run one part's tests in a process of their own."""
    folders = folders_of(part)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [
            *("nice", "-n", str(part.lane.value)),
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--continue-on-collection-errors",
            f"--junitxml={report}",
            *options,
            *map(str, folders),
        ]
        environment = {**os.environ, **AS_INSTALLED, **spark_classes.environment()}
        finished = subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=output, stderr=output)
        exit_code = finished.returncode
        count(outcome, report, exit_code)


def title(part: Part, *, long: bool) -> str:
    """What stands above a part's output."""
    return f"{part.name} (budget {part.long_budget_s if long else part.budget_s} s)"


def run_part(part: Part, *, long: bool, options: Sequence[str], output: IO[str]) -> Outcome:
    """Run one part and time it."""
    outcome = Outcome(part.name, part.long_budget_s if long else part.budget_s)
    started = time.monotonic()
    if part.name == "checks":
        run_checks(outcome, output)
    else:
        run_pytest(part, outcome, options, output)
    outcome.seconds = time.monotonic() - started
    return outcome


class Running:
    """The parts that run now, each with its output, and how far they are."""

    def __init__(self, parts: Sequence[Part], *, long: bool, options: Sequence[str], live: bool) -> None:
        self._waiting = {lane: [part for part in parts if part.lane is lane and not part.is_alone] for lane in Lane}
        self._alone = [part for part in parts if part.is_alone]
        self._long = long
        self._options = options
        self._live = live
        self._lock = Lock()
        self._now = dict[str, tuple[float, Path]]()

    def lane(self, lane: Lane) -> list[Outcome]:
        """Run the parts of a lane one after another, then what else waits and can run beside a Spark."""
        outcomes = []
        if lane is Lane.SPARK and self._waiting[lane]:
            spark_classes.record()
        while (part := self._next(lane)) is not None:
            outcomes.append(self._run(part))
        return outcomes

    def alone(self) -> list[Outcome]:
        """Run the parts that nothing runs beside."""
        return [self._run(part) for part in self._alone]

    def _next(self, lane: Lane) -> Part | None:
        with self._lock:
            if self._waiting[lane]:
                return self._waiting[lane].pop(0)
            return self._waiting[Lane.COMPUTE].pop() if self._waiting[Lane.COMPUTE] else None

    def show(self) -> None:
        """Print a line that says how far the running parts are."""
        with self._lock:
            texts = [
                f"{name} {time.monotonic() - started:.0f} s {how_far(path)}".rstrip()
                for name, (started, path) in self._now.items()
            ]
            print(f"… {', '.join(texts)}", flush=True)

    def _run(self, part: Part) -> Outcome:
        if self._live:
            headline(title(part, long=self._long))
            return run_part(part, long=self._long, options=self._options, output=sys.stdout)
        with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as output:
            with self._lock:
                self._now[part.name] = time.monotonic(), Path(output.name)
            outcome = run_part(part, long=self._long, options=self._options, output=output)
            with self._lock:
                del self._now[part.name]
                headline(title(part, long=self._long))
                output.seek(0)
                sys.stdout.writelines(output)
                sys.stdout.flush()
        return outcome


def how_far(output: Path) -> str:
    """The percentage that pytest printed last; nothing before the first."""
    found = re.findall(r"\[ *(\d+%)\]", output.read_text(encoding="utf-8", errors="replace"))
    return found[-1] if found else ""


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def run_lanes(parts: Sequence[Part], *, long: bool, options: Sequence[str]) -> list[Outcome]:
    """Run the parts, those of a lane one after another; the outcomes in the order of the parts."""
    running = Running(parts, long=long, options=options, live=len(parts) == 1)
    with ThreadPoolExecutor() as pool:
        lanes = [pool.submit(running.lane, lane) for lane in (*Lane, *[Lane.COMPUTE] * (processors() // 4))]
        while wait(lanes, SHOW_S if len(parts) > 1 else None).not_done:
            running.show()
        outcomes = {outcome.name: outcome for lane in lanes for outcome in lane.result()}
        last = pool.submit(running.alone)
        while wait([last], SHOW_S if len(parts) > 1 else None).not_done:
            running.show()
        outcomes |= {outcome.name: outcome for outcome in last.result()}
    return [outcomes[part.name] for part in parts]


def print_table(outcomes: Sequence[Outcome], seconds: float) -> None:
    """What ran, how long it took, and what it should have taken; at the end all of it, `seconds` by the clock."""
    headline("summary")
    print(f"{'part':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'budget':>8}")
    for outcome in outcomes:
        late = "  over its budget" if outcome.seconds > outcome.budget_s else ""
        print(
            f"{outcome.name:<10}{outcome.passed:>8}{outcome.failed:>8}{outcome.skipped:>9}"
            f"{outcome.seconds:>9.1f}{outcome.budget_s:>8}{late}"
        )
    print(f"{'by the clock':<35}{seconds:>9.1f}\n")


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="./run test", description="All checks and tests, or the named parts of them.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--long", action="store_true", help="also what is marked slow, and many more examples")
    parser.add_argument("--seed", help="repeat a run's order and examples: the number that pytest printed")
    parser.add_argument("--peer", choices=("cairn", "kafka"), default="cairn", help="the server of the client tests")
    parser.add_argument(
        "--docker", action="store_true", help="clusters run in containers, from the images that compose/ builds"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(NAMES)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    options = [f"--peer={arguments.peer}"]
    if arguments.long:
        options += ["--long", f"--timeout={LONG_TEST_S}"]
    if arguments.docker:
        options.append("--docker")
    if arguments.seed:
        options.append(f"--randomly-seed={arguments.seed}")
    asked = {name for part in arguments.parts for name in CLUSTER.get(part, (part,))}
    if arguments.docker and "cluster" in arguments.parts:
        asked.discard("hosts")  # none of their tests starts a process
    wanted = [part for part in PARTS if not asked or part.name in asked]
    started = time.monotonic()
    outcomes = run_lanes(wanted, long=arguments.long, options=options)
    print_table(outcomes, time.monotonic() - started)
    failed = sum(outcome.failed for outcome in outcomes)
    passed, skipped = sum(outcome.passed for outcome in outcomes), sum(outcome.skipped for outcome in outcomes)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
