"""A history with many windows, the same in every process that asks for it."""

from functools import cache

from spe_adapter.state.segment import Tag
from tests.state.conftest import History, Step, Windows


def many(first: int, count: int, text: str) -> Windows:
    """Windows with keys and values of several lengths."""
    return {
        (b"key %d" % index * (1 + index % 3), index % 5): (index, text * (index % 4)) for index in range(first, count)
    }


@cache
def long_history(count: int, versions: int) -> History:
    """Versions of about the same size: each changes a third of the windows, opens some and closes some."""
    steps = [Step(Tag(0, "0"), many(0, count, "four"))]
    for version in range(1, versions):
        changed = many(version * count // 10, version * count // 10 + count, "four" if version % 2 else "longer")
        kept = {identity: value for index, (identity, value) in enumerate(changed.items()) if index % 3 == version % 3}
        old = many((version - 2) * count // 10, (version - 1) * count // 10, "") if version > 1 else {}
        steps.append(Step(Tag(version, str(version % 2)), kept, tuple(old.keys() - kept.keys())))
    return History(steps)


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
