"""Makes a sidecar that was alone the first host of a cluster: `cairn adopt`.

Steps: note in the new directory what is begun there; open and close the source, as a start and a stop do, and see that
a cluster can hold it; give notice in the metadata store; copy its chunks to replicas in the new directory; label that
directory as a host's disk; note in the source that it was adopted; put everything into the metadata store; let hosts
start on the new directory.

Invariants:
* Each step may be the last one before a crash, and all of them may be taken again: the new directory's ADOPTION_FILE,
  which is there from the first to the last of them, has the names that must stay the same.
* No sidecar starts on the new directory while that file is there, nor on the source from the moment on when the
  metadata store may name the new directory.
* No record of the source is changed or removed. A source that one cluster may have is adopted by no other.
"""

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from random import Random
from typing import Final, NamedTuple

import trio

from logstore.base.clock import Clock
from logstore.base.directory import LOCK_FILE
from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.adoption.adoption_copy import ReplicaBuilder
from logstore.cluster.adoption.adoption_entries import StoreState, give_notice, metadata_entries, publish, state_of
from logstore.cluster.adoption.adoption_source import Source, take_source
from logstore.cluster.members.host_identity import write_label
from logstore.cluster.members.own_files import ADOPTED_FILE, ADOPTION_FILE, LABEL_FILE
from logstore.engine import open_engine
from logstore.epochs.journaled import decided_in_journal
from logstore.errors import AdoptionRefused, CorruptFile
from logstore.interfaces import FileSystem
from logstore.log.store import Store, StoreSettings
from logstore.log.topics import TopicConfig
from logstore.log.whole_files import replace_whole, temporary_name
from logstore.replica.identity import DiskLabel
from logstore.replica.registrations import Member, StreamRegistration

VERSION: Final = 1
NO_FILES: Final = frozenset((LOCK_FILE, temporary_name(ADOPTION_FILE), "lost+found"))
"""In a new directory before the first step; a file system of its own has the last of them."""
SETTINGS: Final = StoreSettings(topic_defaults=TopicConfig(retention_ms=-1), disk_reserve_bytes=0)
"""Nothing is trimmed that only the settings of the sidecar would keep, whatever room there is."""


class AdoptionPlaces(NamedTuple):
    """What an adoption works with."""

    source: FileSystem
    target: FileSystem
    metadata: Callable[[], AbstractAsyncContextManager[MetadataStore]]


class AdoptionEnvironment(NamedTuple):
    """What it needs from its surroundings. `planned` is told how many bytes there are, `advanced` of bytes done."""

    clock: Clock
    random: Random
    new_id: Callable[[], uuid.UUID]
    report: Report
    planned: Callable[[int], None]
    advanced: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Adoption:
    """What stays the same over all tries. `source`: the cluster id of the directory that is adopted."""

    source: str
    cluster_id: str
    host: str
    disk: str


class Adopted(NamedTuple):
    """What was done."""

    topics: int
    streams: int
    chunks: int
    size_bytes: int
    was_done: bool
    """An earlier try had done it all."""


async def adopt(places: AdoptionPlaces, host: str, replicas: int, environment: AdoptionEnvironment) -> Adopted:
    """Take all steps, or those that are left; both directories are locked.

    Raises AdoptionRefused, CairnError, OSError.
    """
    schema.member_key(host)
    async with places.metadata() as metadata:
        source_id = await trio.to_thread.run_sync(_source_id, places.source)
        adoption = _done(places, source_id, host) or _begin(places, source_id, host, environment)
        state = await state_of(metadata, adoption.cluster_id)
        if state is StoreState.DONE:
            _finish(places.target)
            return Adopted(0, 0, 0, 0, was_done=True)
        if not places.target.exists(ADOPTION_FILE):
            raise AdoptionRefused(
                f"--into is the directory of host {host!r} of cluster {adoption.cluster_id}, of which the metadata "
                "store knows nothing: give the URL of that cluster's, or a directory that is new"
            )
        source = await _take(places.source, adoption, replicas, environment)
        metadata_entries(source, {})  # raises what no metadata store takes, before anything is copied
        environment.planned(source.size_bytes)
        if state is StoreState.EMPTY:  # what was refused until here leaves nothing in the metadata store
            await give_notice(metadata, adoption.cluster_id)
        registrations = await _copy(places, adoption, source, environment)
        write_label(places.target, adoption.cluster_id, DiskLabel(adoption.disk, host))
        replace_whole(places.source, ADOPTED_FILE, {"v": VERSION, "cluster_id": adoption.cluster_id, "host": host})
        await publish(metadata, source, registrations, adoption.cluster_id)
        _finish(places.target)
        chunks = sum(len(found.chunks) for found in registrations.values())
        return Adopted(len(source.topics), len(source.streams), chunks, source.size_bytes, was_done=False)


def _source_id(fs: FileSystem) -> str:
    """Raises AdoptionRefused, CorruptFile, OSError."""
    if fs.exists(LABEL_FILE):
        raise AdoptionRefused(
            f"the directory has {LABEL_FILE}: it is that of a host of a cluster already; start it with --cluster"
        )
    return str(_read(fs, "cairn.json")["cluster_id"])


def _done(places: AdoptionPlaces, source_id: str, host: str) -> Adoption | None:
    """The adoption that has made the new directory, if it is complete there. Raises CorruptFile, OSError."""
    source, target = places[:2]
    if target.exists(ADOPTION_FILE) or not target.exists(LABEL_FILE) or not source.exists(ADOPTED_FILE):
        return None
    label, note = _read(target, LABEL_FILE), _read(source, ADOPTED_FILE)
    if (label.get("host"), label.get("cluster_id")) != (host, note.get("cluster_id")):
        return None
    return Adoption(source_id, str(label["cluster_id"]), host, str(label.get("disk")))


def _begin(places: AdoptionPlaces, source_id: str, host: str, environment: AdoptionEnvironment) -> Adoption:
    """The adoption that was begun in the new directory, or a new one. Raises AdoptionRefused, CorruptFile, OSError."""
    fs = places.target
    taken = _read(places.source, ADOPTED_FILE) if places.source.exists(ADOPTED_FILE) else None
    if fs.exists(ADOPTION_FILE):
        fields = _read(fs, ADOPTION_FILE)
        if fields.pop("v", None) != VERSION or set(fields) != {"source", "cluster_id", "host", "disk"}:
            raise CorruptFile(f"{ADOPTION_FILE} is damaged, or of another version: give an empty --into")
        found = Adoption(**{name: str(value) for name, value in fields.items()})
        if (found.source, found.host) != (source_id, host):
            raise AdoptionRefused(
                f"an adoption of the data directory with cluster id {found.source}, for host {found.host!r}, was begun "
                f"there, and this is {source_id}, for {host!r}: give the same again, or an empty --into"
            )
        if taken is not None and taken.get("cluster_id") != found.cluster_id:
            raise _taken(taken)
        return found
    if taken is not None:
        raise _taken(taken)
    others = sorted(set(fs.list_directory("")) - NO_FILES)
    if others:
        raise AdoptionRefused(f"--into is not empty, it has {others[0]!r}: give a directory that is new")
    cluster_id, disk = environment.new_id().hex, f"{environment.random.getrandbits(64):016x}"
    adoption = Adoption(source_id, cluster_id, host, disk)
    replace_whole(fs, ADOPTION_FILE, {"v": VERSION, **asdict(adoption)})
    return adoption


def _taken(note: Mapping[str, object]) -> AdoptionRefused:
    return AdoptionRefused(
        f"the data directory was adopted before ({ADOPTED_FILE}), by cluster {note.get('cluster_id')}, as its host "
        f"{note.get('host')!r}. If that was interrupted, give its --into and --cluster again; if that cluster is given "
        f"up, stop its hosts, remove {ADOPTED_FILE}, and run this again: two clusters would give the same offsets to "
        "different records"
    )


async def _take(fs: FileSystem, adoption: Adoption, replicas: int, environment: AdoptionEnvironment) -> Source:
    """Open the source and close it, and see what it has."""
    store = await trio.to_thread.run_sync(_open, fs, environment)
    async with open_engine(store, fs):
        pass
    return await trio.to_thread.run_sync(take_source, store, fs, replicas, adoption.cluster_id)


async def _copy(
    places: AdoptionPlaces, adoption: Adoption, source: Source, environment: AdoptionEnvironment
) -> dict[str, StreamRegistration]:
    store = await trio.to_thread.run_sync(_open, places.target, environment)
    member = Member(adoption.host, adoption.disk)
    async with open_engine(store, places.target) as engine:
        return await ReplicaBuilder(engine, places.source, member, environment.advanced).build(source)


def _open(fs: FileSystem, environment: AdoptionEnvironment) -> Store:
    return Store.open(
        fs,
        environment.clock,
        SETTINGS,
        new_id=environment.new_id,
        report=environment.report,
        decided=decided_in_journal,
    )


def _finish(fs: FileSystem) -> None:
    """Let hosts start on the new directory."""
    if fs.exists(ADOPTION_FILE):
        fs.remove(ADOPTION_FILE)
    fs.sync_directory("")


def _read(fs: FileSystem, name: str) -> dict[str, object]:
    """Raises CorruptFile, OSError."""
    try:
        found = json.loads(fs.read(name, 0, fs.size(name)))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{name} is damaged: {error!r}; restore it from a copy") from error
    if not isinstance(found, dict):
        raise CorruptFile(f"{name} is damaged: it is not an object; restore it from a copy")
    return found
