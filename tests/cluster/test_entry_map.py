"""The entries of a replicated ledger in memory: walked in parts, and as they are while they change."""

from __future__ import annotations

from random import Random
from typing import Any

from logstore.cluster.epochs.entry_map import PARTS, EntryMap


def test_it_is_a_map() -> None:
    """Entries are set, replaced and removed, of any kind; the bytes by which it grows are those that it has."""
    random, entries, known, size_bytes = Random(1), EntryMap(), dict[str, bytes](), 0
    for _ in range(3_000):
        key = random.choice(("a/", "b/", "b/c/", "")) + str(random.randrange(200))
        value = None if random.random() < 0.4 else bytes(random.randrange(9))
        size_bytes += entries.set(key, value)
        if value is None:
            known.pop(key, None)
        else:
            known[key] = value
    assert dict(entries.items("")) == known
    assert sorted(key for part in entries.key_parts() for key in part) == sorted(known)
    assert size_bytes == sum(len(key) + len(value) for key, value in known.items())
    for prefix in ("a/", "b/", "b/c/", "b/c/1", "1", "nothing/"):
        assert dict(entries.items(prefix)) == {k: v for k, v in known.items() if k.startswith(prefix)}
    assert (entries.get("a/1"), entries.get("nothing/1")) == (known.get("a/1"), None)


def test_a_step_of_a_walk_is_short() -> None:
    """No part has much more than its share of many entries, and those of other kinds are not looked at."""
    entries = EntryMap()
    for number in range(100 * PARTS):
        entries.set(f"offset/g{number % 10}/t/{number}", b"1")
    entries.set("members/g", b"2")
    assert max(len(part) for part in entries.key_parts()) < 200

    class NotWalked(dict[str, bytes]):
        def __iter__(self) -> Any:
            raise AssertionError("entries of another kind are walked")

    entries._kinds["offset/"] = [NotWalked(part) for part in entries._kinds["offset/"]]
    assert list(entries.items("members/")) == [("members/g", b"2")]


def test_entries_may_change_during_a_walk() -> None:
    """What is there all the time is given once, as it is then; what has gone is not given."""
    entries = EntryMap()
    for number in range(1_000):
        entries.set(f"k/{number}", b"old")
    found = dict[str, bytes]()
    for key, value in entries.items("k/"):
        assert key not in found
        found[key] = value
        number = int(key[2:])
        entries.set(f"k/{number + 1_000}", b"added")
        if number < 500:
            entries.set(f"k/{number + 500}", None)
            entries.set("k/999", b"new")
    assert {f"k/{number}" for number in range(500)} <= found.keys()
    assert set(found.values()) <= {b"old", b"new", b"added"}
    assert entries.get("k/500") is None
