"""Runner processes for tests: started quickly, heard through a pipe, killed at will.

Invariant: nothing waits for time to pass. A test learns from the pipe how far a runner is, and kills it there.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.format.records import Record, encode_batch
from spe_adapter.cec.policy import Targets
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.continuous.fragment import EpochLimits, Fragment, TopicSource
from spe_adapter.continuous.loop import Event, FragmentProgress, Recovered
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Counting
from tests.continuous.fragments import START_MS, parse
from tests.support.limits import PATIENCE_S

WINDOW: Final = 7

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Work:
    """What a runner process does: the fragment by its query's name, until so many records are committed."""

    servers: str
    query: str
    records: int
    partition: int = 0
    epoch_records: int = 300
    q_limit: int = 400
    u_limit: int = 2000
    checkpoints: str = ""
    """The URL of a sink: a checkpoint at the end of every epoch that is not busy with one."""


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A step: the key as text."""
    return batch.set_column(0, "k", batch.column("k").cast(pa.string()))


def described(work: Work) -> Fragment:
    """Sums of WINDOW values per key."""
    operator = Aggregate(Counting(WINDOW), total=agg.sum("v"), last=agg.last("v"))
    return Fragment(work.query, (TopicSource("in", (parse, as_text)),), ("k",), operator, f"out-{work.query}")


def work_through(work: Work, pipe: Connection) -> None:
    """The process: says ("recovered", …) and ("epoch", …) as it goes, at the end ("done",) or ("failed", why)."""
    committed = 0

    def observe(event: Event) -> None:
        nonlocal committed
        match event:
            case Recovered():
                pipe.send(("recovered", event.epoch, event.replayed_records))
            case FragmentProgress():
                committed = event.figures.records
                pipe.send(("epoch", event.figures.epoch, event.figures.checks))

    limits = EpochLimits(epoch_records=work.epoch_records, epoch_ms=20, run_records=100)
    checkpoints = None
    if work.checkpoints:
        often = PolicySettings(every_s=0.0, min_every_s=0.0, min_state_bytes=0)
        checkpoints = CheckpointSettings(work.checkpoints, policy=often)
    options = Options(work.servers, lambda: Targets(work.q_limit, work.u_limit), limits, checkpoints=checkpoints)
    runner = Runner(described(work), work.partition, options, observe=observe)
    try:
        runner.run(until=lambda: committed >= work.records)
    except Exception as error:  # noqa: BLE001  whatever it is, the test has to hear of it
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        return
    pipe.send(("done",))


class RunnerProcess:
    """One process, alive until it is done or killed."""

    def __init__(self, work: Work) -> None:
        self._pipe, theirs = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=work_through, args=(work, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> RunnerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def hear(self) -> tuple[object, ...]:
        """The next thing it says. AssertionError if it is silent for too long or gone."""
        assert self._pipe.poll(PATIENCE_S), "the runner is silent"
        heard = self._pipe.recv()
        assert isinstance(heard, tuple)
        return heard

    def hear_until(self, what: str, most: int) -> Iterator[tuple[object, ...]]:
        """What it says, up to and including the first `what`, `most` things at most."""
        for _ in range(most):
            heard = self.hear()
            yield heard
            if heard[0] == what:
                return
            assert heard[0] != "failed", heard

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.join(PATIENCE_S)
        self._pipe.close()


def create(servers: str, topic: str) -> None:
    """A topic of one partition that keeps records of any age."""
    with Client(parse_addresses(servers)) as client:
        client.create_topic(topic, 1, {"retention.ms": "-1"})


def produce(
    servers: str, topic: str, rows: Sequence[tuple[bytes, int]], per_batch: int = 50, *, partition: int = 0
) -> None:
    """Rows (key, number) into a partition."""
    produce_values(servers, topic, [(key, b"%d" % value) for key, value in rows], per_batch, partition=partition)


def produce_values(
    servers: str, topic: str, rows: Sequence[tuple[bytes, bytes]], per_batch: int = 50, *, partition: int = 0
) -> None:
    """Rows (key, value) into a partition."""
    with Client(parse_addresses(servers)) as client:
        for start in range(0, len(rows), per_batch):
            part = rows[start : start + per_batch]
            records = [Record(0, START_MS + start + at, key, value) for at, (key, value) in enumerate(part)]
            client.produce(TopicPartition(topic, partition), bytes(encode_batch(records)))


def expected(rows: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, bytes]]:
    """What the fragment must have written, by an independent hand: a loop over the rows."""
    state: dict[bytes, list[int]] = {}
    made: list[tuple[bytes, bytes]] = []
    for key, value in rows:
        window = state.setdefault(key, [])
        window.append(value)
        if len(window) == WINDOW:
            made.append((key, b'{"k":"%s","total":%d,"last":%d}' % (key, sum(window), value)))
            state[key] = []
    return made
