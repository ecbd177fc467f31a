"""Reading the journal: at a start, what its files hold for each stream and ledger; in a life, for one stream.

Invariants: nothing here writes to the journal. Parts are in the order in which they were acknowledged. Damage to
durable blocks is reported, and what is behind it still counts.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from logstore.base.events import Report
from logstore.errors import CorruptFile
from logstore.events import JOURNAL_DAMAGED
from logstore.format.journal_block import LEDGER_PREFIX, JournalPart, begins_with_another_key, scan_blocks
from logstore.format.ledger_frame import decode_changes
from logstore.interfaces import FileSystem
from logstore.log.data_directory import IDENTITY_FILE
from logstore.log.journal import DIRECTORY, SUFFIX
from logstore.log.ledger import Ledger, LedgerChanges

Decided = Callable[[Ledger, Sequence[LedgerChanges]], LedgerChanges]
"""What a ledger gets of the changes that the journal has for it, in their order."""


def nothing_decided(ledger: Ledger, journaled: Sequence[LedgerChanges]) -> LedgerChanges:
    """Where nobody understands a ledger's changes, the journal must not have any. Raises CorruptFile."""
    if journaled:
        raise CorruptFile(f"the journal has changes of the ledger {ledger.name!r}, which this version does not know")
    return {}


class JournalContent(NamedTuple):
    """What a former life left: parts by the stream's directory (or `ledger/` and a ledger's name), the files, the
    highest serial and generation, and path and position of each block that was durable and is damaged.
    """

    parts: dict[str, list[JournalPart]]
    paths: list[str]
    serial: int
    generation: int
    damaged: list[tuple[str, int]]

    def changes_of(self, ledger: str) -> list[dict[str, bytes | None]]:
        """The changes of a ledger, those of each block for themselves, in order. Raises CorruptFile."""
        found = []
        for part in self.parts.get(f"{LEDGER_PREFIX}{ledger}", ()):
            changes = decode_changes(bytes(part.data))
            if changes is None:
                raise CorruptFile(
                    f"{DIRECTORY}: a block's changes of the ledger {ledger!r} cannot be read; report this"
                )
            found.append(changes)
        return found


def read_journal(fs: FileSystem, key: bytes | None, report: Report) -> JournalContent:
    """Everything in the journal's files, by the data directory's key (None: by any).

    Raises CorruptFile if a file was written with another key, UnknownFormatVersion, OSError.
    """
    names = [name for name in fs.list_directory(DIRECTORY) if name.endswith(SUFFIX)]
    paths = [f"{DIRECTORY}/{name}" for name in names]
    serial = max((int(name[: -len(SUFFIX)]) for name in names if name[: -len(SUFFIX)].isdigit()), default=0)
    scans = []
    for path in paths:
        content = fs.read(path, 0, fs.size(path))
        if key is not None and begins_with_another_key(content, key):
            raise CorruptFile(
                f"{path} was not written with the journal_key in {IDENTITY_FILE}: either file is another data "
                f"directory's, or {IDENTITY_FILE} was of format version 1; restore {IDENTITY_FILE} from a copy"
            )
        scans.append((path, scan_blocks(content, key)))
    generation = max((scan.generation for _, scan in scans), default=0)
    damaged = [
        (path, position)
        for path, scan in scans
        for position in scan.damaged
        # The first block of a file that was being used again may be torn. The file before that is newer than its rest.
        if position > 0 or scan.generation == generation
    ]
    ends: dict[int, int] = {}
    for _, scan in scans:
        ends.update(scan.ends)
    damaged += [(path, scan.end) for path, scan in scans if scan.end < ends.get(scan.generation, 0)]
    for path, position in damaged:
        report(JOURNAL_DAMAGED, path=path, position=position)
    parts: dict[str, list[JournalPart]] = {}
    for _, scan in sorted(scans, key=lambda found: found[1].generation):
        for part in scan.parts:
            parts.setdefault(part.place.directory.decode("utf-8", "surrogateescape"), []).append(part)
    return JournalContent(parts, paths, serial, generation, damaged)


def read_stream(
    fs: FileSystem,
    sources: Sequence[tuple[str, int]],
    key: bytes,
    directory: str,
    chunk_offset: int,
    start: int,
    end: int,
) -> bytes | None:
    """The bytes of a stream's chunk from position `start` to `end`; None if the journal does not hold all of them.

    `sources`: paths and lengths of the files; `key`: the data directory's. Raises OSError.
    """
    found: dict[int, memoryview] = {}
    for path, length in sources:
        for part in scan_blocks(fs.read(path, 0, length), key).parts:
            place = part.place
            if place.directory == directory.encode() and place.chunk_offset == chunk_offset and place.position >= start:
                found[place.position] = part.data
    data = bytearray()
    while start + len(data) < end:
        piece = found.get(start + len(data))
        if piece is None or not len(piece):
            return None
        data += piece
    return bytes(data)
