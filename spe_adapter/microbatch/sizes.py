"""Options that are a number of bytes.

Invariant: a refused value is named, with what is allowed.
"""

import re
from typing import Final

from logstore.errors import InvalidConfig
from spe_adapter.datasource.options import OptionReader

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"\s*(\d{1,18})\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def size_option(reader: OptionReader, name: str, default_bytes: int, *, least: int = 1) -> int:
    """The value of an option in bytes, such as 4096, 64k or 2g; at least `least` bytes. Raises InvalidConfig."""
    text = reader.text(name)
    if text is None:
        return default_bytes
    match = _SIZE.fullmatch(text)
    size_bytes = None if match is None else int(match[1]) * _UNITS[match[2].lower()]
    if size_bytes is None or size_bytes < least:
        raise InvalidConfig(
            f"option {name!r} is {text!r}; allowed: a number of bytes, or one with k, m, g or t; at least {least} bytes"
        )
    return size_bytes
