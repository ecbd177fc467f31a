"""What is derived from a chunk: its index and its producer snapshots.

Derived files are not synced with every write, so a crash may leave them torn: they are made again from the chunk, and
an end that is not whole is a note. An index block that is whole and contradicts its chunk is damage: look-ups follow
it.
"""

from typing import Final

from logstore.format.index import NO_TIMESTAMP, IndexBlock, IndexEntry, decode_blocks
from logstore.format.snapshot import decode_snapshots
from logstore.interfaces import FileSystem
from logstore.verify.findings import Findings

NEVER: Final = 1 << 63
"""As a position: behind every byte."""


class IndexCheck:
    """The index of a chunk, compared with the chunk while that is walked from its first batch to its last.

    `durable_end` and `next_offset` are what its last whole block proves. The walk calls `at_batch` with each batch at
    or behind `next_position`, `entry_at` with each at or behind `next_entry`, `control_at` with each control batch.
    """

    def __init__(self, fs: FileSystem, path: str, findings: Findings) -> None:
        self._path = path
        self._findings = findings
        self._blocks: list[IndexBlock] = []
        self._end = self._size_bytes = 0
        self._exists = fs.exists(path)
        if self._exists:
            data = fs.read(path, 0, fs.size(path))
            self._blocks, self._end = decode_blocks(data)
            self._size_bytes = len(data)
            findings.counts.files += 1
            findings.counts.bytes += len(data)
        self._entries = [entry for block in self._blocks for entry in block.entries]
        self._at_entry = self._at_block = 0
        self._was_skipped = self._is_wrong = False
        self.max_timestamp = NO_TIMESTAMP
        """The walk's: the latest time of a record so far."""
        self.durable_end = self._blocks[-1].durable_end if self._blocks else 0
        self.next_offset = self._blocks[-1].next_offset if self._blocks else 0
        self.next_entry = NEVER
        self.next_position = NEVER
        self._advance()

    def _advance(self) -> None:
        self.next_entry = self._entries[self._at_entry].position if self._at_entry < len(self._entries) else NEVER
        while self._at_block < len(self._blocks) and not self._blocks[self._at_block].durable_end:
            self._at_block += 1
        at_block = self._at_block < len(self._blocks)
        self.next_position = self._blocks[self._at_block].durable_end if at_block else NEVER

    @property
    def next_event(self) -> int:
        """The walk tells of each batch at or behind this position."""
        return min(self.next_position, self.next_entry)

    def meet(self, position: int, offset: int, max_timestamp: int, crc: int) -> int:
        """An intact batch at or behind `next_event`, and the latest time before it; the `next_event` behind it."""
        self.max_timestamp = max_timestamp
        at = self._at_entry
        if position < self.next_position and self._entries[at] == (offset, max_timestamp, position, crc, 0):
            self._at_entry = at = at + 1  # almost always so, and then nothing else is to be compared
            self.next_entry = self._entries[at].position if at < len(self._entries) else NEVER
            return self.next_event
        self.at_batch(position, offset)
        self.entry_at(position, offset, crc)
        return self.next_event

    def at_batch(self, position: int, offset: int) -> None:
        """A batch begins, or the data ends, at this position: blocks that end up to here must end exactly here."""
        while self.next_position <= position:
            block = self._blocks[self._at_block]
            if block.durable_end != position or block.next_offset != offset:
                self._wrong(block.durable_end, f"a block ends at offset {block.next_offset}, where no batch ends")
            elif not self._was_skipped and block.max_timestamp != self.max_timestamp:
                self._wrong(position, f"the latest time is {block.max_timestamp}, its records' is {self.max_timestamp}")
            self._at_block += 1
            self._advance()

    def entry_at(self, position: int, offset: int, crc: int) -> None:
        """The batch at this position: entries up to here must be for batches, and the one here for this one."""
        while self.next_entry <= position:
            entry = self._entries[self._at_entry]
            if entry.position < position and not self._marks_damage(entry):
                self._wrong(entry.position, f"an entry for offset {entry.base_offset} points into a batch")
            elif entry.position == position and (entry.base_offset, entry.batch_crc) != (offset, crc):
                self._wrong(position, f"an entry for offset {entry.base_offset} points at offset {offset}")
            elif entry.position == position and not self._was_skipped:
                if entry.max_timestamp_before != self.max_timestamp:
                    what = f"the latest time before offset {offset} is {entry.max_timestamp_before}"
                    self._wrong(position, f"{what}, its records' is {self.max_timestamp}")
            self._at_entry += 1
            self._advance()

    @staticmethod
    def _marks_damage(entry: IndexEntry) -> bool:
        return entry.is_control and not entry.control_type and not entry.batch_crc

    def control_at(self, position: int, offset: int, kind: int) -> None:
        """A control batch, which `entry_at` knows: it must have an entry with its type, if the index covers it."""
        if position >= self.durable_end or self._was_skipped:
            return
        entry = self._entries[self._at_entry - 1] if self._at_entry else None
        if entry is None or entry.position != position:
            self._wrong(position, f"the control batch at offset {offset} has no entry")
        elif not entry.is_control or entry.control_type not in (0, kind):
            self._wrong(position, f"the control batch at offset {offset} has type {entry.control_type}, not {kind}")

    def skip(self, position: int) -> None:
        """What is in front of this position is damaged: nothing is said about entries for it."""
        self._was_skipped = True
        while self.next_entry < position:
            self._at_entry += 1
            self._advance()
        while self.next_position < position:
            self._at_block += 1
            self._advance()

    def _wrong(self, position: int, why: str) -> None:
        if not self._is_wrong:  # the first says enough: the whole file is made anew
            what = f"it disagrees with its chunk at byte {position} of that: {why}"
            cure = "stop the sidecar and remove this file, the next start makes it again"
            self._findings.damage("index-contradicts", self._path, f"{what}; {cure}")
        self._is_wrong = True

    def finish(self, *, is_sealed: bool, is_live: bool) -> None:
        """Note an end that is not whole; `is_sealed`: a later chunk exists."""
        if is_live and not is_sealed:
            return
        if self._end < self._size_bytes:
            self._findings.note(
                "index-incomplete",
                self._path,
                f"it is not whole from byte {self._end} on; nothing is lost, the next start makes it again",
                position=self._end,
            )
        elif is_sealed and not (self._blocks and not self._blocks[-1].entries):
            what = "it does not cover the whole chunk" if self._exists else "there is none"
            message = f"{what}; nothing is lost, the next start makes it again"
            self._findings.note("index-incomplete", self._path, message, position=self._end)


def check_producers(fs: FileSystem, path: str, findings: Findings, *, is_live: bool) -> None:
    """Check the producer snapshots beside a chunk. `is_live`: a write to them may be under way."""
    if not fs.exists(path):
        return
    data = fs.read(path, 0, fs.size(path))
    findings.counts.files += 1
    findings.counts.bytes += len(data)
    _, end = decode_snapshots(data)
    if end < len(data) and not is_live:
        findings.note(
            "producers-incomplete",
            path,
            f"it is not whole from byte {end} on; nothing is lost, producers are taken from the chunk instead",
            position=end,
        )
