"""What a name that nobody knows was probably meant to be. For messages to people; no I/O."""

from collections.abc import Collection
from difflib import get_close_matches


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
    near = near or [beside[each] for each in get_close_matches(name, sorted(beside), n=1)]
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(beside.values()))}"
