"""The contract of `FileSystem` for every implementation: `check_filesystem` raises AssertionError if one breaks it.

Invariants: each check starts from an empty file system. Details that the contract leaves open (modes, times, how much a
failed write has written) are not checked. The state after a crash is not part of the contract: `logstore.testing.crash`
checks that.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Final

from logstore.interfaces import FileSystem

MAX_FILE_BYTES: Final = 300
NAMES: Final = ("a", "b", "folder/a", "folder/b", "folder/inner/c")
DIRECTORIES: Final = ("folder", "folder/inner")
Make = Callable[[], AbstractContextManager[FileSystem]]


def check_filesystem(make: Make, *, seed: int = 0, steps: int = 500) -> None:
    """Check an implementation: each promise of the interface on its own, then `steps` random calls against a model.

    `make()` returns an empty file system. The random calls depend on `seed` alone; a failure's message names it.
    """
    for check in (_files, _writes, _reads, _names, _directories, _refusals):
        with make() as fs:
            check(fs)
    with make() as fs:
        _against_a_model(fs, Random(seed), f"seed {seed}", steps)


def _content(fs: FileSystem, path: str) -> bytes:
    return fs.read(path, 0, MAX_FILE_BYTES)


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


def _refused(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except OSError:
        return
    raise AssertionError(f"{what}: expected an OSError")


def _files(fs: FileSystem) -> None:
    _expect(fs.exists("a"), False, "exists, without a file")
    fs.create("a")
    _expect((fs.exists("a"), fs.size("a")), (True, 0), "a created file")
    fs.write("a", 0, [b"12345"])
    fs.truncate("a", 3)
    _expect(_content(fs, "a"), b"123", "a truncated file")
    fs.truncate("a", 5)
    _expect(_content(fs, "a"), b"123\0\0", "a file truncated to more than it had")
    fs.create("a")
    _expect(fs.size("a"), 0, "a file created again")
    fs.sync("a")
    fs.sync_directory("")


def _writes(fs: FileSystem) -> None:
    fs.create("a")
    fs.write("a", 0, [b"ab", bytearray(b"cd"), memoryview(b"ef")])
    _expect(_content(fs, "a"), b"abcdef", "buffers, one behind the other")
    fs.write("a", 2, [b"XY"])
    _expect(_content(fs, "a"), b"abXYef", "a write over bytes in the middle")
    fs.write("a", 8, [b"z"])
    _expect(_content(fs, "a"), b"abXYef\0\0z", "a write behind the end")
    fs.write("a", 0, [])
    fs.write("a", 0, [b""])
    _expect(fs.size("a"), 9, "the size after writes of nothing")
    fs.write("a", 0, [b"."] * 2000)
    _expect(fs.size("a"), 2000, "the size after a write of 2,000 buffers")


def _reads(fs: FileSystem) -> None:
    fs.create("a")
    fs.write("a", 0, [b"abcdef"])
    _expect(fs.read("a", 2, 3), b"cde", "a read in the middle")
    _expect(fs.read("a", 4, 10), b"ef", "a read across the end")
    _expect(fs.read("a", 6, 1), b"", "a read at the end")
    _expect(fs.read("a", 100, 1), b"", "a read behind the end")
    _expect(fs.read("a", 0, 6, drop_cache=True), b"abcdef", "a read that drops its pages")
    for what, position, length, count in (
        ("in the middle", 2, 3, 3),
        ("across the end", 4, 10, 2),
        ("behind", 9, 1, 0),
    ):
        fs.will_read("a", position, length)
        buffer = bytearray(b"-" * length)
        _expect(fs.read_into("a", position, memoryview(buffer)), count, f"bytes read into a buffer, {what}")
        expected = b"abcdef"[position : position + length].ljust(length, b"-")
        _expect(bytes(buffer), expected, f"a read into a buffer, {what}")
    fs.will_read("none", 0, 1)
    for what, position, length in (("in the middle", 2, 3), ("of all", 0, 6), ("of the last byte", 5, 1)):
        found = fs.read_cached("a", position, length)
        if found is not None:
            _expect(bytes(found), b"abcdef"[position : position + length], f"a read from memory, {what}")
    for what, position, length in (("across the end", 4, 10), ("behind the end", 100, 1)):
        _expect(fs.read_cached("a", position, length), None, f"a read from memory, {what}")
    _expect(fs.read_cached("none", 0, 1), None, "a read from memory of a file that does not exist")


def _names(fs: FileSystem) -> None:
    fs.create("a")
    fs.write("a", 0, [b"old"])
    fs.create("b")
    fs.write("b", 0, [b"new"])
    fs.rename("b", "a")
    _expect((fs.exists("b"), _content(fs, "a")), (False, b"new"), "a rename over a file")
    fs.write("a", 3, [b"er"])
    _expect(_content(fs, "a"), b"newer", "a write after a rename")
    fs.remove("a")
    fs.remove("a")
    _expect(fs.exists("a"), False, "exists, after two removals")
    fs.create("a")
    _expect(fs.size("a"), 0, "a file created after its removal")


def _directories(fs: FileSystem) -> None:
    _expect(fs.list_directory("folder"), [], "the names in a directory that does not exist")
    fs.make_directory("folder")
    fs.make_directory("folder")
    for name in ("c", "a", "b"):
        fs.create(f"folder/{name}")
    _expect(fs.list_directory("folder"), ["a", "b", "c"], "the names in a directory")
    _expect(fs.list_directory(""), ["folder"], "the names in the data directory")
    fs.sync_directory("folder")
    fs.create("d")
    fs.rename("d", "folder/d")
    _expect(fs.exists("folder/d"), True, "exists, after a rename into a directory")
    _refused(lambda: fs.remove_directory("folder"), "removing a directory that has files")
    for name in fs.list_directory("folder"):
        fs.remove(f"folder/{name}")
    fs.remove_directory("folder")
    fs.remove_directory("folder")
    _expect(fs.exists("folder"), False, "exists, after two removals of a directory")


def _refusals(fs: FileSystem) -> None:
    fs.create("file")
    fs.make_directory("folder")
    for what, call in (
        ("writing to a file that does not exist", lambda: fs.write("none", 0, [b"x"])),
        ("reading a file that does not exist", lambda: fs.read("none", 0, 1)),
        ("reading a file that does not exist into a buffer", lambda: fs.read_into("none", 0, memoryview(bytearray(1)))),
        ("syncing a file that does not exist", lambda: fs.sync("none")),
        ("truncating a file that does not exist", lambda: fs.truncate("none", 0)),
        ("renaming a file that does not exist", lambda: fs.rename("none", "other")),
        ("the size of a file that does not exist", lambda: fs.size("none")),
        ("syncing a directory that does not exist", lambda: fs.sync_directory("none")),
        ("creating a file in a directory that does not exist", lambda: fs.create("none/a")),
        ("making a directory in a directory that does not exist", lambda: fs.make_directory("none/inner")),
        ("creating a file over a directory", lambda: fs.create("folder")),
        ("removing a directory as a file", lambda: fs.remove("folder")),
        ("making a directory over a file", lambda: fs.make_directory("file")),
        ("removing a file as a directory", lambda: fs.remove_directory("file")),
        ("renaming a file over a directory", lambda: fs.rename("file", "folder")),
        ("creating a file below a file", lambda: fs.create("file/a")),
        ("the names in a file", lambda: fs.list_directory("file")),
    ):
        _refused(call, what)
    _expect(fs.list_directory(""), ["file", "folder"], "the names after calls that were refused")


def _against_a_model(fs: FileSystem, random: Random, origin: str, steps: int) -> None:
    """Random calls with a mapping from path to content as the model; every file is compared after each call."""
    for directory in DIRECTORIES:
        fs.make_directory(directory)
    model: dict[str, bytes] = {}
    for step in range(steps):
        path = random.choice(NAMES)
        kind = random.choice(("create", "write", "write", "write", "truncate", "rename", "remove", "sync"))
        call = f"{origin}, step {step}, {kind} {path}"
        if kind == "create":
            fs.create(path)
            model[path] = b""
        elif kind == "remove":
            fs.remove(path)
            model.pop(path, None)
        elif path not in model:
            _refused(lambda path=path: fs.sync(path), call)  # type: ignore[misc]
        elif kind == "write":
            position = random.randrange(MAX_FILE_BYTES // 2)
            data = random.randbytes(random.randrange(1, MAX_FILE_BYTES // 2))
            cut = random.randrange(len(data))
            fs.write(path, position, [data[:cut], data[cut:]])
            before = model[path].ljust(position, b"\0")
            model[path] = before[:position] + data + before[position + len(data) :]
        elif kind == "truncate":
            size_bytes = random.randrange(MAX_FILE_BYTES)
            fs.truncate(path, size_bytes)
            model[path] = model[path][:size_bytes].ljust(size_bytes, b"\0")
        elif kind == "rename":
            target = random.choice(NAMES)
            fs.rename(path, target)
            model[target] = model.pop(path)
        else:
            fs.sync(path)
        found = {name: _content(fs, name) for name in NAMES if fs.exists(name)}
        _expect(found, model, call)
