"""The shared journal as a check sees it: which acknowledged batches only its files hold, and a chunk with these put in.

Invariants: the same parts count as at a start (`logstore.log.recovery`): those of a stream's last chunk, behind what
its index proves. Nothing is written; memory is bounded by the journal's files.
"""

from collections.abc import Sequence

from logstore.base.events import ignore
from logstore.errors import CorruptFile
from logstore.format.journal_block import JournalPart
from logstore.interfaces import FileSystem
from logstore.log.journal import DIRECTORY
from logstore.log.journal_replay import JournalContent, read_journal
from logstore.verify.findings import Findings

Journaled = dict[str, list[JournalPart]]
"""What the journal holds, by the stream's directory, in the order in which it was acknowledged."""


def check_journal(fs: FileSystem, key: bytes | None, findings: Findings) -> JournalContent:
    """Read and check the journal's files, by the data directory's key (None: by any).

    Raises UnknownFormatVersion, OSError.
    """
    try:
        content = read_journal(fs, key, ignore)
    except CorruptFile as error:
        findings.damage("journal-foreign", DIRECTORY, f"{error}; a sidecar does not start with it")
        content = read_journal(fs, None, ignore)
    for path, position in content.damaged:
        what = "a block that was synced is damaged; what no chunk had got of it yet is lost"
        findings.damage("journal-damaged", path, what, position=position)
    findings.counts.files += len(content.paths)
    findings.counts.bytes += sum(fs.size(path) for path in content.paths)
    return content


def lost_offsets(parts: Sequence[JournalPart], last_chunk: int | None) -> tuple[int, int] | None:
    """First and last base offset of what the journal names in chunks that are newer than a stream's last one, which
    starts at `last_chunk` (None: the stream has no chunk). None: there is nothing like that.

    The journal names only chunks whose names were durable.
    """
    lost = [part.place for part in parts if last_chunk is None or part.place.chunk_offset > last_chunk]
    return (min(place.chunk_offset for place in lost), max(place.base_offset for place in lost)) if lost else None


class ReplayedChunk:
    """A chunk's file with what the journal holds of the chunk put in its places.

    `proven_bytes`: so much of the file its index proves; the journal's parts count behind that. `journaled_end` is the
    position behind the last of them (0: there is none), `known_offset` the offset behind the base offset of the
    last.
    """

    def __init__(
        self, fs: FileSystem, path: str, base_offset: int, proven_bytes: int, journaled: Sequence[JournalPart]
    ) -> None:
        self._fs = fs
        self._path = path
        file_bytes = fs.size(path)
        trusted_bytes = proven_bytes if proven_bytes <= file_bytes else 0
        parts: dict[int, JournalPart] = {}
        for part in journaled:
            place = part.place
            if place.chunk_offset == base_offset and place.position + len(part.data) > trusted_bytes:
                parts[place.position] = part
        self._parts = [part for _, part in sorted(parts.items())]
        self.journaled_end = max((part.place.position + len(part.data) for part in self._parts), default=0)
        self.known_offset = max((part.place.base_offset + 1 for part in self._parts), default=0)
        self.size_bytes = max(file_bytes, self.journaled_end)

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`. Raises OSError."""
        data = bytearray(max(0, min(length, self.size_bytes - position)))
        return bytes(data[: self.read_into(position, memoryview(data))])

    def will_read(self, position: int, length: int) -> None:
        """See `FileSystem.will_read`."""
        self._fs.will_read(self._path, position, length)

    def read_into(self, position: int, buffer: memoryview) -> int:
        """As `FileSystem.read_into`, of the chunk with what the journal holds of it. Raises OSError."""
        count = self._fs.read_into(self._path, position, buffer)
        if position >= self.journaled_end:
            return count
        end = min(position + len(buffer), self.size_bytes)
        wanted = max(0, end - position)
        if count < wanted:
            buffer[count:wanted] = bytes(wanted - count)
        for part in self._parts:
            at = part.place.position
            first, last = max(position, at), min(end, at + len(part.data))
            if first < last:
                buffer[first - position : last - position] = part.data[first - at : last - at]
        return wanted
