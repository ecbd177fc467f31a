"""One simulated file: the content that a process sees, and all contents that a power cut may leave.

Model (docs/format.md, "Disk assumptions"):
* Data reaches the disk in *units* (a page, or a sector for torn pages). Of every unit written since the last sync, any
  version since then may be on disk, independently of every other unit, or none of them (the durable content before;
  zeros if there was none).
* The size is metadata: any size of the file since the last sync may be on disk, independently of the data. Data beyond
  the surviving size is lost; bytes within it that were never written read as zeros.
* The last write may also be torn at any byte.
* A successful sync makes the present content durable, except units whose earlier sync failed and which were not written
  since: the kernel has marked those clean, so their state on disk is unknown (the "fsyncgate" behaviour of Linux).

This module has no names; `simdisk` gives files names and directories.
"""

from collections.abc import Iterator
from itertools import islice, product
from math import prod
from random import Random
from typing import NamedTuple


class _LastWrite(NamedTuple):
    position: int
    data: bytes
    before: bytes
    size_before: int


class FileState(NamedTuple):
    """One content that a power cut may leave, and a label of how it arose."""

    label: str
    content: bytes


class SimFile:
    """The content of one file: as the process sees it, and as it may be after a power cut."""

    __slots__ = ("_dirty", "_last_write", "_sizes", "_unit_bytes", "_versions", "content", "durable")

    def __init__(self, unit_bytes: int, content: bytes = b"") -> None:
        self._unit_bytes = unit_bytes
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self._versions: dict[int, list[bytes]] = {}
        self._dirty: set[int] = set()
        self._sizes: list[int] = []
        self._last_write: _LastWrite | None = None

    @property
    def uncertain(self) -> bool:
        """Whether a power cut may leave anything but the present content."""
        return bool(self._versions or self._sizes)

    def clone(self) -> "SimFile":
        """A copy of the file, with its un-synced state."""
        other = SimFile(self._unit_bytes)
        other.content, other.durable = bytearray(self.content), bytearray(self.durable)
        other._versions = {unit: list(versions) for unit, versions in self._versions.items()}
        other._dirty, other._sizes, other._last_write = set(self._dirty), list(self._sizes), self._last_write
        return other

    def write(self, position: int, data: bytes) -> None:
        """Write into the cache; a gap before `position` reads as zeros."""
        if not data:
            return
        size_before = len(self.content)
        end = position + len(data)
        before = bytes(self.content[position:end]).ljust(len(data), b"\0")
        if position > size_before:
            self.content.extend(bytes(position - size_before))
        self.content[position:end] = data
        if len(self.content) != size_before:
            self._sizes.append(len(self.content))
        for unit in range(position // self._unit_bytes, (end - 1) // self._unit_bytes + 1):
            self._remember(unit)
        self._last_write = _LastWrite(position, data, before, size_before)

    def truncate(self, size_bytes: int) -> None:
        """Cut or extend (with zeros)."""
        size_before = len(self.content)
        if size_bytes == size_before:
            return
        if size_bytes > size_before:
            self.content.extend(bytes(size_bytes - size_before))
        else:
            del self.content[size_bytes:]
            for unit in range(size_bytes // self._unit_bytes, (size_before - 1) // self._unit_bytes + 1):
                self._remember(unit)
        self._sizes.append(size_bytes)
        self._last_write = None

    def _remember(self, unit: int) -> None:
        start = unit * self._unit_bytes
        self._versions.setdefault(unit, []).append(bytes(self.content[start : start + self._unit_bytes]))
        self._dirty.add(unit)

    def sync(self) -> None:
        """A sync that succeeds."""
        size = len(self.content)
        self.durable = self.durable[:size].ljust(size, b"\0")
        for unit in self._dirty:
            start = unit * self._unit_bytes
            self.durable[start : start + self._unit_bytes] = self.content[start : start + self._unit_bytes]
            del self._versions[unit]
        for unit in [unit for unit in self._versions if unit * self._unit_bytes >= size]:
            del self._versions[unit]
        self._dirty.clear()
        self._sizes.clear()
        self._last_write = None

    def fail_sync(self) -> None:
        """A sync that fails: the pages are marked clean and no later sync writes them; they may be on disk or not."""
        self._dirty.clear()

    def flip_bit(self, bit: int) -> None:
        """Flip one bit (most significant first) in the cache and on the disk."""
        position, mask = bit // 8, 0x80 >> bit % 8
        self.content[position] ^= mask
        if position < len(self.durable):
            self.durable[position] ^= mask

    # ---- what a power cut may leave

    def count_states(self) -> int:
        """The number of combinations of units and sizes (some may give the same content), without torn writes."""
        return (len(set(self._sizes)) + 1) * prod(len(versions) + 1 for versions in self._versions.values())

    def states(self, limit: int, random: Random) -> list[FileState]:
        """Distinct contents that a power cut may leave: all of them, or a choice if there are more than `limit`.

        The choice starts with: nothing kept, everything kept, every prefix, every suffix, each unit alone missing, each
        alone kept.
        """
        units = sorted(self._versions)
        sizes = list(dict.fromkeys([len(self.durable), *self._sizes]))
        seen: dict[bytes, str] = {}
        choices: Iterator[tuple[int, tuple[int, ...]]]
        if self.count_states() <= limit:
            choices = (
                (size, picks)
                for size in sizes
                for picks in product(*(range(-1, len(self._versions[unit])) for unit in units))
            )
        else:
            choices = islice(self._chosen(units, sizes, random), limit)
        for size, picks in choices:
            seen.setdefault(self._image(size, dict(zip(units, picks, strict=True))), f"size {size}, units {picks}")
        return [FileState(label, content) for content, label in seen.items()]

    def _chosen(self, units: list[int], sizes: list[int], random: Random) -> Iterator[tuple[int, tuple[int, ...]]]:
        last = tuple(len(self._versions[unit]) - 1 for unit in units)
        none = (-1,) * len(units)
        yield sizes[0], none
        yield sizes[-1], last
        yield sizes[-1], none
        yield sizes[0], last
        for cut in range(1, len(units)):
            yield sizes[-1], last[:cut] + none[cut:]
            yield sizes[-1], none[:cut] + last[cut:]
        for one in range(len(units)):
            yield sizes[-1], (*last[:one], -1, *last[one + 1 :])
            yield sizes[-1], (*none[:one], last[one], *none[one + 1 :])
        while True:
            yield random.choice(sizes), tuple(random.randrange(-1, pick + 1) for pick in last)

    def sample(self, random: Random) -> bytes:
        """One content that a power cut may leave."""
        if self._last_write is not None and random.random() < 0.25:
            return self._torn(random.randrange(len(self._last_write.data) + 1), cut=random.random() < 0.5)
        size = random.choice([len(self.durable), *self._sizes])
        return self._image(size, {unit: random.randrange(-1, len(kept)) for unit, kept in self._versions.items()})

    def torn_states(self, limit: int) -> list[FileState]:
        """The last write torn at every byte (evenly spread if it has more than `limit`), the size cut there or not."""
        if self._last_write is None or not self._dirty:
            return []
        step = max(1, -(-len(self._last_write.data) // limit))
        seen: dict[bytes, str] = {}
        for kept in range(0, len(self._last_write.data) + 1, step):
            seen.setdefault(self._torn(kept, cut=True), f"last write cut behind {kept} bytes")
            seen.setdefault(self._torn(kept, cut=False), f"last write torn behind {kept} bytes")
        return [FileState(label, content) for content, label in seen.items()]

    def _torn(self, kept: int, *, cut: bool) -> bytes:
        write = self._last_write
        if write is None:
            return bytes(self.content)
        image = bytearray(self.content)
        image[write.position + kept : write.position + len(write.data)] = write.before[kept:]
        if cut:
            del image[max(write.size_before, write.position + kept) :]
        return bytes(image)

    def _image(self, size: int, picks: dict[int, int]) -> bytes:
        image = self.durable[:size].ljust(size, b"\0")
        for unit, pick in picks.items():
            start = unit * self._unit_bytes
            if pick < 0 or start >= size:
                continue
            piece = self._versions[unit][pick].ljust(self._unit_bytes, b"\0")[: size - start]
            image[start : start + len(piece)] = piece
        return bytes(image)
