"""What a user's operator gives, held against what it declared.

Invariant: what passes has the declared columns, and a window of the call for each result; what does not is refused with
a message that says what was given and what to give.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from spe_adapter.operators.base import Emitted, Results
from spe_adapter.operators.errors import BadResults
from spe_adapter.state import exact

_WANTED: Final = "give a pyarrow.RecordBatch with one row per window, Results(batch, window), or None"
_MILLISECOND: Final = pa.timestamp("ms")


def normal(emitted: Emitted, windows: int) -> Results | None:
    """The results of a call with `windows` windows, and each result's window. Raises BadResults, StateValueRefused."""
    if emitted is None:
        return None
    if isinstance(emitted, pa.RecordBatch):
        if emitted.num_rows != windows:
            raise BadResults(f"{emitted.num_rows} results for {windows} windows; give Results to say whose they are")
        return Results(emitted, np.arange(windows, dtype=np.int64))
    if not isinstance(emitted, Results):
        raise BadResults(f"a {exact.type_name(emitted)} came back; {_WANTED}")
    rows, window, times_ms = emitted
    if not isinstance(rows, pa.RecordBatch):
        raise BadResults(f"Results with a {exact.type_name(rows)}; {_WANTED}")
    if np.asarray(window).dtype == np.bool_:
        raise BadResults("Results(window=...) has booleans; give the index of each result's window")
    window, _ = exact.fixed("Results(window=...)", pa.int64(), window, None, rows.num_rows)
    outside = (window < 0) | (window >= windows)
    if outside.any():
        at = int(np.argmax(outside))
        raise BadResults(
            f"Results(window=...) has {int(window[at])} for result {at}; the call's windows are 0 to {windows - 1}; "
            "give the index of each result's window, such as rows.window of its row"
        )
    if times_ms is not None:
        times_ms, _ = exact.fixed("Results(times_ms=...)", _MILLISECOND, times_ms, None, rows.num_rows)
    return Results(rows, window, times_ms)


def check_columns(rows: pa.RecordBatch, declared: pa.Schema) -> None:
    """Raise BadResults for columns that are not the declared ones, by name, type, or nulls where there may be none."""
    if rows.schema.names != declared.names:
        raise BadResults(f"columns {', '.join(rows.schema.names)} came back; declared are {', '.join(declared.names)}")
    for column, field in zip(rows.columns, declared, strict=True):
        if column.type != field.type:
            raise BadResults(f"column {field.name!r} came back as {column.type}; declared is {field.type}")
        if column.null_count and not field.nullable:
            at = column.is_null().index(True).as_py()
            raise BadResults(f"column {field.name!r} is null in result {at}; it is declared as never null")
