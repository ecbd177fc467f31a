"""What replicas lie on the disks of hosts at the end.

Invariant: what is read from a disk is read from the files alone, while no host runs: nothing that hosts say of
themselves, and nothing that the metadata store has, is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.checked.work import stream_name
from logstore.errors import CairnError
from logstore.format.batch import iterate_batches
from logstore.format.records import decode_batch
from logstore.log.chunks import LOG_SUFFIX, parse_chunk_name
from logstore.log.replica_chunk import DIRECTORY, name_of

DATA_PIECE: Final = 2_000
"""Records in one entry of a history."""


class Copies(NamedTuple):
    """Records of a stream on one disk."""

    stream: str
    records: list[tuple[int, str]]


def survey(data_dir: Path, topics: Mapping[str, str]) -> Iterator[Copies]:
    """All records of some topics in the replicas of a data directory, as the files have them, in pieces.

    `topics`: names by ids in hexadecimal. What does not check out ends a file: it is no copy. Raises OSError.
    """
    for directory in sorted((data_dir / DIRECTORY).glob("*")):
        name = name_of(directory.name)
        topic = topics.get(name.topic_id) if name is not None else None
        if name is None or topic is None:
            continue
        for file in sorted(directory.iterdir()):
            parsed = parse_chunk_name(file.name)
            if parsed is not None and parsed[1] == LOG_SUFFIX:
                yield from _pieces(stream_name(topic, name.partition), file)


def _pieces(stream: str, file: Path) -> Iterator[Copies]:
    records: list[tuple[int, str]] = []
    for record in _records(file):
        records.append(record)
        if len(records) == DATA_PIECE:
            yield Copies(stream, records)
            records = []
    if records:
        yield Copies(stream, records)


def _records(file: Path) -> Iterator[tuple[int, str]]:
    data = file.read_bytes()
    try:
        for position, header in iterate_batches(data):
            if not header.is_control:
                for record in decode_batch(data, position):
                    yield record.offset, (record.value or b"").decode()
    except CairnError:
        return
