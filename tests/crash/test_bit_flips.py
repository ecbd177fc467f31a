"""One flipped bit in what is proven durable: found, named by its offsets, never served, never cut; the rest rebuilt."""

import pytest

from logstore.errors import CorruptChunk, CorruptFile
from logstore.log.chunks import ChunkView
from logstore.log.reading import read_chunk
from logstore.testing.history import History, found_batches
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import Setup, SimulatedStore
from tests.support.examples import is_long

pytestmark = pytest.mark.crash


def sealed_log() -> tuple[SimulatedStore, str]:
    """A stream of two chunks, cleanly closed; the path of the first chunk's log."""
    disk = SimDisk()
    world = SimulatedStore(disk, History(), Setup())
    world.create_topic("t", 1)
    world.run()
    world.append("t", records=2)
    world.append("t", producer=(5, 0, 0))
    world.append_group("t", 0, 0, batches=1)
    world.run()
    for _ in range(3):
        world.append("t", value_bytes=150)
        world.run()
    world.restart(clean=True)
    stream = world.store.stream("t", 0)
    assert len(stream.chunks) >= 2
    return world, stream.chunks[0].log_path


def flipped_bits(size_bytes: int) -> range:
    """Numbers of bits of a file: every bit in a long run; in a short run one in three, which meets every byte, and
    each place in a byte.
    """
    return range(0, size_bytes * 8, 1 if is_long() else 3)


def read_around_damage(
    world: SimulatedStore, views: list[ChunkView], high_watermark: int
) -> tuple[dict[int, bytes], set[int]]:
    """Batches that can be read from any offset, by base offset; and offsets that cannot."""
    served: dict[int, bytes] = {}
    lost: set[int] = set()
    for offset in range(high_watermark):
        view = next(view for view in reversed(views) if view.base_offset <= offset)
        try:
            result = read_chunk(world.disk, world.store.indexes, view, offset, 1, include_control=True)
        except CorruptChunk as error:
            lost.update({offset} & set(range(error.first_offset, error.last_offset + 1)))
            continue
        for batch in found_batches(result.buffers):
            served[batch.header.base_offset] = batch.data
    return served, lost


@pytest.mark.parametrize("reopen", [False, True], ids=["while it runs", "before a restart"])
def test_every_bit_of_a_chunk(reopen: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Bits of each byte of a sealed chunk: what is served is what was sent, what cannot be is an error with offsets."""
    world, path = sealed_log()
    stream = world.store.stream("t", 0)
    high_watermark, views = stream.high_watermark, stream.chunk_views()
    truth, nothing_lost = read_around_damage(world, views, high_watermark)
    assert not nothing_lost
    size = world.disk.size(path)
    pristine = world.disk
    for bit in flipped_bits(size):
        disk = pristine.kill_state()
        disk.flip_bit(path, bit)
        if reopen:
            damaged = SimulatedStore(disk, History(), Setup(), world.clock)
            stream = damaged.store.stream("t", 0)
            assert (stream.log_start_offset, stream.high_watermark) == (0, high_watermark)
            views = stream.chunk_views()
        else:
            damaged = world
            world.disk = disk
        served, lost = read_around_damage(damaged, views, high_watermark)
        for offset, batch in served.items():
            assert batch == truth[offset], f"bit {bit % 8} of byte {bit // 8} was served at offset {offset}"
        assert lost or served == truth
        assert disk.size(path) == size
        assert lost, f"bit {bit % 8} of byte {bit // 8} was not noticed"
    with capsys.disabled():
        print(f"\n  {len(flipped_bits(size))} of {size * 8} bits of a chunk of {len(truth)} batches flipped")


def test_every_bit_of_the_indexes_and_snapshots(capsys: pytest.CaptureFixture[str]) -> None:
    """Indexes and producer snapshots are derived: whatever flips in them, all reads and look-ups answer the same."""
    world, _ = sealed_log()
    flipped = 0
    for name in [name for name, content in world.disk.files() if name.endswith((".index", ".producers")) and content]:
        for bit in flipped_bits(world.disk.size(name)):
            disk = world.disk.kill_state()
            disk.flip_bit(name, bit)
            damaged = SimulatedStore(disk, world.history.fork(), Setup(), world.clock)
            damaged.check()
            duplicate = damaged.store.stream("t", 0).producers.entries()
            assert [entry.producer_id for entry in duplicate] == [5]
            flipped += 1
    with capsys.disabled():
        print(f"\n  {flipped} bits of index and snapshot files flipped")


def test_every_bit_of_the_ledgers(capsys: pytest.CaptureFixture[str]) -> None:
    """A flipped bit in a ledger is refused by the file's name; only in its last frame it may pass for a torn write."""
    world, _ = sealed_log()
    world.put()
    world.run()
    world.put()
    world.run()
    high_watermark = world.store.stream("t", 0).high_watermark
    refused = cut = dropped = 0
    for name in [name for name, content in world.disk.files() if name.startswith("ledger/") and content]:
        for bit in range(world.disk.size(name) * 8):
            disk = world.disk.kill_state()
            disk.flip_bit(name, bit)
            try:
                damaged = SimulatedStore(disk, History(), Setup(), world.clock)
            except CorruptFile as error:
                refused += name in str(error)
            else:
                if name.startswith("ledger/quiet."):
                    # Derived: dropped as a whole, or cut in its last frame, and the streams' files count.
                    stream = damaged.store.stream("t", 0)
                    assert (stream.log_start_offset, stream.high_watermark) == (0, high_watermark)
                    dropped += 1
                    continue
                # The last frames: the second put, and the retention clock of the clean stop.
                cut += damaged.store.groups.get("a") == b"1" or damaged.store.catalogue.get("retention-clock") is None
    with capsys.disabled():
        print(f"\n  {refused + cut} bits of ledgers flipped: {refused} refused, {cut} in a last frame, which was cut")
        print(f"  {dropped} bits of the table of quiet streams flipped, which costs only time")
    assert refused
    assert dropped
    assert refused + cut + dropped == sum(
        8 * len(content) for name, content in world.disk.files() if name.startswith("ledger/") and content
    )
