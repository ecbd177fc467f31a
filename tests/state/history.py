"""A history with many windows, the same in every process that asks for it."""

from functools import cache

from spe_adapter.state.versions import Tag
from tests.state.conftest import History, Step, Windows


def many(first: int, count: int, text: str) -> Windows:
    """Windows with keys and values of several lengths."""
    return {
        (b"key %d" % index * (1 + index % 3), index % 5): (index, text * (index % 4)) for index in range(first, count)
    }


@cache
def big_history(count: int) -> History:
    """Versions in which windows open, change, shrink, grow and close."""
    first, second = many(0, count, "ab"), many(count // 2, count + count // 4, "longer")
    third = many(count // 4, count, "x")
    return History(
        [
            Step(Tag(2, "0"), first),
            Step(Tag(4, "0"), second, tuple(list(first)[: count // 4])),
            Step(Tag(6, "0"), third, tuple(list(second)[-count // 8 :])),
        ]
    )
