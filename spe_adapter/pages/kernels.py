"""The compiled loops of pages: a memory fence, and the pages that hold given rows.

Invariants:
* Loops check each index against the array that it leads into.
* Types are fixed (int64), so that each function compiles once; the result is cached on disk.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value,no-untyped-def,no-untyped-call,misc"

from typing import Any

from numba import types
from numba.extending import intrinsic

from spe_adapter.codec.kernels import Bytes, Int64s, compiled


@intrinsic
def _fence(_typing_context: Any) -> Any:
    """A full memory fence, as one instruction."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@compiled
def fence() -> None:
    """Order memory: every store and load before it comes before every store and load after it, for all processors."""
    _fence()


@compiled
def mark_groups(rows: Int64s, shift: int, groups: Bytes) -> bool:
    """Set `groups[row >> shift]` for each row; False if a row lies outside."""
    for item in range(rows.shape[0]):
        group = rows[item] >> shift
        if group < 0 or group >= groups.shape[0]:
            return False
        groups[group] = 1
    return True


@compiled
def pages_of_groups(groups: Bytes, shift: int, starts: Int64s, widths: Int64s, page_shift: int, pages: Bytes) -> bool:
    """Set `pages[page]` for each page that holds a row of a marked group in one of several arrays, and clear `groups`.

    Array a begins at byte `starts[a]`, its rows are `widths[a]` bytes wide; a group is `1 << shift` rows.
    """
    for group in range(groups.shape[0]):
        if groups[group] == 0:
            continue
        groups[group] = 0
        for array in range(starts.shape[0]):
            first = (starts[array] + (group << shift) * widths[array]) >> page_shift
            last = (starts[array] + ((group + 1) << shift) * widths[array] - 1) >> page_shift
            if first < 0:
                return False
            for page in range(first, min(last, pages.shape[0] - 1) + 1):
                pages[page] = 1
    return True
