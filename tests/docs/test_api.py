"""docs/api.md lists the public names with their signatures and what they promise, as the code has them.

`python -m tests.docs.test_api` writes the page.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import spe_adapter

PAGE = Path(__file__).resolve().parents[2] / "docs/api.md"
HEAD = """# The library's names

All of them come from `spe_adapter`, which loads what is asked for and nothing else:
`from spe_adapter import Aggregate, agg, stateful`. The guide is [spark.md](spark.md). This page is made from the code
by `python -m tests.docs.test_api`.
"""
HIDDEN_METHODS = frozenset(("part", "commit", "open_until", "remove_due", "drop", "by_id"))
"""Of State and of named states, for the Processor alone."""


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    for group, names in spe_adapter.PUBLIC.items():
        parts.append(f"\n## {group}\n")
        parts += [described(name, getattr(spe_adapter, name), 3) for name in names]
    return "".join(parts)


def described(name: str, thing: object, level: int) -> str:
    """A heading, the signature, the docstring; a class's own public methods and a module's functions below it."""
    text = f"\n{'#' * level} `{name}`\n"
    if callable(thing):
        text += f"\n```text\n{name}{signature(thing)}\n```\n"
    text += f"\n```text\n{inspect.getdoc(thing)}\n```\n"
    if inspect.ismodule(thing):
        owned = [(n, m) for n, m in vars(thing).items() if inspect.isfunction(m) and m.__module__ == thing.__name__]
        return text + "".join(one_line(n, m) for n, m in owned if not n.startswith("_") and n[0].islower())
    if inspect.isclass(thing):
        members = [(n, m) for n, m in vars(thing).items() if not n.startswith("_") and n not in HIDDEN_METHODS]
        text += "".join(one_line(n, m) for n, m in members if inspect.isfunction(m) or isinstance(m, property))
    return text


def one_line(name: str, member: object) -> str:
    """A method, function or property in a list."""
    shown = "" if isinstance(member, property) else signature(member)
    return f"* `{name}{shown}`: {' '.join((inspect.getdoc(member) or '').split())}\n"


def signature(thing: object) -> str:
    """A signature without `self`, as it is written."""
    try:
        found = inspect.signature(thing)  # type: ignore[arg-type]
    except ValueError:
        return "(…)"
    parameters = [parameter for name, parameter in found.parameters.items() if name != "self"]
    text = str(found.replace(parameters=parameters)).replace("spe_adapter.", "").replace("'", "")
    text = text.replace("pathlib._local.", "pathlib.")  # where Python 3.13 keeps the class
    # Newer versions of numpy spell the alias out as its own name, older ones as what it stands for.
    text = re.sub(r"numpy\.ndarray\[tuple\[typing\.Any, \.\.\.\], numpy\.dtype\[([\w.]+)\]\]", r"NDArray[\1]", text)
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text)


def test_the_page_is_what_the_code_says() -> None:
    """Nobody edits it by hand."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_name_can_be_imported_and_is_documented() -> None:
    """`from spe_adapter import NAME` works for all of them, and each says what it is."""
    for names in spe_adapter.PUBLIC.values():
        for name in names:
            assert inspect.getdoc(getattr(spe_adapter, name)), name


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
