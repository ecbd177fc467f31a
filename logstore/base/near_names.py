"""What a name that nobody knows was probably meant to be. For messages to people; no I/O.

Invariant: a name is compared by its first MAX_COMPARED characters, so however long it is, that takes no time.
"""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

MAX_COMPARED: Final = 200


def near_name(stranger: str, known: Collection[str]) -> str | None:
    """The known name that is written nearly so; of several the nearest, None if there is none."""
    return next(iter(get_close_matches(stranger[:MAX_COMPARED], known, n=1)), None)


def instead_of(stranger: str, known: Collection[str]) -> str:
    """What to say behind the name of a setting, `name` or `table.name`, that is none of the known ones: the same name
    in the table that has it, or the name of its table, or the table, that is written nearly so; else all of these.
    """
    table, _, name = stranger.rpartition(".")
    tables = {each.rpartition(".")[0] for each in known} - {""}
    at_top = tables | {each for each in known if "." not in each}
    beside = {each.rpartition(".")[2]: each for each in known if each.startswith(f"{table or name}.")}
    beside = beside or {each: each for each in at_top}
    near = [each for each in sorted(known) if each.rpartition(".")[2] == name]
    nearly = near_name(name, sorted(beside))
    near = near if near or nearly is None else [beside[nearly]]
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(beside.values()))}"
