"""The data directory as a whole: what every one has, and who it is.

Invariants: the identity file is written, synced and renamed before anything else; the cluster id in it never changes.
A directory with data and without it is refused. A directory of an older format gets the present version before anything
else is written: from then on an older Cairn, which would not find all records, refuses it.
"""

import json
import uuid
from collections.abc import Callable
from typing import Final

from logstore.errors import CorruptFile, UnknownFormatVersion
from logstore.interfaces import FileSystem
from logstore.log.chunks import parse_chunk_name
from logstore.log.journal import DIRECTORY as JOURNAL_DIRECTORY
from logstore.log.ledger import DIRECTORY as LEDGER_DIRECTORY

FORMAT_VERSION: Final = 2
"""2: the journal has appends that chunks do not have yet, and a partition without a record has no directory."""
IDENTITY_FILE: Final = "cairn.json"
STREAMS_DIRECTORY: Final = "streams"


def prepare_directory(fs: FileSystem, new_id: Callable[[], uuid.UUID]) -> str:
    """Make what every data directory has, if it is new; returns its cluster id. Blocks.

    Raises UnknownFormatVersion, CorruptFile, OSError.
    """
    cluster_id = _identity(fs, new_id)
    # A killed process may have left the name of the identity file in the page cache only.
    fs.sync_directory("")
    for directory in (LEDGER_DIRECTORY, STREAMS_DIRECTORY, JOURNAL_DIRECTORY):
        fs.make_directory(directory)
    fs.sync_directory("")
    return cluster_id


def _identity(fs: FileSystem, new_id: Callable[[], uuid.UUID]) -> str:
    """The cluster id of the data directory; creates the identity file if the directory is new."""
    if not fs.exists(IDENTITY_FILE):
        strangers = [name for name in fs.list_directory("") if name in (LEDGER_DIRECTORY, STREAMS_DIRECTORY)]
        if strangers:
            raise CorruptFile(f"{IDENTITY_FILE} is missing beside {', '.join(strangers)}; restore it from a copy")
        _write_identity(fs, new_id().hex)
    try:
        identity = json.loads(fs.read(IDENTITY_FILE, 0, fs.size(IDENTITY_FILE)))
        version, cluster_id = identity["format"], identity["cluster_id"]
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
        _write_identity(fs, cluster_id)
    return cluster_id


def _write_identity(fs: FileSystem, cluster_id: str) -> None:
    temporary = f"{IDENTITY_FILE}.new"
    fs.create(temporary)
    fs.write(temporary, 0, [json.dumps({"format": FORMAT_VERSION, "cluster_id": cluster_id}).encode()])
    fs.sync(temporary)
    fs.rename(temporary, IDENTITY_FILE)
    fs.sync_directory("")


def remove_tree(fs: FileSystem, directory: str) -> None:
    """Remove a topic's directory: only its partition directories and the chunk files in them."""
    for partition in fs.list_directory(directory):
        inner = f"{directory}/{partition}"
        for name in fs.list_directory(inner):
            if parse_chunk_name(name) is not None:
                fs.remove(f"{inner}/{name}")
        fs.remove_directory(inner)
    fs.remove_directory(directory)
