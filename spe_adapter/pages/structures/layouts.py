"""What all structures on pages share: records, page headers and the super page.

Invariants:
* Page 0 of a set is the super page: kind, version, fingerprint of the schema, generation, counters of the structure.
* Every page opens with `HEADER_WORDS` words. The first two are the page's kind and the page's own number, so that a
  page that lies in a wrong place is noticed. A link to another page is a page number; 0 means none.
* A page is announced by `touch` before its first word changes. A page that was just allocated need not be.
* What a structure keeps outside its pages follows from the pages' headers alone. It is read again when the generation
  in the super page is not the one that was read: then another process has changed which pages there are.
* Pages hold numbers only, little-endian, no pointers.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Int64s
from spe_adapter.pages.errors import PagesDamaged, RecordSchemaRefused
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures import kernels

Records = NDArray[Any]
"""A structured array: one item per record."""

WORD_BYTES: Final = 8
FORMAT_VERSION: Final = 1
BYTES: Final = "bytes"
"""The type of a field whose values vary in length: the record holds a reference into an arena."""

_MAGIC: Final = 0x4361_6972
_FIXED: Final = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)

LIST: Final = 1
QUEUE: Final = 2
MAP: Final = 3
INDEX: Final = 4
ORDERED: Final = 5
ARENA: Final = 6
_SUPER: Final = 0x100
"""Added to a structure's kind, it makes the kind of the super page."""

# Words of the super page, behind its header.
FINGERPRINT: Final = kernels.HEADER_WORDS
GENERATION: Final = kernels.HEADER_WORDS + 2
COUNTERS: Final = kernels.HEADER_WORDS + 8
"""Where the words begin that belong to the kind of structure."""
COUNTER_WORDS: Final = 16

SUPER_PAGE: Final = np.zeros(1, np.int64)
SUPER_PAGE.flags.writeable = False


class RecordSchema:
    """The fields of a record of fixed width, by name: numbers of numpy's types, and `bytes` where a structure can."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        """Raises RecordSchemaRefused for a type that pages cannot hold."""
        if not fields:
            raise RecordSchemaRefused("a record needs a field")
        for name, kind in fields.items():
            if kind != BYTES and kind not in _FIXED:
                raise RecordSchemaRefused(
                    f"field {name!r} has type {kind!r}; pages hold {', '.join(sorted(_FIXED))} and {BYTES}"
                )
        self.fields = dict(fields)
        aligned = np.dtype([(name, "int64" if kind == BYTES else kind) for name, kind in fields.items()], align=True)
        self.words = max(-(-aligned.itemsize // WORD_BYTES), 1)
        """The width of a record, in words of 8 bytes."""
        places: Mapping[str, Any] = aligned.fields or {}
        self.dtype = np.dtype(
            {
                "names": list(fields),
                "formats": [places[name][0] for name in fields],
                "offsets": [places[name][1] for name in fields],
                "itemsize": self.words * WORD_BYTES,
            }
        )
        """The record as numpy has it, a whole number of words."""
        self.bytes_fields = tuple(name for name, kind in fields.items() if kind == BYTES)

    def fingerprint(self, kind: int, page_bytes: int) -> Int64s:
        """Two words that differ where pages could not be read as another structure's."""
        parts = [str(FORMAT_VERSION), str(kind), str(page_bytes), *(f"{name}\0{t}" for name, t in self.fields.items())]
        return np.frombuffer(hashlib.sha256("\1".join(parts).encode()).digest()[:16], np.int64)

    def zeros(self, count: int) -> Records:
        """Records of zeros."""
        return np.zeros(count, self.dtype)

    def records(self, **columns: Any) -> Records:
        """Records from columns of the same length; fields that are not named are 0."""
        count = max(map(len, columns.values()), default=0)
        out = self.zeros(count)
        for name, values in columns.items():
            out[name] = values
        return out

    def words_of(self, records: Records) -> Int64s:
        """Records as words, (records, words): a view where that is possible. Raises RecordSchemaRefused."""
        if records.dtype != self.dtype:
            raise RecordSchemaRefused(f"records of {records.dtype}; the structure holds {self.dtype}")
        return np.ascontiguousarray(records).view(np.int64).reshape(len(records), self.words)

    def of_words(self, words: Int64s) -> Records:
        """Records from words, without a copy."""
        return np.ascontiguousarray(words).reshape(-1).view(self.dtype)


class PagedStructure:
    """A structure on one page set. The constructor makes a new one in an empty set, or recovers the set's own."""

    def __init__(self, pages: PageSet, kind: int, schema: RecordSchema) -> None:
        """Raises PagesDamaged if the set holds something else, or pages whose headers contradict each other."""
        self.schema = schema
        self._pages = pages
        self._kind = kind
        self._page_bytes = pages.manager.page_bytes
        self._page_words = self._page_bytes // WORD_BYTES
        self._generation = 0
        if not len(self._allocated()):
            self._create()
        self.recover()

    def _create(self) -> None:
        numbers = self._pages.allocate(1)
        if numbers.tolist() != [0]:
            raise PagesDamaged(f"the first page of an empty set has number {numbers.tolist()}, not 0")
        words = self._words()
        words[kernels.PAGE_KIND] = _kind_word(self._kind | _SUPER)
        words[kernels.PAGE_NUMBER] = 0
        words[FINGERPRINT : FINGERPRINT + 2] = self.schema.fingerprint(self._kind, self._page_bytes)

    def recover(self) -> None:
        """Read the headers of all pages again, after pages came from a checkpoint or were changed by another process.

        Raises PagesDamaged if they contradict each other. Cost: per page.
        """
        words = self._words()
        numbers = self._allocated()
        if not len(numbers) or numbers[0] != 0 or (int(numbers[-1]) + 1) * self._page_words > len(words):
            raise PagesDamaged("a page set without its super page, or with pages outside its memory")
        if words[kernels.PAGE_KIND] != _kind_word(self._kind | _SUPER):
            raise PagesDamaged(f"page 0 of the set is not a super page of kind {self._kind}")
        expected = self.schema.fingerprint(self._kind, self._page_bytes)
        if not np.array_equal(words[FINGERPRINT : FINGERPRINT + 2], expected):
            raise PagesDamaged(
                f"the set was written under another schema or page size than {self.schema.fields}, "
                f"{self._page_bytes} bytes"
            )
        numbers = numbers[1:]
        headers = words.reshape(-1, self._page_words)[numbers, : kernels.HEADER_WORDS]
        wrong = (headers[:, kernels.PAGE_KIND] != _kind_word(self._kind)) | (headers[:, kernels.PAGE_NUMBER] != numbers)
        if wrong.any():
            raise PagesDamaged(f"pages {numbers[wrong][:5].tolist()} are not what the set should hold there")
        self._adopt(numbers, headers)
        self._generation = int(words[GENERATION])

    def _adopt(self, numbers: Int64s, headers: Int64s) -> None:
        """Take over what the headers of the pages behind the super page say. Raises PagesDamaged."""
        raise NotImplementedError

    def destroy(self) -> None:
        """Give all pages back. The structure is not used after that."""
        self._pages.release(self._allocated())

    @property
    def size_bytes(self) -> int:
        """The memory of the structure's pages."""
        return len(self._allocated()) * self._page_bytes

    # ---- for the structures

    def _words(self) -> Int64s:
        """The set's memory as words."""
        return self._pages.bytes.view(np.int64)

    def _allocated(self) -> Int64s:
        """The numbers of the set's pages, ascending."""
        described = self._pages.manager.description(self._pages.set_id)
        marks = np.ones(described.used, np.bool_)
        marks[list(described.released)] = False
        return np.flatnonzero(marks)

    def _current(self) -> Int64s:
        """The set's memory as words, after the headers were read again if another process changed which there are."""
        words = self._words()
        if words[GENERATION] != self._generation:
            self.recover()
        return words

    def _total(self, word: int) -> int:
        """A count in the super page. Raises PagesDamaged if there is no room for so many."""
        words = self._current()
        total = int(words[word])
        if not 0 <= total <= len(words) * WORD_BYTES:
            raise PagesDamaged(f"a structure on {len(words) * WORD_BYTES} bytes that counts {total}")
        return total

    def _count_page_change(self) -> None:
        """Say in the super page (touched by the caller) that pages came or went."""
        words = self._words()
        words[GENERATION] += 1
        self._generation = int(words[GENERATION])

    def _allocate(self, count: int) -> Int64s:
        """New pages with a header of this structure's kind."""
        numbers = self._pages.allocate(count)
        self._pages.touch(SUPER_PAGE)
        grid = self._words().reshape(-1, self._page_words)
        grid[numbers, kernels.PAGE_KIND] = _kind_word(self._kind)
        grid[numbers, kernels.PAGE_NUMBER] = numbers
        self._count_page_change()
        return numbers

    def _release(self, numbers: Int64s) -> None:
        if len(numbers):
            self._pages.touch(SUPER_PAGE)
            self._pages.release(numbers)
            self._count_page_change()

    def _touch(self, numbers: Int64s) -> None:
        """Touch pages that may be named more than once, and the super page."""
        self._pages.touch(distinct_numbers(np.append(numbers, 0), len(self._pages.bytes) // self._page_bytes))


def distinct_numbers(numbers: Int64s, below: int) -> Int64s:
    """Numbers in [0, below), ascending, each once."""
    if len(numbers) * 16 < below:
        return np.unique(numbers)
    marks = np.zeros(below, np.bool_)
    marks[numbers] = True
    return np.flatnonzero(marks)


def check(status: int, what: str) -> None:
    """Raise PagesDamaged unless a compiled loop says that all was well."""
    if status < 0:
        raise PagesDamaged(f"{what} contradicts itself (status {status})")


def _kind_word(kind: int) -> int:
    return _MAGIC << 32 | FORMAT_VERSION << 16 | kind


def no_bytes(schema: RecordSchema) -> None:
    """Raise RecordSchemaRefused for a schema with values of varying length: only a map can hold those."""
    if schema.bytes_fields:
        raise RecordSchemaRefused(f"field {schema.bytes_fields[0]!r} varies in length; only a map can hold such values")
