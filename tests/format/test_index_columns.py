"""An index read column by column says the same as one read entry by entry."""

from hypothesis import given
from hypothesis import strategies as st

from logstore.format.index import (
    CONTROL_FLAG,
    TYPE_SHIFT,
    IndexBlock,
    IndexEntry,
    decode_blocks,
    decode_columns,
    encode_block,
)

NUMBERS = st.integers(0, 2**62)
ENTRIES = st.builds(
    IndexEntry,
    NUMBERS,
    st.integers(-1, 2**62),
    NUMBERS,
    st.integers(0, 2**32 - 1),
    st.just(0) | st.integers(0, 2**16 - 1).map(lambda kind: kind << TYPE_SHIFT | CONTROL_FLAG),
)
BLOCKS = st.lists(st.lists(ENTRIES, max_size=5), max_size=6)


@given(BLOCKS, st.integers(0, 400))
def test_columns_equal_entries(contents: list[list[IndexEntry]], cut: int) -> None:
    """For any blocks, and cut at any byte: the same entries, the same end, the same durable end."""
    blocks = [IndexBlock(number, number, number, entries) for number, entries in enumerate(contents)]
    data = b"".join(map(encode_block, blocks))
    data = data[: max(0, len(data) - cut)]
    read, end = decode_blocks(data)
    columns = decode_columns(data)
    entries = [entry for block in read for entry in block.entries]
    plain = [entry for entry in entries if not entry.flags & CONTROL_FLAG]
    control = [entry for entry in entries if entry.flags & CONTROL_FLAG]
    assert columns.end == end
    assert list(columns.offsets) == [entry.base_offset for entry in plain]
    assert list(columns.max_before) == [entry.max_timestamp_before for entry in plain]
    assert list(columns.positions) == [entry.position for entry in plain]
    assert list(columns.control_offsets) == [entry.base_offset for entry in control]
    assert list(columns.control_positions) == [entry.position for entry in control]
    assert list(columns.control_types) == [entry.control_type for entry in control]
    assert columns.durable_end == (read[-1].durable_end if read else 0)
    assert columns.is_sealed == (bool(read) and not read[-1].entries)
