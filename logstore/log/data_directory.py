"""The data directory as a whole: what every one has, and who it is.

Invariants: the identity file is written, synced and renamed before anything else; cluster id and journal key in it
never change. The journal key is a secret: it is in this file and in the journal's blocks, and nowhere else.
A directory with data and without it is refused. A directory of an older format gets the present version before anything
else is written: from then on an older Cairn, which would not find all records, refuses it.
"""

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from logstore.errors import CorruptFile, UnknownFormatVersion
from logstore.format.journal_block import KEY_BYTES
from logstore.interfaces import FileSystem
from logstore.log.chunks import parse_chunk_name
from logstore.log.journal import DIRECTORY as JOURNAL_DIRECTORY
from logstore.log.ledger import DIRECTORY as LEDGER_DIRECTORY
from logstore.log.whole_files import replace_whole

FORMAT_VERSION: Final = 2
"""2: the journal has appends that chunks do not have yet, and a partition without a record has no directory. The
identity file has the journal's key.
"""
IDENTITY_FILE: Final = "cairn.json"
STREAMS_DIRECTORY: Final = "streams"
_KEY_TEXT: Final = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """Who a data directory is. `journal_key` tells the journal's blocks from bytes of clients that look like blocks."""

    cluster_id: str
    journal_key: bytes = field(repr=False)


def prepare_directory(fs: FileSystem, new_id: Callable[[], uuid.UUID]) -> DirectoryIdentity:
    """Make what every data directory has, if it is new; returns its identity. Blocks.

    Raises UnknownFormatVersion, CorruptFile, OSError.
    """
    identity = _identity(fs, new_id)
    # A killed process may have left the name of the identity file in the page cache only.
    fs.sync_directory("")
    for directory in (LEDGER_DIRECTORY, STREAMS_DIRECTORY, JOURNAL_DIRECTORY):
        fs.make_directory(directory)
    fs.sync_directory("")
    return identity


def _identity(fs: FileSystem, new_id: Callable[[], uuid.UUID]) -> DirectoryIdentity:
    """The identity of the data directory; creates the identity file if the directory is new."""
    if not fs.exists(IDENTITY_FILE):
        strangers = [name for name in fs.list_directory("") if name in (LEDGER_DIRECTORY, STREAMS_DIRECTORY)]
        if strangers:
            raise CorruptFile(f"{IDENTITY_FILE} is missing beside {', '.join(strangers)}; restore it from a copy")
        _write_identity(fs, DirectoryIdentity(new_id().hex, _new_key(new_id)))
    try:
        found = json.loads(fs.read(IDENTITY_FILE, 0, fs.size(IDENTITY_FILE)))
        version, cluster_id = found["format"], found["cluster_id"]
        key_text = found["journal_key"] if version == FORMAT_VERSION else None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFile(f"{IDENTITY_FILE} is damaged: {error!r}; restore it from a copy") from error
    if type(version) is not int or version < 1:
        raise CorruptFile(
            f"{IDENTITY_FILE} is damaged: its format version is {version!r}, and there are only whole numbers from 1; "
            "restore it from a copy"
        )
    if version > FORMAT_VERSION:
        raise UnknownFormatVersion(
            f"the data directory has format version {version}, this Cairn knows {FORMAT_VERSION}; start a newer Cairn"
        )
    if not isinstance(cluster_id, str) or not cluster_id:
        raise CorruptFile(f"{IDENTITY_FILE} is damaged: its cluster_id is {cluster_id!r}; restore it from a copy")
    if version < FORMAT_VERSION:
        identity = DirectoryIdentity(cluster_id, _new_key(new_id))
        _write_identity(fs, identity)
        return identity
    key = parse_key(key_text)
    if key is None:
        # Not with its value: an error is shown and logged, and most of the key may be right.
        raise CorruptFile(
            f"{IDENTITY_FILE} is damaged: its journal_key is not {2 * KEY_BYTES} digits 0-9a-f; restore it from a copy"
        )
    return DirectoryIdentity(cluster_id, key)


def parse_key(text: object) -> bytes | None:
    """The journal's key as the identity file has it; None if that is no key."""
    return bytes.fromhex(text) if isinstance(text, str) and _KEY_TEXT.fullmatch(text) else None


def _new_key(new_id: Callable[[], uuid.UUID]) -> bytes:
    """Random bytes of an id of its own, without those that a version 4 UUID has fixed bits in."""
    random_bytes = new_id().bytes
    return random_bytes[: KEY_BYTES // 2] + random_bytes[-KEY_BYTES // 2 :]


def _write_identity(fs: FileSystem, identity: DirectoryIdentity) -> None:
    fields = {
        "format": FORMAT_VERSION,
        "cluster_id": identity.cluster_id,
        "journal_key": identity.journal_key.hex(),
    }
    replace_whole(fs, IDENTITY_FILE, fields)


def remove_tree(fs: FileSystem, directory: str) -> None:
    """Remove a topic's directory: only its partition directories and the chunk files in them."""
    for partition in fs.list_directory(directory):
        inner = f"{directory}/{partition}"
        for name in fs.list_directory(inner):
            if parse_chunk_name(name) is not None:
                fs.remove(f"{inner}/{name}")
        fs.remove_directory(inner)
    fs.remove_directory(directory)
