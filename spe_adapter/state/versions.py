"""Versions of a query's state in this host's shared memory: any worker opens the one it needs, none reads what another
writes.

A task opens its partition at the version its epoch starts from (`wanted`, the winner of the last epoch, as the driver
knows it), works on an overlay, and publishes what it changed as a delta. The next task, told which attempt won, brings
the base forward by the winner's delta; without it, by the log.

Invariants:
* Nobody gets a base whose tag is not the wanted one. What is damaged, stale or foreign is loaded anew, never used.
* A base changes only under an exclusive lock; who reads holds a shared one. If a lock is held for too long, a new file
  takes the base's place and the old one lives on for those who hold it.
* Only two versions are kept: the base, and the deltas that may lead to the next one.
* The log is the truth. All of this can be removed at any moment at the cost of one load.

Source: CEC paper, section II.B (loading an EC); SGuard, section 4 (copy-on-write); docs/decisions/0009.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from spe_adapter.codec.kernels import Bytes
from spe_adapter.state.delta import Beat, Delta, Loaded, mark_of, needs_of
from spe_adapter.state.errors import StateDamaged
from spe_adapter.state.files import World, let_go
from spe_adapter.state.layout import fingerprint_of
from spe_adapter.state.opening import Base, Group, How, Loader, Opening, Quarters
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.query import QueryPlace, Used, default_root, usage
from spe_adapter.state.segment import Owner, Tag, boot_id
from spe_adapter.state.store import Changes
from spe_adapter.state.table import anonymous

__all__ = ["Group", "How", "Loaded", "Loader", "OpenState", "StateDirectory", "Tag", "Used", "default_root", "usage"]

LOCK_LIMIT_S: Final = 1.0
"""How long to wait for a lock before going round it: longer than any apply, shorter than anyone's patience."""


class StateDirectory:
    """The shared state of one query on this host.

    `limit_bytes` bounds what all its files and a task's private memory take together. `seed` keys the hashes of bases
    made here: draw it at random. Raises StateDirectoryRefused, StateBusy and StateTooLarge throughout.
    """

    def __init__(
        self,
        root: Path | str | None,
        query: str,
        limit_bytes: int,
        *,
        seed: int = 0,
        world: World | None = None,
        lock_limit_s: float = LOCK_LIMIT_S,
    ) -> None:
        world = World() if world is None else world
        self.root = default_root() if root is None else Path(root)
        self.query = query
        place = QueryPlace(self.root, query, world, lock_limit_s)
        self._quarters = Quarters(place, limit_bytes, seed, world, lock_limit_s)
        self._boot = boot_id()

    @contextmanager
    def open(
        self, partition: int, schema: pa.Schema, fingerprint: str, wanted: Tag | None, loader: Loader
    ) -> Iterator["OpenState"]:
        """A partition's state at the version `wanted` (None: nothing yet), locked against change until the end.

        `fingerprint` names the operator: state under another one is not used. Raises what the loader raises,
        StateSchemaRefused and StateSchemaChanged.
        """
        clock = self._quarters.world.clock
        started_s = clock.monotonic_s()
        owner = Owner(self.query, partition, fingerprint_of(schema, fingerprint).hex(), self._boot)
        with self._quarters.place.held():
            opening = Opening(self._quarters, owner, schema, wanted, loader)
            base, how = opening.reach()
            try:
                yield OpenState(opening, base, how, clock.monotonic_s() - started_s)
            except Exception as error:
                if _is_damage(error):
                    opening.condemn(base)
                raise
            finally:
                let_go(base.descriptor)

    def remove(self) -> bool:
        """Remove everything of this query; False if somebody uses it."""
        return self._quarters.place.remove()


def _is_damage(error: BaseException | None) -> bool:
    """Whether damaged state is behind an error, however it was wrapped on its way."""
    while error is not None and not isinstance(error, StateDamaged):
        error = error.__cause__ or error.__context__
    return error is not None


class OpenState:
    """A partition's state as a task has it: read it through `base`, change it through an overlay.

    `how` says where it came from: "current" (it was there), "delta" (a delta was applied), "caught_up" (steps from the
    log), "loaded" (all from the log), "empty". `note` is what was published beside it.
    """

    def __init__(self, opening: Opening, base: Base, how: How, load_seconds: float) -> None:
        self.base = base.table
        self.how: How = how
        self.load_seconds = load_seconds
        self.note = base.note
        self.tag = opening.wanted
        self._opening = opening

    def overlay(self) -> Overlay:
        """A store over the base whose private memory counts towards the query's limit."""
        return Overlay(self.base, self._allocate)

    def publish(self, tag: Tag, changes: Changes, mark: Beat, note: bytes = b"") -> int:
        """Write what changed as the delta from this version to `tag`; the bytes written.

        It counts once somebody says that `tag` won. Raises StateTooLarge; then nothing is written.
        """
        loaded = Loaded(
            tag,
            [changes.footprints],
            [changes.closed],
            mark_of(mark),
            note,
            needs_of(changes.footprints, changes.opened),
        )
        return self._opening.write_delta(Delta(self._opening.owner, self.tag, loaded))

    def _allocate(self, size_bytes: int) -> Bytes:
        self._opening.quarters.charge(size_bytes, "a task's private copy")
        return anonymous(size_bytes)
