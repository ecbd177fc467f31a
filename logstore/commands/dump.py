"""`cairn dump`: what a file of a data directory holds, in readable form: chunks, indexes, producer snapshots, ledgers,
the journal, staged output.

Invariants: reads only, and only as much as it shows; shows no secret. Damage ends a dump with its position and exit
status 1. With `--json` each line is one JSON object.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from logstore.commands.output import UsageError, run, show_time
from logstore.disk.files import OsFiles
from logstore.errors import CairnError, CorruptBatch, CorruptFile
from logstore.format.batch import (
    COMPRESSION_MASK,
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    check_batch,
    iterate_batches,
    parse_header,
    seal_batch,
)
from logstore.format.compression import open_records
from logstore.format.control import (
    BEGIN_TYPE,
    END_TYPE,
    FOOTPRINTS_TYPE,
    MARK_TYPE,
    TOMBSTONES_TYPE,
    decode_control_record,
)
from logstore.format.index import decode_blocks
from logstore.format.journal_block import LEDGER_PREFIX, scan_blocks
from logstore.format.ledger_frame import KIND_SNAPSHOT, decode_changes, scan_frames
from logstore.format.records import decode_batch
from logstore.format.snapshot import decode_snapshots
from logstore.format.staged import HEADER_BYTES as SEGMENT_HEADER_BYTES
from logstore.format.staged import decode_segment_header, table_bytes
from logstore.log.chunks import LOG_SUFFIX, parse_chunk_name
from logstore.log.journal import SUFFIX as JOURNAL_SUFFIX
from logstore.log.ledger import DIRECTORY as LEDGER_DIRECTORY
from logstore.verify.findings import Findings
from logstore.verify.state import read_state

DEFAULT_ENTRIES: Final = 1_000
"""Nobody reads more on a terminal; `--limit 0` shows all."""
SHOWN_BYTES: Final = 80
"""Of a key, a value or opaque bytes."""
MAX_OPENED_BYTES: Final = 256 << 20
"""Of a compressed batch; a batch on disk may be a bomb."""
KINDS: Final = {
    BEGIN_TYPE: "BEGIN",
    END_TYPE: "END",
    FOOTPRINTS_TYPE: "FOOTPRINTS",
    TOMBSTONES_TYPE: "TOMBSTONES",
    MARK_TYPE: "MARK",
}
SECRET_FIELDS: Final = frozenset({"journal_key"})
"""Of `cairn.json`: a dump is shown to others, and who knows the key can forge blocks of the journal."""
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
Entry = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn dump`."""
    parser.add_argument("path", type=Path, metavar="PATH", help="a file of a data directory, or the directory")
    parser.add_argument("topic", nargs="?", metavar="TOPIC[:PARTITION]", help="with a directory: the topic to print")
    parser.add_argument("--records", action="store_true", help="also print each record")
    parser.add_argument("--from", type=int, default=0, metavar="OFFSET", dest="first", help="start at this offset")
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_ENTRIES, metavar="N", help="maximum entries; 0: all (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line, for programs")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    return run("dump", arguments, _dump)


def _dump(arguments: argparse.Namespace) -> int:
    entries = (entry for path in _paths(arguments) for entry in _entries(path, arguments))
    limit = arguments.limit if arguments.limit > 0 else None
    for entry in islice(entries, limit):
        if arguments.json:
            print(json.dumps(entry, ensure_ascii=False))
        else:
            print("  ".join(_pair(key, value) for key, value in entry.items() if value is not None))
    more = next(entries, None) if limit is not None else None
    if more is not None and not arguments.json:
        print(f"… and more ({limit} entries shown): --limit 0 shows all, --from OFFSET starts later")
    return 0


def _pair(key: str, value: object) -> str:
    if key.endswith("_ms") and isinstance(value, int) and value >= 0:
        return f"{key.removesuffix('_ms')}={show_time(value)}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"{key}={text}"


def _paths(arguments: argparse.Namespace) -> list[Path]:
    """The files to show. Raises UsageError."""
    path: Path = arguments.path
    if not path.is_dir():
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
        return [path]
    if arguments.topic is None:
        raise UsageError(f"{path} is a directory; add a topic after it, or name a file in it")
    name, _, partition = str(arguments.topic).partition(":")
    topics = read_state(OsFiles(path), Findings()).topics
    topic = next((topic for topic in topics if topic.name == name), None)
    if topic is None:
        known = ", ".join(sorted(topic.name for topic in topics)[:10])
        raise UsageError(f"{path} has no topic {name!r}; it has {known or 'none'}")
    partitions = [int(partition)] if partition.isdecimal() else range(topic.partitions)
    return [
        path / topic.directory / str(number) / file
        for number in partitions
        for file in OsFiles(path).list_directory(f"{topic.directory}/{number}")
        if (parsed := parse_chunk_name(file)) is not None and parsed[1] == LOG_SUFFIX
    ]


def _entries(path: Path, arguments: argparse.Namespace) -> Iterator[Entry]:
    parsed = parse_chunk_name(path.name)
    suffix = parsed[1] if parsed is not None else path.suffix
    files, name = OsFiles(path.parent), path.name
    yield {"file": str(path), "bytes": files.size(name)}
    match suffix:
        case ".log" | ".cleaned":
            yield from _chunk(files, name, arguments.first, with_records=arguments.records)
        case ".index":
            yield from _index(path.read_bytes())
        case ".producers":
            yield from _producers(path.read_bytes())
        case ".staged":
            yield from _staged(files, name)
        case _ if suffix == JOURNAL_SUFFIX:
            yield from _journal(path, arguments.first, with_records=arguments.records)
        case _ if path.parent.name == LEDGER_DIRECTORY:
            yield from _ledger(path)
        case ".json":
            fields = dict(json.loads(path.read_bytes()))
            yield {key: value for key, value in fields.items() if key not in SECRET_FIELDS}
        case _:
            raise UsageError(
                f"{path}: files of a data directory end in .log, .index, .producers, .journal, .staged, or are ledgers"
            )


# ---- chunks


def _chunk(files: OsFiles, name: str, first: int, *, with_records: bool) -> Iterator[Entry]:
    position, size_bytes = 0, files.size(name)
    while position < size_bytes:
        try:
            header = parse_header(files.read(name, position, HEADER_BYTES))
            if header.next_offset <= first:
                position += header.size_bytes
                continue
            batch = files.read(name, position, min(header.size_bytes, size_bytes - position))
            check_batch(batch)
        except CairnError as error:
            raise CorruptBatch(f"{name}, byte {position}: {error}; `cairn verify` reports what is lost") from error
        yield _batch(header, position)
        if header.is_control:
            yield _control(batch, header)
        elif with_records:
            yield from _records(batch, header)
        position += header.size_bytes


def _batch(header: BatchHeader, position: int) -> Entry:
    entry: Entry = {"batch": header.base_offset, "last": header.next_offset - 1, "byte": position}
    entry |= {"bytes": header.size_bytes, "records": header.record_count}
    entry["compression"] = COMPRESSIONS[header.compression] if header.compression < len(COMPRESSIONS) else "unknown"
    entry |= {"from_ms": header.base_timestamp, "to_ms": header.max_timestamp}
    if header.producer_id >= 0:
        entry |= {"producer": header.producer_id, "epoch": header.producer_epoch, "sequence": header.base_sequence}
    return entry


def _control(batch: bytes, header: BatchHeader) -> Entry:
    record = decode_control_record(batch)
    entry: Entry = {"control": KINDS.get(record.kind, str(record.kind)), "offset": header.base_offset}
    entry["fields"] = record.fields
    if record.kind == END_TYPE:
        entry["positions"] = bytes(record.payload).decode("utf-8", "replace")
    elif len(record.payload):
        entry["payload_bytes"] = len(record.payload)
    return entry


def _records(batch: bytes, header: BatchHeader) -> Iterator[Entry]:
    body = open_records(memoryview(batch)[HEADER_BYTES:], header.compression, MAX_OPENED_BYTES)
    if header.compression and len(body) >= MAX_OPENED_BYTES:
        yield {"records": f"more than {MAX_OPENED_BYTES} bytes when decompressed: not shown"}
        return
    plain = HEADER.pack(*header._replace(attributes=header.attributes & ~COMPRESSION_MASK))
    for record in decode_batch(seal_batch(bytearray(plain) + body)):
        yield {
            "record": record.offset,
            "time_ms": record.timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
        }


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"{text}… ({len(data)} bytes)" if len(data) > SHOWN_BYTES else text


# ---- the files beside them


def _journal(path: Path, first: int, *, with_records: bool) -> Iterator[Entry]:
    """The parts of the file's blocks with their batches; what follows them are blocks of earlier uses of the file."""
    scan = scan_blocks(path.read_bytes(), None)
    for place, data in scan.parts:
        stream = place.directory.decode("utf-8", "backslashreplace")
        yield {"part": stream, "generation": scan.generation, "chunk": place.chunk_offset, "byte": place.position}
        if stream.startswith(LEDGER_PREFIX):
            yield from _changes(decode_changes(bytes(data)) or {})
            continue
        for at, header in iterate_batches(data):
            if header.next_offset > first:
                yield _batch(header, place.position + at)
                if with_records and not header.is_control:
                    yield from _records(bytes(data[at : at + header.size_bytes]), header)
    if scan.damaged:
        raise CorruptFile(f"blocks at the bytes {scan.damaged[:10]} are damaged; `cairn verify` reports what is lost")


def _index(data: bytes) -> Iterator[Entry]:
    blocks, end = decode_blocks(data)
    for block in blocks:
        yield {
            "block": "entries" if block.entries else "seal",
            "durable_end": block.durable_end,
            "next_offset": block.next_offset,
            "latest_ms": block.max_timestamp,
            "written_at": block.written_ms,
        }
        for entry in block.entries:
            control = KINDS.get(entry.control_type, str(entry.control_type)) if entry.is_control else None
            yield {"entry": entry.base_offset, "byte": entry.position, "control": control}
    _whole(end, len(data))


def _producers(data: bytes) -> Iterator[Entry]:
    snapshots, end = decode_snapshots(data)
    for snapshot in snapshots:
        yield {"snapshot": snapshot.next_offset, "byte": snapshot.position, "producers": len(snapshot.producers)}
        for producer in snapshot.producers:
            batches = [[batch.first_sequence, batch.last_sequence, batch.base_offset] for batch in producer.batches]
            yield {"producer": producer.producer_id, "epoch": producer.epoch, "batches": batches}
    _whole(end, len(data))


def _ledger(path: Path) -> Iterator[Entry]:
    data = path.read_bytes()
    scan = scan_frames(data, path.name)
    for frame in scan.frames:
        kind = "whole map" if frame.kind == KIND_SNAPSHOT else "changes"
        yield {"frame": kind, "synced_end": frame.synced_end, "entries": len(frame.changes)}
        yield from _changes(frame.changes)
    _whole(scan.end, len(data))


def _changes(changes: Mapping[str, bytes | None]) -> Iterator[Entry]:
    for key, value in changes.items():
        yield {"key": key, "value": None if value is None else value.decode("utf-8", "replace")}


def _staged(files: OsFiles, name: str) -> Iterator[Entry]:
    position, size_bytes = 0, files.size(name)
    while position < size_bytes:
        fixed = files.read(name, position, SEGMENT_HEADER_BYTES)
        header = decode_segment_header(fixed + files.read(name, position + len(fixed), table_bytes(fixed)))
        key = header.key
        yield {
            "segment": header.position,
            "byte": position,
            "query": key.query,
            "run": key.incarnation,
            "epoch": key.epoch,
            "task": key.task,
            "attempt": key.attempt,
            "staged_ms": header.staged_ms,
            "parts": [[part.topic, part.partition, part.records, part.length_bytes] for part in header.parts],
        }
        position += header.size_bytes


def _whole(end: int, size_bytes: int) -> None:
    if end < size_bytes:
        raise CorruptFile(f"the {size_bytes - end} bytes from {end} on are incomplete: torn by a crash, or damaged")
