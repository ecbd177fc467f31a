"""A chunk in the tier: what the log knows of it, the keys of its objects, and its entry in the ledger `tier`.

Invariants:
* The object of the batches has the chunk's bytes as they are, and the name that the chunk has on the disk.
* A key is never written twice: each attempt to store a chunk has a name of its own, which the entry says.
* An entry is decoded whole or not at all; the ledger that holds it has its checksum.

Byte tables in docs/format.md.
"""

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

from logstore.errors import CorruptFile, UnknownFormatVersion

VERSION = 1
LOG_SUFFIX, INDEX_SUFFIX, PRODUCERS_SUFFIX = ".log", ".index", ".producers"
_DIRECTORY = re.compile(r"(?P<base>\d{20})-(?P<attempt>[0-9a-f]{16})")


class StoredObject(NamedTuple):
    """Bytes of an object and their CRC-32C."""

    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class TieredChunk:
    """A sealed chunk whose objects were read back. Times in ms (`written_ms`: retention clock, -1 unknown)."""

    base_offset: int
    next_offset: int
    max_timestamp: int
    written_ms: int
    place: str
    """What the keys of its stream's objects start with: CLUSTER/TOPIC.ID/PARTITION."""
    attempt: str
    """16 hexadecimal digits that tell this attempt to store the chunk from all others."""
    log: StoredObject
    index: StoredObject
    producers: StoredObject | None = None
    leader_epoch: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return self.log.size_bytes

    @property
    def all_bytes(self) -> int:
        """Bytes of all its objects."""
        return self.log.size_bytes + self.index.size_bytes + (self.producers.size_bytes if self.producers else 0)

    def objects(self) -> dict[str, StoredObject]:
        """Its objects by the suffix of their keys, the batches last."""
        found = {INDEX_SUFFIX: self.index, LOG_SUFFIX: self.log}
        return found if self.producers is None else {PRODUCERS_SUFFIX: self.producers, **found}

    def key(self, suffix: str) -> str:
        """The key of one of its objects."""
        return object_key(self.place, self.base_offset, self.attempt, suffix)

    def all_keys(self) -> list[str]:
        """The keys of its objects, the batches last."""
        return [self.key(suffix) for suffix in self.objects()]

    @property
    def parsed(self) -> "ParsedKey":
        """What the keys of its objects have in common."""
        return ParsedKey(self.place, self.base_offset, self.attempt)


class ParsedKey(NamedTuple):
    """The parts of an object's key."""

    place: str
    base_offset: int
    attempt: str


def chunk_directory(place: str, base_offset: int, attempt: str) -> str:
    """What the keys of a chunk's objects start with."""
    return f"{place}/{base_offset:020d}-{attempt}"


def object_key(place: str, base_offset: int, attempt: str, suffix: str) -> str:
    """The key of one object."""
    return f"{chunk_directory(place, base_offset, attempt)}/{base_offset:020d}{suffix}"


def parse_key(key: str) -> ParsedKey | None:
    """The parts of a key, whatever the suffix of its last part; None if it is none of a chunk."""
    directory, _, name = key.rpartition("/")
    place, _, attempt = directory.rpartition("/")
    found = _DIRECTORY.fullmatch(attempt)
    if found is None or not place or not name.lstrip("_").startswith(found["base"]):
        return None
    return ParsedKey(place, int(found["base"]), found["attempt"])


def encode_entry(chunk: TieredChunk) -> bytes:
    """The value of a chunk's entry."""
    entry = {
        "v": VERSION,
        "next": chunk.next_offset,
        "newest": chunk.max_timestamp,
        "written": chunk.written_ms,
        "place": chunk.place,
        "attempt": chunk.attempt,
        "log": list(chunk.log),
        "index": list(chunk.index),
        "producers": None if chunk.producers is None else list(chunk.producers),
        "epoch": chunk.leader_epoch,
    }
    return json.dumps(entry, separators=(",", ":")).encode()


def decode_entry(base_offset: int, value: bytes, where: str) -> TieredChunk:
    """The chunk of an entry; `where` names the entry in errors. Raises CorruptFile, UnknownFormatVersion."""
    try:
        entry = json.loads(value)
        version = entry["v"]
        if version != VERSION:
            raise UnknownFormatVersion(f"{where}: version {version!r}; this Cairn knows {VERSION}")
        producers = entry["producers"]
        return TieredChunk(
            base_offset,
            int(entry["next"]),
            int(entry["newest"]),
            int(entry["written"]),
            str(entry["place"]),
            str(entry["attempt"]),
            _stored(entry["log"]),
            _stored(entry["index"]),
            None if producers is None else _stored(producers),
            int(entry["epoch"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptFile(
            f"{where}: {value[:200]!r} is not a chunk of the tier ({error!r}); restore the ledger"
        ) from error


def _stored(pair: list[int]) -> StoredObject:
    size_bytes, crc = pair
    return StoredObject(int(size_bytes), int(crc))
