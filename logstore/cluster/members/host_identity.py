"""Who this host is: the cluster that it belongs to, and the disk of its data directory, as of this start.

The steps of a start are those of `logstore.replica.identity`: read the register of the disk, judge the disk, write the
label of the new start to the disk, durably, then swap it into the register. The label lies in LABEL_FILE of the data
directory, with the cluster's id; docs/format.md has both.

Invariants:
* A label counts one start more than the register at most: a start that ended between its two writes is counted again
  with the same number. A label that is further ahead is refused.
* Each start takes its two writes twice, and counts as two. So a label that is one ahead of the register is that of a
  start which served nobody, and one that is further ahead shows that the store was set back, were it by one start. A
  label of 1 is that of a disk that has never been in use; one of more, of which the register knows nothing, was removed
  with its host.
* A disk that this start has brought into use, and with which the host was no member yet, is new: where its entry is
  removed meanwhile, with those of the host's disks before, it is put again, here and at the joining (`membership`).
* A host that is refused because others have its name or number leaves nothing behind: `give_back_identity` takes back
  what its start has written into an empty directory. The label goes first: a register without a disk harms nobody.
* A disk of one cluster never takes part in another; an emptied metadata store is another cluster.
* The label file is replaced as a whole: a crash leaves the old one or the new one.

Files are written by the event loop's thread: a few syncs at a start, before anything is served.
"""

import json
import posixpath
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple

import trio

from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataRefused, MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import (
    ABSENT,
    Committed,
    Condition,
    Delete,
    Entry,
    MetadataStore,
    Put,
    Transaction,
)
from logstore.cluster.members.own_files import LABEL_FILE
from logstore.errors import CorruptFile, DiskRefused, UnknownFormatVersion, WrongCluster
from logstore.events import METADATA_AWAITED
from logstore.interfaces import FileSystem
from logstore.log.whole_files import replace_whole
from logstore.replica.identity import DiskLabel, DiskVerdict, judge_disk
from logstore.replica.registrations import Member, OwnerId

EMPTY_STORE: Final = (
    "remove everything in its namespace (`etcdctl del /NAMESPACE/ --prefix`, with the one that --cluster names, and "
    "/cairn/ if it names none)"
)
"""What an operator does with a metadata store whose cluster, or adoption, is given up."""
RETRY_S: Final = 1.0
"""Between tries to reach the metadata store at a start."""
GIVE_BACK_S: Final = 2.0
"""For a metadata store that does not answer while a host is refused."""
STARTS_IN_USE: Final = 2
"""Of a disk in use, at least."""
_VERSION: Final = 1
_FIELDS: Final = {"cluster_id": str, "disk": str, "host": str, "starts": int, "start": str}


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """A host in the life that has begun."""

    cluster_id: str
    label: DiskLabel
    was_empty: bool = False
    """Whether this start found no label, so that nothing of the disk is older than it."""
    is_first_life: bool = False
    """Whether this start has brought the disk into use: no host was a member with it before."""

    @property
    def host(self) -> str:
        """The host's name."""
        return self.label.host

    @property
    def member(self) -> Member:
        """The host as the owner of its disk."""
        return self.label.member

    @property
    def owner_id(self) -> OwnerId:
        """The host as the owner of streams."""
        return self.label.owner_id

    @property
    def disk_entry(self) -> Entry:
        """What the register of the disk holds, as of no revision."""
        return Entry(schema.disk_key(self.label.disk), _register_of(self.label), ABSENT)


@dataclass(frozen=True, slots=True)
class _StoredLabel:
    cluster_id: str
    label: DiskLabel


async def establish_identity(
    store: MetadataStore, fs: FileSystem, host: str, random: Random, report: Report, directory: str = ""
) -> HostIdentity:
    """Take the steps of a start; waits while the metadata store is away. `directory`: what errors call that of `fs`.

    Raises DiskRefused, WrongCluster, CorruptFile, UnknownFormatVersion, OSError, MetadataRefused, MetadataDamaged, and
    InvalidMetadataCall for a name that no host may have.
    """
    schema.member_key(host)
    start = _Start(f"{random.getrandbits(64):016x}")
    disk, was_empty = _Disk(fs, posixpath.join(directory, LABEL_FILE)), not fs.exists(LABEL_FILE)
    while True:
        try:
            fresh = DiskLabel(f"{random.getrandbits(64):016x}", host)
            return replace(await _establish(store, disk, fresh, start, random), was_empty=was_empty)
        except (MetadataUnavailable, OutcomeUnknown) as error:
            report(METADATA_AWAITED, error=error)
        await trio.sleep(RETRY_S)


async def give_back_identity(store: MetadataStore, fs: FileSystem, identity: HostIdentity) -> None:
    """Leave an empty directory as `establish_identity` has found it, for a host that surely never was a member; one
    that had a label keeps it. Blocks; the register stays if the metadata store does not answer. Raises OSError.
    """
    if not (identity.was_empty and identity.is_first_life):
        return
    fs.remove(LABEL_FILE)
    fs.sync_directory("")
    key = identity.disk_entry.key
    with suppress(MetadataUnavailable, OutcomeUnknown, MetadataRefused), trio.move_on_after(GIVE_BACK_S):
        found = await store.get(key)
        if found.entry is not None and found.entry.value == identity.disk_entry.value:
            await store.commit(Transaction((Condition(key, found.entry_revision),), (Delete(key),)))


@dataclass(slots=True)
class _Start:
    """This start. `first`: the number of the first label that it has written; 0: none yet."""

    name: str
    first: int = 0

    @property
    def is_first_life(self) -> bool:
        """Whether no start before it was completed."""
        return self.first <= STARTS_IN_USE

    def is_made(self, label: DiskLabel) -> bool:
        """Whether both writes were taken twice, if the register has this label."""
        return label.start == self.name and label.starts > self.first > 0


class _Disk(NamedTuple):
    """Where the label lies; `label_path` is what errors call it."""

    fs: FileSystem
    label_path: str


async def _establish(
    store: MetadataStore, disk: _Disk, fresh: DiskLabel, start: _Start, random: Random
) -> HostIdentity:
    path, stored = disk.label_path, _read_label(disk)
    cluster_id = await _cluster_id(store, stored, random, path)
    while True:
        label = stored.label if stored is not None else fresh
        found = await store.get(schema.disk_key(label.disk))
        registered = _registered(label.disk, found.entry)
        is_written = registered == label and label.start == start.name
        if is_written and start.is_made(label):
            return HostIdentity(cluster_id, label, is_first_life=start.is_first_life)
        label = _judged(fresh.host, stored, label, registered, start, path)
        if is_written or label.start != start.name:
            starts = registered.starts if registered is not None else 0
            label = DiskLabel(label.disk, label.host, starts + 1, start.name)
            start.first = start.first or label.starts
            stored = _StoredLabel(cluster_id, label)
            write_label(disk.fs, cluster_id, label)
        key = schema.disk_key(label.disk)
        transaction = Transaction((Condition(key, found.entry_revision),), (Put(key, _register_of(label)),))
        if isinstance(await store.commit(transaction), Committed) and start.is_made(label):
            return HostIdentity(cluster_id, label, is_first_life=start.is_first_life)


def _register_of(label: DiskLabel) -> bytes:
    return schema.encode(schema.StoredDisk(host=label.host, starts=label.starts, start=label.start))


def _judged(
    host: str, stored: _StoredLabel | None, label: DiskLabel, registered: DiskLabel | None, start: _Start, path: str
) -> DiskLabel:
    """The label to go on with, in this start. Raises DiskRefused."""
    verdict = judge_disk(host, label if stored is not None else None, registered)
    if verdict is DiskVerdict.EMPTY:
        return label
    if verdict is DiskVerdict.FOREIGN:
        raise DiskRefused(
            f"{path}: the data directory belongs to host {label.host!r}, this is host {host!r}; "
            "start that host with it, or give this one an empty directory"
        )
    if verdict is DiskVerdict.OLD_COPY:
        starts = registered.starts if registered is not None else 0
        raise DiskRefused(
            f"{path}: disk {label.disk} has had start number {starts}, and this is a copy from its start number "
            f"{label.starts}; use the disk itself, or give the host an empty directory"
        )
    if registered is None and label.starts >= STARTS_IN_USE:
        if label.start == start.name and start.is_first_life:
            return label  # the entry of its first start was removed since, with those of the host's disks before
        raise DiskRefused(
            f"{path}: disk {label.disk} has been in use, but the metadata store does not know it: if the host "
            "was removed from the cluster, give it an empty directory; if an older copy of the store was restored, "
            "restore the newest copy"
        )
    if label.starts > (registered.starts if registered is not None else 0) + 1:
        raise DiskRefused(
            f"{path}: disk {label.disk} has had start number {label.starts}, and the metadata store knows of number "
            f"{registered.starts if registered is not None else 0}: an older copy of the store was restored; "
            "restore the newest copy"
        )
    return label


async def _cluster_id(store: MetadataStore, stored: _StoredLabel | None, random: Random, path: str) -> str:
    """The cluster's id; makes it if the metadata store is empty and this disk new. Raises WrongCluster."""
    entry = (await store.get(schema.CLUSTER_KEY)).entry
    if entry is None and stored is None:
        value = schema.encode(schema.StoredCluster(cluster_id=f"{random.getrandbits(128):032x}"))
        conditions = tuple(Condition(key, ABSENT) for key in (schema.CLUSTER_KEY, schema.ADOPTION_KEY))
        await store.commit(Transaction(conditions, (Put(schema.CLUSTER_KEY, value),)))
        entry = (await store.get(schema.CLUSTER_KEY)).entry
        if entry is None:
            raise WrongCluster(
                f"`cairn adopt` has begun on the metadata store (entry {schema.ADOPTION_KEY!r}), and has not completed "
                f"it: start this host when it has; or, if it is given up, {EMPTY_STORE}; or give the URL of another "
                "cluster"
            )
    found = "" if entry is None else schema.decode(schema.StoredCluster, entry).cluster_id
    if stored is not None and stored.cluster_id != found:
        what = f"that of cluster {found}" if found else "empty"
        raise WrongCluster(
            f"{path}: the data directory belongs to cluster {stored.cluster_id}, the metadata store is {what}; "
            "give the URL of the right one, or restore it; an empty directory only if that cluster is given up"
        )
    return found


def _registered(disk: str, entry: Entry | None) -> DiskLabel | None:
    if entry is None:
        return None
    value = schema.decode(schema.StoredDisk, entry)
    return DiskLabel(disk, value.host, value.starts, value.start)


# ---- the label file


def _read_label(disk: _Disk) -> _StoredLabel | None:
    """What is on the disk; None: it was never formatted. Raises CorruptFile, UnknownFormatVersion, OSError."""
    fs, path = disk
    if not fs.exists(LABEL_FILE):
        return None
    try:
        fields = json.loads(fs.read(LABEL_FILE, 0, fs.size(LABEL_FILE)))
        version = fields.pop("v")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, repr(error)) from error
    if version != _VERSION:
        raise UnknownFormatVersion(f"{path} has version {version!r}, this Cairn knows 1; start a newer Cairn")
    _check(fields, path)
    label = DiskLabel(fields["disk"], fields["host"], fields["starts"], fields["start"])
    return _StoredLabel(fields["cluster_id"], label)


def _check(fields: Mapping[str, Any], path: str) -> None:
    if {name: type(value) for name, value in fields.items()} != _FIELDS:
        raise _damaged(path, f"its fields are {sorted(fields)}")


def _damaged(path: str, what: str) -> CorruptFile:
    return CorruptFile(f"{path} is damaged ({what}); restore it, or give the host an empty directory")


def write_label(fs: FileSystem, cluster_id: str, label: DiskLabel) -> None:
    """Put a label on the disk, durably. Blocks. Raises OSError."""
    values = (cluster_id, label.disk, label.host, label.starts, label.start)
    fields = {"v": _VERSION, **dict(zip(_FIELDS, values, strict=True))}
    replace_whole(fs, LABEL_FILE, fields)
