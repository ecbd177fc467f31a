"""How the coordinator's keys and values lie in the metadata store of a cluster, as pure functions.

| key | value |
|---|---|
| `coordinator/leader`, under the leader's lease | `StoredLeader` of `logstore.base.metadata.schema` |
| `coordinator/head` | `StoredPlanHead` of the same: how often was written, and the pieces of the batch to finish |
| `coordinator/state/KEY` | an entry: checksum, and its text or the number of its pieces |
| `coordinator/state/KEY#0000` and so on | the pieces of a text that is too long for a value |
| `coordinator/batch/000000` and so on | the pieces of a batch that is too large for a transaction |

An entry's value is the CRC-32 of key and text as 8 hexadecimal digits; where KEY is not the key itself, `@`, the key as
JSON and a line feed; then `=` and the text, or `#` and the number of pieces. A part of a key (between `/`) that is
longer than MAX_PART_CHARACTERS, or has other characters than visible ASCII, is `=` and its SHA-256.

Invariants:
* Every change lies in a transaction that any metadata store takes, with room for the head; no two changes of a
  transaction concern the same key. Changes keep their order.
* A text of an entry that is replaced by a shorter one leaves pieces behind; they count no more, and go with the prefix.
* A damaged, missing or foreign entry or piece is StoreDamaged, and named.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final
from zlib import crc32

from logstore.base.metadata.interface import MAX_CHANGES, MAX_TRANSACTION_BYTES, DeletePrefix, Put
from logstore.base.metadata.schema import COORDINATOR_BATCH, COORDINATOR_STATE
from scheduler.coordinator.errors import StoreDamaged
from scheduler.coordinator.metadata.interface import Change, RemovePrefix, SetValue

PIECE_BYTES: Final = 60 << 10
"""Of a text or a batch; a value has 64 KiB at most."""
MAX_PART_CHARACTERS: Final = 200
BESIDE: Final = 2
"""Changes that a transaction has besides: the head, and the removal of a batch."""
BESIDE_BYTES: Final = 1 << 10
_PLAIN: Final = re.compile(r"[!\"$-<>-~][!\"$-~]*")
"""A part of a key that stands as it is: neither `#` nor, in front, `=`."""
Piece = Put | DeletePrefix


def stored_key(key: str) -> str:
    """Where an entry lies; also of a prefix that ends in `/`."""
    return COORDINATOR_STATE + "/".join(_part(part) for part in key.split("/"))


def _part(part: str) -> str:
    if not part or (len(part) <= MAX_PART_CHARACTERS and _PLAIN.fullmatch(part)):
        return part
    return f"={sha256(part.encode()).hexdigest()}"


def puts(change: SetValue) -> list[Put]:
    """What stores an entry."""
    key = stored_key(change.key)
    text = change.value.encode()
    named = "" if key == COORDINATOR_STATE + change.key else f"@{json.dumps(change.key)}\n"
    front = f"{_crc(change.key, text):08x}{named}".encode()
    if len(front) + len(text) < PIECE_BYTES:
        return [Put(key, front + b"=" + text)]
    pieces = _cut(text)
    return [
        Put(key, front + b"#%d" % len(pieces)),
        *(Put(f"{key}#{number:04d}", piece) for number, piece in enumerate(pieces)),
    ]


def entries(stored: Mapping[str, bytes]) -> dict[str, str]:
    """The keys and texts of all that lies below COORDINATOR_STATE. Raises StoreDamaged."""
    found: dict[str, str] = {}
    for place, value in stored.items():
        if "#" not in place:
            try:
                key, text = _entry(place, value, stored)
            except ValueError as error:
                raise StoreDamaged(
                    f"stored entry {place!r} is damaged ({error}): restore the metadata store"
                ) from error
            found[key] = text
    return found


def _entry(place: str, value: bytes, stored: Mapping[str, bytes]) -> tuple[str, str]:
    """Raises ValueError."""
    checksum, rest = int(value[:8], 16), value[8:]
    key = place.removeprefix(COORDINATOR_STATE)
    if rest.startswith(b"@"):
        name, _, rest = rest[1:].partition(b"\n")
        key = str(json.loads(name))
    if rest.startswith(b"="):
        text = rest[1:]
    elif rest.startswith(b"#"):
        names = [f"{place}#{number:04d}" for number in range(int(rest[1:]))]
        missing = [name for name in names if name not in stored]
        if missing:
            raise ValueError(f"{missing[0]!r} is missing")
        text = b"".join(stored[name] for name in names)
    else:
        raise ValueError("its form is not known; a newer Cairn may have written it")
    if _crc(key, text) != checksum:
        raise ValueError("its checksum does not fit")
    return key, text.decode()


def transactions(changes: Iterable[Change]) -> list[list[Piece]]:
    """The changes in their order, cut into as few transactions as that allows."""
    found: list[list[Piece]] = []
    current = _TransactionPart()
    for change in changes:
        pieces = [DeletePrefix(stored_key(change.prefix))] if isinstance(change, RemovePrefix) else puts(change)
        for piece in pieces:
            if not current.takes(piece):
                found.append(current.pieces)
                current = _TransactionPart()
            current.add(piece)
    return [*found, current.pieces] if current.pieces else found


class _TransactionPart:
    """The changes of a transaction."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._bytes = BESIDE_BYTES
        self._keys: set[str] = set()
        """Keys that are put and prefixes that are removed, with all prefixes above them."""
        self._prefixes: set[str] = set()

    def takes(self, piece: Piece) -> bool:
        """Whether a change has room, and concerns nothing that another one does."""
        if len(self.pieces) >= MAX_CHANGES - BESIDE or self._bytes + _bytes(piece) > MAX_TRANSACTION_BYTES:
            return False
        name = _name(piece)
        return name not in self._keys and self._prefixes.isdisjoint(_above(name))

    def add(self, piece: Piece) -> None:
        """Add a change that it takes."""
        name = _name(piece)
        self.pieces.append(piece)
        self._bytes += _bytes(piece)
        self._keys.add(name)
        self._keys.update(_above(name))
        if isinstance(piece, DeletePrefix):
            self._prefixes.add(name)


def _name(piece: Piece) -> str:
    return piece.key if isinstance(piece, Put) else piece.prefix


def _above(name: str) -> Iterator[str]:
    """All prefixes of a name that end in `/`, itself among them if it does."""
    for match in re.finditer("/", name):
        yield name[: match.end()]


def _bytes(piece: Piece) -> int:
    return len(piece.key) + len(piece.value) if isinstance(piece, Put) else len(piece.prefix)


# ---- batches


def batch_pieces(changes: Sequence[Change]) -> list[Put]:
    """A batch, in pieces that are put before any of its changes is made."""
    listed = [[change.prefix] if isinstance(change, RemovePrefix) else [change.key, change.value] for change in changes]
    text = json.dumps(listed, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    return [Put(f"{COORDINATOR_BATCH}{number:06d}", piece) for number, piece in enumerate(_cut(text))]


def batch_of(stored: Mapping[str, bytes], pieces: int) -> list[Change]:
    """The changes of a batch in this number of pieces. Raises StoreDamaged."""
    try:
        text = b"".join(stored[f"{COORDINATOR_BATCH}{number:06d}"] for number in range(pieces))
        return [RemovePrefix(*one) if len(one) == 1 else SetValue(*one) for one in json.loads(text)]
    except (KeyError, ValueError, TypeError) as error:
        raise StoreDamaged(
            f"the stored batch of {pieces} pieces below {COORDINATOR_BATCH!r} is damaged ({error!r}): restore the "
            "metadata store"
        ) from error


def grouped(pieces: Sequence[Put]) -> Iterator[list[Piece]]:
    """Pieces of a batch, as many in a transaction as it takes."""
    current = _TransactionPart()
    for piece in pieces:
        if not current.takes(piece):
            yield current.pieces
            current = _TransactionPart()
        current.add(piece)
    yield current.pieces


def _cut(text: bytes) -> list[bytes]:
    return [text[begin : begin + PIECE_BYTES] for begin in range(0, len(text), PIECE_BYTES)]


def _crc(key: str, text: bytes) -> int:
    return crc32(key.encode() + b"\0" + text)
