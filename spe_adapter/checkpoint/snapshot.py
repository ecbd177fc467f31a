"""What a checkpoint is made of, as the owner of the state freezes it.

Invariants:
* Between a freeze and its release, `read` gives the content at the freeze, whatever the operator does meanwhile.
* Page numbers of a snapshot are ascending and unique.

Source: SGuard, section 4.4 (freeze, pages writable again once they are written).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from spe_adapter.codec.kernels import Bytes, Int64s


class PageSnapshot(Protocol):
    """Frozen pages, such as `spe_adapter.pages`' FrozenPages."""

    @property
    def page_bytes(self) -> int:
        """Size of a page."""

    @property
    def ids(self) -> Int64s:
        """Numbers of the frozen pages, ascending: all that ever changed, or those that changed since another freeze.
        Other pages are zero, or as at the other freeze.
        """

    def read(self, ids: Int64s) -> Bytes:
        """The content of pages at the freeze, one row of `page_bytes` for each. Raises an error of CairnError if the
        freeze was cancelled.
        """

    def written(self, ids: Int64s) -> None:
        """Let these pages change without a copy."""

    def release(self) -> None:
        """End the freeze. May be called again."""


class VersionHeader(NamedTuple):
    """What tells the version of a state and the layout of its pages.

    `fingerprint`: of the operator and the layout; `epoch` and `attempt`: the version; `capacity` in rows and
    `arena_bytes`: sizes of the table; `note`: what the owner keeps with a version.
    """

    fingerprint: str
    epoch: int
    attempt: str
    capacity: int
    arena_bytes: int
    note: bytes
    extra: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """Further values of the owner, JSON."""


class Snapshot(NamedTuple):
    """A frozen version. `point`: what a later freeze is given to get the pages that changed since this one, None if it
    cannot tell; `is_full`: all pages that differ from zero are here, not only those that changed.
    """

    header: VersionHeader
    pages: PageSnapshot
    point: object
    is_full: bool


Freeze = Callable[[object], Snapshot | None]
"""Freezes the present version of a unit: with all pages (None), or with those that changed since the freeze with this
point. A freeze that cannot tell what changed gives all pages. None: there is no version to freeze now."""
