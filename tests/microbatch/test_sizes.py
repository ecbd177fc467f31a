"""Options that are a number of bytes: what a value means, and what is refused."""

from __future__ import annotations

import pytest

from logstore.errors import InvalidConfig
from spe_adapter.datasource.options import OptionReader
from spe_adapter.microbatch.sizes import size_option


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4096", 4096), ("64k", 1 << 16), ("1M", 1 << 20), (" 2 GiB ", 2 << 30), ("3tb", 3 << 40), ("4k", 4096)],
)
def test_the_least_is_a_number_of_bytes(text: str, size_bytes: int) -> None:
    """A value with a unit is compared as the bytes that it means, not by its digits."""
    assert size_option(OptionReader({"size": text}), "size", 1, least=4096) == size_bytes


@pytest.mark.parametrize("text", ["4095", "3k", "0g", "-1", "1.5m", "much", "4096 k k"])
def test_what_is_too_little_or_no_size_is_refused(text: str) -> None:
    """The message has the option, its value and the least that is allowed."""
    with pytest.raises(InvalidConfig, match=f"'size' is '{text}'.*at least 4096 bytes"):
        size_option(OptionReader({"size": text}), "size", 1, least=4096)


def test_zero_is_taken_where_it_is_allowed() -> None:
    """And an option that is not given has its default, whatever the least is."""
    assert size_option(OptionReader({"size": "0m"}), "size", 1, least=0) == 0
    assert size_option(OptionReader({}), "size", 0) == 0
