"""The compiled loops of pages: a memory fence, the pages and the words that hold given rows, and which pages are held.

Invariants:
* Loops check each index against the array that it leads into.
* Types are fixed (int64), so that each function compiles once; the result is cached on disk.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value,no-untyped-def,no-untyped-call,misc"

from functools import cache
from typing import Any

import numpy as np
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


@compiled
def mark_held(
    numbers: Int64s, hold: Int64s, done: Int64s, mark: Int64s, slot_bits: int, freeze: int, held: Bytes
) -> int:
    """Set `held[page]` for each page of `numbers` that must be kept for a freeze before it changes (`page_table`); how
    many, -1 if a page lies outside.
    """
    count = 0
    pages = min(hold.shape[0], done.shape[0], mark.shape[0], held.shape[0])
    for item in range(numbers.shape[0]):
        page = numbers[item]
        if page < 0 or page >= pages:
            return -1
        if hold[page] == freeze and done[page] != freeze and mark[page] >> slot_bits != freeze:
            held[page] = 1
            count += 1
    return count


@compiled
def words_of_rows(
    rows: Int64s, starts: Int64s, widths: Int64s, word_shift: int, page_shift: int, pages: Bytes, words: Int64s
) -> int:
    """The words that hold rows of several arrays and lie in pages whose byte in `pages` is not 0, into the beginning of
    `words`; how many. `page_shift` leads from words to pages. -1 if a page lies outside or `words` is too short.

    Array a begins at byte `starts[a]`, its rows are `widths[a]` bytes wide, a word at most.
    """
    count = 0
    for array in range(starts.shape[0]):
        for item in range(rows.shape[0]):
            word = (starts[array] + rows[item] * widths[array]) >> word_shift
            page = word >> page_shift
            if page < 0 or page >= pages.shape[0] or count >= words.shape[0]:
                return -1
            if pages[page] != 0:
                words[count] = word
                count += 1
    return count


@cache
def load_loops() -> None:
    """Load, or compile, what only a change of frozen pages calls: the first change would wait for it."""
    words, flags = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    fence()
    mark_held(words, words, words, words, 0, 1, flags)
    words_of_rows(words, words, words, 0, 0, flags, words)
