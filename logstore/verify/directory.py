"""A whole data directory: what is to be checked in it, in pieces that may run at once, and what they found together.

Steps: `plan` reads the ledgers, the journal and the names of all files; each chunk is checked for itself
(`check_pieces`); `conclude` compares what the pieces found with each other. Beside a running sidecar (`is_live`) files
come and go: a piece that looks damaged is looked at again with what is there by then, before it is reported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from logstore.epochs.ledger_entries import CommitRecord
from logstore.epochs.staging import DIRECTORY as STAGING_DIRECTORY
from logstore.format.tiered_chunk import TieredChunk
from logstore.interfaces import FileSystem
from logstore.log.chunks import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, chunk_name, parse_chunk_name
from logstore.log.data_directory import IDENTITY_FILE, STREAMS_DIRECTORY
from logstore.log.journal import DIRECTORY as JOURNAL_DIRECTORY
from logstore.log.ledger import DIRECTORY as LEDGER_DIRECTORY
from logstore.log.quiet import key_of
from logstore.log.readers import StreamId
from logstore.log.replica_chunk import DIRECTORY as REPLICAS_DIRECTORY
from logstore.log.replica_chunk import name_of
from logstore.log.replica_recovery import is_cut, parts_before
from logstore.log.space import SPARE_FILE
from logstore.log.whole_files import temporary_name
from logstore.verify.chunk import ChunkPlace, ChunkResult, EndedEpoch, check_chunk
from logstore.verify.findings import Findings
from logstore.verify.journal import Journaled, check_journal, lost_offsets
from logstore.verify.staged import StagedFile, check_commit, check_staged
from logstore.verify.state import CataloguedTopic, DirectoryState, add_decisions, read_state
from logstore.verify.window import AHEAD_BYTES, window_buffer

OWN_NAMES: Final = frozenset(
    {"lock", IDENTITY_FILE, temporary_name(IDENTITY_FILE), LEDGER_DIRECTORY, STREAMS_DIRECTORY, STAGING_DIRECTORY}
    | {JOURNAL_DIRECTORY, REPLICAS_DIRECTORY, SPARE_FILE, "coordinator", "lost+found"}
    # What only a host of a cluster has, and a directory that is adopted: their names lie in a room above this one.
    | {name for file in ("host.json", "adoption.json", "adopted.json") for name in (file, temporary_name(file))}
)
"""What a data directory may hold: no less than what a start takes (`logstore.refusals`)."""
ANNOUNCED_PIECES: Final = 64
"""So many chunks in front of their check the disk is told of at most."""
INDEX_AHEAD_BYTES: Final = 64 << 10
"""Of an index: that of a chunk of 64 MB has as many."""
LOOKS: Final = 5
"""How often a piece is looked at beside a running sidecar; a file changes its place at most once in a while."""


@dataclass(frozen=True, slots=True)
class ChunkToCheck:
    """A chunk to be checked, of a stream. `size_bytes` when it was found; 0 where a sidecar took it away."""

    topic: str
    partition: int
    place: ChunkPlace
    size_bytes: int


@dataclass(slots=True)
class Plan:
    """The pieces to check, what was found already, and what the conclusion needs."""

    is_live: bool
    state: DirectoryState
    pieces: list[ChunkToCheck] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    staged: list[StagedFile] = field(default_factory=list)
    journaled: Journaled = field(default_factory=dict)
    """What a start would bring into last chunks; empty beside a running sidecar, which does so all the time."""

    def reached(self, directory: str) -> int:
        """An offset up to which the stream in a directory had durable records, as the table of quiet streams has it, or
        the ledger of replicas.
        """
        noted = self.state.replicas.get(directory)
        if noted is not None:
            return noted.proven.next_offset
        entry = self.state.quiet.get(key_of(directory))
        return 0 if entry is None else entry.next_offset

    def local_start(self, topic: CataloguedTopic, partition: int) -> int:
        """Where the chunks of a stream on the disk have to begin: what is in front of that is in the tier."""
        local = self.state.local_starts.get(StreamId(topic.topic_id, partition), 0)
        return max(local, topic.log_starts.get(partition, 0))

    @property
    def wanted(self) -> frozenset[EndedEpoch]:
        """The ENDs of epochs that are committed and may not be in all their streams."""
        return frozenset(EndedEpoch(c.query, c.epoch, c.incarnation_number) for c in self.state.commits)

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(piece.size_bytes for piece in self.pieces)


def is_data_directory(fs: FileSystem) -> bool:
    """Whether a sidecar has ever made this directory its own."""
    names = set(fs.list_directory(""))
    return IDENTITY_FILE in names or bool({STREAMS_DIRECTORY, LEDGER_DIRECTORY} & names)


def plan(fs: FileSystem, *, is_live: bool = False) -> Plan:
    """Check all but the chunks, and say which chunks there are. Raises UnknownFormatVersion, OSError."""
    findings = Findings()
    if not fs.exists(IDENTITY_FILE):
        if {LEDGER_DIRECTORY, STREAMS_DIRECTORY} & set(fs.list_directory("")):
            findings.damage("identity-damaged", IDENTITY_FILE, "it is missing; restore it from a copy")
        return Plan(is_live, DirectoryState(), findings=findings)
    planned = Plan(is_live, _state(fs, findings, is_live=is_live), findings=findings)
    planned.staged = check_staged(fs, findings, is_live=is_live)
    if not is_live:
        content = check_journal(fs, planned.state.journal_key, findings)
        planned.journaled = content.parts
        add_decisions(planned.state, content, findings)
    for topic in planned.state.topics:
        _plan_topic(fs, topic, planned)
    _plan_replicas(fs, planned)
    _note_strangers(fs, planned)
    return planned


def _state(fs: FileSystem, findings: Findings, *, is_live: bool) -> DirectoryState:
    for _ in range(LOOKS if is_live else 0):
        found = Findings()
        try:
            state = read_state(fs, found, is_live=True)
        except FileNotFoundError:
            continue  # a ledger was written anew meanwhile
        if not found.damages:
            findings.add(found)
            return state
    return read_state(fs, findings, is_live=is_live)


def _plan_topic(fs: FileSystem, topic: CataloguedTopic, planned: Plan) -> None:
    for partition in range(topic.partitions):
        directory = f"{topic.directory}/{partition}"
        log_start = planned.local_start(topic, partition)
        reached = max(log_start, planned.reached(directory))
        if not fs.exists(directory):  # it comes with the first record
            is_journaled = directory in planned.journaled
            if (reached or is_journaled) and not planned.is_live:
                known = "the journal has records of it" if is_journaled else f"the log had reached offset {reached}"
                what = f"the directory of {topic.name}-{partition} is missing, though {known}"
                planned.findings.damage("stream-missing", directory, f"{what}; a sidecar does not start without it")
            continue
        places = _places(fs, directory, log_start, planned.findings, is_live=planned.is_live)
        if not places and reached and not planned.is_live:
            what = f"no chunk of {topic.name}-{partition} is left, though the log had reached offset {reached}"
            planned.findings.damage(
                "stream-missing", directory, f"{what}; a sidecar does not start with that; restore it"
            )
        if (gap := _gap(topic, partition, planned)) is not None:
            what = (
                f"offsets {gap[0]} to {gap[1]} of {topic.name}-{partition} have left the disk and are not in the tier"
            )
            planned.findings.damage("offsets-missing", directory, what, lost=gap)
        if places and places[0].base_offset > log_start and not planned.is_live:
            lost = (log_start, places[0].base_offset - 1)
            what = f"offsets {lost[0]} to {lost[1]} of {topic.name}-{partition} are in no chunk"
            planned.findings.damage("offsets-missing", directory, what, lost=lost)
        newer = lost_offsets(planned.journaled.get(directory, ()), places[-1].base_offset if places else None)
        if newer is not None:
            what = f"the journal has offsets {newer[0]} to {newer[1]} of {topic.name}-{partition}, whose chunk is gone"
            planned.findings.damage("offsets-missing", directory, what, lost=newer)
        for place in places:
            planned.pieces.append(ChunkToCheck(topic.name, partition, place, _size(fs, place.path(LOG_SUFFIX))))


def _gap(topic: CataloguedTopic, partition: int, planned: Plan) -> tuple[int, int] | None:
    """The first offsets in front of the local start that the ledger of the tier lacks."""
    due, end = topic.log_starts.get(partition, 0), planned.local_start(topic, partition)
    for chunk in sorted(planned.state.tiered.get(StreamId(topic.topic_id, partition), []), key=_base):
        if chunk.base_offset > due:
            break
        due = max(due, chunk.next_offset)
    return (due, end - 1) if due < end and not planned.is_live else None


def _base(chunk: TieredChunk) -> int:
    return chunk.base_offset


def _plan_replicas(fs: FileSystem, planned: Plan) -> None:
    """Each replica is checked as a stream is; what the ledger of replicas says of it comes on top."""
    state, findings = planned.state, planned.findings
    found = fs.list_directory(REPLICAS_DIRECTORY)
    names = {name.directory: name for entry in found if (name := name_of(entry)) is not None}
    for directory, name in names.items():
        noted = state.replicas.get(directory)
        if directory in state.removed_replicas and not planned.is_live:
            findings.note("replica-removed", directory, "it is being removed; the next start removes the rest")
            continue
        places = _places(fs, directory, 0, findings, is_live=planned.is_live)
        if noted is not None and noted.cut is not None and not planned.is_live:
            planned.journaled[directory] = parts_before(planned.journaled.get(directory, ()), noted.cut)
            if not is_cut(fs, directory, noted.cut):
                findings.note("replica-cut", directory, "it is being cut; the next start completes that")
                continue
        for place in places:
            at = place._replace(leader_epoch=name.epoch)
            planned.pieces.append(ChunkToCheck(directory, name.epoch, at, _size(fs, place.path(LOG_SUFFIX))))
        if noted is not None and noted.is_damaged:
            findings.damage("replica-damaged", directory, "a start has found it damaged; its cluster replaces it")
        elif noted is not None and not places and not planned.is_live:
            findings.damage("replica-damaged", directory, f"none of its files is left, and it had {noted.proven}")
    for directory in state.replicas:
        if directory not in names and not planned.is_live:
            findings.damage("replica-damaged", directory, "its directory is missing; its cluster replaces it")


def _size(fs: FileSystem, path: str) -> int:
    try:
        return fs.size(path)
    except FileNotFoundError:
        return 0


def _places(fs: FileSystem, directory: str, log_start: int, findings: Findings, *, is_live: bool) -> list[ChunkPlace]:
    """The chunks of a stream that are part of its log, oldest first."""
    files = [parsed for name in fs.list_directory(directory) if (parsed := parse_chunk_name(name)) is not None]
    bases = sorted(base for base, suffix in files if suffix == LOG_SUFFIX)
    while len(bases) > 1 and bases[1] <= log_start:
        bases.pop(0)
    for base, suffix in files:
        if not is_live and (base not in bases or suffix == CLEANED_SUFFIX):
            path = f"{directory}/{chunk_name(base, suffix)}"
            findings.note("stale-file", path, "a trim or a cleaning was under way; the next start removes this file")
    return (
        [ChunkPlace(directory, base, end) for base, end in zip(bases, [*bases[1:], None], strict=True)] if bases else []
    )


def _note_strangers(fs: FileSystem, planned: Plan) -> None:
    """Note what no sidecar has made, and what the next start removes."""
    if not planned.state.is_whole or planned.is_live:
        return
    for name in fs.list_directory(""):
        if name not in OWN_NAMES and not name.startswith("."):
            planned.findings.note("foreign-file", name, "no sidecar has made this; a sidecar does not start beside it")
    known = {topic.directory for topic in planned.state.topics}
    for name in fs.list_directory(STREAMS_DIRECTORY):
        directory = f"{STREAMS_DIRECTORY}/{name}"
        if directory not in known and not name.startswith("."):
            what = "the catalogue does not know it: a topic was being made or deleted; the next start removes it"
            planned.findings.note("unknown-topic", directory, what)


# ---- the pieces


def check_pieces(
    fs: FileSystem, planned: Plan, pieces: Sequence[ChunkToCheck], progress: Callable[[int], None] = lambda _: None
) -> Iterator[ChunkResult]:
    """Check chunks one after the other, while the disk fetches what comes next.

    Raises UnknownFormatVersion; what the disk refuses is damage. `progress` as in `check_chunk`.
    """
    wanted, buffer = planned.wanted, window_buffer()
    check = partial(check_chunk, is_live=planned.is_live, wanted=wanted, progress=progress, buffer=buffer)
    announced = ahead_bytes = 0
    for number, piece in enumerate(pieces):
        while announced < min(len(pieces), number + ANNOUNCED_PIECES) and ahead_bytes < AHEAD_BYTES:
            ahead_bytes += _announce(fs, pieces[announced])
            announced += 1
        ahead_bytes -= min(piece.size_bytes, AHEAD_BYTES)
        journaled = planned.journaled.get(piece.place.directory, ()) if piece.place.following is None else ()
        yield _check_piece(fs, piece.place, partial(check, journaled=journaled), planned.is_live)


def _announce(fs: FileSystem, piece: ChunkToCheck) -> int:
    """Tell the disk of the beginning of a chunk and of its index; how many bytes of the chunk."""
    size_bytes = min(piece.size_bytes, AHEAD_BYTES)
    if size_bytes:
        fs.will_read(piece.place.path(INDEX_SUFFIX), 0, min(size_bytes, INDEX_AHEAD_BYTES))
        fs.will_read(piece.place.path(LOG_SUFFIX), 0, size_bytes)
    return size_bytes


def _check_piece(
    fs: FileSystem, found: ChunkPlace, check: Callable[[FileSystem, ChunkPlace], ChunkResult], is_live: bool
) -> ChunkResult:
    place: ChunkPlace | None = found
    result = ChunkResult()
    for _ in range(LOOKS if is_live else 1):
        if place is None:
            return ChunkResult()  # trimmed meanwhile
        try:
            result = check(fs, place)
        except PermissionError:
            raise
        except OSError as error:
            result = ChunkResult()
            what = f"it cannot be read: {error.strerror or error}"
            result.findings.damage("unreadable", error.filename or place.path(LOG_SUFFIX), what)
        if not is_live or not result.findings.damages:
            return result
        place = _place_now(fs, place)
    return result


def _place_now(fs: FileSystem, place: ChunkPlace) -> ChunkPlace | None:
    """The chunk as it is by now, None if it is gone."""
    found = _places(fs, place.directory, place.base_offset, Findings(), is_live=True)
    now = next((other for other in found if other.base_offset == place.base_offset), None)
    return None if now is None else now._replace(leader_epoch=place.leader_epoch)


# ---- the conclusion


def conclude(planned: Plan, results: Iterable[tuple[ChunkToCheck, ChunkResult]]) -> Findings:
    """Everything that was found, in the order of the plan, and what it means for committed epochs."""
    findings = planned.findings
    ends: dict[tuple[str, int], set[EndedEpoch]] = {}
    for piece, result in results:
        findings.add(result.findings)
        ends.setdefault((piece.topic, piece.partition), set()).update(result.ends)
        reached = planned.reached(piece.place.directory)
        if piece.place.following is None and result.next_offset < reached and not planned.is_live:
            lost = (result.next_offset, reached - 1)
            what = f"offsets {lost[0]} to {lost[1]} are in no chunk, though the log had reached offset {reached}"
            findings.damage("offsets-missing", piece.place.path(LOG_SUFFIX), what, lost=lost)
    if planned.is_live:  # the epoch may have been published, and its staged output removed, in between
        return findings
    topics = {topic.name: topic.topic_id for topic in planned.state.topics}
    for commit in planned.state.commits:
        if not _is_published(commit, topics, ends):
            check_commit(commit, planned.staged, findings)
    return findings


def _is_published(commit: CommitRecord, topics: dict[str, str], ends: dict[tuple[str, int], set[EndedEpoch]]) -> bool:
    """Whether each stream of an epoch has its END, or is deleted."""
    wanted = EndedEpoch(commit.query, commit.epoch, commit.incarnation_number)
    return all(
        wanted in ends.get((target.topic, target.partition), ())
        for target in commit.targets
        if topics.get(target.topic) == target.topic_id.replace("-", "")
    )


def verify(fs: FileSystem, *, is_live: bool = False) -> Findings:
    """Check a whole data directory, piece by piece. Raises UnknownFormatVersion, PermissionError."""
    planned = plan(fs, is_live=is_live)
    return conclude(planned, zip(planned.pieces, check_pieces(fs, planned, planned.pieces), strict=True))
