"""What a sidecar that was alone has, as a cluster adopts it: topics, streams with their chunks, and ledgers.

It is taken from a store that was opened and closed again, so that everything acknowledged is in chunks; the batches are
read later, from the chunks' files, once (`pieces_of`).

Invariants:
* What a cluster cannot hold is refused here, before anything is registered, with its name and with what to do.
* A stream whose records are all deleted, and whose producers are known, gets a chunk of one record without content, in
  front of its log start: in a cluster what is known of producers lies beside a chunk with batches.
* Batches come with the offsets that they have, and append groups as a whole; an offset that is missing is refused, and
  never closed up.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from logstore.base.errors import CairnError
from logstore.base.metadata import schema
from logstore.cluster.streams.group_entry import MAX_GROUP_BYTES
from logstore.cluster.streams.own_topics import INTERNAL_CHUNK_BYTES, INTERNAL_TOPICS, own_topic
from logstore.cluster.streams.topics import EPOCHS_TOPIC, GROUPS_TOPIC
from logstore.epochs.ledger_entries import COMMIT_RECORD
from logstore.errors import AdoptionRefused, CorruptBatch, CorruptChunk
from logstore.format.batch import HEADER_BYTES, BatchHeader, check_batch, parse_header
from logstore.format.control import BEGIN_TYPE, END_TYPE, known_type
from logstore.format.index import UNKNOWN_TIME
from logstore.format.ledger_frame import KIND_CHANGES, LedgerFrame, encode_frame
from logstore.format.records import Record, encode_batch
from logstore.format.snapshot import ProducerSnapshot, encode_snapshot
from logstore.interfaces import Buffer, FileSystem
from logstore.log.catalogue import PRODUCER_IDS
from logstore.log.ledger import Ledger
from logstore.log.store import Store, Topic
from logstore.log.stream import Stream
from logstore.replica.registrations import MAX_CHUNKS

READ_BYTES: Final = 4 << 20
MAX_PIECE_BYTES: Final = MAX_GROUP_BYTES + (1 << 20)
"""Of a batch, or of an append group with BEGIN and END: hosts copy each in one message."""
USERS_LEDGER: Final = "users"
READERS_LEDGER: Final = "readers"
FRAME_ENTRIES: Final = 2_000
FRAME_BYTES: Final = 1 << 20
"""Of a ledger in one batch of the topic that has it in a cluster."""


class AdoptedPiece(NamedTuple):
    """A batch, or a whole append group, with its first offset and the offset behind it."""

    data: bytes
    base_offset: int
    next_offset: int


class SourceChunk(NamedTuple):
    """Batches that become a chunk: those of a file, or made here (`content`)."""

    path: str
    producers_path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    written_ms: int
    content: bytes | None = None


class SourceStream(NamedTuple):
    """A stream: `name` for people, `stream` as a cluster has it. `founding`: the state, at the start of the first
    chunk, of producers that have written nothing since (`logstore.format.snapshot`; empty: none).
    """

    name: str
    stream: str
    log_start: int
    chunks: tuple[SourceChunk, ...]
    topic: schema.StoredTopic
    founding: bytes = b""


@dataclass(frozen=True, slots=True)
class Source:
    """See the module. `access`: users, ACLs and quotas."""

    topics: Mapping[str, schema.StoredTopic]
    streams: tuple[SourceStream, ...]
    access: Mapping[str, bytes]
    producer_ids: int
    retention_ms: int

    @property
    def size_bytes(self) -> int:
        """Of all chunks."""
        return sum(chunk.size_bytes for stream in self.streams for chunk in stream.chunks)


def take_source(store: Store, fs: FileSystem, replicas: int, cluster_id: str) -> Source:
    """What a closed store has. `replicas`: wanted of each chunk; `cluster_id`: of the cluster that adopts it. Blocks.

    Raises AdoptionRefused, CorruptFile, UnknownFormatVersion, InvalidMetadataCall.
    """
    _refuse_decisions(dict(store.epochs.items(COMMIT_RECORD)))
    now_ms, retention_ms = store.clock.wall_ms(), store.retention_clock.now_ms()
    topics: dict[str, schema.StoredTopic] = {}
    streams: list[SourceStream] = []
    for name, found in sorted(store.topics.items()):
        topics[name] = _topic(name, found, replicas)
        streams += [_stream(topics[name], stream, now_ms, retention_ms) for stream in found.partitions]
    users, readers = (dict(Ledger.open(fs, name, store.notify).items()) for name in (USERS_LEDGER, READERS_LEDGER))
    ledgers = {GROUPS_TOPIC: {**dict(store.groups.items()), **readers}, EPOCHS_TOPIC: dict(store.epochs.items())}
    for name, entries in ledgers.items():
        if entries:
            topic_id = uuid.uuid5(uuid.UUID(hex=cluster_id), name).hex
            topics[name] = own_topic(topic_id, replicas, replicas)
            chunks = _ledger_chunks(entries, now_ms, retention_ms)
            streams.append(SourceStream(f"{name}-0", f"{topic_id}/0", 0, chunks, topics[name]))
    access = {**dict(store.access.items()), **users}
    producer_ids = int(store.catalogue.get(PRODUCER_IDS) or 0)
    return Source(topics, tuple(streams), access, producer_ids, retention_ms)


def _refuse_decisions(decided: Mapping[str, bytes]) -> None:
    if decided:
        queries = ", ".join(repr(key.removeprefix(COMMIT_RECORD)) for key in sorted(decided)[:3])
        raise AdoptionRefused(
            f"the last epoch of {len(decided)} queries ({queries}) is committed, and perhaps not in all its streams: "
            "start the sidecar on the directory once, alone, which completes it, stop it with SIGTERM, and try again"
        )


def _topic(name: str, found: Topic, replicas: int) -> schema.StoredTopic:
    """Raises AdoptionRefused, InvalidMetadataCall."""
    if name in INTERNAL_TOPICS:
        raise AdoptionRefused(
            f"topic {name!r} has the name of a cluster's internal topic: copy its records to another topic with a "
            "Kafka client, and delete it"
        )
    if found.config.is_tiered or any(stream.tiered for stream in found.partitions):
        raise AdoptionRefused(
            f"topic {name!r} has chunks in a tier, or puts them there, which are not taken over: copy its records "
            "to another topic with a Kafka client, and delete it"
        )
    if found.config.min_insync_replicas > replicas:
        raise AdoptionRefused(
            f"topic {name!r} has min.insync.replicas={found.config.min_insync_replicas}, more than {replicas} copies: "
            "lower it (`cairn topics set`), or give a larger --replication-factor"
        )
    topic = schema.StoredTopic(
        topic_id=found.topic_id.hex,
        partitions=len(found.partitions),
        replicas=replicas,
        settings=dict(found.overrides),
    )
    schema.create_topic(name, topic)  # raises what no metadata store takes
    return topic


def _stream(topic: schema.StoredTopic, stream: Stream, now_ms: int, retention_ms: int) -> SourceStream:
    """A stream with the chunks that its readers see, and the last one, which has the state of its producers."""
    held = [chunk for chunk in stream.chunks if chunk.size_bytes]
    last = held[-1:]
    chunks = tuple(
        SourceChunk(
            chunk.log_path,
            chunk.producers_path,
            chunk.base_offset,
            chunk.next_offset,
            chunk.size_bytes,
            chunk.written_ms,
        )
        for chunk in held
        if chunk.next_offset > stream.log_start_offset or chunk in last
    )
    if len(chunks) > MAX_CHUNKS:
        raise AdoptionRefused(
            f"{stream.name} has {len(chunks)} chunks, and a cluster keeps {MAX_CHUNKS} of a stream: trim it "
            "(`cairn trim`), or copy the topic's records to another topic with a Kafka client"
        )
    name = f"{topic.topic_id}/{stream.partition}"
    log_start = stream.log_start_offset if chunks else stream.high_watermark
    if chunks and chunks[-1].next_offset != stream.high_watermark:
        raise AdoptionRefused(
            f"{stream.name} ends at offset {stream.high_watermark}, and its last chunk with records at "
            f"{chunks[-1].next_offset}: run `cairn verify` on the directory"
        )
    if not chunks and log_start and stream.producers.entries():
        record = encode_batch([Record(0, now_ms, None, None)], base_offset=log_start - 1)
        chunks = (SourceChunk("", "", log_start - 1, log_start, len(record), retention_ms, bytes(record)),)
        return SourceStream(stream.name, name, log_start, chunks, topic, _founding(stream, log_start - 1, log_start))
    first = chunks[0].base_offset if chunks else log_start
    return SourceStream(stream.name, name, log_start, chunks, topic, _founding(stream, first, first))


def _founding(stream: Stream, base_offset: int, before_offset: int) -> bytes:
    """The state of producers for a chunk's start: of those whose batches all lie in front of an offset."""
    known = [entry for entry in stream.producers.entries() if all(each[2] < before_offset for each in entry.batches)]
    return encode_snapshot(ProducerSnapshot(0, base_offset, known)) if known else b""


def _ledger_chunks(entries: Mapping[str, bytes], now_ms: int, retention_ms: int) -> tuple[SourceChunk, ...]:
    """A ledger as chunks of the stream that has it in a cluster (`logstore.cluster.epochs.replicated_ledger`)."""
    chunks: list[SourceChunk] = []
    batches: list[bytes] = []
    some: dict[str, bytes] = {}
    offset = base_offset = some_bytes = 0

    def end_batch() -> None:
        nonlocal offset, some_bytes
        if some:
            value = encode_frame(LedgerFrame(KIND_CHANGES, 0, dict(some)))
            batches.append(bytes(encode_batch([Record(0, now_ms, None, value)], base_offset=offset)))
            offset, some_bytes = offset + 1, 0
            some.clear()

    def end_chunk() -> None:
        nonlocal base_offset
        content = b"".join(batches)
        if content:
            chunks.append(SourceChunk("", "", base_offset, offset, len(content), retention_ms, content))
        base_offset = offset
        batches.clear()

    for key, value in entries.items():
        size_bytes = len(key) + len(value)
        if some and (len(some) >= FRAME_ENTRIES or some_bytes + size_bytes > FRAME_BYTES):
            end_batch()
            if sum(map(len, batches)) >= INTERNAL_CHUNK_BYTES:
                end_chunk()
        some[key] = value
        some_bytes += size_bytes
    end_batch()
    end_chunk()
    return tuple(chunks)


# ---- batches


def pieces_of(fs: FileSystem, stream: SourceStream, chunk: SourceChunk) -> Iterator[AdoptedPiece]:
    """A chunk's batches and append groups, each of which was checked. Blocks.

    Raises AdoptionRefused for what a cluster cannot hold, CorruptChunk for damage, OSError.
    """
    due, begin, group = chunk.base_offset, 0, bytearray()
    batches = _batches(_reader(fs, chunk), chunk.size_bytes, lambda size: _refuse_size(stream, due, size))
    try:
        for header, batch in batches:
            if header.base_offset != due:
                raise AdoptionRefused(
                    f"{stream.name} has no records from offset {due} to {header.base_offset - 1}, which were damaged "
                    "or lost: a cluster's log has no such gap. Copy the topic's records to another topic with a Kafka "
                    "client, and delete it; or trim it up to the gap (`cairn trim`)"
                )
            due = header.next_offset
            kind = known_type(batch) if header.is_control else 0
            if not group and kind != BEGIN_TYPE:
                yield AdoptedPiece(bytes(batch), header.base_offset, due)
                continue
            begin = begin if group else header.base_offset
            group += batch
            if len(group) > MAX_PIECE_BYTES:
                _refuse_size(stream, due, len(group))
            if kind == END_TYPE:
                yield AdoptedPiece(bytes(group), begin, due)
                group.clear()
    except CorruptBatch as error:
        raise _damaged(stream, chunk, due, str(error)) from error
    if group or due != chunk.next_offset:
        raise _damaged(stream, chunk, due, f"its batches end there, and not at {chunk.next_offset}")


def _reader(fs: FileSystem, chunk: SourceChunk) -> Callable[[int, int], bytes]:
    content = chunk.content
    if content is not None:
        return lambda position, length: content[position : position + length]
    return lambda position, length: fs.read(chunk.path, position, length)


def _batches(
    read: Callable[[int, int], bytes], size_bytes: int, too_large: Callable[[int], None]
) -> Iterator[tuple[BatchHeader, Buffer]]:
    """The batches of a chunk, checked. Raises CorruptBatch, OSError, and what `too_large` raises."""
    position = 0
    while position < size_bytes:
        data = memoryview(read(position, min(READ_BYTES, size_bytes - position)))
        at = 0
        while len(data) - at >= HEADER_BYTES:
            header = parse_header(data, at)
            if header.size_bytes > MAX_PIECE_BYTES:
                too_large(header.size_bytes)
            if header.size_bytes > len(data) - at:
                break
            yield check_batch(data, at), data[at : at + header.size_bytes]
            at += header.size_bytes
        if not at:  # larger than what was read, or cut off
            whole = memoryview(read(position, parse_header(data).size_bytes))
            yield check_batch(whole), whole
            at = len(whole)
        position += at


def _refuse_size(stream: SourceStream, offset: int, size_bytes: int) -> None:
    raise AdoptionRefused(
        f"{stream.name} has {size_bytes} bytes in one batch or one epoch near offset {offset}, and hosts of a cluster "
        f"copy {MAX_PIECE_BYTES} at most: trim it (`cairn trim`), or wait until retention removes it"
    )


def _damaged(stream: SourceStream, chunk: SourceChunk, offset: int, why: str) -> CairnError:
    return CorruptChunk(
        f"{stream.name}: {chunk.path} is damaged near offset {offset} ({why}): see what `cairn verify` says of the "
        "directory; what cannot be restored has to be trimmed first",
        first_offset=offset,
        last_offset=max(offset, chunk.next_offset - 1),
    )


def written_ms(chunk: SourceChunk, now_ms: int) -> int:
    """When a chunk was written, by the retention clock."""
    return now_ms if chunk.written_ms == UNKNOWN_TIME else chunk.written_ms
