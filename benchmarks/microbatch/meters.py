"""What an epoch leaves in storage: files of a checkpoint, control batches and results of an output stream.

Invariant: they only read, and never while an epoch is measured.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.microbatch.data import Digest, digest
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.client.wire import LATEST
from logstore.format.batch import parse_header
from logstore.format.epoch_api import ScanRequest
from spe_adapter.codec.decode import Decoder, scan

FETCH_BYTES = 8 << 20
POLL_SECONDS = 0.005


class CheckpointMeter:
    """Bytes of files that came into being below a directory since the last look, drafts (*.tmp) when they have their
    names.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: set[tuple[str, int, int]] = set()

    def grown(self) -> int:
        """In bytes; a file that was written again counts again."""
        found = set()
        for path, _, names in os.walk(self._directory):
            for name in names:
                if name.endswith(".tmp"):  # half of a file, which gets another name
                    continue
                full = os.path.join(path, name)
                try:
                    status = os.stat(full)
                except FileNotFoundError:  # an engine cleans up whenever it likes
                    continue
                found.add((full, status.st_size, status.st_mtime_ns))
        new = found - self._known
        self._known |= found
        return sum(size for _, size, _ in new)


class TableFileMeter:
    """Bytes of RocksDB's table files that came into being below a directory since the last look. What came and went
    in between is not seen: the bytes are a lower bound.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: set[tuple[int, int]] = set()

    def grown(self) -> int:
        """In bytes; a file with two names counts once."""
        found: dict[tuple[int, int], int] = {}
        for path, _, names in os.walk(self._directory):
            for name in names:
                if not name.endswith(".sst"):
                    continue
                try:
                    status = os.stat(os.path.join(path, name))
                except FileNotFoundError:  # compacted meanwhile
                    continue
                found[status.st_ino, status.st_mtime_ns] = status.st_size
        new = found.keys() - self._known
        self._known |= found.keys()
        return sum(found[each] for each in new)


class WriteMeter:
    """Bytes that a process has handed to files since the last look, whatever became of them: staged output, logs and
    indexes alike. Pages that a sync rounds up to are not counted, as they are not for files of a checkpoint.
    """

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/io")
        self._known = self._total()

    def grown(self) -> int:
        """In bytes."""
        before, self._known = self._known, self._total()
        return self._known - before

    def _total(self) -> int:
        fields = dict(line.split(": ") for line in self._path.read_text().splitlines())
        return int(fields["wchar"])


class ControlMeter:
    """Bytes of control batches in the streams of a topic since the last look."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._client = Client(parse_addresses(address))
        self._ends = {TopicPartition(topic, number): 0 for number in range(partitions)}

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def grown(self) -> int:
        """In bytes."""
        return sum(self._grown(stream) for stream in self._ends)

    def _grown(self, stream: TopicPartition) -> int:
        known, before, size = self._ends[stream], -1, 0
        while True:
            reply = self._client.scan(ScanRequest(stream.topic, stream.partition, before, (), FETCH_BYTES))
            self._ends[stream] = max(self._ends[stream], reply.high_watermark)
            at = 0
            while at < len(reply.batches):
                header = parse_header(reply.batches, at)
                if header.base_offset < known:
                    return size
                size += header.size_bytes
                at += header.size_bytes
            before = reply.next_before
            if before <= max(known, reply.log_start_offset):
                return size


class StreamMeter:
    """Results in the streams of a topic, from where the last look ended."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._client = Client(parse_addresses(address))
        self._positions = {TopicPartition(topic, number): 0 for number in range(partitions)}
        self._values: list[pa.Array] = []

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def skip(self) -> None:
        """What is there already is not of interest."""
        self._positions = self._ends()
        self._values = []

    def _ends(self) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(self._positions, LATEST)
        return {stream: info.offset for stream, info in self._client.offsets(asked).items()}

    def wait_results(self, count: int, timeout_s: float) -> float | None:
        """Read until there are `count` results more; the moment (Unix time) of the last. None: there were not."""
        deadline = time.monotonic() + timeout_s
        found = 0
        while found < count:
            if time.monotonic() > deadline:
                return None
            for stream, end in self._ends().items():
                found += self._read(stream, end)
            time.sleep(POLL_SECONDS)
        return time.time()

    def _read(self, stream: TopicPartition, end: int) -> int:
        decoder = Decoder(stream.topic, stream.partition, with_headers=False)
        found = 0
        while (position := self._positions[stream]) < end:
            fetched = self._client.start_fetch(stream, position, FETCH_BYTES).receive()
            chunk = scan(fetched.records, position)
            for rows in decoder.decode(fetched.records, chunk, position, chunk.next_offset):
                found += rows.num_rows
                self._values.append(rows.column("value"))
            self._positions[stream] = chunk.next_offset
        return found

    def digest(self) -> Digest:
        """Of what was read since `skip` or the last digest."""
        results = [json.loads(value) for values in self._values for value in values.to_pylist()]
        self._values = []
        keys = np.array([result["key"] for result in results], np.int64)
        return digest(keys, np.array([result["average"] for result in results], np.float64))
