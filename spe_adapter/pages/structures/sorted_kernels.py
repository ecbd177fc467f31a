"""The compiled loops of sorted pages: locating, merging and removing records in pages that are ordered by two words.

Invariants:
* `leaves` and `starts` come from headers that were checked; `counts` and positions stay inside their page.
* A batch is sorted by its first two words, each pair of them once. Run r of a batch belongs to one page.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from spe_adapter.codec.kernels import Bools, Int64s, compiled
from spe_adapter.pages.structures.kernels import COUNT, DAMAGED, HEADER_WORDS, OK, START, Words


@compiled
def is_less(time: int, name: int, other_time: int, other_name: int) -> bool:
    """Whether a pair comes before another one."""
    return time < other_time or (time == other_time and name < other_name)


@compiled
def leaves_of(first_times: Int64s, first_names: Int64s, batch: Words, out: Int64s) -> None:
    """For each record of a sorted batch, the last page whose first record is not behind the record, or 0."""
    for item in range(batch.shape[0]):
        low, high = 0, first_times.shape[0]
        while low < high:
            middle = (low + high) >> 1
            if is_less(batch[item, 0], batch[item, 1], first_times[middle], first_names[middle]):
                high = middle
            else:
                low = middle + 1
        out[item] = low - 1 if low > 0 else 0


@compiled
def bounds(words: Int64s, base: int, page_words: int, width: int) -> tuple[int, int]:
    """Start and count of a sorted page, or (-1, -1) if they do not fit on the page."""
    capacity = (page_words - HEADER_WORDS) // width
    if base < 0 or base + page_words > words.shape[0]:
        return -1, -1
    start, count = words[base + START], words[base + COUNT]
    if start < 0 or count < 0 or start > capacity or count > capacity - start:
        return -1, -1
    return start, count


@compiled
def lower_bound(words: Int64s, at: int, count: int, width: int, time: int, name: int) -> int:
    """How many of `count` sorted records from word `at` on come before a pair."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if is_less(words[at + middle * width], words[at + middle * width + 1], time, name):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def locate(words: Int64s, leaves: Int64s, batch: Words, page_words: int, width: int, out: Int64s) -> int:
    """The word where the record with each pair begins, on the page given for the pair, or -1. OK or DAMAGED."""
    for item in range(batch.shape[0]):
        base = leaves[item] * page_words
        start, count = bounds(words, base, page_words, width)
        if start < 0:
            return DAMAGED
        at = base + HEADER_WORDS + start * width
        place = lower_bound(words, at, count, width, batch[item, 0], batch[item, 1])
        out[item] = -1
        if place < count:
            at += place * width
            if words[at] == batch[item, 0] and words[at + 1] == batch[item, 1]:
                out[item] = at
    return OK


@compiled
def merge_runs(words: Int64s, leaves: Int64s, ends: Int64s, batch: Words, page_words: int, merged: Bools) -> int:
    """Merge run r of a batch (up to `ends[r]`), whose pairs are new, into page `leaves[r]`; OK or DAMAGED.

    `merged[r]` says whether there was room; if not, nothing of the run was stored.
    """
    width = batch.shape[1]
    capacity = (page_words - HEADER_WORDS) // width
    begin = 0
    for run in range(leaves.shape[0]):
        base = leaves[run] * page_words
        start, count = bounds(words, base, page_words, width)
        if start < 0:
            return DAMAGED
        end = ends[run]
        more = end - begin
        merged[run] = count + more <= capacity
        if not merged[run]:
            begin = end
            continue
        first = base + HEADER_WORDS
        if start + count + more > capacity:
            for word in range(count * width):
                words[first + word] = words[first + start * width + word]
            words[base + START] = start = 0
        at = first + start * width
        old, new, target = count - 1, end - 1, count + more - 1
        while new >= begin:
            source = at + old * width
            behind = old >= 0 and is_less(batch[new, 0], batch[new, 1], words[source], words[source + 1])
            for word in range(width):
                words[at + target * width + word] = words[source + word] if behind else batch[new, word]
            if behind:
                old -= 1
            else:
                new -= 1
            target -= 1
        words[base + COUNT] = count + more
        begin = end
    return OK


@compiled
def merge_sorted(left: Words, right: Words, out: Words) -> None:
    """Merge two sorted arrays of records without common pairs into one, which has room for both."""
    width = out.shape[1]
    first, second = 0, 0
    for item in range(out.shape[0]):
        takes_left = second == right.shape[0] or (
            first < left.shape[0] and is_less(left[first, 0], left[first, 1], right[second, 0], right[second, 1])
        )
        for word in range(width):
            out[item, word] = left[first, word] if takes_left else right[second, word]
        if takes_left:
            first += 1
        else:
            second += 1


@compiled
def remove_runs(words: Int64s, leaves: Int64s, ends: Int64s, addresses: Int64s, page_words: int, width: int) -> int:
    """Remove the records that begin at `addresses` (ascending), run r of them from page `leaves[r]`; OK or DAMAGED."""
    begin = 0
    for run in range(leaves.shape[0]):
        base = leaves[run] * page_words
        start, count = bounds(words, base, page_words, width)
        if start < 0:
            return DAMAGED
        at = base + HEADER_WORDS + start * width
        target = addresses[begin]
        if target < at or addresses[ends[run] - 1] >= at + count * width:
            return DAMAGED
        source = target
        for item in range(begin, ends[run]):
            source = addresses[item] + width
            behind = addresses[item + 1] if item + 1 < ends[run] else at + count * width
            for word in range(source, behind):
                words[target] = words[word]
                target += 1
        words[base + COUNT] = count - (ends[run] - begin)
        begin = ends[run]
    return OK
