"""An exactly-once writer: epoch n of its query has one record in each stream of a topic; a new run follows each error.

Invariants: a number is committed again only after the cluster has said that it is not the last one. What a lost answer
was is found out by the next run, not noted: the call has failed, so it happened or not.
"""

from __future__ import annotations

import time
from random import Random

import numpy as np
import pyarrow as pa

from benchmarks.checked.work import Work, stream_name
from logstore.client.blocking import Client, parse_addresses
from logstore.client.wire import TopicPartition
from logstore.errors import CairnError
from spe_adapter.codec.encode import Columns
from spe_adapter.epochs.client import TaskAttempt, start_commit, take_over
from spe_adapter.epochs.segments import SegmentCutter

TOPIC = "results"
PARTITIONS = 3
EACH_S = 0.1
PAUSE_S = 0.3
STREAMS = [stream_name(TOPIC, partition) for partition in range(PARTITIONS)]


def commit_epochs(work: Work, chance: Random) -> None:
    """See the module."""
    query = work.new_name("query")
    while not work.ended.is_set():
        run = f"{chance.getrandbits(64):x}"
        try:
            with Client(parse_addresses(",".join(work.bootstrap))) as client:
                last = take_over(client, query, run)
                epoch = 0 if last is None else last + 1
                while not work.ended.wait(EACH_S):
                    _commit(work, client, query, run, epoch)
                    epoch += 1
        except (CairnError, OSError) as error:
            work.noted("runs of a query that were replaced", error)
            work.ended.wait(PAUSE_S)


def _commit(work: Work, client: Client, query: str, run: str, epoch: int) -> None:
    """Commit one epoch. Raises CairnError, OSError."""
    cutter = SegmentCutter()
    data = pa.array([f"{query}:{epoch}".encode()] * PARTITIONS, pa.binary())
    moments = np.full(PARTITIONS, time.time_ns() // 1_000_000, dtype=np.int64)
    places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    streams = np.arange(PARTITIONS, dtype=np.int32)
    segments = [*cutter.add_records(Columns(None, data, None, moments), streams, places), *cutter.rest()]
    call = work.recorder.begin("epoch", query, query=query, number=epoch, streams=STREAMS)
    try:
        start_commit(client, TaskAttempt(query, run, epoch, 0, "a"), segments, "").receive()
    except (CairnError, OSError) as error:
        call.failed(error)
        raise
    call.ok()
