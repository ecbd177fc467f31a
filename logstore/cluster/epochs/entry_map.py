"""The entries of a replicated ledger in memory: a map from text to bytes that is walked in parts.

Invariants:
* Entries of other kinds are not walked: the kind of a key is what it has up to its first slash. There are few kinds.
* A step of a walk takes the keys of one part, a PARTS-th of a kind: of a million entries, a millisecond. The map may
  change between two steps, and between two entries that are given: an entry is given as it is then, if it is there.
* The same entries are walked in the same order in every process.
"""

from collections.abc import Iterator
from typing import Final
from zlib import crc32

PARTS: Final = 64


class EntryMap:
    """See the module."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[dict[str, bytes]]] = {}

    def _part(self, key: str) -> dict[str, bytes]:
        kind = key[: key.find("/") + 1]
        parts = self._kinds.get(kind)
        if parts is None:
            parts = self._kinds[kind] = [{} for _ in range(PARTS)]
        return parts[crc32(key.encode()) % PARTS]

    def get(self, key: str) -> bytes | None:
        """The value of a key; None: it has none."""
        return self._part(key).get(key)

    def set(self, key: str, value: bytes | None) -> int:
        """Set or (None) remove an entry; returns by how many bytes of keys and values the map has grown."""
        part = self._part(key)
        before = part.pop(key, None) if value is None else part.get(key)
        if value is not None:
            part[key] = value
        return (0 if value is None else len(key) + len(value)) - (0 if before is None else len(key) + len(before))

    def key_parts(self) -> Iterator[tuple[str, ...]]:
        """All keys, by parts; those of a part are as they are when the part is given."""
        for parts in list(self._kinds.values()):
            for part in parts:
                yield tuple(part)

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """All entries under a prefix."""
        kind = prefix[: prefix.find("/") + 1]
        for name in [kind] if kind else [each for each in self._kinds if each.startswith(prefix) or not each]:
            for part in self._kinds.get(name, ()):
                for key in tuple(part):
                    value = part.get(key)
                    if value is not None and key.startswith(prefix):
                        yield key, value
