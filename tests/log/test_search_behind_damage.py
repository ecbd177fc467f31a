"""The search for the next intact batch behind damage: what it takes for one, and how much it reads for that."""

from pathlib import Path

from logstore.disk.files import OsFiles
from logstore.format.batch import HEADER, HEADER_BYTES, LEADER_EPOCH, parse_header, patch_base
from logstore.format.records import Record, encode_batch
from logstore.log.chunks import Chunk
from logstore.log.recovery import _find_batch

CHUNK = Chunk("chunks", 0, 0)
PATH = CHUNK.log_path
CLAIMED_BYTES = 1 << 20
FORGED = 300
AFTER_OFFSET = 5


class CountingFiles(OsFiles):
    """Files that count what is read of them."""

    read_bytes = 0

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """Count it."""
        data = super().read(path, position, length, drop_cache=drop_cache)
        self.read_bytes += len(data)
        return data


def written(root: Path, *parts: bytes) -> tuple[CountingFiles, int]:
    """A chunk of these bytes, and its size."""
    files = CountingFiles(root)
    files.make_directory(CHUNK.directory)
    files.create(PATH)
    files.write(PATH, 0, parts)
    return files, sum(map(len, parts))


def one_batch(base_offset: int) -> bytes:
    """A batch as it stands in the log."""
    batch = encode_batch([Record(0, 1_700_000_000_000, None, b"value")])
    patch_base(batch, 0, base_offset, LEADER_EPOCH)
    return bytes(batch)


def test_what_looks_like_a_header_costs_no_read(tmp_path: Path) -> None:
    """Hundreds of places that look like the head of a long batch, but cannot be one of this log, are passed without a
    read of what they claim to be.
    """
    header = parse_header(one_batch(100))
    long = header._replace(batch_length=CLAIMED_BYTES)
    elsewhere = HEADER.pack(*long._replace(partition_leader_epoch=7))
    contradictory = HEADER.pack(*long._replace(last_offset_delta=-1))
    forged = (elsewhere + contradictory) * (FORGED // 2)
    files, size = written(tmp_path, forged, bytes(2 * CLAIMED_BYTES), one_batch(9))
    found = _find_batch(files, CHUNK, 0, size, size, AFTER_OFFSET)
    assert found is not None
    assert (found[0], found[1].base_offset) == (size - len(one_batch(9)), 9)
    assert files.read_bytes < 2 * size
    files.close()


def test_a_batch_far_ahead_is_found(tmp_path: Path) -> None:
    """A damaged batch may have held millions of records in few bytes: how far ahead the next one's offset is does not
    matter.
    """
    files, size = written(tmp_path, bytes(HEADER_BYTES), one_batch(50_000_000))
    found = _find_batch(files, CHUNK, 0, size, size, AFTER_OFFSET)
    assert found is not None
    assert found[1].base_offset == 50_000_000
    files.close()
