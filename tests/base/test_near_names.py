"""Names that nobody knows: what was meant, in no time."""

from __future__ import annotations

import pytest

from logstore.base.fields import suggestion
from logstore.base.near_names import MAX_COMPARED, instead_of, near_name
from logstore.errors import InvalidConfig
from spe_adapter.datasource.options import OptionReader

NAMES = ("name", "names")


def test_the_nearest_name() -> None:
    """One, or none."""
    assert near_name("nmae", NAMES) == "name"
    assert near_name("else", NAMES) is None
    assert near_name("name", ()) is None


def test_a_long_name_is_compared_by_its_beginning() -> None:
    """Wherever names are compared, for the time goes with the square of their length."""
    known = "n" * MAX_COMPARED
    long = known + "x" * 10_000
    assert near_name(long, [known]) == known
    assert suggestion(long, [known]) == f"did you mean {known!r}?"
    assert instead_of(f"log.{long}", [f"log.{known}"]) == f"did you mean log.{known}?"
    with pytest.raises(InvalidConfig, match="did you mean nnn"):
        OptionReader({long: "1"}).refuse_unknown(frozenset([known]), {}, "sink")
