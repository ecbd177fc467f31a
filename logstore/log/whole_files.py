"""Small files that are replaced as a whole: identities, labels and notes of a data directory.

Invariant: a crash leaves the old content or the new one, and perhaps a file of the temporary name, which the next
replacement overwrites.
"""

import json

from logstore.interfaces import FileSystem


def temporary_name(name: str) -> str:
    """Where the new content is written before it takes the file's place."""
    return f"{name}.new"


def replace_whole(fs: FileSystem, name: str, fields: dict[str, object]) -> None:
    """Write a file of the data directory anew, as JSON, durably. Blocks. Raises OSError."""
    temporary = temporary_name(name)
    fs.create(temporary)
    fs.write(temporary, 0, [json.dumps(fields).encode()])
    fs.sync(temporary)
    fs.rename(temporary, name)
    fs.sync_directory("")
