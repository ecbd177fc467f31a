"""Exactly-once writers: epoch n of a query has one record in each of its streams; a new run follows each error, and
replaced runs try to commit.

Invariants: a number is committed again only after the cluster has said that it is not the last one. What a lost answer
was is found out by the next run, not noted: the call has failed, so it happened or not. Records name their run, so that
what a replaced run writes shows wherever it is. A last run takes over when writing has ended: from then on no epoch of
the query is under way, and its streams can be read one after another.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.checked.work import RESULTS, Work, place_of
from logstore.client.blocking import Client, parse_addresses
from logstore.client.wire import TopicPartition
from logstore.errors import CairnError
from spe_adapter.codec.encode import Columns
from spe_adapter.epochs.client import TaskAttempt, start_commit, take_over
from spe_adapter.epochs.segments import SegmentCutter, StagedSegment

EACH_S = 0.3
PAUSE_S = 0.3
SETTLED_S = 300.0
"""For the last run to take over."""
ZOMBIE_CHANCE: Final = 0.02
"""That a run is replaced although nothing is wrong, after an epoch."""
STREAMS: Final = (RESULTS.streams[:3], RESULTS.streams[1:], [RESULTS.streams[0], RESULTS.streams[3]])
"""Of each query: they share streams, and none has all."""


class Run(NamedTuple):
    """An incarnation of a query, and its streams."""

    work: Work
    query: str
    streams: Sequence[str]
    name: str

    def attempt(self, epoch: int) -> TaskAttempt:
        """The one task of an epoch."""
        return TaskAttempt(self.query, self.name, epoch, 0, "a")

    def segments(self, value: str) -> list[StagedSegment]:
        """A record in each stream."""
        cutter, count = SegmentCutter(), len(self.streams)
        data = pa.array([value.encode()] * count, pa.binary())
        moments = np.full(count, time.time_ns() // 1_000_000, dtype=np.int64)
        places = [TopicPartition(*place_of(stream)) for stream in self.streams]
        rows = Columns(None, data, None, moments)
        return [*cutter.add_records(rows, np.arange(count, dtype=np.int32), places), *cutter.rest()]

    def commit(self, client: Client, epoch: int) -> None:
        """Commit one epoch. Raises CairnError, OSError."""
        asked = {"query": self.query, "run": self.name, "number": epoch, "streams": list(self.streams)}
        call = self.work.recorder.begin("epoch", self.query, **asked)
        try:
            start_commit(client, self.attempt(epoch), self.segments(f"{self.query}/{self.name}:{epoch}"), "").receive()
        except (CairnError, OSError) as error:
            call.failed(error)
            raise
        call.ok()
        self.work.progressed(f"query {self.query}")

    def take_over(self, client: Client) -> int:
        """Replace all earlier runs; the first epoch that is not committed. Raises CairnError, OSError."""
        call = self.work.recorder.begin("take over", self.query, query=self.query, run=self.name)
        try:
            last = take_over(client, self.query, self.name)
        except (CairnError, OSError) as error:
            call.failed(error)
            raise
        call.ok(last=-1 if last is None else last)
        return 0 if last is None else last + 1

    def come_back(self, client: Client, epoch: int) -> None:
        """Of a run that was replaced: it commits something all the same, which must fail."""
        call = self.work.recorder.begin("zombie", self.query, query=self.query, number=epoch)
        try:
            start_commit(
                client, self.attempt(epoch), self.segments(f"{self.query}/{self.name}~replaced:{epoch}"), ""
            ).receive()
        except (CairnError, OSError) as error:
            call.failed(error)
        else:
            call.ok()


def expect_queries(work: Work) -> list[tuple[str, Sequence[str]]]:
    """The names and streams of all queries, which must go on from now on."""
    found: list[tuple[str, Sequence[str]]] = []
    for streams in STREAMS:
        query = work.new_name("query")
        work.expected(f"query {query}")
        found.append((query, streams))
    return found


def commit_epochs(work: Work, query: str, streams: Sequence[str], chance: Random) -> None:
    """See the module."""
    replaced: Run | None = None
    while not work.writing_ended.is_set():
        run = Run(work, query, streams, f"{chance.getrandbits(64):x}")
        try:
            with Client(parse_addresses(",".join(work.bootstrap))) as client:
                epoch = run.take_over(client)
                if replaced is not None:
                    replaced.come_back(client, epoch)
                while not work.writing_ended.wait(EACH_S):
                    run.commit(client, epoch)
                    epoch += 1
                    if chance.random() < ZOMBIE_CHANCE:
                        break
                replaced = run
        except (CairnError, OSError) as error:
            replaced = run
            work.noted("runs of a query that were replaced", error)
            work.writing_ended.wait(PAUSE_S)
    _settle(Run(work, query, streams, f"{chance.getrandbits(64):x}"))


def _settle(run: Run) -> None:
    """Take over for the last time; raises CairnError, OSError if nobody answers within SETTLED_S."""
    deadline_s = time.monotonic() + SETTLED_S
    while True:
        try:
            with Client(parse_addresses(",".join(run.work.bootstrap))) as client:
                run.take_over(client)
        except (CairnError, OSError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_S)
        else:
            return
