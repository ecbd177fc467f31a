"""Measures the costs of checks, reconstruction and replay on this platform, for the cost-benefit policy.

Invariants:
* The clock and the writer to stable storage are arguments.
* The measured functions are those of the product, on the caller's rows: encoding of footprints (without the gathering
  from a table), decoding with identities (without the loading of a table), one call of `write`.
* The fastest of several rounds counts, since a disturbance only makes a round slower.

Source: CEC paper, section III.A ("one needs to calibrate it for a given platform by including a number of
empirically-measured parameters").
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidConfig
from spe_adapter.cec.control import Footprints, Mark, decode, encode_footprints, encode_mark
from spe_adapter.cec.identities import Identities
from spe_adapter.cec.policy import Costs

ROUNDS: Final = 5
_QUERY: Final = "calibration"

Seconds = Callable[[], float]
"""A monotonic clock, in seconds."""
Write = Callable[[bytes], None]
"""A function that writes bytes to stable storage."""


def calibrate(rows: pa.RecordBatch, *, clock: Seconds, write: Write, record_s: float, rounds: int = ROUNDS) -> Costs:
    """The platform's costs for windows like `rows` (see `control.Footprints`; distinct identities, some thousands).

    `record_s` is the operator's processor time for one input record, which only its runner can measure. The time that
    `write` takes for a mark alone is paid in every epoch, so it does not count as a cost of a check. Raises
    InvalidConfig, and the errors of `write`.
    """
    if not rows.num_rows or rounds < 1:
        raise InvalidConfig(f"{rows.num_rows} rows in {rounds} rounds: nothing to measure")
    opened = np.zeros(rows.num_rows, np.bool_)
    batches = list(encode_footprints(_QUERY, 0, rows, opened, 0))
    size_bytes = sum(map(len, batches))
    mark = encode_mark(_mark(rows.num_rows), 0)

    def encode() -> None:
        for _ in encode_footprints(_QUERY, 0, rows, opened, 0):
            pass

    def reconstruct() -> None:
        identities = Identities(rows.num_rows, seed=0)
        for batch in batches:
            record = decode(batch)
            if isinstance(record, Footprints):
                identities.add(record.rows.column(0), record.rows.column(1).to_numpy())

    def write_state() -> None:
        write(b"".join((*batches, mark)))

    def write_mark() -> None:
        write(mark)

    encode_s, reconstruct_s, state_s, mark_s = (
        _fastest(step, clock, rounds) for step in (encode, reconstruct, write_state, write_mark)
    )
    return Costs(
        footprint_s=encode_s / rows.num_rows,
        footprint_bytes=size_bytes / rows.num_rows,
        byte_s=max(state_s - mark_s, 0.0) / size_bytes,
        tuple_s=reconstruct_s / rows.num_rows,
        record_s=record_s,
    )


def _fastest(step: Callable[[], None], clock: Seconds, rounds: int) -> float:
    """Seconds of the fastest round. A call before the rounds loads compiled code."""
    step()
    times = []
    for _ in range(rounds):
        started = clock()
        step()
        times.append(clock() - started)
    return min(times)


def _mark(open_windows: int) -> Mark:
    return Mark(
        query=_QUERY,
        epoch=0,
        attempt="",
        partition=0,
        partitions=1,
        layout=0,
        operator="",
        open_windows=open_windows,
        emitted=open_windows,
        seen=0,
        sequence=0,
        max_event_ms=None,
        watermark_ms=0,
        oldest_epoch=0,
    )
