"""How to get a package that an optional part of Cairn needs: the one place for that advice.

Invariant: the advice names a checkout, because on PyPI `cairn` is another project.
"""


def how_to_get(package: str | None, extra: str) -> str:
    """The package's name, and what installs it with the extra of Cairn that needs it."""
    return f"the package {package}: {how_to_install(extra)}"


def how_to_install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '.[{extra}]' in a checkout of Cairn"
