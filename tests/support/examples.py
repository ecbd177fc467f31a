"""How many examples a property test tries: few in a short run, many in a long one.

Invariant: the number follows from the profile that tests/conftest.py loads, and from nothing else. A property that is
slow asks for fewer examples than the profile's default in the short run alone.
"""

from hypothesis import settings


def is_long() -> bool:
    """Whether the run was started with --long."""
    return settings.get_current_profile_name() == "long"


def examples(short: int, long: int | None = None) -> int:
    """`short` examples in a short run; `long` in a long run, or as many as its profile has."""
    if not is_long():
        return short
    return settings().max_examples if long is None else long
