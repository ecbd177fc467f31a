"""Any sequence of calls on each metadata store, against a naive model."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from logstore.base.metadata.errors import Compacted, LeaseEnded
from logstore.base.metadata.interface import MAX_LEASE_S, Condition, Delete, DeletePrefix, Put, Transaction
from logstore.testing.metadata_contract import (
    KEYS,
    PREFIXES,
    StoreUnderTest,
    step_commit,
    step_page,
    step_revoke,
    step_watch,
)
from logstore.testing.metadata_model import MetadataModel
from tests.metadata.support import (
    EtcdMember,
    Make,
    etcd_members,
    making_etcd,
    making_simulated,
    making_sqlite,
    needs_etcd,
)
from tests.support.limits import PATIENCE_S

T = TypeVar("T")
KEY = st.sampled_from(KEYS)
VALUE = st.binary(max_size=8)


class LoopThread:
    """An event loop in a thread of its own, in which a store is open."""

    def __init__(self, make: Make, clock: trio.abc.Clock | None) -> None:
        self._ready = threading.Event()
        self._over = trio.Event()
        self._make = make
        self._thread = threading.Thread(target=lambda: trio.run(self._main, clock=clock), daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    async def _main(self) -> None:
        async with self._make() as self.test:
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._over.wait()

    def run(self, call: Callable[[StoreUnderTest], Awaitable[T]]) -> T:
        """Run a call on the loop."""
        return trio.from_thread.run(call, self.test, trio_token=self._token)

    def close(self) -> None:
        """Close the store and end the loop."""
        trio.from_thread.run_sync(self._over.set, trio_token=self._token)
        self._thread.join(PATIENCE_S)


class AgainstModel(RuleBasedStateMachine):
    """Calls on a store and on the model. Subclasses say how a store is made."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        make, clock = self.parts()
        self.loop = LoopThread(make, clock)
        self.stack.callback(self.loop.close)

        async def begin(test: StoreUnderTest) -> int:
            return (await test.store.get("a")).revision

        self.model = MetadataModel(self.loop.run(begin))
        self.compacted = self.model.first

    def parts(self) -> tuple[Make, trio.abc.Clock | None]:
        """How a store is made, and its clock."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Close the store."""
        self.stack.close()

    @rule(
        keys=st.lists(KEY, max_size=3, unique=True), values=st.lists(VALUE, min_size=3, max_size=3),
        conditions=st.lists(st.tuples(KEY, st.integers(-1, 3)), max_size=2), bound=st.booleans(), remove=st.booleans(),
    )  # fmt: skip
    def commit(
        self, keys: list[str], values: list[bytes], conditions: list[tuple[str, int]], bound: bool, remove: bool
    ) -> None:
        """A transaction; -1 stands for a condition that holds."""
        lease_id = min(self.model.leases) if bound and self.model.leases else 0
        changes = [
            Delete(key) if remove and index == 0 else Put(key, values[index], lease_id)
            for index, key in enumerate(keys)
        ]
        found = []
        for key, back in conditions:
            entry = self.model.entries.get(key)
            now = entry.revision if entry else 0
            found.append(Condition(key, now if back < 0 else max(0, self.model.revision - back)))
        transaction = Transaction(tuple(found), tuple(changes))
        self.loop.run(lambda test: step_commit(test.store, self.model, transaction, "commit"))

    @rule(prefix=st.sampled_from(("a/", "b/", "a", "zz")))
    def remove(self, prefix: str) -> None:
        """Everything under a prefix."""
        transaction = Transaction((), (DeletePrefix(prefix),))
        self.loop.run(lambda test: step_commit(test.other, self.model, transaction, "remove"))

    @precondition(lambda self: len(self.model.leases) < 2)
    @rule()
    def grant(self) -> None:
        """A lease that does not end by itself."""
        self.model.leases.add(self.loop.run(lambda test: test.store.grant_lease(MAX_LEASE_S)).lease_id)

    @precondition(lambda self: self.model.leases)
    @rule()
    def revoke(self) -> None:
        """The end of a lease."""
        lease_id = min(self.model.leases)
        self.loop.run(lambda test: step_revoke(test.other, self.model, lease_id, "revoke"))

        async def refused(test: StoreUnderTest) -> None:
            with pytest.raises(LeaseEnded):
                await test.store.keep_alive(lease_id)

        self.loop.run(refused)

    @rule(back=st.integers(0, 5))
    def compact(self, back: int) -> None:
        """Let older changes go."""
        revision = max(self.compacted, self.model.revision - back)
        self.loop.run(lambda test: test.store.compact(revision))
        self.compacted = revision

    @rule(prefix=st.sampled_from(PREFIXES), back=st.integers(0, 12))
    def watch(self, prefix: str, back: int) -> None:
        """Changes since some revision, or Compacted."""
        after = max(self.model.first, self.model.revision - back)

        async def compacted(test: StoreUnderTest) -> None:
            async with test.other.watch(prefix, after) as watch:
                with pytest.raises(Compacted):
                    await watch.receive()

        if after < self.compacted:
            self.loop.run(compacted)
        else:
            self.loop.run(lambda test: step_watch(test.other, self.model, prefix, after, "watch"))

    @invariant()
    def entries_are_equal(self) -> None:
        """All entries, in pages."""
        self.loop.run(lambda test: step_page(test.other, self.model, "", "entries"))


class SimulatedAgainstModel(AgainstModel):
    """The simulated store."""

    def parts(self) -> tuple[Make, trio.abc.Clock | None]:
        """See AgainstModel."""
        clock = trio.testing.MockClock()
        return making_simulated(clock), clock


class SqliteAgainstModel(AgainstModel):
    """The store of one host."""

    def parts(self) -> tuple[Make, trio.abc.Clock | None]:
        """See AgainstModel."""
        clock = trio.testing.MockClock()
        directory = self.stack.enter_context(TemporaryDirectory())
        return making_sqlite(Path(directory), clock), clock


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdMember]]:
    """One etcd for all examples: each has a namespace of its own."""
    with etcd_members(tmp_path_factory.mktemp("etcd")) as members:
        yield members


def test_the_simulated_store_against_the_model() -> None:
    """The store of simulations is the model, call by call."""
    run_state_machine_as_test(SimulatedAgainstModel, settings=settings(max_examples=40, stateful_step_count=30))


def test_sqlite_against_the_model() -> None:
    """The store of one host is the model, call by call."""
    run_state_machine_as_test(SqliteAgainstModel, settings=settings(max_examples=15, stateful_step_count=30))


@needs_etcd
def test_etcd_against_the_model(etcd: list[EtcdMember]) -> None:
    """The store on etcd is the model, call by call, at two hosts."""
    make = making_etcd(etcd)

    class EtcdAgainstModel(AgainstModel):
        def parts(self) -> tuple[Make, trio.abc.Clock | None]:
            return make, None

    run_state_machine_as_test(EtcdAgainstModel, settings=settings(max_examples=15, stateful_step_count=30))
