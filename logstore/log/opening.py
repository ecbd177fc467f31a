"""Opening a stream at a start: from the table of quiet streams, from its files, or as one that has no files yet.

Invariants:
* A stream that had records and has no chunk any more, or fewer offsets than it had, is never opened as if nothing had
  happened: the first refuses the start, the second is reported.
* Streams are opened independently of each other, on any thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from logstore.base.events import Report
from logstore.errors import CorruptFile
from logstore.events import OFFSETS_LOST
from logstore.format.batch import LEADER_EPOCH
from logstore.format.journal_block import JournalPart
from logstore.interfaces import FileSystem
from logstore.log.producers import ProducerTable
from logstore.log.quiet import QuietStreams, opened_from
from logstore.log.recovery import recover_stream
from logstore.log.stream_state import RecoveredStream

Item = TypeVar("Item")
Result = TypeVar("Result")


class StoredStream(NamedTuple):
    """A stream as the catalogue knows it; `is_there`: whether it has a directory, which comes with its first record.
    `leader_epoch`: the highest one that its batches may have.
    """

    directory: str
    log_start: int
    is_there: bool
    leader_epoch: int = LEADER_EPOCH


class OpenedStream(NamedTuple):
    """A stream's state; `is_quiet`: it is from the table of quiet streams, and its files were not read."""

    recovered: RecoveredStream
    is_quiet: bool


Recover = Callable[[StoredStream], OpenedStream]


class Each(Protocol):
    """`map`, or a version of it that uses threads: a recovery mostly waits for syncs."""

    def __call__(self, work: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
        """The results of `work` for all items, in their order."""


def open_streams(
    fs: FileSystem, quiet: QuietStreams, recover: Recover, stored: Sequence[StoredStream], each: Each
) -> list[OpenedStream]:
    """Open streams, in their order: those in the table from it, the others with `recover`, which `each` applies.

    Raises CorruptFile, UnknownFormatVersion, OSError.
    """
    opened = [_from_table(fs, quiet, one) for one in stored]
    others = iter(each(recover, [one for one, found in zip(stored, opened, strict=True) if found is None]))
    return [next(others) if found is None else found for found in opened]


def _from_table(fs: FileSystem, quiet: QuietStreams, stored: StoredStream) -> OpenedStream | None:
    if not stored.is_there:
        return None
    found = quiet.find(stored.directory).quiet
    if found is None or not quiet.is_true(fs, stored.directory, found):
        return None
    return OpenedStream(opened_from(found, stored.directory, stored.log_start, stored.leader_epoch), True)


def recover_from_files(
    fs: FileSystem,
    quiet: QuietStreams,
    journaled: Mapping[str, Sequence[JournalPart]],
    now_ms: int,
    report: Report,
    stored: StoredStream,
) -> OpenedStream:
    """Open a stream without the table; `journaled`: what the journal holds, by directory; `now_ms` is wall time.

    Raises CorruptFile if nothing is left of a stream that had records, UnknownFormatVersion, OSError.
    """
    directory = stored.directory
    reached = max(stored.log_start, quiet.find(directory).reached)
    recovered = RecoveredStream([], ProducerTable(), 0, 0)
    parts = journaled.get(directory, ())
    if stored.is_there:
        recovered = recover_stream(fs, directory, stored.log_start, now_ms, report, parts, stored.leader_epoch)
    elif parts:
        raise CorruptFile(f"{directory} is gone, though the journal has records of the stream; restore it")
    if not recovered.chunks and reached:
        raise CorruptFile(f"{directory}: no chunk is left, though the log had reached offset {reached}; restore it")
    if recovered.next_offset < reached:
        first, last = recovered.next_offset, reached - 1
        report(OFFSETS_LOST, directory=directory, first=first, last=last, why="the files end before them")
    return OpenedStream(recovered, False)
