"""The staged output of tasks: which attempts are whole, and whether a committed epoch can still be published.

Invariant: output that is not committed is never damage: its task stages it again.
"""

from typing import NamedTuple

from logstore.epochs.ledger_entries import CommitRecord
from logstore.epochs.staging import DIRECTORY, is_data_whole
from logstore.errors import CorruptFile
from logstore.format.staged import HEADER_BYTES, AttemptKey, SegmentHeader, decode_segment_header, table_bytes
from logstore.interfaces import FileSystem
from logstore.verify.findings import Findings

READ_BYTES = 4 << 20


class StagedFile(NamedTuple):
    """A staging file: its attempt, and how many segments of it are whole."""

    path: str
    key: AttemptKey
    segments: int


def check_staged(fs: FileSystem, findings: Findings, *, is_live: bool = False) -> list[StagedFile]:
    """Check all staging files; those with at least one whole segment. Raises OSError, UnknownFormatVersion."""
    found = []
    for name in fs.list_directory(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        try:
            size_bytes = fs.size(path)
            headers, end = _segments(fs, path)
        except FileNotFoundError:
            if is_live:
                continue  # its epoch has been published meanwhile
            raise
        findings.counts.files += 1
        findings.counts.bytes += end
        if end < size_bytes and not is_live:
            findings.note(
                "staged-torn",
                path,
                f"the segment at byte {end} is not whole; if its epoch is not committed, its task stages it again",
                position=end,
            )
        if headers:
            found.append(StagedFile(path, headers[0].key, len(headers)))
    return found


def _segments(fs: FileSystem, path: str) -> tuple[list[SegmentHeader], int]:
    """The whole segments of a file, and the position behind them."""
    headers: list[SegmentHeader] = []
    start = 0
    while True:
        try:
            fixed = fs.read(path, start, HEADER_BYTES)
            header = decode_segment_header(fixed + fs.read(path, start + HEADER_BYTES, table_bytes(fixed)))
        except CorruptFile:
            return headers, start
        follows = header.position == len(headers) and (not headers or header.key == headers[0].key)
        if not follows or not is_data_whole(fs, path, start + header.header_bytes, header):
            return headers, start
        headers.append(header)
        start += header.size_bytes


def check_commit(commit: CommitRecord, staged: list[StagedFile], findings: Findings) -> None:
    """Check that an epoch which is committed and not in all its streams can be published."""
    for task in commit.tasks:
        key = AttemptKey(commit.query, commit.incarnation, commit.epoch, task.task, task.attempt)
        whole = max((file.segments for file in staged if file.key == key), default=0)
        if whole < task.segments:
            path = next((file.path for file in staged if file.key == key), DIRECTORY)
            findings.damage(
                "staged-missing",
                path,
                f"epoch {commit.epoch} of query {commit.query!r} is committed, and cannot be published: of task "
                f"{task.task}, attempt {task.attempt!r}, {whole} of {task.segments} segments are whole",
            )
