"""The replicas of chunks that a start finds: how much of each is whole, and which of them are damaged.

Invariants:
* A replica is opened as a stream is: from the table of quiet streams, or from its files and the journal. What the
  ledger says of its end comes first: what lies behind is cut before anything is opened, wherever a crash has left it.
* A replica that was durable and is not whole is damaged, and never shorter: its files are gone or shorter than what
  the ledger proves, recovery reports damage or loss, the journal has lost blocks, or a batch does not check out.
* What the ledger proves is not read: a flipped bit in there is found when it is.
* A replica that was found damaged stays so: recovery may have mended what showed it.
* When `open_replicas` returns, every replica with a batch has an entry in the ledger, and what is no replica any more
  is removed.

Sources: docs/replication.md (damage is never a shorter length), docs/format.md (replicas of chunks).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from logstore.base.events import LogEvent, Report
from logstore.errors import CorruptChunk, CorruptFile
from logstore.events import (
    DURABLE_DATA_DAMAGED,
    DURABLE_DATA_LOST,
    INDEX_DOES_NOT_MATCH_ITS_CHUNK,
    OFFSETS_LOST,
)
from logstore.format.index import decode_blocks, encode_block
from logstore.format.journal_block import JournalPart
from logstore.format.snapshot import decode_snapshots
from logstore.interfaces import FileSystem
from logstore.log.chunks import INDEX_SUFFIX, LOG_SUFFIX, Chunk, chunk_name, parse_chunk_name
from logstore.log.journal_replay import JournalContent
from logstore.log.ledger import Ledger
from logstore.log.opening import Each, OpenedStream, StoredStream, open_streams, recover_from_files
from logstore.log.producers import ProducerTable
from logstore.log.quiet import QuietStreams
from logstore.log.reading import MANY_BATCHES, RunLimits, walk_batches
from logstore.log.replica_chunk import (
    CHUNK_KEY,
    DIRECTORY,
    REMOVED_KEY,
    ChunkPrefix,
    KnownPrefixes,
    NotedReplica,
    ReplicaName,
    decode_noted,
    name_of,
)
from logstore.log.stream_state import RecoveredStream

READ_BYTES: Final = 1 << 20
_LOSSES: Final = frozenset({DURABLE_DATA_DAMAGED, DURABLE_DATA_LOST, OFFSETS_LOST, INDEX_DOES_NOT_MATCH_ITS_CHUNK})


class FoundReplica(NamedTuple):
    """A replica that a start has found. `damage`: why it counts for nothing; empty, if it does not. `opened`: None if
    nothing of it is left.
    """

    name: ReplicaName
    noted: NotedReplica
    end: ChunkPrefix
    known: KnownPrefixes
    damage: str
    opened: OpenedStream | None


@dataclass(slots=True)
class _Looking:
    """What the openings share; what there is of replicas is by directory. `damages`: why they count for nothing."""

    fs: FileSystem
    quiet: QuietStreams
    journal: JournalContent
    now_ms: int
    report: Report
    names: dict[str, ReplicaName]
    noted: dict[str, NotedReplica]
    damages: dict[str, str] = field(default_factory=dict)

    def recover(self, stored: StoredStream) -> OpenedStream:
        """Open one from its files. Raises UnknownFormatVersion, OSError."""
        directory = stored.directory
        noted = self.noted.get(directory)
        parts: Sequence[JournalPart] = self.journal.parts.get(directory, ())
        if noted is not None and noted.cut is not None:
            cut_files(self.fs, directory, noted.cut)
            parts = parts_before(parts, noted.cut)
        is_sealed = noted is not None and noted.is_sealed

        def watch(event: LogEvent, /, **fields: object) -> None:
            # Of a sealed one its length says what is missing: a cut makes it shorter than it has been.
            if event in _LOSSES and (event is DURABLE_DATA_DAMAGED or not is_sealed):
                self.damages.setdefault(directory, event.name)
            if event is not OFFSETS_LOST or not is_sealed:
                self.report(event, **fields)

        try:
            opened = recover_from_files(self.fs, self.quiet, {directory: parts}, self.now_ms, watch, stored)
        except CorruptFile as error:
            self.damages[directory] = str(error)
            return OpenedStream(RecoveredStream([], ProducerTable(), stored.log_start, stored.log_start), False)
        if self.journal.damaged and not is_sealed:
            self.damages.setdefault(directory, "the journal is damaged, and may have had more of it")
        return opened


def open_replicas(
    fs: FileSystem,
    quiet: QuietStreams,
    ledger: Ledger,
    journal: JournalContent,
    now_ms: int,
    report: Report,
    each: Each,
) -> list[FoundReplica]:
    """Open all replicas below `replicas`. Blocks. Raises CorruptFile (the ledger's), UnknownFormatVersion, OSError."""
    noted = {key: decode_noted(value, key) for key, value in _entries(ledger, CHUNK_KEY)}
    removed = dict(_entries(ledger, REMOVED_KEY))
    names = {name.directory: name for entry in fs.list_directory(DIRECTORY) if (name := name_of(entry)) is not None}
    looking = _Looking(fs, quiet, journal, now_ms, report, names, noted)
    stored = [
        StoredStream(directory, base, True, name.epoch)
        for directory, name in names.items()
        if directory not in removed and (base := _base_offset(fs, directory, noted.get(directory))) is not None
    ]
    opened = open_streams(fs, quiet, looking.recover, stored, each)
    found = list(each(partial(_measured, looking), list(zip(stored, opened, strict=True))))
    kept = [
        replica for replica in found if replica.end.length_bytes or replica.damage or replica.name.directory in noted
    ]
    whole = {replica.name.directory for replica in kept}
    for directory in names:
        if directory not in whole:
            remove_replica(fs, directory)
    fs.sync_directory(DIRECTORY)
    kept += [_lost(directory, entry) for directory, entry in noted.items() if directory not in names]
    fresh = {
        f"{CHUNK_KEY}{replica.name.directory}": _entry_of(replica).encode()
        for replica in kept
        if replica.name.directory not in noted or (replica.damage and not replica.noted.is_damaged)
    }
    changes: dict[str, bytes | None] = {f"{REMOVED_KEY}{directory}": None for directory in removed}
    if changes or fresh:
        ledger.put_now(fs, changes | fresh)
    return kept


def _entry_of(replica: FoundReplica) -> NotedReplica:
    if replica.damage:
        return replica.noted._replace(is_damaged=True)
    return NotedReplica(replica.noted.base_offset, replica.end)


def _entries(ledger: Ledger, prefix: str) -> Iterable[tuple[str, bytes]]:
    return ((key[len(prefix) :], value) for key, value in ledger.items(prefix))


def _base_offset(fs: FileSystem, directory: str, noted: NotedReplica | None) -> int | None:
    """Where a replica begins; None if it has neither an entry nor a file."""
    if noted is not None:
        return noted.base_offset
    parsed = [parse_chunk_name(name) for name in fs.list_directory(directory)]
    return min((found[0] for found in parsed if found is not None and found[1] == LOG_SUFFIX), default=None)


def _measured(looking: _Looking, item: tuple[StoredStream, OpenedStream]) -> FoundReplica:
    """How much of an opened replica is whole: of a sealed one by its entry, of an open one by reading it."""
    stored, opened = item
    name = looking.names[stored.directory]
    nothing = ChunkPrefix.empty(stored.log_start)
    noted = looking.noted.get(stored.directory, NotedReplica(stored.log_start, nothing))
    known = KnownPrefixes(stored.log_start)
    chunks, end = opened.recovered.chunks, noted.proven
    damage = looking.damages.get(stored.directory, "") or _difference(noted, opened.recovered)
    if not damage and not noted.is_sealed:
        if chunks and chunks[0].size_bytes and not _is_founded(looking.fs, chunks[0]):
            damage = "the producers' state as of its start is damaged"
        else:
            end, damage = measure(looking.fs, chunks, noted.proven, known)
    if damage:
        end, _ = measure(looking.fs, chunks, nothing, known)
    return FoundReplica(name, noted, end, known, damage, opened if chunks else None)


def _difference(noted: NotedReplica, found: RecoveredStream) -> str:
    """What is wrong with the length of a replica by its entry; "": nothing."""
    length_bytes, proven = sum(chunk.size_bytes for chunk in found.chunks), noted.proven
    if noted.is_damaged:
        return "an earlier start has found it damaged"
    if found.chunks and found.chunks[0].base_offset != noted.base_offset:
        return f"it begins at offset {found.chunks[0].base_offset}, not at {noted.base_offset}"
    if length_bytes < proven.length_bytes or found.next_offset < proven.next_offset:
        return f"it ends behind {length_bytes} bytes at offset {found.next_offset}, and had {proven}"
    if noted.is_sealed and (length_bytes, found.next_offset) != proven[:2]:
        return f"it ends behind {length_bytes} bytes at offset {found.next_offset}, and was sealed at {proven}"
    return ""


def measure(fs: FileSystem, chunks: Sequence[Chunk], at: ChunkPrefix, known: KnownPrefixes) -> tuple[ChunkPrefix, str]:
    """The prefix of all whole batches in a replica's files, from a known one on, and why it ends before them all ("":
    it does not). Raises OSError.
    """
    limits = RunLimits(READ_BYTES, MANY_BATCHES, lambda _: True)
    known.note(at)
    before = 0
    for chunk in chunks:
        view, position = chunk.view(), at.length_bytes - before
        before += view.size_bytes
        if position >= view.size_bytes:
            continue
        try:
            if not position and view.base_offset != at.next_offset:
                return at, f"offsets {at.next_offset} to {view.base_offset - 1} are missing"
            for found in walk_batches(fs, view, (position, at.next_offset), at.next_offset, READ_BYTES, runs=limits):
                at = at.followed_by(found.buffer, found.next_offset)
                known.note(at)
        except CorruptChunk as error:
            return at, str(error)
    return at, ""


def _is_founded(fs: FileSystem, chunk: Chunk) -> bool:
    """Whether the first producer snapshot is whole and as of the chunk's start; it was synced before any batch."""
    path = chunk.producers_path
    snapshots, _ = decode_snapshots(fs.read(path, 0, fs.size(path)))
    return bool(snapshots) and snapshots[0][:2] == (0, chunk.base_offset)


def _lost(directory: str, noted: NotedReplica) -> FoundReplica:
    name = name_of(directory)
    if name is None:
        raise CorruptFile(f"the ledger of replicas has an entry of {directory!r}, which is not a replica; report this")
    nothing = ChunkPrefix.empty(noted.base_offset)
    return FoundReplica(name, noted, nothing, KnownPrefixes(noted.base_offset), "its directory is gone", None)


# ---- cuts and removals


def cut_files(fs: FileSystem, directory: str, cut: tuple[int, int]) -> None:
    """Make a replica's files end where the file with a base offset has a length; again after a crash, if need be.

    A later `recover_stream` syncs what is left. Raises OSError.
    """
    base_offset, length_bytes = cut
    for name in fs.list_directory(directory):
        parsed = parse_chunk_name(name)
        if parsed is not None and parsed[0] > base_offset:
            fs.remove(f"{directory}/{name}")
    path = f"{directory}/{chunk_name(base_offset, LOG_SUFFIX)}"
    index_path = f"{directory}/{chunk_name(base_offset, INDEX_SUFFIX)}"
    if fs.exists(index_path):  # first: an index that covers more than its chunk has looks like loss
        blocks, _ = decode_blocks(fs.read(index_path, 0, fs.size(index_path)))
        kept = [block for block in blocks if block.durable_end <= length_bytes]
        if len(kept) < len(blocks):
            fs.truncate(index_path, sum(len(encode_block(block)) for block in kept))
    if fs.exists(path) and fs.size(path) > length_bytes:
        fs.truncate(path, length_bytes)


def is_cut(fs: FileSystem, directory: str, cut: tuple[int, int]) -> bool:
    """Whether `cut_files` has nothing to do. Raises OSError."""
    base_offset, length_bytes = cut
    index_path = f"{directory}/{chunk_name(base_offset, INDEX_SUFFIX)}"
    blocks, _ = decode_blocks(fs.read(index_path, 0, fs.size(index_path))) if fs.exists(index_path) else ([], 0)
    if blocks and blocks[-1].durable_end > length_bytes:
        return False
    path = f"{directory}/{chunk_name(base_offset, LOG_SUFFIX)}"
    parsed = [parse_chunk_name(name) for name in fs.list_directory(directory)]
    is_last = all(found is None or found[0] <= base_offset for found in parsed)
    return is_last and (not fs.exists(path) or fs.size(path) <= length_bytes)


def parts_before(parts: Sequence[JournalPart], cut: tuple[int, int]) -> list[JournalPart]:
    """What the journal has of a replica in front of its end."""
    base_offset, length_bytes = cut
    return [
        part._replace(data=part.data[: max(0, length_bytes - part.place.position)])
        for part in parts
        if part.place.chunk_offset < base_offset
        or (part.place.chunk_offset == base_offset and part.place.position < length_bytes)
    ]


def remove_replica(fs: FileSystem, directory: str) -> None:
    """Remove a replica's files and directory; its parent is to be synced. Raises OSError."""
    for name in fs.list_directory(directory):
        if parse_chunk_name(name) is not None:
            fs.remove(f"{directory}/{name}")
    fs.remove_directory(directory)
