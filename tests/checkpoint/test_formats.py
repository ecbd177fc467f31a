"""The bytes of chunks, manifests and names: golden, whole, in pieces, torn and with flipped bits."""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.checkpoint.chunk import HEADER_BYTES, ChunkReader, encode_chunk, max_chunk_bytes, min_chunk_bytes
from spe_adapter.checkpoint.errors import CheckpointDamaged, CheckpointVersionUnknown
from spe_adapter.checkpoint.manifest import (
    VERSION,
    CheckpointFile,
    CheckpointPart,
    Manifest,
    decode_manifest,
    encode_manifest,
    parts_over,
)
from spe_adapter.checkpoint.names import MAX_SEQ, Unit, checkpoint_name, parse_name, query_of
from spe_adapter.checkpoint.packing import Form, packed, unpacked
from spe_adapter.checkpoint.ranges import count_of, ids_of, ranges_of
from spe_adapter.checkpoint.snapshot import VersionHeader
from tests.checkpoint.state import FrozenArray

NAME = checkpoint_name(Unit("q", 1), 7)
HEADER = VersionHeader("print", 5, "5-a", 100, 200, b"\x01note", {"k": [1]})
GOLDEN_HEADER = "636169726e70677300000002000002000000080000000002000000000000000300000000000000076b9a"


def chunk(pages: int = 3, seed: int = 1, thread: int = 2, bits: int = 64) -> tuple[bytes, FrozenArray]:
    """The bytes of a chunk, and its pages: words of so many random bits."""
    random = Random(seed)
    words = np.array([random.getrandbits(bits) for _ in range(pages * 64)], np.uint64)
    content = words.view(np.uint8).reshape(pages, 512)
    frozen = FrozenArray(content, np.arange(pages, dtype=np.int64))
    return b"".join(bytes(piece) for piece in encode_chunk(NAME, thread, frozen.ids, frozen)), frozen


def zstd(content: bytes) -> bytes:
    """Compressed bytes."""
    compressed: bytes = pa.Codec("zstd").compress(content, asbytes=True)
    return compressed


def read(data: bytes, cut: int = 0) -> dict[int, bytes]:
    """The pages in the bytes of a chunk, fed whole or in pieces of `cut` bytes."""
    reader = ChunkReader("file", NAME, 2)
    found: dict[int, bytes] = {}
    for start in range(0, len(data), cut or max(len(data), 1)):
        for ids, content in reader.feed(data[start : start + (cut or len(data))]):
            found |= {int(number): page.tobytes() for number, page in zip(ids, content, strict=True)}
    reader.close()
    return found


def test_a_chunk_of_noise_has_the_greatest_length_and_begins_as_documented() -> None:
    """The length follows from the pages; magic, version, sizes and numbers stand where docs/format.md says."""
    data, _ = chunk()
    assert len(data) == max_chunk_bytes(3, 512)
    assert data[:42].hex()[:80] == GOLDEN_HEADER[:80]
    assert HEADER_BYTES == 64


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 513, 4096])
@pytest.mark.parametrize(("pages", "bits"), [(1, 64), (2, 20), (2048, 20), (2049, 64), (5000, 20)])
def test_a_chunk_is_read_in_pieces_of_any_size(pages: int, bits: int, cut: int) -> None:
    """Whole, byte by byte and in between, the pages are those that were written."""
    if cut == 1 and pages > 2:
        cut = 1000
    data, frozen = chunk(pages, bits=bits)
    found = read(data, cut)
    assert found == {number: frozen.read(np.array([number]))[0].tobytes() for number in range(pages)}


@pytest.mark.parametrize("bits", [64, 20])
def test_every_changed_bit_of_a_chunk_is_noticed(bits: int) -> None:
    """No flipped bit, cut or addition gives pages: the error names the file."""
    data, _ = chunk(2, bits=bits)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        with pytest.raises(CheckpointDamaged, match="file"):
            read(bytes(changed))
    for end in range(len(data)):
        with pytest.raises(CheckpointDamaged, match="file"):
            read(data[:end])
    with pytest.raises(CheckpointDamaged, match="after the last page"):
        read(data + b"\0")


def test_words_of_few_bits_are_stored_in_few_bytes() -> None:
    """Of 8-byte words with 20 random bits, 20 bits and some more are stored."""
    data, _ = chunk(4096, bits=20)
    assert len(data) < max_chunk_bytes(4096, 512) * (20 + 4) / 64


@pytest.mark.parametrize(
    ("form", "content"),
    [
        (3, bytes(512)),
        (2**32 - 1, bytes(512)),
        (Form.PLAIN, bytes(511)),
        (Form.PLAIN, bytes(513)),
        (Form.PLAIN, b""),
        (Form.ZSTD, bytes(100)),
        (Form.ZSTD, zstd(bytes(511))),
        (Form.ZSTD, zstd(bytes(513))),
        (Form.ZSTD, zstd(bytes(1 << 30))),
        (Form.ZSTD, zstd(bytes(512)) + b"x"),
        (Form.TRANSPOSED_ZSTD, zstd(bytes(511))),
        (Form.TRANSPOSED_ZSTD, zstd(bytes(1024))),
    ],
)
def test_a_run_that_is_stored_impossibly_is_damaged(form: int, content: bytes) -> None:
    """With a right CRC too: no other content, no memory beyond the page, no other error."""
    data, _ = chunk(1)
    run = struct.pack(">II", form, len(content)) + content
    with pytest.raises(CheckpointDamaged, match="file") as raised:
        read(data[: 64 + 8 + 4] + run + struct.pack(">I", crc32c(run)))
    assert raised.type is CheckpointDamaged


@pytest.mark.parametrize(
    ("page_bytes", "run_pages", "pages"),
    [(16 << 20, 8, 8), (16 << 20, 2**32 - 1, 131_072), (512, 2**32 - 1, 1), (512, 1, 1), (65_536, 16, 4096)],
)
def test_a_header_cannot_ask_for_more_memory_than_a_chunk_has(page_bytes: int, run_pages: int, pages: int) -> None:
    """Sizes that no writer gives are refused with the header, before any memory is taken."""
    data, _ = chunk(1)
    fixed = data[:12] + struct.pack(">II", page_bytes, run_pages) + data[20:24] + struct.pack(">Q", pages) + data[32:60]
    with pytest.raises(CheckpointDamaged, match="out of range"):
        list(ChunkReader("file", NAME, 2).feed(fixed + struct.pack(">I", crc32c(fixed))))


@given(
    st.integers(1, 400), st.integers(0, 7), st.sampled_from([1, 8, 20, 64]), st.integers(0, 9), st.integers(0, 2**32)
)
def test_what_is_packed_is_unpacked(words: int, odd: int, bits: int, stretch: int, seed: int) -> None:
    """Any bytes come back, in no more than they were; the same bytes are packed alike."""
    random = Random(seed)
    content = b"".join(random.getrandbits(bits).to_bytes(8, "little") for _ in range(words)) * 2**stretch
    run = np.frombuffer(content + bytes(odd), np.uint8)
    form, stored = packed(run)
    assert len(stored) <= len(run)
    assert (unpacked(form, memoryview(stored), len(run), "file") == run).all()
    again, stored_again = packed(run.copy())
    assert (form, bytes(stored)) == (again, bytes(stored_again))


def test_a_chunk_of_another_checkpoint_thread_or_version_is_refused() -> None:
    """A file that was swapped is an error that says whose it is; an unknown version is a named error."""
    data, _ = chunk(1)
    for name, thread in ((NAME._replace(seq=8), 2), (NAME._replace(unit="other.1"), 2), (NAME, 3)):
        with pytest.raises(CheckpointDamaged, match=r"belongs to another|is file 2"):
            list(ChunkReader("file", name, thread).feed(data))
    with pytest.raises(CheckpointVersionUnknown, match="version 9"):
        read(data[:8] + b"\0\0\0\x09" + data[12:])


def manifest() -> Manifest:
    """A manifest over a base."""
    own = CheckpointFile(0, max_chunk_bytes(3, 512), 5, (4, 2, 9, 1), ("h1", "h2"))
    base = CheckpointFile(0, max_chunk_bytes(10, 512), 6, (0, 10), ())
    return Manifest(Unit("q", 1), 7, HEADER, 512, (CheckpointPart(7, (own,)), CheckpointPart(3, (base,))), True, 1234)


def test_a_manifest_says_again_what_it_was_given() -> None:
    """Every field comes back; the first line names format, CRC and length."""
    data = encode_manifest(manifest())
    assert decode_manifest(data, NAME, "M") == manifest()
    assert data.startswith(b"cairn-checkpoint 2 ")


def test_every_changed_bit_of_a_manifest_is_noticed() -> None:
    """No flipped bit and no cut gives a manifest; other versions and other checkpoints are named."""
    data = encode_manifest(manifest())
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        with pytest.raises(CheckpointDamaged, match="M"):
            decode_manifest(bytes(changed), NAME, "M")
    for end in range(len(data)):
        with pytest.raises(CheckpointDamaged):
            decode_manifest(data[:end], NAME, "M")
    with pytest.raises(CheckpointVersionUnknown, match="version 3"):
        decode_manifest(data.replace(b"checkpoint 2", b"checkpoint 3", 1), NAME, "M")
    with pytest.raises(CheckpointDamaged, match="is the manifest of"):
        decode_manifest(data, NAME._replace(seq=8), "M")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("seq",), 0),
        (("epoch",), -1),
        (("epoch",), float("inf")),
        (("capacity",), 2**70),
        (("page_bytes",), 1),
        (("partition",), True),
        (("query",), "\ud800"),
        (("parts", 0, "seq"), 0),
        (("parts", 0, "files", 0, "thread"), -1),
        (("parts", 0, "files", 0, "bytes"), min_chunk_bytes(3, 512)),
        (("parts", 0, "files", 0, "bytes"), max_chunk_bytes(3, 512) + 1),
        (("parts", 0, "files", 0, "ranges"), [0, 6, 10, -3]),
        (("parts", 0, "files", 0, "ranges"), [2**63, 3]),
        (("parts", 0, "files", 0, "ranges"), [4, 2, 9]),
        (("parts", 0, "files", 0, "ranges"), [9, 1, 4, 2]),
    ],
)
def test_a_manifest_of_impossible_values_is_damaged(path: tuple[str | int, ...], value: object) -> None:
    """With a right CRC too: whoever reads it goes on to the checkpoint before, and no other error stops a recovery."""
    fields: Any = json.loads(encode_manifest(manifest()).partition(b"\n")[2])
    place = fields
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    body = json.dumps(fields).encode()
    data = b"cairn-checkpoint %d %08x %d\n" % (VERSION, crc32c(body), len(body)) + body
    with pytest.raises(CheckpointDamaged, match="M") as raised:
        decode_manifest(data, NAME, "M").live()
    assert raised.type is CheckpointDamaged


def test_a_page_counts_in_its_newest_file_only() -> None:
    """Live pages of all files together are the pages of the state, each once."""
    live = manifest().live()
    assert [(found.name.seq, found.ids.tolist()) for found in live] == [(7, [4, 5, 9]), (3, [0, 1, 2, 3, 6, 7, 8])]


@given(st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=1, max_size=6))
def test_parts_over_many_bases_are_the_newest_pages(changes: list[set[int]]) -> None:
    """For any run of incremental checkpoints, the live pages are those of a model that takes the newest of each."""
    base = None
    model: dict[int, int] = {}
    for seq, changed in enumerate(changes, 1):
        ids = np.array(sorted(changed), np.int64)
        file = CheckpointFile(0, max_chunk_bytes(len(ids), 512), 0, tuple(ranges_of(ids)))
        base = Manifest(Unit("q", 1), seq, HEADER, 512, parts_over([file], seq, base))
        model |= dict.fromkeys(changed, seq)
        found = {int(number): live.name.seq for live in base.live() for number in live.ids}
        assert found == model
        assert base.state_bytes == len(model) * 512
        assert {live.name.seq for live in base.live()} == {part.seq for part in base.parts}


@given(st.sets(st.integers(0, 2**40)))
def test_ranges_are_the_numbers(numbers: set[int]) -> None:
    """Numbers to ranges and back; the count is known without them."""
    ids = np.array(sorted(numbers), np.int64)
    ranges = ranges_of(ids)
    assert ids_of(ranges).tolist() == ids.tolist()
    assert count_of(ranges) == len(ids)


@pytest.mark.parametrize("ranges", [[1, 0], [5, 2, 6, 1], [5, 2, 1, 1], [-1, 2], [1], [3, 1, 4, 1]])
def test_what_are_no_ranges_is_refused(ranges: list[int]) -> None:
    """Empty, negative, descending, touching or odd ranges."""
    with pytest.raises(ValueError, match=r"."):
        ids_of(ranges)


@given(st.text(max_size=80), st.integers(0, 10**6), st.integers(1, MAX_SEQ))
def test_names_are_parsed_again_and_are_safe(query: str, partition: int, seq: int) -> None:
    """Any query's name becomes a safe file name from which unit, number and query come back."""
    query = query.encode(errors="replace").decode()
    unit = Unit(query, partition)
    name = checkpoint_name(unit, seq)
    assert all(character.isascii() and (character.isalnum() or character in "_-=.") for character in str(name))
    if not query:
        return
    assert parse_name(str(name)) == name
    assert not str(name).startswith(".")
    assert query_of(unit.name) in (query, None)


def test_long_names_are_bounded_and_differ() -> None:
    """Names that are too long for a file become hashes."""
    names = {Unit("x" * length, 0).name for length in (149, 150, 151, 152, 100_000)}
    assert len(names) == 5
    assert max(map(len, names)) < 200
