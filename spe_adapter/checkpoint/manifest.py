"""The manifest of a checkpoint: what it is of, and which page lies in which file.

A manifest is complete in itself: an incremental checkpoint's names the files of the older checkpoints that hold the
pages which did not change. So a recovery reads one manifest, and a damaged manifest costs one checkpoint.

    cairn-checkpoint VERSION CRC LENGTH
    {JSON}

Invariants:
* A manifest that is torn, or has a changed byte, is CheckpointDamaged; another version is CheckpointVersionUnknown,
  or CheckpointVersionOld.
* Every page of the state is in exactly one of the parts that the manifest calls live.
* Every value is within its bounds before anything is made of it: a manifest may have been written by anybody.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from spe_adapter.checkpoint.chunk import (
    MAX_CHUNK_BYTES,
    MAX_PAGE_BYTES,
    MIN_PAGE_BYTES,
    max_chunk_bytes,
    min_chunk_bytes,
)
from spe_adapter.checkpoint.errors import CheckpointDamaged, CheckpointVersionOld, CheckpointVersionUnknown
from spe_adapter.checkpoint.names import (
    MAX_PARTITION,
    MAX_SEQ,
    MAX_THREADS,
    CheckpointName,
    Unit,
    checkpoint_name,
    thread_name,
)
from spe_adapter.checkpoint.ranges import check_ranges, count_of, ids_of, ranges_of
from spe_adapter.checkpoint.snapshot import VersionHeader
from spe_adapter.codec.kernels import Int64s

VERSION: Final = 2
MAX_VALUE: Final = 2**62
_HEAD: Final = re.compile(rb"cairn-checkpoint (\d{1,9}) ([0-9a-f]{8}) (\d{1,9})\n")
_MAX_HEAD_BYTES: Final = 64


class CheckpointFile(NamedTuple):
    """A file with pages. `crc32c`: of all its bytes; `ranges`: its pages, flat; `hosts`: where it was written."""

    thread: int
    size_bytes: int
    crc32c: int
    ranges: tuple[int, ...]
    hosts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the file in the checkpoint's directory."""
        return thread_name(self.thread)

    @property
    def pages(self) -> int:
        """How many pages it holds."""
        return count_of(self.ranges)

    def ids(self) -> Int64s:
        """The numbers of its pages."""
        return ids_of(self.ranges)


class CheckpointPart(NamedTuple):
    """The files of one checkpoint that another is made of."""

    seq: int
    files: tuple[CheckpointFile, ...]


class LiveFile(NamedTuple):
    """A file of a checkpoint, and those of its pages that no newer file holds."""

    name: CheckpointName
    file: CheckpointFile
    ids: Int64s


class Manifest(NamedTuple):
    """A complete checkpoint. `parts`: its own files, then those of the older checkpoints that it builds on, newest
    first; a page in none of them is zero. `is_planned`: its chunks followed a plan; `written_ms`: since 1970.
    """

    unit: Unit
    seq: int
    header: VersionHeader
    page_bytes: int
    parts: tuple[CheckpointPart, ...]
    is_planned: bool = False
    written_ms: int = 0

    @property
    def name(self) -> CheckpointName:
        """The name of its directory."""
        return checkpoint_name(self.unit, self.seq)

    @property
    def version(self) -> tuple[int, str]:
        """Epoch and attempt."""
        return self.header.epoch, self.header.attempt

    @property
    def files(self) -> tuple[CheckpointFile, ...]:
        """Its own files."""
        return self.parts[0].files

    @property
    def bases(self) -> tuple[int, ...]:
        """The sequence numbers of the checkpoints that it builds on, newest first."""
        return tuple(part.seq for part in self.parts[1:])

    @property
    def own_bytes(self) -> int:
        """Bytes of its own files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def all_bytes(self) -> int:
        """Bytes of all files that a recovery reads."""
        return sum(file.size_bytes for part in self.parts for file in part.files)

    @property
    def own_page_bytes(self) -> int:
        """Bytes of the pages in its own files; files are smaller, as far as pages can be compressed."""
        return sum(file.pages for file in self.files) * self.page_bytes

    @property
    def all_page_bytes(self) -> int:
        """Bytes of the pages in all files that a recovery reads."""
        return sum(file.pages for part in self.parts for file in part.files) * self.page_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the pages of the state."""
        return sum(len(found.ids) for found in self.live()) * self.page_bytes

    def live(self) -> list[LiveFile]:
        """The files with the pages that count in each, newest first; a page is in one of them only."""
        seen: Int64s = np.zeros(0, np.int64)
        found = []
        for part in self.parts:
            own: list[Int64s] = []
            for file in part.files:
                ids = file.ids()
                own.append(ids)
                left = np.setdiff1d(ids, seen, assume_unique=True) if len(seen) else ids
                if len(left):
                    found.append(LiveFile(CheckpointName(self.unit.name, part.seq), file, left))
            seen = np.union1d(seen, np.concatenate(own)) if own else seen
        return found


def parts_over(files: Sequence[CheckpointFile], seq: int, base: Manifest | None) -> tuple[CheckpointPart, ...]:
    """The parts of checkpoint `seq` with these files of its own over `base`; files without a live page are left out."""
    own = CheckpointPart(seq, tuple(files))
    if base is None:
        return (own,)
    seen = np.unique(np.concatenate([np.zeros(0, np.int64), *(file.ids() for file in files)]))
    parts = [own]
    for part in base.parts:
        kept = tuple(file for file in part.files if len(np.setdiff1d(file.ids(), seen, assume_unique=True)))
        if kept:
            parts.append(CheckpointPart(part.seq, kept))
        seen = np.union1d(seen, np.concatenate([np.zeros(0, np.int64), *(file.ids() for file in part.files)]))
    return tuple(parts)


# ---- bytes


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    header = manifest.header
    described = {
        "query": manifest.unit.query,
        "partition": manifest.unit.partition,
        "seq": manifest.seq,
        "epoch": header.epoch,
        "attempt": header.attempt,
        "fingerprint": header.fingerprint,
        "capacity": header.capacity,
        "arena_bytes": header.arena_bytes,
        "note": header.note.hex(),
        "extra": header.extra,
        "page_bytes": manifest.page_bytes,
        "planned": manifest.is_planned,
        "written_ms": manifest.written_ms,
        "parts": [{"seq": part.seq, "files": [_described(file) for file in part.files]} for part in manifest.parts],
    }
    body = json.dumps(described, separators=(",", ":")).encode()
    return b"cairn-checkpoint %d %08x %d\n" % (VERSION, crc32c(body), len(body)) + body


def _described(file: CheckpointFile) -> dict[str, Any]:
    return {
        "thread": file.thread,
        "bytes": file.size_bytes,
        "crc32c": file.crc32c,
        "ranges": list(file.ranges),
        "hosts": list(file.hosts),
    }


def decode_manifest(data: bytes, name: CheckpointName, where: str) -> Manifest:
    """The manifest of checkpoint `name`; `where` is named in errors. Raises CheckpointDamaged,
    CheckpointVersionUnknown and CheckpointVersionOld.
    """
    head = _HEAD.match(data[:_MAX_HEAD_BYTES])
    if head is None:
        raise CheckpointDamaged(f"{where}: begins with {data[:24]!r}: not a manifest of a checkpoint")
    if (version := int(head[1])) != VERSION:
        kind = CheckpointVersionOld if version < VERSION else CheckpointVersionUnknown
        raise kind(f"{where}: format version {version}; this release reads version {VERSION}")
    body = data[head.end() :]
    if len(body) != int(head[3]):
        raise CheckpointDamaged(f"{where}: {len(body)} bytes after the first line, which says {int(head[3])}")
    if crc32c(body) != int(head[2], 16):
        raise CheckpointDamaged(f"{where}: the CRC differs")
    try:
        manifest = _parsed(json.loads(body))
        found = manifest.name
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise CheckpointDamaged(f"{where}: {type(error).__name__}: {error}") from error
    if found != name:
        raise CheckpointDamaged(f"{where}: is the manifest of {found}")
    return manifest


def _parsed(fields: Mapping[str, Any]) -> Manifest:
    header = VersionHeader(
        str(fields["fingerprint"]),
        _bounded(fields, "epoch", MAX_VALUE),
        str(fields["attempt"]),
        _bounded(fields, "capacity", MAX_VALUE),
        _bounded(fields, "arena_bytes", MAX_VALUE),
        bytes.fromhex(fields["note"]),
        dict(fields["extra"]),
    )
    page_bytes = _bounded(fields, "page_bytes", MAX_PAGE_BYTES, MIN_PAGE_BYTES)
    parts = tuple(
        CheckpointPart(_bounded(part, "seq", MAX_SEQ, 1), tuple(_file(file, page_bytes) for file in part["files"]))
        for part in fields["parts"]
    )
    unit = Unit(str(fields["query"]), _bounded(fields, "partition", MAX_PARTITION))
    if not parts or parts[0].seq != fields["seq"]:
        raise ValueError(f"parts of {[part.seq for part in parts]}")
    return Manifest(
        unit,
        _bounded(fields, "seq", MAX_SEQ, 1),
        header,
        page_bytes,
        parts,
        bool(fields["planned"]),
        _bounded(fields, "written_ms", MAX_VALUE),
    )


def _bounded(fields: Mapping[str, Any], name: str, most: int, least: int = 0) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a number from {least} to {most}")
    return value


def _file(fields: Mapping[str, Any], page_bytes: int) -> CheckpointFile:
    file = CheckpointFile(
        _bounded(fields, "thread", MAX_THREADS),
        _bounded(fields, "bytes", MAX_VALUE),
        _bounded(fields, "crc32c", 0xFFFFFFFF),
        tuple(int(number) for number in fields["ranges"]),
        tuple(str(host) for host in fields["hosts"]),
    )
    check_ranges(file.ranges)
    least_bytes, most_bytes = min_chunk_bytes(file.pages, page_bytes), max_chunk_bytes(file.pages, page_bytes)
    if not least_bytes < file.size_bytes <= most_bytes or file.pages * page_bytes > 2 * MAX_CHUNK_BYTES:
        raise ValueError(f"file {file.name} with {file.pages} pages has {file.size_bytes} bytes")
    return file


def file_of(thread: int, ids: Int64s, size_bytes: int, checksum: int, hosts: Sequence[str]) -> CheckpointFile:
    """The entry of a file that was written."""
    return CheckpointFile(thread, size_bytes, checksum, tuple(ranges_of(ids)), tuple(hosts))
