"""The requests to a store and its answers: the oracle for every state after a crash.

The promises that it checks (docs/format.md, "Crash states"):
* Every acknowledged batch is in the log, at its offset, unchanged; so is every batch that a reader could see.
* The log holds no batch that was never sent, no batch twice and no holes; the batches are in the order of sending.
* A batch that was sent but not acknowledged is in the log whole or not at all.
* A group is in the log whole, between its BEGIN and END, or not at all; an epoch is in all its streams, from one
  execution, or in none.
* Control records of state below an offset that was asked for may be gone, the oldest first; nothing else is.
* The log start is at least the last acknowledged trim, and at most the highest requested trim.
* A ledger holds the last acknowledged put or a later one, never half of a put.

This module depends on the formats, not on the implementation of the log.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.format.batch import CRC_OFFSET, BatchHeader, is_empty, iterate_batches
from logstore.format.control import Begin, End, decode_control
from logstore.interfaces import Buffer

StreamKey = tuple[str, int]
Epoch = tuple[str, int]
"""Query and number."""


class PromiseBroken(AssertionError):
    """The store broke a promise; the message names the promise and the place."""


@dataclass(slots=True)
class SentBatch:
    """A batch that was sent: its number in the order of sending, and its offset once acknowledged."""

    number: int
    records: int
    max_timestamp: int
    offset: int | None = None


class ReceivedBatch(NamedTuple):
    """A batch as a reader received it."""

    header: BatchHeader
    data: bytes


def content_of(batch: Buffer) -> bytes:
    """The bytes of a batch that never change: all bytes after base offset, length, leader epoch and magic."""
    return bytes(batch[CRC_OFFSET:])


def found_batches(buffers: Iterable[Buffer]) -> list[ReceivedBatch]:
    """Batches with their checked headers; a buffer may hold several."""
    return [
        ReceivedBatch(header, bytes(buffer[position : position + header.size_bytes]))
        for buffer in buffers
        for position, header in iterate_batches(buffer)
    ]


@dataclass
class StreamHistory:
    """The requests, answers and observations of one stream."""

    name: str
    sent: dict[bytes, SentBatch] = field(default_factory=dict)
    groups: dict[Epoch, dict[str, tuple[bytes, ...]]] = field(default_factory=dict)
    """Per epoch, the contents of its batches by the execution that made them."""
    acked_groups: dict[Epoch, int] = field(default_factory=dict)
    seen_high_watermark: int = 0
    trim_acked: int = 0
    trim_asked: int = 0
    acked: list[bytes] = field(default_factory=list)
    states: set[bytes] = field(default_factory=set)
    """The contents of batches that are control records of state."""
    clean_asked: int = 0
    """Below this offset control records of state may be gone."""

    def fork(self) -> "StreamHistory":
        """A copy that changes independently of this one."""
        return StreamHistory(
            self.name,
            dict(self.sent),
            {epoch: dict(executions) for epoch, executions in self.groups.items()},
            dict(self.acked_groups),
            self.seen_high_watermark,
            self.trim_acked,
            self.trim_asked,
            list(self.acked),
            set(self.states),
            self.clean_asked,
        )

    def send(self, content: bytes, records: int, max_timestamp: int) -> SentBatch:
        """Note a batch that is about to be sent."""
        batch = self.sent[content] = SentBatch(len(self.sent), records, max_timestamp)
        return batch

    def check(self, log_start: int, high_watermark: int, log: Sequence[ReceivedBatch]) -> dict[Epoch, str]:
        """Check a stream by all batches that a reader finds from the log start on. Returns epochs and executions."""
        if not self.trim_acked <= log_start <= max(self.trim_asked, self.trim_acked):
            raise self._broken(f"log start {log_start}, trimmed to {self.trim_acked}, asked {self.trim_asked}")
        if high_watermark < self.seen_high_watermark:
            raise self._broken(
                f"high watermark {high_watermark} is behind {self.seen_high_watermark}, which was visible"
            )
        self._check_dense(log_start, high_watermark, log)
        plain, epochs = self._split(log)
        last = -1
        for batch in plain:
            sent = self.sent.get(content_of(batch.data))
            if sent is None:
                raise self._broken(f"the batch at {batch.header.base_offset} was never sent")
            if sent.number <= last:
                raise self._broken(f"the batch at {batch.header.base_offset} is out of order or twice")
            last = sent.number
        self._check_acked(log_start, log)
        for epoch, offset in self.acked_groups.items():
            if offset >= log_start and epoch not in epochs:
                raise self._broken(f"group {epoch}, acknowledged at {offset}, is lost")
        return epochs

    def _check_acked(self, log_start: int, log: Sequence[ReceivedBatch]) -> None:
        found = {batch.header.base_offset: content_of(batch.data) for batch in log}
        for content in self.acked:
            offset = self.sent[content].offset
            if offset is None or offset + self.sent[content].records <= log_start:
                continue
            if offset not in found:
                raise self._broken(f"the batch acknowledged at {offset} is lost")
            if found[offset] != content:
                raise self._broken(f"another batch stands at {offset} than the one acknowledged there")

    def _check_dense(self, log_start: int, high_watermark: int, log: Sequence[ReceivedBatch]) -> None:
        offset = log_start
        for place, batch in enumerate(log):
            base = batch.header.base_offset
            if base != offset and not (place == 0 and base < offset < batch.header.next_offset):
                raise self._broken(f"offset {offset} is due, but a batch with {base} stands there")
            offset = batch.header.next_offset
        if offset != high_watermark and log:
            raise self._broken(f"the log ends at {offset}, the high watermark is {high_watermark}")
        if not log and log_start != high_watermark:
            raise self._broken(f"nothing is found between {log_start} and {high_watermark}")

    def _split(self, log: Sequence[ReceivedBatch]) -> tuple[list[ReceivedBatch], dict[Epoch, str]]:
        """Batches outside groups, and the epochs whose groups are in the log, each checked to be whole."""
        plain: list[ReceivedBatch] = []
        epochs: dict[Epoch, str] = {}
        opened: Epoch | None = None
        inside: list[bytes] = []
        begin = 0
        kept: list[bool] = []
        for place, batch in enumerate(log):
            control = decode_control(batch.data) if batch.header.is_control else None
            if isinstance(control, Begin):
                if opened is not None:
                    raise self._broken(f"group {opened} has no end")
                opened, inside, begin = (control.query, control.epoch), [], batch.header.base_offset
            elif isinstance(control, End):
                epoch = (control.query, control.epoch)
                if opened is None and (place == 0 or self._starts_inside(log, place)):
                    plain.clear()  # the log start is inside the group
                    continue
                if opened != epoch:
                    raise self._broken(f"group {opened} ends as {epoch}")
                if epoch in epochs:
                    raise self._broken(f"group {epoch} is there twice")
                epochs[epoch] = self._execution(epoch, tuple(inside), begin, kept)
                opened = None
            elif is_empty(batch.header):
                continue
            elif opened is not None:
                inside.append(content_of(batch.data))
            else:
                plain.append(batch)
        if opened is not None:
            raise self._broken(f"group {opened} is visible without its end")
        if kept != sorted(kept):
            raise self._broken("control records of state are gone, and older ones are there")
        return plain, epochs

    @staticmethod
    def _starts_inside(log: Sequence[ReceivedBatch], place: int) -> bool:
        controls = (decode_control(batch.data) for batch in log[:place] if batch.header.is_control)
        return not any(isinstance(control, Begin | End) for control in controls)

    def _execution(self, epoch: Epoch, inside: tuple[bytes, ...], begin: int, kept: list[bool]) -> str:
        """The execution that made a group's batches; notes in `kept` which of its records of state are there."""
        for execution, contents in self.groups.get(epoch, {}).items():
            cleaned = tuple(one for one in contents if one in inside or one not in self.states)
            if cleaned == inside and (contents == inside or begin < self.clean_asked):
                kept += [one in inside for one in contents if one in self.states]
                return execution
        raise self._broken(f"group {epoch} holds {len(inside)} batches that no execution of it made")

    def _broken(self, what: str) -> PromiseBroken:
        return PromiseBroken(f"{self.name}: {what}")


@dataclass
class History:
    """The requests, answers and observations of a store."""

    streams: dict[StreamKey, StreamHistory] = field(default_factory=dict)
    topics_acked: dict[str, int] = field(default_factory=dict)
    """Topics that must exist, with their partitions."""
    topics_unsure: dict[str, int] = field(default_factory=dict)
    """Topics that are being created, grown or deleted."""
    committed: dict[Epoch, str] = field(default_factory=dict)
    """Epochs acknowledged as committed, with their executions."""
    taken_over: list[tuple[str, str, int]] = field(default_factory=list)
    """Queries and their incarnations in the order in which they took over, each with the last epoch that it was told
    (-1: none): later epochs are not from an older incarnation.
    """
    puts_sent: int = 0
    puts_acked: int = 0
    producer_ids: set[int] = field(default_factory=set)
    version: int = 0

    def fork(self) -> "History":
        """A copy that changes independently of this one."""
        return History(
            {key: stream.fork() for key, stream in self.streams.items()},
            dict(self.topics_acked),
            dict(self.topics_unsure),
            dict(self.committed),
            list(self.taken_over),
            self.puts_sent,
            self.puts_acked,
            set(self.producer_ids),
            self.version,
        )

    def stream(self, topic: str, partition: int) -> StreamHistory:
        """The history of one stream."""
        key = (topic, partition)
        if key not in self.streams:
            self.streams[key] = StreamHistory(f"{topic}-{partition}")
        return self.streams[key]

    def check_epochs(self, found: dict[StreamKey, dict[Epoch, str]], last: Mapping[str, int]) -> None:
        """Check that each epoch is in all streams its execution wrote to, or in none; a committed one in all; and that
        the last epochs of queries, `last`, are what the streams and the answers say.
        """
        seen: dict[Epoch, set[str]] = {}
        for epochs in found.values():
            for epoch, execution in epochs.items():
                seen.setdefault(epoch, set()).add(execution)
        for epoch, executions in seen.items():
            if len(executions) > 1:
                raise PromiseBroken(f"epoch {epoch} comes from several executions: {sorted(executions)}")
            execution = next(iter(executions))
            for key, stream in self.streams.items():
                if execution in stream.groups.get(epoch, {}) and epoch not in found.get(key, {}):
                    raise PromiseBroken(f"epoch {epoch} of {execution} is missing in {stream.name}")
        for epoch, execution in self.committed.items():
            if seen.get(epoch) != {execution}:
                raise PromiseBroken(f"epoch {epoch} was committed by {execution}, found is {seen.get(epoch)}")
        for query, number in [*seen, *self.committed]:
            if query in last and last[query] < number:
                raise PromiseBroken(f"epoch {number} of {query} is there, its last epoch is said to be {last[query]}")
        for at, (query, newer, told) in enumerate(self.taken_over):
            older = {run for before, run, _ in self.taken_over[:at] if before == query} - {newer}
            for (owner, number), executions in seen.items():
                if owner == query and number > told and executions & older:
                    raise PromiseBroken(
                        f"epoch {number} of {executions} came after {newer} was told that {told} is last"
                    )
