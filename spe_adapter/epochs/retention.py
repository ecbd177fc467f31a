"""The retention of topics with state: none, as a trim by age or size could lose open windows.

Invariant: a topic that queries of this package create keeps all records; the query trims it.
"""

from collections.abc import Mapping
from typing import Final

KEEP_ALL: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of a topic that is created for state."""
_UNLIMITED: Final = "-1"


def own_trimming(settings: Mapping[str, str]) -> str:
    """The settings of a topic's retention, for a message; "" if it keeps all records."""
    trims = {name: settings[name] for name in KEEP_ALL if settings.get(name, _UNLIMITED) != _UNLIMITED}
    return ", ".join(f"{name}={value}" for name, value in sorted(trims.items()))
