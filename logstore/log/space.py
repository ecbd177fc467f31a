"""The room on the disk: appends end before the disk is full, so that what makes room again still works.

    free bytes   |------------------------------------------------------------------|
                 0     spare          reserve + staged bytes    +1/4       appends are taken
                       trims, offsets, commits, recovery        |<- appends go on from here

Invariants:
* One place decides, before a batch or a segment is taken in (`admit`), so the way of its bytes to the disk does not
  matter. Nothing else is refused: offsets of groups, topics, trims, commits of staged epochs use the reserve.
* Bytes that are staged keep as many bytes free again: the commit of their epoch writes them into its streams.
* What was admitted since the last look at the disk counts as used. So the reserve is kept however fast appends come,
  but for those that were on their way during the look.
* Shortage begins and ends once: it ends when a quarter of the reserve is free beyond it.
* When a shortage begins, and while it lasts, those who can make room are told (`when_short`).
* A spare file inside the reserve is removed when others have filled the disk, so that trims and a recovery have room
  even then. It holds nothing, and is written again when there is room.

Source: docs/decisions/0033-space.md.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from hashlib import shake_128
from typing import Final, NoReturn

from logstore.base.events import Report
from logstore.errors import StorageFailed
from logstore.events import DISK_LOW, DISK_LOW_OVER
from logstore.interfaces import DiskSpace, FileSystem
from logstore.log.jobs import Create, DiskJob, JobSource, Operation, RemoveFile, Sync, SyncDirectory, WorkOnFile

DEFAULT_RESERVE: Final = -1
"""The setting for the smaller of MAX_DEFAULT_RESERVE_BYTES and 1/DEFAULT_SHARE of the file system."""
MAX_DEFAULT_RESERVE_BYTES: Final = 1 << 30
DEFAULT_SHARE: Final = 20
RESUME_SHARE: Final = 4
"""A shortage ends when 1/RESUME_SHARE of the reserve is free beyond it: so it does not end and begin with each trim."""
LOOK_SHARE: Final = 8
"""The disk is looked at again after 1/LOOK_SHARE of the reserve was admitted, not only at intervals."""
SPARE_FILE: Final = "spare"
SPARE_SHARE: Final = 8
"""The spare file takes 1/SPARE_SHARE of the reserve, but no more than MAX_SPARE_BYTES."""
MAX_SPARE_BYTES: Final = 4 << 20
"""Enough for the log starts of 50,000 streams, and for a catalogue of 20,000 streams that is rewritten."""
_PIECE_BYTES: Final = 1 << 16


class SpaceGuard:
    """Knows how much room the disk has, and whether appends may take more of it."""

    def __init__(
        self, reserve_bytes: int, notify: Callable[[JobSource], None], report: Report, wall_ms: Callable[[], int]
    ) -> None:
        self._setting = reserve_bytes
        self._notify = notify
        self._report = report
        self._wall_ms = wall_ms
        self._space: DiskSpace | None = None
        self._left_bytes: int | None = None
        """Beyond the reserve, as far as is known; None if there is no reserve, or if the file system does not tell."""
        self._admitted_bytes = 0
        """Since the last look began."""
        self._look_after_bytes = 0
        """So many admitted bytes ask for a look; `note` says how many."""
        self._promised: list[Callable[[], int]] = []
        self._makers: list[Callable[[], None]] = []
        self._wants_look = False
        self._in_flight = False
        self._has_spare = False
        self._must_free_spare = False
        self.low_since_ms: int | None = None
        """The wall time since which appends are refused; None: they are taken."""

    # ---- what is known

    @property
    def is_low(self) -> bool:
        """Whether appends are refused."""
        return self.low_since_ms is not None

    @property
    def reserve_bytes(self) -> int:
        """What appends leave free; 0: they may fill the disk."""
        if self._setting != DEFAULT_RESERVE:
            return self._setting
        total_bytes = self._space.total_bytes if self._space is not None else 0
        return min(MAX_DEFAULT_RESERVE_BYTES, total_bytes // DEFAULT_SHARE)

    @property
    def needed_bytes(self) -> int:
        """The reserve, and the room for what is staged."""
        reserve_bytes = self.reserve_bytes
        return reserve_bytes + self._promised_bytes() if reserve_bytes else 0

    @property
    def free_bytes(self) -> int | None:
        """Bytes free as far as is known; None if the file system does not tell."""
        if self._left_bytes is None:
            return None if self._space is None else self._space.free_bytes
        return max(0, self._left_bytes + self.reserve_bytes)

    def _promised_bytes(self) -> int:
        promised_bytes = 0
        for promised in self._promised:
            promised_bytes += promised()
        return promised_bytes

    @property
    def _spare_bytes(self) -> int:
        return min(MAX_SPARE_BYTES, self.reserve_bytes // SPARE_SHARE)

    def promise(self, promised_bytes: Callable[[], int]) -> None:
        """Keep as many bytes free as `promised_bytes` says, beside the reserve."""
        self._promised.append(promised_bytes)

    def when_short(self, make_room: Callable[[], None]) -> None:
        """Call `make_room` when a shortage begins, and at every look while it lasts."""
        self._makers.append(make_room)

    # ---- before an append

    def has_room(self, size_bytes: int) -> bool:
        """Whether `admit` would count so many bytes now; a shortage that this finds begins."""
        left_bytes = self._left_bytes
        if left_bytes is None:
            return True
        if not self.is_low and left_bytes - size_bytes < self._promised_bytes():
            self._begin(self.free_bytes or 0)
        return not self.is_low

    def admit(self, size_bytes: int, *, promised_bytes: int = 0) -> None:
        """Count bytes that are to be appended or staged; `promised_bytes`: by how much they raise what `promise` says.

        Raises StorageFailed if the disk has no room for both. Then nothing is counted.
        """
        left_bytes = self._left_bytes
        if left_bytes is None:
            return
        if self.low_since_ms is not None or left_bytes - size_bytes - promised_bytes < self._promised_bytes():
            self._refuse()
        self._left_bytes = left_bytes - size_bytes
        self._admitted_bytes += size_bytes
        if self._admitted_bytes > self._look_after_bytes:
            self.look()

    def _refuse(self) -> NoReturn:
        free_bytes = self.free_bytes or 0
        if not self.is_low:
            self._begin(free_bytes)
        raise StorageFailed(
            f"{free_bytes} bytes are free on the disk, but {self.needed_bytes} must stay free (disk-reserve-bytes "
            "plus the bytes that are staged); delete topics or records, lower their retention, or free disk space"
        )

    # ---- looking

    def look(self) -> None:
        """Look at the disk soon. The caller runs this every second or so."""
        self._wants_look = True
        self._notify(self)

    def refused(self) -> None:
        """The disk has refused bytes, whatever it says of its room: give up the spare file, and make room."""
        self._must_free_spare = self._has_spare
        self._make_room()
        self.look()

    def note(self, space: DiskSpace) -> None:
        """Take in what the disk says now, before or instead of a look."""
        self._space = space
        reserve_bytes, free_bytes = self.reserve_bytes, space.free_bytes
        self._look_after_bytes = reserve_bytes // LOOK_SHARE
        if not reserve_bytes:
            return
        # What was admitted since the look began may not have been on its way to the disk then.
        self._left_bytes = free_bytes - reserve_bytes - self._admitted_bytes
        if self.is_low and free_bytes >= self.needed_bytes + reserve_bytes // RESUME_SHARE:
            self.low_since_ms = None
            self._report(DISK_LOW_OVER, free_bytes=free_bytes, needed_bytes=self.needed_bytes)
        elif not self.is_low and free_bytes < self.needed_bytes:
            self._begin(free_bytes)
        elif self.is_low:
            self._make_room()

    def _begin(self, free_bytes: int) -> None:
        self.low_since_ms = self._wall_ms()
        self._report(DISK_LOW, free_bytes=free_bytes, needed_bytes=self.needed_bytes)
        self._make_room()
        self.look()

    def _make_room(self) -> None:
        for make_room in self._makers:
            make_room()

    # ---- disk work

    def take_job(self) -> DiskJob | None:
        """A look at the disk, and the spare file's removal or writing."""
        if self._in_flight or not self._wants_look:
            return None
        self._wants_look, self._in_flight = False, True
        self._admitted_bytes = 0
        found: list[DiskSpace] = []
        operations: list[Operation] = []
        frees, makes = self._must_free_spare, self._may_make_spare()
        if frees:
            operations.append(RemoveFile(SPARE_FILE, optional=True))
        elif makes:
            operations += self._spare_operations()
        operations.append(WorkOnFile("", lambda fs: found.append(fs.space())))

        def done() -> None:
            self._in_flight = False
            if frees or makes:
                self._has_spare, self._must_free_spare = makes and not frees, False
            self._looked(found[0])

        def failed(operation: Operation, _error: OSError) -> None:
            # The next look tries again. What a failed write left of the spare file is removed then.
            self._in_flight = False
            self._has_spare = self._must_free_spare = self._has_spare or operation is not operations[-1]

        return DiskJob(operations, done, failed)

    def _looked(self, space: DiskSpace) -> None:
        self.note(space)
        if self._has_spare and space.free_bytes < self._spare_bytes // 2:
            self._must_free_spare = True
        if self._must_free_spare:
            self.look()
        elif self._wants_look:
            self._notify(self)

    def _may_make_spare(self) -> bool:
        if self._has_spare or self._space is None or self.is_low or not self._spare_bytes:
            return False
        return self._space.free_bytes >= self.needed_bytes + self.reserve_bytes // RESUME_SHARE + self._spare_bytes

    def _spare_operations(self) -> list[Operation]:
        size_bytes = self._spare_bytes

        def write(fs: FileSystem) -> None:
            for at in range(0, size_bytes, _PIECE_BYTES):
                fs.write(SPARE_FILE, at, [_noise(at, min(_PIECE_BYTES, size_bytes - at))])

        return [Create(SPARE_FILE), WorkOnFile(SPARE_FILE, write), Sync(SPARE_FILE), SyncDirectory("")]

    def look_now(self, fs: FileSystem) -> None:
        """Look at the disk at the start, before anything is admitted. Blocks."""
        with suppress(OSError):  # the next look tries again
            self._has_spare = fs.exists(SPARE_FILE)
            self.note(fs.space())
            # A crash may have come while it was written.
            self._must_free_spare = self._has_spare and fs.size(SPARE_FILE) < self._spare_bytes


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that the disk, or the user's quota, has no room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def make_way(fs: FileSystem) -> None:
    """Remove the spare file if a recovery may need its room. Blocks. Raises OSError."""
    if fs.exists(SPARE_FILE) and fs.space().free_bytes < fs.size(SPARE_FILE):
        fs.remove(SPARE_FILE)


def _noise(seed: int, size_bytes: int) -> bytes:
    """Bytes that no file system compresses."""
    return shake_128(seed.to_bytes(8)).digest(size_bytes)
