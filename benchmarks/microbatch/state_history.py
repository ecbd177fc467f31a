"""How much of a stateful query's log stays with `stateHistory` = recovery, in bytes per day.

A query over few keys and many small epochs: windows of event time whose results are written once, and a footprint of
every changed window in every epoch. The real driver and tasks run without Spark against a real sidecar. With `all` the
log keeps every byte that was written; with `recovery` what is left of the chunks that were cleaned. Both come from one
run, as cleaning says what it freed.

    python -m benchmarks.microbatch.state_history [--epochs 1100]
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from threading import Event

import numpy as np

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from spe_adapter import agg
from spe_adapter.epochs.scan import ends
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Tumbling
from tests.microbatch.below import PARTITIONS, Query
from tests.microbatch.operators import Row
from tests.support.sidecar import Sidecar

KEYS, ROWS, WINDOW_S = 8_000, 4_000, 100
"""Keys, rows of an epoch, and the length of a window; an epoch is a second of event time."""
EPOCHS_PER_DAY = 86_400
SETTLED_S = 6
_CLEANED = re.compile(r"event=chunk_cleaned stream=(\S+) first=(\d+) last=(\d+) freed_bytes=(\d+)")


def measure(directory: Path, epochs: int) -> None:
    """Run the query, wait until nothing is cleaned any more, and print the figures."""
    random = np.random.default_rng(1)
    with (
        Sidecar(directory / "data", "--retention-check-interval-ms", "500") as sidecar,
        Client(parse_addresses(sidecar.address)) as client,
    ):
        client.create_topic("out", PARTITIONS, {"retention.ms": "-1", "segment.bytes": str(1 << 20)})
        query = Query(sidecar.address, "out", directory)
        query.operator = Aggregate(
            Tumbling(f"{WINDOW_S} seconds", time="ts", delay="1 second"), total=agg.sum("amount")
        )
        query.rows = [
            Row(f"key-{key}", epoch * 1000, 1)
            for epoch in range(epochs)
            for key in random.integers(0, KEYS, ROWS).tolist()
        ]
        query.run(rows_per_batch=ROWS, stateHistory="recovery")
        known = -1
        while known != len(_CLEANED.findall(sidecar.log())):
            known = len(_CLEANED.findall(sidecar.log()))
            Event().wait(SETTLED_S)
        written = left = covered = 0
        for name, first, last, freed in _CLEANED.findall(sidecar.log()):
            stream = TopicPartition("out", int(name.rpartition("-")[2]))
            (chunk,) = (directory / "data/streams").glob(f"out.*/{stream.partition}/{int(first):020d}.log")
            left += chunk.stat().st_size
            written += chunk.stat().st_size + int(freed)
            covered += sum(int(first) < end <= int(last) + 1 for _, end in ends(client, stream))
    print(f"{epochs} epochs; {known} cleaned chunks with {covered} groups of {PARTITIONS} partitions")
    for value, size in (("all", written), ("recovery", left)):
        per_epoch = size / covered * PARTITIONS
        print(f"{value}: {per_epoch / 1e3:.1f} KB per epoch, {per_epoch * EPOCHS_PER_DAY / 1e9:.2f} GB per day")
    print("(an epoch per second; besides, the newest chunks and what a recovery needs stay)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1100)
    with tempfile.TemporaryDirectory() as root:
        measure(Path(root), parser.parse_args().epochs)
