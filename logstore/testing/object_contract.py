"""The contract of `ObjectStore` for every implementation: `check_object_store` raises AssertionError if one breaks it.

Invariants: each check uses keys of its own below one prefix, so an implementation may hold other objects; keys end in
`.bin`, objects have at least one byte. What `list_keys` shows of a put that failed, and whether directories without
objects are there, is left open.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from random import Random
from typing import Final

from crc32c import crc32c

from logstore.errors import ObjectMissing
from logstore.format.tiered_chunk import StoredObject
from logstore.tier.interface import ObjectStore

PREFIX: Final = "contract"
LARGE_BYTES: Final = 3 << 20
LOOKS: Final = 20
"""How often what a failed put has left is looked for, and removed."""
NAMES: Final = ("a.bin", "b.bin", "folder/a.bin", "folder/inner/c.bin", "other/a.bin")
Make = Callable[[], AbstractContextManager[ObjectStore]]


class _Interrupted(Exception):
    """What the pieces of a put raise."""


def check_object_store(make: Make, *, seed: int = 0, steps: int = 40) -> None:
    """Check an implementation: each promise of the interface on its own, then `steps` random calls against a model.

    `make()` opens the store; calls of it open the same one. The random calls depend on `seed` alone.
    """
    for check in (_ranges, _pieces, _missing, _interrupted, _unseen, _listing, _deleting):
        with make() as store:
            check(store)
    _reopened(make)
    with make() as store:
        _against_a_model(store, Random(seed), f"seed {seed}", steps)


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}"[:500])


def _sum(data: bytes) -> StoredObject:
    return StoredObject(len(data), crc32c(data))


def _put(store: ObjectStore, key: str, data: bytes) -> str:
    store.put(f"{PREFIX}/{key}", len(data), [data])
    return f"{PREFIX}/{key}"


def _is_missing(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except ObjectMissing:
        return
    raise AssertionError(f"{what}: expected ObjectMissing")


def _ranges(store: ObjectStore) -> None:
    data = Random(1).randbytes(LARGE_BYTES + 17)
    key = _put(store, "ranges/a.bin", data)
    for position, length in ((0, len(data)), (0, 1), (5, 100), (LARGE_BYTES, 17), (1 << 20, 1 << 20), (len(data), 1)):
        _expect(store.get(key, position, length) == data[position : position + length], True, f"{position}+{length}")
    _expect(store.get(key, len(data) - 3, 100), data[-3:], "a range that ends behind the object")
    _expect(store.checksum(key), _sum(data), "the checksum of a large object")
    store.delete(key)


def _pieces(store: ObjectStore) -> None:
    key = f"{PREFIX}/pieces/a.bin"
    store.put(key, 6, iter([b"1", b"", b"2345", b"6"]))
    _expect(store.get(key, 0, 10), b"123456", "an object of several pieces")
    store.put(f"{PREFIX}/pieces/b.bin", 3, [b"abc"], ())
    _expect(store.checksum(f"{PREFIX}/pieces/b.bin"), _sum(b"abc"), "another object of that directory")
    store.delete(key)
    _expect(store.get(f"{PREFIX}/pieces/b.bin", 1, 1), b"b", "an object whose neighbour was removed")
    store.delete(f"{PREFIX}/pieces/b.bin")


def _missing(store: ObjectStore) -> None:
    key = f"{PREFIX}/missing/a.bin"
    _is_missing(lambda: store.get(key, 0, 1), "get")
    _is_missing(lambda: store.checksum(key), "checksum")
    store.delete(key)
    _expect(list(store.list_keys(f"{PREFIX}/missing/")), [], "a prefix without objects")


def _interrupted(store: ObjectStore) -> None:
    key = f"{PREFIX}/interrupted/a.bin"

    def pieces() -> Iterator[bytes]:
        yield b"1" * 70_000
        raise _Interrupted

    try:
        store.put(key, 140_000, pieces())
    except _Interrupted:
        pass
    else:
        raise AssertionError("put: expected the error of its pieces")
    _is_missing(lambda: store.get(key, 0, 1), "an object whose put failed")
    for _ in range(LOOKS):  # HDFS may make the file when the put has failed already
        found = list(store.list_keys(f"{PREFIX}/interrupted/"))
        for left in found:
            _expect(left.key == key, False, "a key whose put failed is listed")
            store.delete(left.key)
        if not found:
            return
    raise AssertionError(f"what a put left cannot be removed: {found}"[:500])


def _unseen(store: ObjectStore) -> None:
    key = f"{PREFIX}/unseen/a.bin"

    def pieces() -> Iterator[bytes]:
        yield b"x" * 1000
        _is_missing(lambda: store.get(key, 0, 1), "an object that is being put")
        _expect([at.key for at in store.list_keys(f"{PREFIX}/unseen/") if at.key == key], [], "its key in a list")
        yield b"y" * 1000

    store.put(key, 2000, pieces())
    _expect([tuple(at) for at in store.list_keys(f"{PREFIX}/unseen/")], [(key, 2000)], "the list after the put")
    store.delete(key)


def _listing(store: ObjectStore) -> None:
    sizes = {_put(store, f"listing/{name}", b"x" * (number + 1)): number + 1 for number, name in enumerate(NAMES)}
    _expect({at.key: at.size_bytes for at in store.list_keys(f"{PREFIX}/listing/")}, sizes, "all keys of a prefix")
    inner = {at.key for at in store.list_keys(f"{PREFIX}/listing/folder/")}
    _expect(inner, {key for key in sizes if "/folder/" in key}, "those of a narrower prefix")
    for key in sizes:
        store.delete(key)


def _deleting(store: ObjectStore) -> None:
    key = _put(store, "deleting/a.bin", b"123")
    store.delete(key)
    _is_missing(lambda: store.get(key, 0, 1), "an object that was removed")
    store.delete(key)
    _expect([at for at in store.list_keys(f"{PREFIX}/deleting/") if at.key == key], [], "its key in a list")


def _reopened(make: Make) -> None:
    with make() as store:
        key = _put(store, "reopened/a.bin", b"12345")
    with make() as store:
        _expect(store.get(key, 1, 3), b"234", "an object of a store that was closed")
        store.delete(key)


def _against_a_model(store: ObjectStore, random: Random, where: str, steps: int) -> None:
    model: dict[str, bytes] = {}
    prefix = f"{PREFIX}/random-{random.getrandbits(32):08x}"
    for step in range(steps):
        what, kind = f"{where}, step {step}", random.choice(("put", "get", "get", "checksum", "list", "delete"))
        if kind == "put" or not model:
            data = random.randbytes(random.choice((1, 100, 5_000)))
            key = f"{prefix}/{step}/{random.choice(NAMES)}"
            store.put(key, len(data), [data[:50], data[50:]])
            model[key] = data
            continue
        key = random.choice(sorted(model))
        if kind == "get":
            position, length = random.randrange(6_000), random.randrange(1, 6_000)
            _expect(store.get(key, position, length), model[key][position : position + length], what)
        elif kind == "checksum":
            _expect(store.checksum(key), _sum(model[key]), what)
        elif kind == "list":
            found = {at.key: at.size_bytes for at in store.list_keys(f"{prefix}/")}
            _expect(found, {key: len(data) for key, data in model.items()}, what)
        else:
            store.delete(key)
            del model[key]
    for key in model:
        store.delete(key)
