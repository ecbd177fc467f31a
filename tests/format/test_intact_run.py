"""A run of batches is checked as each of them is checked by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptBatch, UnsupportedBatchFormat
from logstore.format.batch import LEADER_EPOCH, check_batch, intact_run, patch_base
from logstore.format.records import Record, encode_batch

KINDS = st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=6)
"""Records of each batch, and whether it is a control batch."""


def step_by_step(whole: memoryview, end: int, base_offset: int, end_offset: int, most: int) -> tuple[int, int, int]:
    """What `intact_run` promises, with the checks of a single batch."""
    at = number = 0
    while at < end and number < most:
        try:
            header = check_batch(whole[:end], at)
        except (CorruptBatch, UnsupportedBatchFormat):
            break
        in_place = header.base_offset == base_offset and header.partition_leader_epoch == LEADER_EPOCH
        if not in_place or header.is_control or header.next_offset > end_offset:
            break
        at, base_offset, number = at + header.size_bytes, header.next_offset, number + 1
    return at, base_offset, number


@given(kinds=KINDS, data=st.data())
def test_a_run_ends_where_a_single_check_would_end_it(kinds: list[tuple[int, bool]], data: st.DataObject) -> None:
    """At damage in any byte, at a control batch, at a batch out of its place, at the given end, offset and number of
    batches.
    """
    whole = bytearray()
    offset = first = data.draw(st.integers(0, 1 << 40))
    for count, control in kinds:
        records = [Record(0, 1, None, b"value") for _ in range(count)]
        batch = encode_batch(records, control=control)
        patch_base(batch, 0, offset, LEADER_EPOCH)
        whole += batch
        offset += count
    for _ in range(data.draw(st.integers(0, 2))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    end = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    end_offset = data.draw(st.integers(first, offset) | st.just(offset))
    most = data.draw(st.integers(0, len(kinds)))
    view = memoryview(whole)
    assert intact_run(view, 0, end, first, end_offset, most) == step_by_step(view, end, first, end_offset, most)
