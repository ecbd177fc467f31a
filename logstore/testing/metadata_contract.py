"""The contract of `MetadataStore` for every implementation: `check_metadata_store` raises AssertionError if one breaks
it.

Invariants: each check starts from an empty map. Times when a store is away, and faults of its disk, are not part of the
contract: each implementation has its own tests for them. No check waits for longer than PATIENCE_S.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from logstore.base.metadata.errors import Compacted, InvalidMetadataCall, LeaseEnded, MetadataDamaged, MetadataError
from logstore.base.metadata.interface import (
    ABSENT,
    MAX_CHANGES,
    MAX_KEY_BYTES,
    MAX_LEASE_S,
    MAX_PAGE_ENTRIES,
    MAX_PAGES,
    MAX_VALUE_BYTES,
    MIN_LEASE_S,
    Change,
    Changes,
    Committed,
    Condition,
    ConditionFailed,
    Delete,
    DeletePrefix,
    Entry,
    Event,
    MetadataStore,
    Page,
    Put,
    Reading,
    Transaction,
    WantedPage,
    Watch,
)
from logstore.testing.metadata_model import MetadataModel

PATIENCE_S: Final = 300.0
SHORT_S: Final = MIN_LEASE_S
LONG_S: Final = 4 * MIN_LEASE_S
LEASE_FACTORS: Final = (1, 3, 9)
"""How much longer leases last in one trial after the other, until the machine is fast enough for them."""
KEYS: Final = ("a", "a/", "a/x", "a/y", "ab", "b/x", "b/y/z", "~")
PREFIXES: Final = ("", "a", "a/", "b/", "zz")


@dataclass(frozen=True)
class StoreUnderTest:
    """An empty store, the store of another host with the same map, and a way to let time pass."""

    store: MetadataStore
    other: MetadataStore
    pass_time: Callable[[float], Awaitable[None]]


Make = Callable[[], AbstractAsyncContextManager[StoreUnderTest]]


async def check_metadata_store(make: Make, *, seed: int = 0, steps: int = 200) -> None:
    """Check an implementation: each promise of the interface on its own, then `steps` random calls against a model.

    `make()` gives an empty store. The random calls depend on `seed` alone; a failure's message names it.
    """
    for check in CHECKS:
        with trio.fail_after(PATIENCE_S):
            async with make() as under_test:
                await check(under_test)
    with trio.fail_after(PATIENCE_S):
        async with make() as under_test:
            await check_against_model(under_test, Random(seed), steps, f"seed {seed}")


def put(key: str, value: bytes = b"", *, if_revision: int | None = None, lease_id: int = 0) -> Transaction:
    """A transaction that puts a key, if it has a revision."""
    conditions = () if if_revision is None else (Condition(key, if_revision),)
    return Transaction(conditions, (Put(key, value, lease_id),))


def changing(*changes: Change) -> Transaction:
    """A transaction without conditions."""
    return Transaction((), changes)


async def committed(store: MetadataStore, transaction: Transaction) -> int:
    """Make a transaction that must succeed; returns its revision."""
    outcome = await store.commit(transaction)
    if not isinstance(outcome, Committed):
        raise AssertionError(f"{transaction}: expected it to be made, found {outcome!r}")
    return outcome.revision


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


async def _refused(call: Callable[[], Awaitable[object]], error: type[MetadataError], what: str) -> None:
    try:
        found = await call()
    except error:
        return
    raise AssertionError(f"{what}: expected {error.__name__}, found {found!r}")


async def _received(watch: Watch, number: int) -> list[Changes]:
    return [await watch.receive() for _ in range(number)]


# ---- the checks


async def _entries(test: StoreUnderTest) -> None:
    empty = await test.store.get("a")
    _expect((empty.entry, empty.entry_revision), (None, ABSENT), "an absent key")
    first = await committed(test.store, put("a", b"\0\xff\n"))
    _expect(first, empty.revision + 1, "the revision of a first change")
    _expect(await test.store.get("a"), Reading(Entry("a", b"\0\xff\n", first), first), "a key that was put")
    _expect(await test.other.get("a"), Reading(Entry("a", b"\0\xff\n", first), first), "the same key at another host")
    second = await committed(test.other, put("a", b""))
    _expect(await test.store.get("a"), Reading(Entry("a", b"", second), second), "a value replaced by an empty one")
    third = await committed(test.store, changing(Delete("a")))
    _expect((third, await test.other.get("a")), (second + 1, Reading(None, third)), "a removed key")
    _expect(await committed(test.store, changing(Delete("a"))), third, "the revision after nothing was removed")
    _expect(await committed(test.store, changing()), third, "the revision after an empty transaction")
    again = await committed(test.store, put("a", b"same"))
    _expect(await committed(test.store, put("a", b"same")), again + 1, "the revision of a put of the same value")


async def _conditions(test: StoreUnderTest) -> None:
    store = test.store
    first = await committed(store, put("a", b"1", if_revision=ABSENT))
    _expect(
        await test.other.commit(put("a", b"2", if_revision=ABSENT)),
        ConditionFailed((Entry("a", b"1", first),), first),
        "a put of a key that must be absent, and is there",
    )
    second = await committed(test.other, put("a", b"2", if_revision=first))
    _expect(
        await store.commit(put("a", b"3", if_revision=first)),
        ConditionFailed((Entry("a", b"2", second),), second),
        "a put if the key is unchanged, after it was changed",
    )
    mixed = Transaction((Condition("a", second), Condition("b", second)), (Put("c", b""), Delete("a")))
    _expect(
        await store.commit(mixed),
        ConditionFailed((Entry("a", b"2", second), None), second),
        "a transaction with one condition of two that holds",
    )
    _expect((await store.page("")).entries, (Entry("a", b"2", second),), "the map after conflicts")
    both = Transaction((Condition("a", second), Condition("b", ABSENT)), (Put("c", b""), Delete("a"), Put("b", b"")))
    third = await committed(store, both)
    _expect(
        await test.other.page(""),
        Page((Entry("b", b"", third), Entry("c", b"", third)), False, third),
        "a transaction of several changes",
    )
    _expect(await committed(store, Transaction((Condition("b", third),), ())), third, "a transaction that only asks")


async def _racers(test: StoreUnderTest) -> None:
    """Of many that change a key at once, one wins each time, and no change is lost."""
    rounds = 10

    async def count(store: MetadataStore) -> None:
        for _ in range(rounds):
            reading = await store.get("n")
            while True:
                value = int(reading.entry.value) if reading.entry else 0
                outcome = await store.commit(put("n", str(value + 1).encode(), if_revision=reading.entry_revision))
                if isinstance(outcome, Committed):
                    break
                reading = Reading(outcome.found[0], outcome.revision)

    async with trio.open_nursery() as nursery:
        for store in (test.store, test.other, test.store, test.other):
            nursery.start_soon(count, store)
    found = (await test.store.get("n")).entry
    _expect(found and found.value, str(4 * rounds).encode(), "a counter that four count up at once")


async def _pages(test: StoreUnderTest) -> None:
    store = test.store
    keys = [f"a/{number:04d}" for number in range(MAX_PAGE_ENTRIES + 10)]
    for begin in range(0, len(keys), MAX_CHANGES):
        await committed(store, changing(*(Put(key, b"") for key in keys[begin : begin + MAX_CHANGES])))
    for key in ("a", "a.", "a0", "A/1", "b/1"):
        await committed(store, put(key))
    first = await store.page("a/")
    _expect([entry.key for entry in first.entries], keys[:MAX_PAGE_ENTRIES], "the first page")
    _expect(first.more, True, "whether more follow the first page")
    second = await store.page("a/", after=first.entries[-1].key)
    _expect([entry.key for entry in second.entries], keys[MAX_PAGE_ENTRIES:], "the second page")
    _expect(second.more, False, "whether more follow the last page")
    exact = await store.page("a/", after=keys[-4], limit=3)
    _expect(([entry.key for entry in exact.entries], exact.more), (keys[-3:], False), "a page that is just full")
    _expect((await store.page("a/", after="b")).entries, (), "a page behind the prefix")
    _expect((await store.page("a/", after="A")).entries[0].key, keys[0], "a page from before the prefix")
    revision = first.entries[-1].revision
    newer = await store.page("a/", newer_than=revision)
    _expect(([each.key for each in newer.entries], newer.more), (keys[MAX_PAGE_ENTRIES:], False), "newer entries")
    await committed(store, changing(Put(keys[3], b"2"), Put(keys[5], b"2"), Delete(keys[4])))
    newest = await store.page("a/", newer_than=second.revision, limit=1)
    _expect(([each.key for each in newest.entries], newest.more), ([keys[3]], True), "a page of newer entries")
    newest = await store.page("a/", newer_than=second.revision, after=keys[3])
    _expect(([each.key for each in newest.entries], newest.more), ([keys[5]], False), "the last newer entries")
    _expect((await store.page("a/", newer_than=newest.revision)).entries, (), "entries newer than all")
    beside = await store.page("a/", newer_than=newest.revision, beside=keys[3])
    _expect((beside.entries, beside.beside), ((), (await store.get(keys[3])).entry), "a key beside a page")
    beside = await store.page("a/", after=keys[-2], beside=keys[4])
    _expect(([each.key for each in beside.entries], beside.beside), ([keys[-1]], None), "an absent key beside a page")
    wanted = [WantedPage("a/", limit=1, beside="a."), WantedPage("a/", keys[-2], 2), WantedPage("zz", beside="none")]
    pages = await store.pages([wanted[0], wanted[1], wanted[2]._replace(limit=1)])
    _expect([[each.key for each in page.entries] for page in pages], [keys[:1], keys[-1:], []], "several pages")
    _expect([page.more for page in pages], [True, False, False], "whether more follow several pages")
    _expect([page.beside and page.beside.key for page in pages], ["a.", None, None], "keys beside several pages")
    _expect({page.revision for page in pages}, {(await store.get("a")).revision}, "the moment of several pages")
    every = await store.page("", limit=3)
    _expect([entry.key for entry in every.entries], ["A/1", "a", "a."], "a page of everything")


async def _removals(test: StoreUnderTest) -> None:
    for key in KEYS:
        await committed(test.store, put(key))
    revision = await committed(test.store, changing(DeletePrefix("a/"), Put("ab", b"new")))
    found = await test.store.page("")
    _expect([entry.key for entry in found.entries], ["a", "ab", "b/x", "b/y/z", "~"], "keys after a prefix went")
    _expect(await committed(test.store, changing(DeletePrefix("a/"))), revision, "the revision after nothing went")


async def _watches(test: StoreUnderTest) -> None:
    store = test.store
    begin = (await store.get("a")).revision
    one = await committed(store, put("a/1", b"x"))
    await committed(store, put("b/1"))
    two = await committed(store, changing(Put("a/2", b"y"), Delete("a/1"), Put("a", b""), Put("b/2", b"")))
    past = [
        Changes(one, (Event("a/1", Entry("a/1", b"x", one)),)),
        Changes(two, (Event("a/1", None), Event("a/2", Entry("a/2", b"y", two)))),
    ]
    async with test.other.watch("a/", begin) as watch, test.other.watch("a/", one) as later:
        _expect(await _received(watch, 2), past, "changes from before the watch")
        _expect(await _received(later, 1), past[1:], "changes behind a revision")
        three = await committed(store, put("a/2", b"z"))
        expected = [Changes(three, (Event("a/2", Entry("a/2", b"z", three)),))]
        _expect(await _received(watch, 1), expected, "a change during the watch")
        await committed(store, put("b/1"))
        with trio.move_on_after(0) as scope:
            await watch.receive()
        _expect(scope.cancelled_caught, True, "whether a watch waits while nothing changes under its prefix")
        four = await committed(store, changing(DeletePrefix("a/")))
        _expect(
            await _received(watch, 1), [Changes(four, (Event("a/2", None),))], "a change after a wait was cancelled"
        )
        _expect([each.revision for each in await _received(later, 2)], [three, four], "a second watch")
    async with store.watch("", four) as watch:
        five = await committed(store, put("c"))
        expected = [Changes(five, (Event("c", Entry("c", b"", five)),))]
        _expect(await _received(watch, 1), expected, "a watch of everything")
    async with store.watch("", five + 100) as watch:
        await _refused(watch.receive, MetadataDamaged, "a watch from a revision that is yet to come")


async def _compaction(test: StoreUnderTest) -> None:
    store = test.store
    begin = (await store.get("a")).revision
    one = await committed(store, put("a", b"1"))
    two = await committed(store, changing(Delete("a")))
    three = await committed(store, put("b"))
    await store.compact(two)
    await store.compact(two)
    await store.compact(one)
    for after in (begin, one):
        async with store.watch("", after) as watch:
            for _ in range(2):
                await _refused(watch.receive, Compacted, f"a watch after {after}, compacted up to {two}")
    async with test.other.watch("", two) as watch:
        expected = [Changes(three, (Event("b", Entry("b", b"", three)),))]
        _expect(await _received(watch, 1), expected, "a watch from the revision compacted to")
        await store.compact(three)
        four = await committed(store, changing(Delete("b")))
        _expect(await _received(watch, 1), [Changes(four, (Event("b", None),))], "a watch that was not behind")
    await _refused(lambda: store.compact(four + 1), InvalidMetadataCall, "compacting up to a revision yet to come")
    _expect((await store.page("")).revision, four, "the revision after a compaction")


async def _leases(test: StoreUnderTest) -> None:
    *shorter, longest = LEASE_FACTORS
    for factor in shorter:
        trial = _LeaseTrial(test, factor)
        try:
            await trial.run()
        except (AssertionError, LeaseEnded):
            if not trial.was_too_slow():
                raise
            await trial.end()
        else:
            return
    await _LeaseTrial(test, longest).run()


class _LeaseTrial:
    """The promises about leases, tried with leases that last `factor` times as long as the shortest.

    A lease ends by itself where a machine takes longer to use it: the trial knows that, and says nothing of the store.
    """

    def __init__(self, test: StoreUnderTest, factor: int) -> None:
        self._test = test
        self._short_s, self._long_s = SHORT_S * factor, LONG_S * factor
        self._granted: list[int] = []
        self._needed: dict[int, float] = {}
        """Leases that must not have ended, and until when they surely last."""

    def was_too_slow(self) -> bool:
        """Whether a lease that is needed may have ended by now."""
        return any(trio.current_time() >= end_s for end_s in self._needed.values())

    async def end(self) -> None:
        """End every lease: nothing happens by itself any more."""
        for lease_id in self._granted:
            await self._test.store.revoke_lease(lease_id)

    async def run(self) -> None:
        """Raises AssertionError for a broken promise, or, as LeaseEnded, if it was too slow."""
        store, other = self._test.store, self._test.other
        kept, short = await self._grant(store, self._long_s), await self._grant(other, self._short_s)
        begin = await committed(store, changing(Put("m/1", b"", kept), Put("m/2", b"", short)))
        bound = await committed(store, changing(Put("m/3", b"", short), Put("other", b"", short)))
        freed = await committed(store, put("m/3"))
        _expect(
            [(entry.key, entry.lease_id) for entry in (await other.page("m/")).entries],
            [("m/1", kept), ("m/2", short), ("m/3", 0)],
            "keys bound to leases",
        )
        _expect(bound, begin + 1, "the revision of a second change")
        await self._ended("m/2", short, kept)
        async with store.watch("", freed) as watch:
            end = Changes(freed + 1, (Event("m/2", None), Event("other", None)))
            _expect(await _received(watch, 1), [end], "the end of a lease")
        await _refused(lambda: other.keep_alive(short), LeaseEnded, "keeping an ended lease alive")
        try:
            await store.commit(changing(Put("m/4", b"", kept), Put("m/5", b"", short)))
        except LeaseEnded as error:
            _expect(error.lease_id, short, "the ended lease that is named")
        else:
            raise AssertionError("a put with an ended lease: expected LeaseEnded")
        _expect((await store.get("m/4")).entry, None, "a key of a refused transaction")
        # Longer than the kept lease lasts by itself, while others end.
        for number in range(LONG_S // SHORT_S + 1):
            passing = await self._grant(store, self._short_s)
            await committed(store, put(f"passing/{number}", lease_id=passing))
            await self._ended(f"passing/{number}", passing, kept)
        _expect((await store.get("m/1")).entry, Entry("m/1", b"", begin, kept), "a key whose lease is kept alive")
        await other.revoke_lease(kept)
        _expect((await store.get("m/1")).entry, None, "a key whose lease was revoked")
        await store.revoke_lease(kept)
        _expect((await store.get("m/3")).entry, Entry("m/3", b"", freed), "a key bound to no lease any more")

    async def _grant(self, store: MetadataStore, ttl_s: int) -> int:
        sent_s = trio.current_time()
        lease = await store.grant_lease(ttl_s)
        self._granted.append(lease.lease_id)
        self._needed[lease.lease_id] = sent_s + ttl_s
        _expect(lease.ttl_s >= ttl_s, True, "the time of a lease")
        return lease.lease_id

    async def _ended(self, key: str, lease_id: int, kept: int) -> None:
        """Let time pass until a key has vanished with its lease, and keep another lease alive meanwhile."""
        del self._needed[lease_id]
        while (await self._test.store.get(key)).entry is not None:
            await self._test.pass_time(self._short_s / 4)
            sent_s = trio.current_time()
            await self._test.store.keep_alive(kept)
            self._needed[kept] = sent_s + self._long_s


async def _limits(test: StoreUnderTest) -> None:
    store = test.store
    key, value = "k" * MAX_KEY_BYTES, b"\xff" * MAX_VALUE_BYTES
    revision = await committed(store, put(key, value, if_revision=ABSENT))
    _expect((await test.other.get(key)).entry, Entry(key, value, revision), "the largest key and value")
    await committed(store, changing(*(Put(f"full/{number}", value) for number in range(15))))
    many = tuple(Condition(f"full/{number}", ABSENT) for number in range(15))
    outcome = await store.commit(Transaction(many, (Put("x", b""),)))
    _expect(isinstance(outcome, ConditionFailed) and len(outcome.found), 15, "a conflict of many large values")
    await committed(store, changing(*(Put(f"n/{number}", b"") for number in range(MAX_CHANGES))))
    for what, call in _beyond_limits(store):
        await _refused(call, InvalidMetadataCall, what)


def _beyond_limits(store: MetadataStore) -> Sequence[tuple[str, Callable[[], Awaitable[object]]]]:
    """Calls that no store takes."""
    many = tuple(Put(f"n/{number}", b"") for number in range(MAX_CHANGES + 1))
    large = tuple(Put(f"n/{number}", b"x" * MAX_VALUE_BYTES) for number in range(17))
    transactions = {
        "an empty key": put(""),
        "a long key": put("k" * (MAX_KEY_BYTES + 1)),
        "a key with a space": put("a b"),
        "a key that is not ASCII": put("ä"),
        "a large value": put("a", b"x" * (MAX_VALUE_BYTES + 1)),
        "many changes": changing(*many),
        "many conditions": Transaction(tuple(Condition(each.key, 0) for each in many), ()),
        "a large transaction": changing(*large),
        "a key changed twice": changing(Put("a", b""), Delete("a")),
        "a key changed under a removed prefix": changing(Put("a/x", b""), DeletePrefix("a/")),
        "a prefix within a removed prefix": changing(DeletePrefix("a/"), DeletePrefix("a/b/")),
        "everything removed": changing(DeletePrefix("")),
        "a negative revision": put("a", if_revision=-1),
    }
    calls: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        (what, lambda transaction=transaction: store.commit(transaction))  # type: ignore[misc]
        for what, transaction in transactions.items()
    ]
    calls += [
        ("a page of nothing", lambda: store.page("a", limit=0)),
        ("a page newer than no revision", lambda: store.page("a", newer_than=-1)),
        ("a large page", lambda: store.page("a", limit=MAX_PAGE_ENTRIES + 1)),
        ("no pages", lambda: store.pages([])),
        ("too many pages", lambda: store.pages([WantedPage("a", limit=1)] * (MAX_PAGES + 1))),
        ("several large pages", lambda: store.pages([WantedPage("a", limit=MAX_PAGE_ENTRIES)] * 2)),
        ("a prefix that is not ASCII", lambda: store.page("ä")),
        ("a key beside a page that is not ASCII", lambda: store.page("a", beside="ä")),
        ("reading no key", lambda: store.get("")),
        ("a short lease", lambda: store.grant_lease(MIN_LEASE_S - 1)),
        ("a long lease", lambda: store.grant_lease(MAX_LEASE_S + 1)),
    ]
    return calls


# ---- random calls


def random_transaction(random: Random, model: MetadataModel) -> Transaction:
    """A transaction on a few keys; about two of three have conditions that hold."""
    keys = random.sample(KEYS, random.randint(1, 4))
    conditions = []
    for key in random.sample(KEYS, random.randint(0, 2)):
        entry = model.entries.get(key)
        now = entry.revision if entry else ABSENT
        conditions.append(Condition(key, now if random.random() < 0.8 else random.randint(0, model.revision)))
    leases = [0, *model.leases]
    changes: list[Change] = [
        Put(key, random.randbytes(random.randint(0, 20)), random.choice(leases))
        if random.random() < 0.7
        else Delete(key)
        for key in keys
    ]
    prefix = random.choice(("a/", "b/"))
    if random.random() < 0.1 and not any(key.startswith(prefix) for key in keys):
        changes.append(DeletePrefix(prefix))
    return Transaction(tuple(conditions), tuple(changes))


async def check_against_model(test: StoreUnderTest, random: Random, steps: int, origin: str) -> None:
    """Random calls at two hosts against a model; then each watch must have seen each change once, in order."""
    model = MetadataModel((await test.store.get("a")).revision)
    for step in range(steps):
        store = random.choice((test.store, test.other))
        call = f"{origin}, step {step}"
        kind = random.choices(("commit", "page", "grant", "revoke"), (8, 3, 1, 1))[0]
        if kind == "commit":
            await step_commit(store, model, random_transaction(random, model), call)
        elif kind == "page":
            await step_page(store, model, random.choice(PREFIXES), call)
        elif kind == "grant" and len(model.leases) < 3:
            model.leases.add((await store.grant_lease(MAX_LEASE_S)).lease_id)
        elif kind == "revoke" and model.leases:
            await step_revoke(store, model, min(model.leases), call)
    for prefix in PREFIXES:
        after = random.randint(model.first, model.revision)
        await step_watch(test.other, model, prefix, after, origin)


async def step_commit(store: MetadataStore, model: MetadataModel, transaction: Transaction, call: str) -> None:
    """Make a transaction in both, and compare."""
    outcome = await store.commit(transaction)
    if model.holds(transaction):
        _expect(outcome, Committed(model.commit(transaction.changes)), f"{call}, {transaction}")
    else:
        found = tuple(model.entries.get(condition.key) for condition in transaction.conditions)
        _expect(outcome, ConditionFailed(found, model.revision), f"{call}, {transaction}")


async def step_page(store: MetadataStore, model: MetadataModel, prefix: str, call: str) -> None:
    """Compare all entries under a prefix, read in small pages."""
    found: list[Entry] = []
    while True:
        page = await store.page(prefix, after=found[-1].key if found else "", limit=3)
        found += page.entries
        _expect(page.revision, model.revision, f"{call}, the revision of a page under {prefix!r}")
        if not page.more:
            break
    _expect(found, model.under(prefix), f"{call}, the entries under {prefix!r}")


async def step_revoke(store: MetadataStore, model: MetadataModel, lease_id: int, call: str) -> None:
    """End a lease in both."""
    await store.revoke_lease(lease_id)
    model.end(lease_id)
    await step_page(store, model, "", call)


async def step_watch(store: MetadataStore, model: MetadataModel, prefix: str, after: int, call: str) -> None:
    """Compare what a watch delivers."""
    expected = model.changes(prefix, after)
    async with store.watch(prefix, after) as watch:
        found = await _received(watch, len(expected))
    _expect(found, expected, f"{call}, a watch of {prefix!r} after {after}")


CHECKS: Final[Sequence[Callable[[StoreUnderTest], Awaitable[None]]]] = (
    _entries,
    _conditions,
    _racers,
    _pages,
    _removals,
    _watches,
    _compaction,
    _leases,
    _limits,
)
