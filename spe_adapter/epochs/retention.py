"""Topics that hold the state of queries must not trim themselves: a trim by age or size could cost open windows.

Invariant: a topic that this package's queries make keeps everything; trimming is left to the query.
"""

from collections.abc import Mapping
from typing import Final

KEEP_ALL: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings with which a topic for state is made."""
_UNLIMITED: Final = "-1"


def own_trimming(settings: Mapping[str, str]) -> str:
    """The settings by which a topic trims itself, for a message; "" if it keeps everything."""
    trims = {name: settings[name] for name in KEEP_ALL if settings.get(name, _UNLIMITED) != _UNLIMITED}
    return ", ".join(f"{name}={value}" for name, value in sorted(trims.items()))
