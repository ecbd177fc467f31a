"""Runs each compiled loop that a task needs once, on a few records, so that its code is in memory. The import
of this module does so, in the daemon that forks Spark's workers (see `spe_adapter.daemon`).

Invariant: no effect outside this process, and no thread is started.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from spe_adapter.codec.decode import Decoder, scan
from spe_adapter.codec.encode import Columns, encode
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Running, Tumbling
from spe_adapter.testing import OperatorHarness

_SCHEMA: Final = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC")), ("x", pa.float64())])
_HOUR_US: Final = 3_600_000_000


def warm() -> None:
    """Pass records through the codec and rows through two operators, encode results as JSON, and recover the state."""
    keys = pa.array([b"a", None], pa.binary())
    columns = Columns(keys, keys, None, np.zeros(len(keys), np.int64))
    written, _ = encode(columns, partitions_of(keys, len(keys), 1, 0))
    list(Decoder("", 0, with_headers=False).decode(written, scan(written, 0), 0, len(keys)))
    every = {"n": agg.count(), "mean": agg.avg("x"), "total": agg.sum("x"), "most": agg.max("x")}
    for window in (Running(), Tumbling("1 hour", time="at")):
        harness = OperatorHarness(Aggregate(window, **every), key="key", schema=_SCHEMA)
        for hour in range(2):
            harness.send([{"key": key, "at": hour * _HOUR_US, "x": x} for key, x in (("a", 1.5), (None, None))])
        harness.records()
        harness.crash_and_recover()


warm()
