"""An object store in a directory, for tests of what uses one: on real files, or on a simulated disk that crashes.

Invariants: those of `logstore.tier.interface.ObjectStore`; an object gets its name after its bytes are synced, and the
name is durable when `put` returns.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from crc32c import crc32c

from logstore.errors import ObjectMissing, TierFull, TierUnavailable
from logstore.format.tiered_chunk import StoredObject
from logstore.interfaces import FileSystem
from logstore.log.space import is_full
from logstore.tier.interface import ListedObject

PIECE_BYTES = 1 << 20


class DirectoryObjects:
    """Objects as files below `root`. `before`, if given, is called with a method's name and its key, and may raise."""

    def __init__(
        self, fs: FileSystem, root: str = "objects", before: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        self._fs = fs
        self._root = root
        self.before = before
        self._durable: set[str] = set()
        """Directories whose names are: those that a killed process has made may be in memory only."""
        fs.make_directory(root)
        fs.sync_directory("")

    def put(self, key: str, size_bytes: int, pieces: Iterable[bytes], chain: Sequence[str] = ()) -> None:
        """See ObjectStore."""
        self.before("put", key)
        path, written = self._path(key), 0
        directory, _, name = path.rpartition("/")
        part = f"{directory}/_{name}"
        try:
            self._make(directory)
            self._fs.create(part)
            for piece in pieces:
                self._fs.write(part, written, [piece])
                written += len(piece)
            if written != size_bytes:
                raise TierUnavailable(f"{key}: {written} bytes came, {size_bytes} were announced")
            self._fs.sync(part)
            self._fs.rename(part, path)
            self._fs.sync_directory(directory)
        except OSError as error:
            raise _meaning(key, error) from error

    def get(self, key: str, position: int, length: int) -> bytes:
        """See ObjectStore."""
        self.before("get", key)
        try:
            if not self._fs.exists(self._path(key)):
                raise ObjectMissing(f"{key} is not in the store")
            return bytes(self._fs.read(self._path(key), position, length))
        except OSError as error:
            raise _meaning(key, error) from error

    def checksum(self, key: str) -> StoredObject:
        """See ObjectStore."""
        size_bytes = crc = 0
        while piece := self.get(key, size_bytes, PIECE_BYTES):
            size_bytes, crc = size_bytes + len(piece), crc32c(piece, crc)
        return StoredObject(size_bytes, crc)

    def list_keys(self, prefix: str) -> Iterator[ListedObject]:
        """See ObjectStore."""
        self.before("list", prefix)
        yield from self._list(prefix.rstrip("/"))

    def _list(self, directory: str) -> Iterator[ListedObject]:
        for name in self._fs.list_directory(self._path(directory) if directory else self._root):
            key = f"{directory}/{name}" if directory else name
            if self._is_file(key):
                yield ListedObject(key, self._fs.size(self._path(key)))
            else:
                yield from self._list(key)

    def _is_file(self, key: str) -> bool:
        return key.endswith((".log", ".index", ".producers", ".bin"))

    def delete(self, key: str) -> None:
        """See ObjectStore. Directories that are empty then go as well, as far as the root."""
        self.before("delete", key)
        path = self._path(key)
        try:
            self._fs.remove(path)
            while (path := path.rpartition("/")[0]) != self._root and path:
                if self._fs.list_directory(path):
                    break
                self._durable.discard(path)
                self._fs.remove_directory(path)
        except OSError as error:
            raise _meaning(key, error) from error

    def close(self) -> None:
        """See ObjectStore."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _make(self, directory: str) -> None:
        parts = directory.split("/")
        for count in range(1, len(parts) + 1):
            parent, path = "/".join(parts[: count - 1]), "/".join(parts[:count])
            if path not in self._durable:
                self._fs.make_directory(path)
                self._fs.sync_directory(parent)
                self._durable.add(path)


def _meaning(key: str, error: OSError) -> TierUnavailable:
    kind = TierFull if is_full(error) else TierUnavailable
    return kind(f"{key}: {error.strerror or error}")
