"""The demonstration itself: start, append, kill, restart, compare.

Invariants: kills come when the query has finished a given share of the input, then at a random moment inside the next
epoch (the seed is printed); when Spark is killed, the state in this host's memory goes too; everything started is
stopped, whatever happens.
"""

import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any, Final, NamedTuple

from logstore.base.addresses import Address
from logstore.base.system import SystemClock
from logstore.client.blocking import Client
from logstore.client.wire import TopicPartition
from spe_adapter.checkpoint.service import read_status
from spe_adapter.datasource.offsets import from_json
from spe_adapter.demo.processes import Killable, sidecar_command, wait_until_ended
from spe_adapter.demo.progress import DONE, Tell
from spe_adapter.demo.purchases import (
    CLOSING_ITEM,
    Expected,
    averages,
    deal,
    from_values,
    generate,
    spendings,
    together,
)
from spe_adapter.demo.report import DemoOutcome, Kill
from spe_adapter.demo.results import DemoResults, Result, parse_average, parse_spending
from spe_adapter.demo.streams import Appender, Follower
from spe_adapter.spark_checkpoint.files import COMMITS, OFFSETS, LocalCheckpoint
from spe_adapter.spark_checkpoint.planned import offset_lines

PARTITIONS: Final = 2
SOURCE: Final = "purchases"
PARSERS: Final[Mapping[str, Callable[[str], Result]]] = {"averages": parse_average, "spendings": parse_spending}
"""The queries, named as their topics, and how their results are read."""
BLOCK: Final = 20_000
SINK: Final = "sink"
SERVICE_ENDS_S: Final = 20.0
MOMENT_S: Final = 1.2
"""About an epoch: kills are spread over that much time."""
START_S: Final = 300.0
STALLED_S: Final = 600.0
POLL_S: Final = 0.1
CLIENT_LIMIT_S: Final = 60.0
SCHEDULE: Final = ("Spark", "sidecar", "Spark and sidecar", "sidecar", "Spark", "sidecar")


class DemoPlan(NamedTuple):
    """What to do. `batch`: records in a micro-batch; `port` 0: any free one."""

    records: int
    items: int
    batch: int
    kills: int
    seed: int
    port: int
    heap: str


class Failed(Exception):
    """The demonstration cannot go on; the message says why and where the logs are."""


@dataclass(slots=True)
class Story:
    """One run in a directory of its own. `tell(event, share)` is called as it goes."""

    plan: DemoPlan
    directory: Path
    tell: Tell
    outcome: DemoOutcome = field(default_factory=DemoOutcome)
    _sidecar: Killable | None = None
    _query: Killable | None = None
    _port: int = 0
    _started_s: float = 0.0
    _rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARSERS, 0))
    _append_failure: BaseException | None = None
    _reader: Client | None = None
    _results: dict[str, DemoResults] = field(default_factory=dict)
    _unanswered: list[Kill] = field(default_factory=list)

    def run(self) -> DemoOutcome:
        """Run it all. Raises Failed."""
        self._port = self.plan.port
        try:
            (self.directory / SINK).mkdir()
            self._start_sidecar()
            with self._client() as client:
                client.partitions(SOURCE, create=True)
                client.partitions("averages", create=True)  # the stateful query makes its own topic
            self._started_s = time.monotonic()
            self.tell("starting Spark", 0.0)
            self._start_query()
            appender = threading.Thread(target=self._append_all, daemon=True)
            appender.start()
            self._kill_on_schedule()
            self._wait(appender)
            self.tell("computing the expected results", self._share)
            expected = self._expected()
            self.tell("waiting for the last results", self._share)
            self._follow_until(expected)
            self._compare(expected)
        finally:
            self._stop()
        return self.outcome

    def _now_s(self) -> float:
        return time.monotonic() - self._started_s

    def _client(self) -> Client:
        return Client([Address("127.0.0.1", self._port)], limit_s=CLIENT_LIMIT_S)

    # ---- processes

    def _start_sidecar(self) -> None:
        command = [*sidecar_command(self.directory / "data", self._port), "--default-partitions", str(PARTITIONS)]
        command += ["--state-directory", str(self.directory / "state")]
        self._sidecar = Killable("sidecar", command, self.directory / "sidecar.log", {})
        line = self._line(self._sidecar, START_S)
        if not line.startswith("cairn ready"):
            raise Failed(f"the sidecar did not start; see {self.directory / 'sidecar.log'}")
        self._port = int(line.split("kafka=")[1].split()[0].rsplit(":", 1)[1])

    def _start_query(self) -> None:
        command = [sys.executable, "-m", "spe_adapter.demo.query", "--bootstrap", f"127.0.0.1:{self._port}"]
        command += ["--source", SOURCE, *(word for topic in PARSERS for word in (f"--{topic}", topic))]
        command += ["--checkpoints", str(self.directory / "checkpoints"), "--state", str(self.directory / "state")]
        command += ["--sink", str(self.directory / SINK)]
        command += ["--batch", str(self.plan.batch), "--partitions", str(PARTITIONS), "--heap", self.plan.heap]
        environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        for topic in PARSERS:  # a query that was killed may have committed batches that it had no time to tell of
            self._rows[topic] = committed_rows(self.directory / "checkpoints" / topic)
        self._query = Killable("Spark", command, self.directory / "spark.log", environment)

    @staticmethod
    def _line(process: Killable, limit_s: float) -> str:
        try:
            return process.lines.get(timeout=limit_s)
        except Empty:
            return ""

    def _stop(self) -> None:
        for process in (self._query, self._sidecar):
            if process is not None:
                process.stop()
        if self._reader is not None:
            self._reader.close()
        self._forget_state()

    def _forget_state(self) -> None:
        """Take the state of the query from this host, with the service that writes its checkpoints."""
        root = self.directory / "state"
        if root.is_dir():
            status = read_status(root) or {}
            gone = root.rename(self.directory / f"gone-{len(self.outcome.kills)}-{time.monotonic_ns()}")
            if "process" in status:
                wait_until_ended(int(status["process"]), SERVICE_ENDS_S)
            shutil.rmtree(gone, ignore_errors=True)

    # ---- what happens meanwhile

    def _append_all(self) -> None:
        """Runs on its own thread: all purchases, dealt out to the partitions."""
        try:
            with self._client() as client:
                appenders = [
                    Appender(client, TopicPartition(SOURCE, number), SystemClock()) for number in range(PARTITIONS)
                ]
                blocks = generate(self.plan.records, self.plan.items, self.plan.seed, BLOCK)
                for number, part in deal(blocks, PARTITIONS):
                    appenders[number].append(part)
        except Exception as failure:  # noqa: BLE001  (raised by _wait, on the main thread)
            self._append_failure = failure

    def _wait(self, appender: threading.Thread) -> None:
        while appender.is_alive():
            self._listen()
        if self._append_failure is not None:
            raise Failed(f"the purchases could not be appended: {self._append_failure}")

    def _listen(self) -> None:
        """Take in what the query says, for a moment."""
        if self._query is None:
            return
        line = self._line(self._query, POLL_S)
        if not line:
            if not self._query.is_running:
                raise Failed(f"the query ended by itself; see {self.directory / 'spark.log'}")
            return
        message = said(line)
        if "failed" in message:
            raise Failed(f"the query failed: {message['failed']}; see {self.directory / 'spark.log'}")
        if message.get("how"):
            self.outcome.recoveries.append(recovery_line(message))
            self.tell(self.outcome.recoveries[-1], self._share)
            return
        if message.get("rows"):
            self._rows[message["query"]] += message["rows"]
            self.outcome.batches[message["query"]].append((self._now_s(), message["rows"]))
        self.tell(f"{self._finished_rows:,} {DONE}", self._share)

    def _kill_on_schedule(self) -> None:
        moments = random.Random(self.plan.seed)
        for number in range(self.plan.kills):
            target = self.plan.records * (number + 0.5) / (self.plan.kills + 0.5)
            self._until(partial(self._has_finished, target), "the query stopped making progress")
            deadline = time.monotonic() + moments.uniform(0, MOMENT_S)
            self._until(partial(_is_past, deadline), "")
            self._kill(SCHEDULE[number % len(SCHEDULE)])

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        give_up_s = time.monotonic() + STALLED_S
        while not condition():
            self._listen()
            if self._unanswered:
                self._follow()
            if time.monotonic() > give_up_s:
                raise Failed(f"{complaint}; see the logs in {self.directory}")

    @property
    def _finished_rows(self) -> int:
        """What both queries have done, without the records that close the last windows."""
        return min(*self._rows.values(), self.plan.records)

    @property
    def _share(self) -> float:
        return min(1.0, self._finished_rows / self.plan.records)

    def _has_finished(self, rows: float) -> bool:
        return self._finished_rows >= rows

    def _kill(self, victim: str) -> None:
        self._follow()
        self._unanswered.clear()
        kill = Kill(victim, self._now_s())
        self.outcome.kills.append(kill)
        self.tell(f"kill −9: {victim}; starting again", self._share)
        if "Spark" in victim and self._query is not None:
            self._query.kill()
            self._forget_state()
        if "sidecar" in victim and self._sidecar is not None:
            self._sidecar.kill()
            self._start_sidecar()
        if "Spark" in victim:
            self._follow()  # what was committed until the kill is no result of the query that starts now
            self._start_query()
        self._unanswered.append(kill)

    # ---- results

    def _follow(self) -> int:
        """Read new results; returns how many. The first after a kill answers it."""
        if self._reader is None:
            self._reader = client = self._client()
            for topic, parse in PARSERS.items():
                streams = [TopicPartition(topic, number) for number in range(PARTITIONS)]
                self._results[topic] = DemoResults([Follower(client, stream) for stream in streams], parse)
        new = sum(results.read_new() for results in self._results.values())
        if new:
            for kill in self._unanswered:
                kill.first_result_s = self._now_s() - kill.at_s
            self._unanswered.clear()
        return new

    def _expected(self) -> dict[str, Expected]:
        """The results of both queries, computed from what the input stream holds."""
        with self._client() as client:
            followers = [Follower(client, TopicPartition(SOURCE, number)) for number in range(PARTITIONS)]
            batches = (batch for follower in followers for batch in follower.read_new())
            purchases = together(from_values(batch.column("value")) for batch in batches)
        self.outcome.records = int((purchases.items != CLOSING_ITEM).sum())
        return {"averages": averages(purchases), "spendings": spendings(purchases)}

    def _follow_until(self, expected: Mapping[str, Expected]) -> None:
        """Wait until as many results are there as there should be, then a little for any that should not."""
        self._follow()
        quiet_since_s = time.monotonic()
        while self._lacks(expected) and time.monotonic() - quiet_since_s < STALLED_S:
            self._listen()
            if self._follow():
                quiet_since_s = time.monotonic()
        self.outcome.seconds = self._now_s()
        end_s = time.monotonic() + 2 * MOMENT_S
        while time.monotonic() < end_s:
            self._listen()
        self._follow()

    def _lacks(self, expected: Mapping[str, Expected]) -> bool:
        return any(len(self._results[topic]) < len(results) for topic, results in expected.items())

    def _compare(self, expected: Mapping[str, Expected]) -> None:
        for topic, results in expected.items():
            self.outcome.comparisons[topic] = self._results[topic].compare(results)


def committed_rows(checkpoint: Path) -> int:
    """The purchases in the batches that a query has committed, from its checkpoint; 0 if it has none."""
    files = LocalCheckpoint(checkpoint)
    newest = max((int(name) for name in files.names(COMMITS) if name.isdigit()), default=None)
    text = None if newest is None else files.read(f"{OFFSETS}/{newest}")
    ends = () if text is None else [from_json(json.loads(line)) for line in offset_lines(text)]
    return sum(sum(end.values()) for end in ends)


def recovery_line(message: Mapping[str, Any]) -> str:
    """Where the state of a query's first epoch came from, from what the query said of it."""
    how, megabyte = message["how"], 1_000_000
    if "checkpoint" in how:
        return (
            f"{message['windows']:,} windows: {how['checkpoint']} of {sum(how.values())} partitions loaded from "
            f"checkpoints ({message['checkpoint_bytes'] / megabyte:.1f} MB) and the log after them "
            f"({message['log_bytes'] / megabyte:.2f} MB)"
        )
    if "loaded" in how:
        return f"{message['windows']:,} windows: loaded from the log ({message['log_bytes'] / megabyte:.2f} MB)"
    return f"{message['windows']:,} windows: a new state" if "empty" in how else f"state: {', '.join(how)}"


def _is_past(moment_s: float) -> bool:
    return time.monotonic() >= moment_s


def tell_story(plan: DemoPlan, tell: Tell) -> DemoOutcome:
    """Run the demonstration in a temporary directory, which is kept if it fails. Raises Failed."""
    directory = Path(tempfile.mkdtemp(prefix="cairn-demo-"))
    outcome = Story(plan, directory, tell).run()
    if outcome.is_exact:
        shutil.rmtree(directory)
    return outcome


def said(line: str) -> dict[str, Any]:
    """What the query says with a line of its output; nothing if the line is of its JVM, which warns there."""
    try:
        message = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}
