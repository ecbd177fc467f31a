"""What is known of operators' checkpoints: by the place where they are kept, by the coordinator's registry, and by
reading every byte of them.

Invariants: nothing here changes a sink or a registry, but `register_missing`, which adds entries to the registry.
A file that several checkpoints build on is read once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from scheduler.client import Conflict, CoordinatorClient
from spe_adapter.checkpoint.coordinator_registry import CoordinatorRegistry
from spe_adapter.checkpoint.errors import CheckpointDamaged, CheckpointFailed, SinkAway
from spe_adapter.checkpoint.manifest import CheckpointFile, LiveFile, Manifest, decode_manifest
from spe_adapter.checkpoint.names import CheckpointName, Unit, query_of
from spe_adapter.checkpoint.recovery import checked_runs
from spe_adapter.checkpoint.sinks import Sink

COMPLETE: Final = "complete"
UNFINISHED: Final = "unfinished"
DAMAGED: Final = "damaged"
KEPT_FOR_NEWER: Final = "kept for newer ones"
"""A base of it is gone, and newer checkpoints need its files."""
MISSING: Final = "missing"
"""In the registry and not in the sink."""
READERS: Final = 4
"""Files that are read at a time."""


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """A checkpoint as sink and registry know it. `registered`: None if no registry was asked.

    `entry`: what the registry says of it; `problem`: why its state is not `complete`.
    """

    name: CheckpointName
    state: str
    manifest: Manifest | None = None
    registered: bool | None = None
    entry: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    def fields(self) -> dict[str, Any]:
        """The checkpoint as values for JSON."""
        found: dict[str, Any] = {"unit": self.name.unit, "seq": self.name.seq, "state": self.state}
        found["query"] = query_of(self.name.unit)
        if self.registered is not None:
            found["registered"] = self.registered
        if self.problem:
            found["problem"] = self.problem
        if self.manifest is not None:
            manifest = self.manifest
            found |= {
                "query": manifest.unit.query,
                "epoch": manifest.header.epoch,
                "attempt": manifest.header.attempt,
                "bases": sorted(manifest.bases),
                "state_bytes": manifest.state_bytes,
                "file_count": len(manifest.files),
                "file_bytes": manifest.own_bytes,
                "read_bytes": manifest.all_bytes,
                "planned": manifest.is_planned,
                "written_ms": manifest.written_ms,
            }
        else:
            found |= {key: value for key, value in self.entry.items() if key not in ("unit", "seq")}
        return found


class FileProblem(NamedTuple):
    """A file of a checkpoint that cannot be used, and why."""

    name: CheckpointName
    file: str
    why: str


class VerifiedCheckpoint(NamedTuple):
    """A checkpoint all of whose files were read. `problems`: none, or what a recovery fails at."""

    manifest: Manifest
    problems: tuple[FileProblem, ...]


class VerifyProgress(NamedTuple):
    """How far a verification is: files and bytes that were read, of how many."""

    files: int
    all_files: int
    bytes: int
    all_bytes: int


def matches(name: CheckpointName, wanted: str | None) -> bool:
    """Whether a checkpoint is of a wanted unit.

    `wanted`: the unit's name in paths, QUERY.PARTITION, a query for all its units, or None for every unit.
    """
    if wanted is None or name.unit == wanted:
        return True
    query, _, partition = wanted.rpartition(".")
    if query and partition.isdecimal() and Unit(query, int(partition)).name == name.unit:
        return True
    return Unit(wanted, 0).name.rpartition(".")[0] == name.unit.rpartition(".")[0]


def listed(sink: Sink | None, client: CoordinatorClient | None, wanted: str | None = None) -> list[ListedCheckpoint]:
    """All checkpoints that the sink and the registry know, by unit, the newest first.

    Manifests are read, other files are not. Raises SinkFailed, CoordinatorError.
    """
    entries: dict[CheckpointName, Mapping[str, Any]] = {}
    if client is not None:
        for unit in client.units():
            if matches(CheckpointName(unit["unit"], 1), wanted):
                for entry in client.checkpoints(unit["unit"]):
                    entries[CheckpointName(entry["unit"], entry["seq"])] = entry
    if sink is None:
        found = [ListedCheckpoint(name, COMPLETE, None, True, entry) for name, entry in entries.items()]
    else:
        names = {name for name in sink.names() if matches(name, wanted)}
        asked = client is not None
        found = [_in_sink(sink, name, entries.get(name), asked=asked) for name in names]
        for name in set(entries) - names:
            why = f"the registry has it in {entries[name]['sink']}, and it is not in {sink.url}"
            found.append(ListedCheckpoint(name, MISSING, None, True, entries[name], why))
        found = _judged(found)
    return sorted(found, key=lambda one: (one.name.unit, -one.name.seq))


def _judged(found: Sequence[ListedCheckpoint]) -> list[ListedCheckpoint]:
    """The same, where what misses a base is not called complete."""
    there = {one.name for one in found if one.state != MISSING}
    whole = [one.manifest for one in found if one.manifest is not None and not _missing(one.manifest, there)]
    needed = {CheckpointName(manifest.unit.name, part.seq) for manifest in whole for part in manifest.parts}
    judged = []
    for one in found:
        missing = [] if one.manifest is None else _missing(one.manifest, there)
        if missing and one.name in needed:
            judged.append(replace(one, state=KEPT_FOR_NEWER))
        elif missing:
            judged.append(replace(one, state=DAMAGED, problem=f"it builds on {missing[0]}, which does not exist"))
        else:
            judged.append(one)
    return judged


def _missing(manifest: Manifest, there: Collection[CheckpointName]) -> list[CheckpointName]:
    """The bases of a checkpoint that are not there."""
    bases = [CheckpointName(manifest.unit.name, seq) for seq in manifest.bases]
    return [name for name in bases if name not in there]


def _in_sink(sink: Sink, name: CheckpointName, entry: Mapping[str, Any] | None, *, asked: bool) -> ListedCheckpoint:
    """A checkpoint of the sink."""
    registered = (entry is not None) if asked else None
    try:
        data = sink.manifest(name)
        if data is None:
            return ListedCheckpoint(name, UNFINISHED, None, registered, entry or {}, "it has no manifest")
        manifest = decode_manifest(data, name, f"{sink.url}/{name}/MANIFEST")
    except CheckpointDamaged as error:
        return ListedCheckpoint(name, DAMAGED, None, registered, entry or {}, str(error))
    return ListedCheckpoint(name, COMPLETE, manifest, registered, entry or {})


def verified(
    sink: Sink, manifests: Sequence[Manifest], progress: Callable[[VerifyProgress], None]
) -> Iterator[VerifiedCheckpoint]:
    """Read all files that these checkpoints are recovered from, and check every byte; the checkpoints in their order.

    `progress` is called in the thread of the caller. Raises SinkAway if the sink does not answer any more.
    """
    files = {key: file for manifest in manifests for key, file in _files(manifest).items()}
    all_bytes = sum(file.size_bytes for file, _ in files.values())
    why: dict[_Key, str] = {}
    done = done_bytes = 0
    progress(VerifyProgress(0, len(files), 0, all_bytes))
    with ThreadPoolExecutor(READERS, thread_name_prefix="verify") as pool:
        reading: dict[Future[str], _Key] = {
            pool.submit(_problem, sink, key.name, file, page_bytes): key for key, (file, page_bytes) in files.items()
        }
        try:
            waiting = set(reading)
            while waiting:
                ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ready:
                    key = reading[future]
                    why[key] = future.result()
                    done, done_bytes = done + 1, done_bytes + files[key][0].size_bytes
                progress(VerifyProgress(done, len(files), done_bytes, all_bytes))
        finally:
            for future in reading:
                future.cancel()
    for manifest in manifests:
        problems = [FileProblem(key.name, key.file, why[key]) for key in _files(manifest) if why[key]]
        yield VerifiedCheckpoint(manifest, tuple(problems))


class _Key(NamedTuple):
    """A file as a manifest describes it: two manifests that differ about a file are both checked."""

    name: CheckpointName
    file: str
    size_bytes: int
    crc32c: int


def _files(manifest: Manifest) -> dict[_Key, tuple[CheckpointFile, int]]:
    """The files that a checkpoint is recovered from, with the bytes of a page."""
    return {
        _Key(CheckpointName(manifest.unit.name, part.seq), file.name, file.size_bytes, file.crc32c): (
            file,
            manifest.page_bytes,
        )
        for part in manifest.parts
        for file in part.files
    }


def _problem(sink: Sink, name: CheckpointName, file: CheckpointFile, page_bytes: int) -> str:
    """Why a file cannot be used; empty if every byte is right. Raises SinkAway."""
    try:
        for _ in checked_runs(sink, LiveFile(name, file, file.ids()), page_bytes):
            pass
    except SinkAway:
        raise
    except CheckpointFailed as error:
        return str(error)
    return ""


def register_missing(sink: Sink, client: CoordinatorClient, found: Sequence[ListedCheckpoint]) -> Iterator[str]:
    """Register every checkpoint of the sink that the registry does not know, the oldest of a unit first.

    Checkpoints that are kept for newer ones are registered too: those need their files.
    Gives a line for each. Raises CoordinatorError unless the coordinator refuses a single checkpoint.
    """
    registry = CoordinatorRegistry(client)
    for checkpoint in sorted(found, key=lambda one: one.name):
        if checkpoint.manifest is not None and not checkpoint.registered:
            try:
                registry.register(checkpoint.manifest, sink.url)
            except Conflict as error:
                yield f"{checkpoint.name}: not registered: {error}"
            else:
                yield f"{checkpoint.name}: registered"
