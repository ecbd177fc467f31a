"""A check of a data directory finds every kind of damage to what is proven durable, and says where it is."""

from __future__ import annotations

import pytest

from logstore.format.control import Begin, End, encode_control
from logstore.format.index import IndexBlock, decode_blocks, encode_block
from logstore.testing.faults import FileCall
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import SimulatedStore
from logstore.verify.directory import is_data_directory, verify
from logstore.verify.findings import Finding
from tests.crash.tiny import make_tiny
from tests.support.examples import is_long
from tests.verify.stores import contents, flipped, stopped_store


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimulatedStore:
    """A stopped store of a few hundred bytes."""
    make_tiny(monkeypatch)
    return stopped_store()


def paths(disk: SimDisk, suffix: str) -> list[str]:
    """The files with this suffix that have bytes."""
    return [path for path, content in disk.files() if path.endswith(suffix) and content]


def bits(content: bytes | None) -> range:
    """Numbers of bits: all in a long run; otherwise one in seven, which meets every byte and each place in it."""
    return range(0, 8 * len(content or b""), 1 if is_long() else 7)


def damage_of(disk: SimDisk) -> list[Finding]:
    """The damage that is found; checking has changed nothing."""
    before = contents(disk)
    found = verify(disk).damages
    assert contents(disk) == before
    return found


def test_a_stopped_store_is_clean(world: SimulatedStore) -> None:
    """Nothing at all is said of a directory that a sidecar left in peace, and all of it was read."""
    findings = verify(world.disk)
    assert findings.found == []
    assert findings.counts.chunks == len(paths(world.disk, ".log"))
    logs = sum(world.disk.size(path) for path in paths(world.disk, ".log"))
    assert findings.counts.bytes >= logs
    assert findings.counts.batches > 8


def test_every_bit_of_the_chunks(world: SimulatedStore) -> None:
    """Whatever bit of a chunk turns over: damage in this file, at or before that byte, with offsets of the batch."""
    disk = world.disk
    ends = {stream.directory: stream.high_watermark for stream in world.store.streams()}
    for path in paths(disk, ".log"):
        for bit in bits(contents(disk)[path]):
            (found,) = damage_of(flipped(disk, path, bit))
            assert (found.path, found.kind) == (path, "batch-damaged")
            assert found.position is not None
            assert found.position <= bit // 8
            assert found.first_offset is not None
            assert found.last_offset is not None
            assert 0 <= found.first_offset <= found.last_offset < ends[path.rsplit("/", 1)[0]]


def test_every_bit_of_the_ledgers(world: SimulatedStore) -> None:
    """A ledger that recovery would refuse is damage; a last frame, which may be torn, is a note; never nothing."""
    disk = world.disk
    refused = 0
    for path in [path for path in contents(disk) if path.startswith("ledger/") and contents(disk)[path]]:
        for bit in bits(contents(disk)[path]):
            found = verify(flipped(disk, path, bit)).found
            assert found
            assert found[0].path == path
            refused += found[0].is_damage
    assert refused


def test_every_bit_of_the_derived_files(world: SimulatedStore) -> None:
    """A flip in an index or a producer snapshot is noticed, and is no damage: the next start makes the file again."""
    disk = world.disk
    for path in [*paths(disk, ".index"), *paths(disk, ".producers")]:
        for bit in bits(contents(disk)[path]):
            findings = verify(flipped(disk, path, bit))
            if disk.size(path) < disk.size(path.replace(".index", ".log")) or path.endswith(".producers"):
                assert findings.damages == []
            noted = {finding.path for finding in findings.found}
            assert noted == {path}, f"bit {bit % 8} of byte {bit // 8} of {path}"


def test_every_byte_cut_from_a_chunk(world: SimulatedStore) -> None:
    """A chunk that is shorter than what was synced: the offsets that are gone are named."""
    disk = world.disk
    for path in paths(disk, ".log"):
        for size_bytes in range(0, disk.size(path), 1 if is_long() else 5):
            copy = disk.kill_state()
            copy.truncate(path, size_bytes)
            found = damage_of(copy)
            assert found
            assert all(finding.path == path for finding in found)
            assert found[0].kind in {"chunk-short", "offsets-missing", "batch-damaged"}
            assert found[0].last_offset is not None


def test_files_that_are_missing(world: SimulatedStore) -> None:
    """A lost chunk, whole directories, the identity: each is damage where it belongs."""
    disk = world.disk
    logs = sorted(path for path in paths(disk, ".log") if "/0/" in path)
    for number, path in enumerate(logs):
        copy = disk.kill_state()
        copy.remove(path)
        found = damage_of(copy)
        if number < len(logs) - 1:  # a last chunk that is gone leaves no trace but its other files
            assert {finding.kind for finding in found} == {"offsets-missing"}
    copy = disk.kill_state()
    copy.remove("cairn.json")
    assert [finding.kind for finding in damage_of(copy)] == ["identity-damaged"]
    assert is_data_directory(copy)


def test_a_stream_without_chunks_behind_a_log_start(world: SimulatedStore) -> None:
    """Where the catalogue knows that there were records and no chunk is left, a sidecar would refuse to start."""
    world.trim("t", 0, 1)
    world.run()
    copy = world.disk.kill_state()
    for path in contents(copy):
        if "/0/" in path and path.startswith("streams/"):
            copy.remove(path)
    assert "stream-missing" in {finding.kind for finding in damage_of(copy)}


def test_a_directory_comes_with_the_first_record(world: SimulatedStore) -> None:
    """A stream that never had a record needs no directory; of one that had, the table of quiet streams knows."""
    world.create_topic("fresh", 2)
    world.run()
    assert damage_of(world.disk) == []
    world.append("fresh", 1)
    world.run()
    world.restart(clean=True)
    directory = world.store.stream("fresh", 1).directory
    copy = world.disk.kill_state()
    for path in [path for path in contents(copy) if path.startswith(f"{directory}/")]:
        copy.remove(path)
    copy.remove_directory(directory)
    (found,) = damage_of(copy)
    assert (found.kind, found.path) == ("stream-missing", directory)


def rewritten(disk: SimDisk, path: str, content: bytes) -> SimDisk:
    """A copy of a disk with another content of a file."""
    copy = disk.kill_state()
    copy.truncate(path, 0)
    copy.write(path, 0, [content])
    return copy


def test_an_index_that_is_whole_and_wrong(world: SimulatedStore) -> None:
    """Blocks with right checksums that contradict the chunk: damage of the index, and of no record."""
    disk = world.disk
    path = next(path for path in paths(disk, ".index") if len(decode_blocks(contents(disk)[path] or b"")[0]) > 1)
    blocks, _ = decode_blocks(contents(disk)[path] or b"")
    first = next(block for block in blocks if block.entries)
    entry = first.entries[0]
    wrong: list[IndexBlock] = [
        first._replace(entries=[entry._replace(batch_crc=entry.batch_crc ^ 1), *first.entries[1:]]),
        first._replace(entries=[entry._replace(base_offset=entry.base_offset + 1), *first.entries[1:]]),
        first._replace(entries=[entry._replace(max_timestamp_before=7), *first.entries[1:]]),
        first._replace(next_offset=first.next_offset + 1),
        first._replace(max_timestamp=first.max_timestamp + 1),
    ]
    for block in wrong:
        content = b"".join(encode_block(block if other is first else other) for other in blocks)
        assert {(f.kind, f.path) for f in damage_of(rewritten(disk, path, content))} == {("index-contradicts", path)}


def test_groups_that_are_not_whole(world: SimulatedStore) -> None:
    """Without END in the middle, END without BEGIN, another epoch's END, other batches than BEGIN counted."""
    disk = world.disk
    directory = world.store.stream("t", 0).directory
    path = f"{directory}/{0:020d}.log"
    size_bytes, end = disk.size(path), world.store.stream("t", 0).chunks[0].next_offset

    def with_tail(*controls: Begin | End) -> set[str]:
        """The kinds of damage if these control batches stand at the end of the first chunk, which has a successor."""
        copy = disk.kill_state()
        offset, position = end, size_bytes
        copy.remove(f"{directory}/{0:020d}.index")
        for table in [name for name in contents(copy) if name.startswith("ledger/quiet.")]:
            copy.remove(table)  # it knows how far the log had come
        for other in [name for name in contents(copy) if name.startswith(f"{directory}/") and f"{0:020d}" not in name]:
            copy.remove(other)
        for control in controls:
            batch = encode_control(control, timestamp_ms=1)
            batch[0:8] = offset.to_bytes(8, "big")
            copy.write(path, position, [batch])
            position, offset = position + len(batch), offset + 1
        copy.create(f"{directory}/{offset:020d}.log")
        return {finding.kind for finding in damage_of(copy)}

    begin, other = Begin("q", 5, 1, (), 0, 0), Begin("q", 6, 1, (), 9, 1)
    assert with_tail(begin, End("q", 5, 1, b"")) == set()
    assert with_tail(begin) == {"group-without-end"}
    assert with_tail(begin, other, End("q", 6, 1, b"")) == {"group-without-end", "group-mismatch"}
    assert with_tail(End("q", 5, 1, b"")) == {"end-without-begin"}
    assert with_tail(begin, End("q", 6, 1, b"")) == {"group-mismatch"}


def test_committed_output_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch that is committed and not published needs its staged output: without it, or with a flip: damage."""
    make_tiny(monkeypatch)
    world = stopped_store()
    states: list[SimDisk] = []

    def note(call: FileCall) -> None:
        if call.changes_disk:
            states.append(world.disk.kill_state())

    world.disk.before_call = note
    world.stage("t", 1, "run-1")
    world.commit(1, "run-1")
    world.run()
    checked = 0
    for state in states:
        staged = [path for path, content in state.files() if path.startswith("staging/") and content]
        assert verify(state).damages == []
        if not staged or not any("decision/" in str(content) for _, content in state.files()):
            continue
        without = state.kill_state()
        without.remove(staged[0])
        kinds = {finding.kind for finding in damage_of(without)}
        checked += kinds == {"staged-missing"}
        last_bit = 8 * state.size(staged[0]) - 1
        assert {finding.kind for finding in damage_of(flipped(state, staged[0], last_bit))} == kinds
    assert checked
