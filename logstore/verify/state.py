"""What a data directory knows of itself: `cairn.json`, the ledgers, and the topics, log starts and commits in them.

Invariant: a ledger that recovery would refuse is damage, and nothing that hangs on it is said to be wrong for that.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from logstore.epochs.journaled import newer_decisions
from logstore.epochs.ledger_entries import (
    COMMIT_RECORD,
    INCARNATIONS,
    LAST,
    CommitRecord,
    decode_commit_record,
    decode_incarnations,
    decode_last_epoch,
)
from logstore.errors import CorruptFile, UnknownFormatVersion
from logstore.format.ledger_frame import KIND_SNAPSHOT, scan_frames
from logstore.format.quiet_stream import ActiveStream, QuietStream, decode_entry
from logstore.format.tiered_chunk import TieredChunk
from logstore.interfaces import FileSystem
from logstore.log.data_directory import FORMAT_VERSION, IDENTITY_FILE, parse_key
from logstore.log.journal import DIRECTORY as JOURNAL_DIRECTORY
from logstore.log.journal_replay import JournalContent
from logstore.log.ledger import DIRECTORY
from logstore.log.quiet import NAME as QUIET
from logstore.log.readers import StreamId
from logstore.log.replica_chunk import CHUNK_KEY, REMOVED_KEY, NotedReplica, decode_noted
from logstore.log.replica_chunk import LEDGER as REPLICAS
from logstore.log.tiered import NAME as TIER
from logstore.log.tiered import decode_ledger
from logstore.verify.findings import Findings

LEDGERS: Final = ("catalogue", "epochs", "groups", "readers", "access", "users", REPLICAS, TIER)
_DIGITS: Final = 20
_TOPIC, _START, _NUMBERS = "topic/", "start/", ("producer-ids", "retention-clock")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CataloguedTopic:
    """A topic as the catalogue has it; `log_starts` has the partitions whose log start is not 0."""

    name: str
    topic_id: str
    directory: str
    partitions: int
    log_starts: Mapping[int, int]


@dataclass(slots=True)
class DirectoryState:
    """The durable state of a data directory, as far as it can be read. `is_whole`: the catalogue could be."""

    cluster_id: str = ""
    journal_key: bytes | None = field(default=None, repr=False)
    """None: the identity cannot be read, so that blocks of the journal count whatever their key."""
    topics: list[CataloguedTopic] = field(default_factory=list)
    epochs: Mapping[str, bytes] = field(default_factory=dict)
    """The ledger of epochs."""
    commits: list[CommitRecord] = field(default_factory=list)
    quiet: dict[str, QuietStream | ActiveStream] = field(default_factory=dict)
    """The table of quiet streams, by `logstore.log.quiet.key_of` of a stream's directory."""
    is_whole: bool = False
    replicas: dict[str, NotedReplica] = field(default_factory=dict)
    """What was made durable of replicas, by directory."""
    removed_replicas: set[str] = field(default_factory=set)
    tiered: dict[StreamId, list[TieredChunk]] = field(default_factory=dict)
    """Chunks in the tier."""
    local_starts: dict[StreamId, int] = field(default_factory=dict)
    """Where the local copies of streams begin that have chunks in the tier."""


def read_state(fs: FileSystem, findings: Findings, *, is_live: bool = False) -> DirectoryState:
    """Read and check identity and ledgers. Raises UnknownFormatVersion, OSError."""
    state = DirectoryState(*_identity(fs, findings))
    ledgers = {name: read_ledger(fs, name, findings, is_live=is_live) for name in LEDGERS}
    catalogue = ledgers["catalogue"]
    if catalogue is not None:
        state.is_whole = True
        state.topics = _topics(catalogue, findings)
    state.epochs = ledgers["epochs"] or {}
    state.commits = _commits(state.epochs, findings)
    for name in ("groups", "readers"):
        for key, value in (ledgers[name] or {}).items():
            _entry(name, key, partial(json.loads, value), findings)
    state.quiet = _quiet(fs, findings, is_live=is_live)
    _read_replicas(ledgers[REPLICAS] or {}, state, findings)
    try:
        state.tiered, state.local_starts = decode_ledger((ledgers[TIER] or {}).items())
    except CorruptFile as error:
        findings.damage("ledger-entry-damaged", f"{DIRECTORY}/{TIER}", str(error))
    return state


def _read_replicas(entries: Mapping[str, bytes], state: DirectoryState, findings: Findings) -> None:
    for key, value in entries.items():
        if key.startswith(CHUNK_KEY):
            directory = key[len(CHUNK_KEY) :]
            try:
                state.replicas[directory] = decode_noted(value, directory)
            except CorruptFile as error:
                findings.damage("ledger-damaged", f"{DIRECTORY}/{REPLICAS}", str(error))
        elif key.startswith(REMOVED_KEY):
            state.removed_replicas.add(key[len(REMOVED_KEY) :])


def _quiet(fs: FileSystem, findings: Findings, *, is_live: bool) -> dict[str, QuietStream | ActiveStream]:
    """The table of quiet streams. Damage in it is a note: a start drops the table and reads the streams' files."""
    found = Findings()
    entries = read_ledger(fs, QUIET, found, is_live=is_live)
    findings.counts.add(found.counts)
    for finding in found.found:
        if finding.is_damage:
            what = "the table of quiet streams is damaged; the next start drops it and reads the streams' files"
            findings.note("quiet-table-damaged", finding.path, what)
        else:
            findings.found.append(finding)
    table = {}
    for key, value in (entries or {}).items():
        try:
            table[key] = decode_entry(value, key)
        except CorruptFile as error:
            findings.note("quiet-table-damaged", f"{DIRECTORY}/{QUIET}", f"{error}; the next start reads the files")
    return table


def _identity(fs: FileSystem, findings: Findings) -> tuple[str, bytes | None]:
    """The cluster id and the journal's key. A directory of version 1 has no journal: no block has its empty key."""
    data = fs.read(IDENTITY_FILE, 0, fs.size(IDENTITY_FILE))
    findings.counts.files += 1
    findings.counts.bytes += len(data)
    try:
        identity = json.loads(data)
        version, cluster_id = identity["format"], identity["cluster_id"]
        if type(version) is not int or version < 1 or not isinstance(cluster_id, str) or not cluster_id:
            raise ValueError(f"format {version!r}, cluster_id {cluster_id!r}")
        key = parse_key(identity["journal_key"]) if version == FORMAT_VERSION else b""
        if key is None:
            raise ValueError("its journal_key is not 16 digits 0-9a-f")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        findings.damage("identity-damaged", IDENTITY_FILE, f"{error!r}; restore it from a copy")
        return "", None
    if version > FORMAT_VERSION:
        raise UnknownFormatVersion(
            f"the data directory has format version {version}, this Cairn knows {FORMAT_VERSION}; use a newer Cairn"
        )
    return cluster_id, key


def ledger_generations(fs: FileSystem, name: str) -> list[int]:
    """The generations of a ledger's files, oldest first; the newest counts."""
    tails = [entry.removeprefix(f"{name}.") for entry in fs.list_directory(DIRECTORY) if entry.startswith(f"{name}.")]
    return sorted(int(tail) for tail in tails if len(tail) == _DIGITS and tail.isdigit())


def ledger_path(name: str, generation: int) -> str:
    """The path of one generation of a ledger."""
    return f"{DIRECTORY}/{name}.{generation:0{_DIGITS}d}"


def read_ledger(fs: FileSystem, name: str, findings: Findings, *, is_live: bool = False) -> dict[str, bytes] | None:
    """The entries of a ledger, None if it cannot be read whole. Raises UnknownFormatVersion, OSError."""
    generations = ledger_generations(fs, name)
    if not generations:
        return {}
    path = ledger_path(name, generations[-1])
    data = fs.read(path, 0, fs.size(path))
    findings.counts.files += 1
    findings.counts.bytes += len(data)
    try:
        scan = scan_frames(data, path)
    except CorruptFile as error:
        findings.damage("ledger-damaged", path, f"{error}; a sidecar does not start with it")
        return None
    if not scan.frames or scan.frames[0].kind != KIND_SNAPSHOT:
        findings.damage(
            "ledger-damaged",
            path,
            "its first frame, the whole map, is damaged; no sidecar starts with it; restore the file from a copy",
            position=0,
        )
        return None
    if scan.end < len(data) and not is_live:
        findings.note(
            "ledger-torn",
            path,
            f"the last {len(data) - scan.end} bytes are no whole frame: a write was under way, the next start cuts it",
            position=scan.end,
        )
    entries: dict[str, bytes] = {}
    for frame in scan.frames:
        for key, value in frame.changes.items():
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
    return entries


def _topics(catalogue: Mapping[str, bytes], findings: Findings) -> list[CataloguedTopic]:
    starts: dict[str, dict[int, int]] = {}
    for key, value in catalogue.items():
        if key.startswith(_START):
            found = _entry("catalogue", key, partial(_log_start, key, value), findings)
            if found is not None:
                topic_id, partition, offset = found
                starts.setdefault(topic_id, {})[partition] = offset
        elif key in _NUMBERS:
            _entry("catalogue", key, partial(int, value), findings)
    topics = []
    for key, value in sorted(catalogue.items()):
        if key.startswith(_TOPIC):
            name = key.removeprefix(_TOPIC)
            topic = _entry("catalogue", key, partial(_topic, name, value, starts), findings)
            topics += [] if topic is None else [topic]
    return topics


def _log_start(key: str, value: bytes) -> tuple[str, int, int]:
    _, topic_id, partition = key.split("/")
    return topic_id, int(partition), int(value)


def _topic(name: str, value: bytes, starts: Mapping[str, Mapping[int, int]]) -> CataloguedTopic:
    fields = json.loads(value)
    topic_id, directory, partitions = str(fields["id"]), str(fields["directory"]), int(fields["partitions"])
    dict(fields["config"])
    return CataloguedTopic(name, topic_id, directory, partitions, starts.get(topic_id, {}))


def _commits(epochs: Mapping[str, bytes], findings: Findings) -> list[CommitRecord]:
    commits = []
    for key, value in sorted(epochs.items()):
        for prefix, decode in ((INCARNATIONS, decode_incarnations), (LAST, decode_last_epoch)):
            if key.startswith(prefix):
                query = key.removeprefix(prefix)
                _entry("epochs", key, partial(decode, query, value), findings)
        if key.startswith(COMMIT_RECORD):
            query = key.removeprefix(COMMIT_RECORD)
            commit = _entry("epochs", key, partial(decode_commit_record, query, value), findings)
            commits += [] if commit is None else [commit]
    return commits


def add_decisions(state: DirectoryState, journal: JournalContent, findings: Findings) -> None:
    """Count the decisions that only the journal has; the next start puts them into the ledger."""
    try:
        newer = newer_decisions(state.epochs, journal.changes_of("epochs"))
    except CorruptFile as error:
        what = f"a decision in the journal cannot be read: {error}; a sidecar does not start with it"
        findings.damage("ledger-entry-damaged", JOURNAL_DIRECTORY, what)
        return
    found = _commits({key: value for key, value in newer.items() if value is not None}, findings)
    queries = {commit.query for commit in found}
    state.commits = [*(commit for commit in state.commits if commit.query not in queries), *found]


def _entry(ledger: str, key: str, decode: Callable[[], T], findings: Findings) -> T | None:
    """A decoded entry, or None and a finding."""
    try:
        return decode()
    except (CorruptFile, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"entry {key!r} cannot be read: {error}; restore the ledger from a copy"
        findings.damage("ledger-entry-damaged", f"{DIRECTORY}/{ledger}", what)
        return None
